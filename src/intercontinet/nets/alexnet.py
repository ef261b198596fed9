"""AlexNet for 32 x 32 images, as in the paper's CIFAR experiments: five convolutions, two wide layers, no BatchNorm."""

from __future__ import annotations

import torch
from torch import nn

from intercontinet.nets.initial import draw


def alexnet(outputs: int, channels: int = 3, seed: int | None = None) -> nn.Sequential:
    """23 million parameters; dropout of one half before each of the two wide layers while it trains.

    Args:
        outputs: Number of classes.
        channels: Of an image.
        seed: Fixes the starting weights without touching torch's global generator; None draws from that one.

    >>> alexnet(2, seed=0).eval()(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 2])
    """
    with torch.device("meta"):
        net = nn.Sequential(
            nn.Conv2d(channels, 64, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(64, 192, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Dropout(), nn.Linear(256 * 2 * 2, 4096), nn.ReLU(),
            nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, outputs),
        )  # fmt: skip
    return draw(net, seed)
