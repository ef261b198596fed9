"""The lesser of two: a sum, and the ceiling that it may not rise above."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from intercontinet.bounds.arithmetic import Arithmetic
from intercontinet.bounds.registry import rule
from intercontinet.errors import InvalidData
from intercontinet.interval import Interval


class Lesser(nn.Module):
    """[batch, 2 * columns] -> [batch, columns]: the lesser of each pair of neighbours.

    >>> import torch
    >>> Lesser()(torch.tensor([[5.0, 1.0, -2.0, 1.0]]))
    tensor([[ 1., -2.]])
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 2 or x.shape[1] % 2:
            raise InvalidData(f"pairs are made of [batch, an even number of columns], not {tuple(x.shape)}")
        return x.reshape(len(x), -1, 2).amin(2)


@rule(Lesser)
def lesser(layer: Lesser, parameters: Mapping[str, Interval], x: Interval, arithmetic: Arithmetic) -> Interval:
    """No rounding, and the edges of a minimum are the minima of the edges: never above the lower of the two ceilings.

    Hardware may flush a subnormal entry to zero on the way.
    """
    lower = layer.forward(x.lower)
    out = Interval.point(lower) if x.is_point else Interval(lower, layer.forward(x.upper))
    return arithmetic.function(out, out, ulps=0)
