"""Numbers that encoders without rounding have in common, and sums over the cells of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import torch.nn.functional as F
from torch import Tensor

EXACT = 1 << 24  # float32 holds all whole numbers up to this one
BRIGHTEST = 255  # pixels are whole numbers of 255ths
STEEPEST = 127  # largest weight: with the 8 bits of what it multiplies, products are exact in TF32 and bfloat16 too


def cell_of(sides: Sequence[int], pool: int) -> tuple[int, ...] | None:
    """Sides of a cell, where cells of one size make a grid of ``pool`` a side; None where they do not.

    >>> cell_of((8, 7), 2), cell_of((4, 4), 3)
    ((4, 4), None)
    """
    if pool < 1:
        return None
    cell = tuple(ceil(side / pool) for side in sides)
    return cell if all(ceil(side / step) == pool for side, step in zip(sides, cell, strict=True)) else None


def summed(values: Tensor, cell: Sequence[int]) -> Tensor:
    """Sums over cells, the last of which may be smaller: [batch, channels, rows, columns] -> of a coarser grid."""
    return F.avg_pool2d(values, tuple(cell), tuple(cell), ceil_mode=True, divisor_override=1)
