"""The plain multi-layer perceptron of the paper's MNIST experiments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn


def mlp(inputs: int, hidden: Sequence[int], outputs: int, seed: int | None = None) -> nn.Sequential:
    """Flatten, then Linear and ReLU for each hidden width, then Linear; biases start at zero.

    Args:
        inputs: Features an example has.
        hidden: Widths of the hidden layers.
        outputs: Number of classes.
        seed: Fixes the starting weights without touching torch's global generator; None draws from that one.

    >>> mlp(4, [3], 2)(torch.zeros(5, 2, 2)).shape
    torch.Size([5, 2])
    """
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = [nn.Flatten()]
    widths = [inputs, *hidden, outputs]
    for index, (fan_in, fan_out) in enumerate(pairwise(widths)):
        layer = nn.Linear(fan_in, fan_out, device="meta").to_empty(device="cpu")  # no draw from the global generator
        nn.init.uniform_(layer.weight, -(fan_in**-0.5), fan_in**-0.5, generator=generator)
        nn.init.zeros_(layer.bias)
        layers += [layer] if index == len(hidden) else [layer, nn.ReLU()]
    return nn.Sequential(*layers)
