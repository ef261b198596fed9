"""Sight: a network of whole numbers that learned to see from the images of CIFAR-100, without their labels.

``python -m benchmarks.pretrain`` trained it; the file beside this one holds it. Nothing trains it any further.
"""

from __future__ import annotations

from importlib.resources import files

from safetensors.torch import load

from intercontinet.nets.whole import WholeNet

FILE = "sight.safetensors"
WIDTHS, BLOCKS = (64, 128, 256), (0, 1, 2)


def sight(heard: int = 2, pool: int = 2) -> WholeNet:
    """[batch, 1 or 3, height, width], pixels in [0, 1] -> [batch, features], whole numbers: see WholeNet.

    >>> import torch
    >>> sight()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 1536])
    """
    net = WholeNet(WIDTHS, BLOCKS, heard, pool)
    net.load_state_dict(load(files("intercontinet.nets").joinpath(FILE).read_bytes()))
    return net
