"""Starting weights."""

from __future__ import annotations

import torch
from torch import nn


def draw(net: nn.Sequential, seed: int | None) -> nn.Sequential:
    """Give a net made on the meta device weights drawn uniformly within 1 / sqrt(fan-in), and biases of zero.

    Args:
        net: Linear and convolutional layers, and layers without parameters.
        seed: Fixes the draw without touching torch's global generator; None draws from that one.
    """
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    net = net.to_empty(device="cpu")
    for layer in net:
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            reach = layer.weight[0].numel() ** -0.5
            nn.init.uniform_(layer.weight, -reach, reach, generator=generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return net
