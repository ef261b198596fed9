"""Two ways to compute a bound: fast, over the reals, for training; and true of float32 hardware, for certificates.

A rule says what it computed and how much rounding the real network may add; the arithmetic decides what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, final

import torch
from torch import Tensor

from intercontinet.interval import Interval

UNIT = 2.0**-24  # largest relative error of one float32 operation
SMALLEST = 2.0**-126  # below it float32 hardware may flush to zero
LARGEST = torch.finfo(torch.float32).max / 64  # beyond it an intermediate result may overflow
NUDGE = 2.0**-102  # UNIT * NUDGE = SMALLEST: turns factors flushed to zero into a relative error


class Arithmetic(Protocol):
    """How rules turn real bounds into the bounds they return."""

    @property
    def exact(self) -> bool:
        """Whether products of two intervals of either sign are exact, or Rump's looser and much faster form."""
        ...

    @property
    def sound(self) -> bool:
        """Whether bounds hold for float32 inference (evaluation mode); otherwise they serve training."""
        ...

    def products(self, out: Interval, magnitude: Callable[[], Tensor], terms: int, growth: float = 1.0) -> Interval:
        """Account for a sum of ``terms`` products, in whatever order it is added up.

        Args:
            out: The sum's bounds over the reals.
            magnitude: Gives the largest possible sum of the absolute values of all terms.
            terms: Number of terms, bias included.
            growth: How much larger than ``magnitude`` an intermediate result can get.
        """
        ...

    def function(self, out: Interval, x: Interval, ulps: Tensor | float, absolute: Tensor | float = 0.0) -> Interval:
        """Account for an elementwise function.

        Args:
            out: The function's bounds over the reals.
            x: Its argument.
            ulps: Error in units in the last place, both of the result and of ``absolute``.
            absolute: Size of intermediate results that may cancel.
        """
        ...


@final
class Real:
    """No rounding is accounted for: what training uses, in the precision of its tensors.

    Args:
        exact: Whether to pay for exact products where both factors may be of either sign.
    """

    sound = False

    def __init__(self, exact: bool = False) -> None:
        self.exact = exact

    def products(self, out: Interval, magnitude: Callable[[], Tensor], terms: int, growth: float = 1.0) -> Interval:
        return out

    def function(self, out: Interval, x: Interval, ulps: Tensor | float, absolute: Tensor | float = 0.0) -> Interval:
        return out


@final
class Float32:
    r"""Bounds computed in float64 and widened so that they hold for every float32 evaluation.

    A float32 sum of :math:`n` products, in any order, with or without fused multiply-add, differs from the real one by
    at most :math:`\gamma_n (|W||x| + |b|)`, :math:`\gamma_n = n u / (1 - n u)`, :math:`u = 2^{-24}`, plus what
    underflow adds. Two is added to :math:`n` and a ten-thousandth to the result for the rounding of this very
    computation, whose own unit is :math:`2^{-53}`. Flushing subnormal numbers to zero is covered; TF32, half
    precision, Winograd and FFT convolutions are not.

    Where float32 might overflow, both edges become NaN. NaN survives every later rule, so that such an example is
    never certified.

    >>> wide = Float32().products(Interval.point(torch.ones(1).double()), lambda: torch.ones(1).double(), terms=1)
    >>> bool(wide.lower < 1 < wide.upper), bool(wide.upper - 1 < 1e-6)
    (True, True)
    """

    exact = True
    sound = True

    def products(self, out: Interval, magnitude: Callable[[], Tensor], terms: int, growth: float = 1.0) -> Interval:
        steps = (terms + 2) * UNIT
        if steps >= 0.5:  # gamma no longer bounds anything
            nothing = torch.full_like(out.lower, torch.nan)
            return Interval(nothing, nothing.clone(), out.nonnegative)
        size = magnitude()
        error = size * gamma(terms) + terms * 4 * SMALLEST
        return _widened(out, error, error, size * growth <= LARGEST)

    def function(self, out: Interval, x: Interval, ulps: Tensor | float, absolute: Tensor | float = 0.0) -> Interval:
        relative = 2 * UNIT * ulps

        def error(edge: Tensor) -> Tensor:
            return relative * (edge.abs() + absolute) + 64 * SMALLEST

        safe = (x.magnitude <= LARGEST) & (out.magnitude <= LARGEST)
        return _widened(out, error(out.lower), error(out.upper), safe)


def gamma(terms: float | Tensor) -> float | Tensor:
    """Relative error of a float32 computation of so many steps, with room for the rounding of the bound itself."""
    steps = (terms + 2) * UNIT
    return 1.0001 * steps / (1 - steps)


def _widened(out: Interval, below: Tensor, above: Tensor, safe: Tensor) -> Interval:
    lower, upper = out.lower - below, out.upper + above
    if out.nonnegative:
        lower = lower.clamp(min=0)
    return Interval(torch.where(safe, lower, torch.nan), torch.where(safe, upper, torch.nan), out.nonnegative)
