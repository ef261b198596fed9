r"""The exact product of two boxes, in as few matrix products as their signs allow.

With :math:`a^+ = \max(a, 0)`, :math:`a^- = \min(a, 0)`, and :math:`\cdot` any bilinear map (a matrix product, a
convolution):

* one factor a point: centre and radius, :math:`c = x \cdot w_c`, :math:`r = |x| \cdot w_r`: two products, exact;
* :math:`x \ge 0`: :math:`\overline{xw} = \bar x \cdot \bar w^+ + \underline x \cdot \bar w^-`, likewise below: four.
  Written with the centre and radius of x, the edges are :math:`x_c \cdot \bar w + x_r \cdot |\bar w|` and
  :math:`x_c \cdot \underline w - x_r \cdot |\underline w|`; their half sum and half difference are four products too,
  one of which, :math:`x_c \cdot w_c`, needs no gradient where only radii train;
* either sign: eight, and a correction C:

.. math::
    \overline{xw} = \bar x^+ \bar w^+ + \underline x^+ \bar w^-
    + \bar x^- \underline w^+ + \underline x^- \underline w^- - C,
    \qquad C = \sum \min(\underline x^- \underline w^-,\; \bar x^+ \bar w^+).

The four products are the largest corner whenever one factor keeps its sign. When both change sign, two corners compete,
:math:`\underline x\,\underline w` and :math:`\bar x\,\bar w`; their sum is one too many, and C takes the smaller one
back. C is no product of matrices, so it is summed term by term, and only where there is something to sum. Rump's form
(three products, at most 1.5 times as wide) replaces all of this where speed matters more than the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from intercontinet.interval import Interval


class Bilinear(Protocol):
    """A map that is linear in its input and in its weight, with both laid out so that terms can be met one by one."""

    def __call__(self, x: Tensor, w: Tensor) -> Tensor:
        """The product."""
        ...

    def termwise(self, combine: Callable[..., Tensor], xs: tuple[Tensor, ...], ws: tuple[Tensor, ...]) -> Tensor:
        """``sum(combine(*x_terms, *w_terms))`` over the terms of each output entry, instead of ``sum(x * w)``.

        ``combine`` must be zero where any of its weights is: such terms are left out.
        """
        ...


def multiply(op: Bilinear, x: Interval, w: Interval, exact: bool = True) -> Interval:
    """Bounds of ``op(x, w)`` for every x and w in their intervals.

    Args:
        op: The bilinear map.
        x: Input.
        w: Weight.
        exact: Whether to use the exact form where both factors may be of either sign; otherwise Rump's.
    """
    if x.is_point and w.is_point:
        return Interval.point(op(x.lower, w.lower))
    if x.is_point:
        return Interval.around(op(x.lower, w.centre), op(x.magnitude, w.radius))
    if w.is_point:
        return Interval.around(op(x.centre, w.lower), op(x.radius, w.magnitude))
    if x.nonnegative:
        low, up, half = w.lower.abs(), w.upper.abs(), x.radius / 2
        centre = op(x.centre, w.centre) + op(half, up - low)
        return Interval.around(centre, op(x.centre, w.radius) + op(half, up + low))
    return _either_sign(op, x, w) if exact else multiply_loosely(op, x, w)


def multiply_loosely(op: Callable[[Tensor, Tensor], Tensor], x: Interval, w: Interval) -> Interval:
    """Rump's form, by centre and radius, for any bilinear map; exact where one factor is a point."""
    if x.is_point and w.is_point:
        return Interval.point(op(x.lower, w.lower))
    radius = op(x.centre.abs() + x.radius, w.radius) + op(x.radius, w.centre.abs())
    return Interval.around(op(x.centre, w.centre), radius)


def _either_sign(op: Bilinear, x: Interval, w: Interval) -> Interval:
    x_low_pos, x_low_neg = x.lower.clamp(min=0), x.lower.clamp(max=0)
    x_up_pos, x_up_neg = x.upper.clamp(min=0), x.upper.clamp(max=0)
    w_low_pos, w_low_neg = w.lower.clamp(min=0), w.lower.clamp(max=0)
    w_up_pos, w_up_neg = w.upper.clamp(min=0), w.upper.clamp(max=0)
    upper = op(x_up_pos, w_up_pos) + op(x_low_pos, w_up_neg) + op(x_up_neg, w_low_pos) + op(x_low_neg, w_low_neg)
    lower = op(x_low_pos, w_low_pos) + op(x_up_pos, w_low_neg) + op(x_up_neg, w_up_neg) + op(x_low_neg, w_up_pos)
    both_signs = bool(((x.lower < 0) & (x.upper > 0)).any()) and bool(((w.lower < 0) & (w.upper > 0)).any())
    if both_signs:
        corners = (x_low_neg, x_up_pos), (w_low_neg, w_up_pos)
        upper = upper - op.termwise(_smaller_peak, *corners)
        lower = lower - op.termwise(_smaller_dip, *corners)
    return Interval(lower, upper)


def _smaller_peak(x_low: Tensor, x_up: Tensor, w_low: Tensor, w_up: Tensor) -> Tensor:
    return torch.minimum(x_low * w_low, x_up * w_up)


def _smaller_dip(x_low: Tensor, x_up: Tensor, w_low: Tensor, w_up: Tensor) -> Tensor:
    return torch.maximum(x_low * w_up, x_up * w_low)
