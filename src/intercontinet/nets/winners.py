"""Winners of random projections: many units each add up a few pixels, and an example is known by the units on top.

Nothing is trained. Pixels are whole numbers of 255ths and the weights -1, 0 and 1, so that no sum rounds and every
hardware finds the same winners.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intercontinet.bounds.arithmetic import Arithmetic
from intercontinet.bounds.registry import rule
from intercontinet.errors import InvalidData, InvalidSetting
from intercontinet.interval import Interval
from intercontinet.nets.numbers import BRIGHTEST, EXACT

TAPS = 16  # pixels that a unit adds, and as many others that it subtracts: an even image moves no unit
UNITS_AT_ONCE = 1024


class KWinners(nn.Module):
    """[batch, ...] -> [batch, winners], numbers of the units with the largest sums, the largest first.

    Of equal sums the lower number wins.

    Args:
        features: Pixels of one example, whatever its shape.
        units: How many there are to win.
        winners: How many do.
        seed: Fixes which pixels a unit adds and subtracts.

    >>> layer = KWinners(features=2, units=4, winners=2, seed=1)
    >>> layer.plus.flatten(), layer.minus.flatten()  # with two pixels, a unit is their difference
    (tensor([1, 0, 0, 1]), tensor([0, 1, 1, 0]))
    >>> layer(torch.tensor([[0.9, 0.1], [0.1, 0.9], [0.5, 0.5]]))
    tensor([[1, 2],
            [0, 3],
            [0, 1]])
    """

    plus: Tensor
    minus: Tensor

    def __init__(self, features: int, units: int, winners: int, seed: int = 0) -> None:
        super().__init__()
        if features < 2:
            raise InvalidSetting(f"features is {features}; a unit compares at least two pixels")
        if not 1 <= winners <= units:
            raise InvalidSetting(f"winners is {winners}; of {units} units at least one can win, and at most all")
        generator = torch.Generator().manual_seed(seed)
        taps = min(TAPS, features // 2)

        def places(rows: int) -> Tensor:
            """Different pixels for each unit: where random numbers, too fine for ties, are largest."""
            return torch.rand(rows, features, generator=generator, dtype=torch.float64).topk(2 * taps).indices

        starts = range(0, units, UNITS_AT_ONCE)
        drawn = torch.cat([places(min(UNITS_AT_ONCE, units - start)) for start in starts])
        plus, minus = drawn.chunk(2, 1)
        self.winners, self.bins = winners, units
        for name, tensor in {"plus": plus, "minus": minus}.items():  # part of the architecture, drawn from its seed
            self.register_buffer(name, tensor.contiguous(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        pixels = torch.round(BRIGHTEST * x.flatten(1)).T.contiguous()
        sums = F.embedding_bag(self.plus, pixels, mode="sum") - F.embedding_bag(self.minus, pixels, mode="sum")
        later = torch.arange(self.bins, device=x.device)[:, None]
        rank = sums.long() * self.bins - later  # all different, so that there is one order only
        return rank.T.topk(self.winners).indices

    def extra_repr(self) -> str:
        return f"units={self.bins}, winners={self.winners}, taps={2 * self.plus.shape[1]}"


@rule(KWinners)
def k_winners(layer: KWinners, parameters: object, x: Interval, arithmetic: Arithmetic) -> Interval:
    """The very winners that a float32 evaluation finds, provided that its sums of whole numbers do not round."""
    if not x.is_point:
        raise InvalidData("winners are found among sums of pixels known exactly: pass a tensor, not an interval")
    pixels = x.lower.float()
    largest = float(torch.round(BRIGHTEST * pixels).abs().max())
    if not largest * 2 * layer.plus.shape[1] < EXACT:
        raise InvalidData(f"sums of numbers up to {largest / BRIGHTEST:.6g} would round: pass pixels from 0 to 1")
    return Interval.point(cast(Tensor, layer(pixels)))
