"""Networks by name, as configurations have them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Size, nn

from intercontinet.errors import InvalidSetting
from intercontinet.nets.alexnet import alexnet
from intercontinet.nets.mlp import mlp


def build_net(name: str, shape: Sequence[int], outputs: int, seed: int) -> nn.Sequential:
    """ "alexnet", or "mlp" and the widths of its hidden layers, "mlp-400-400", for examples of this shape.

    >>> len(build_net("mlp-8-8", (1, 4, 4), outputs=2, seed=0))
    6
    """
    kind, *widths = name.split("-")
    if kind == "alexnet" and not widths:
        if tuple(shape[1:]) != (32, 32):
            raise InvalidSetting(
                f"alexnet is for images of 32 x 32 pixels, and these examples are {tuple(shape)}: use an mlp"
            )
        return alexnet(outputs, shape[0], seed=seed)
    if kind == "mlp" and widths and all(width.isdecimal() and int(width) > 0 for width in widths):
        return mlp(Size(shape).numel(), [int(width) for width in widths], outputs, seed=seed)
    raise InvalidSetting(f"there is no net '{name}': use alexnet, or mlp with its hidden widths, such as mlp-400-400")
