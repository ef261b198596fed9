"""The plain multi-layer perceptron of the paper's MNIST experiments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from intercontinet.nets.initial import draw


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
    widths = [inputs, *hidden]
    with torch.device("meta"):
        layers: list[nn.Module] = [nn.Flatten()]
        for fan_in, fan_out in pairwise(widths):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        net = nn.Sequential(*layers, nn.Linear(widths[-1], outputs))
    return draw(net, seed)
