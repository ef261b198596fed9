"""Interval: a pair of tensors, one below the other, between which something roams."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor


@final
class Interval:
    """All tensors ``t`` with ``lower <= t <= upper``, entry by entry.

    Given by its edges or, with :meth:`around`, by centre and radius; what is missing is computed when first asked for,
    so a rule pays only for the form it uses. ``lower is upper`` marks a point.

    Args:
        lower: Lower edge, of any shape.
        upper: Upper edge, of the same shape.
        nonnegative: True when no entry can be below zero *by construction* (the output of a ReLU, say), which lets
            later layers do with half the matrix products.

    >>> box = Interval(torch.tensor([-1.0, 2.0]), torch.tensor([3.0, 2.0]))
    >>> box.centre, box.radius
    (tensor([1., 2.]), tensor([2., 0.]))
    >>> box.contains(torch.tensor([0.0, 2.0]))
    True
    """

    __slots__ = ("_centre", "_lower", "_radius", "_upper", "nonnegative")

    def __init__(self, lower: Tensor, upper: Tensor, nonnegative: bool = False) -> None:
        self._lower: Tensor | None = lower
        self._upper: Tensor | None = upper
        self._centre: Tensor | None = None
        self._radius: Tensor | None = None
        self.nonnegative = nonnegative

    @classmethod
    def point(cls, value: Tensor, nonnegative: bool = False) -> Interval:
        """The interval that holds one value."""
        return cls(value, value, nonnegative)

    @classmethod
    def around(cls, centre: Tensor, radius: Tensor) -> Interval:
        """``[centre - radius, centre + radius]``.

        >>> Interval.around(torch.tensor(1.0), torch.tensor(0.5)).upper
        tensor(1.5000)
        """
        box = cls.__new__(cls)
        box._lower = box._upper = None
        box._centre, box._radius, box.nonnegative = centre, radius, False
        return box

    @property
    def lower(self) -> Tensor:
        if self._lower is None:
            assert self._centre is not None and self._radius is not None
            self._lower = self._centre - self._radius
        return self._lower

    @property
    def upper(self) -> Tensor:
        if self._upper is None:
            assert self._centre is not None and self._radius is not None
            self._upper = self._centre + self._radius
        return self._upper

    @property
    def centre(self) -> Tensor:
        if self._centre is None:
            self._centre = self.lower if self.is_point else (self.lower + self.upper) / 2
        return self._centre

    @property
    def radius(self) -> Tensor:
        if self._radius is None:
            self._radius = (self.upper - self.lower) / 2
        return self._radius

    @property
    def is_point(self) -> bool:
        """Known, without looking at a value, to hold one point only."""
        return self._lower is not None and self._lower is self._upper

    @property
    def magnitude(self) -> Tensor:
        """The largest absolute value inside, entry by entry."""
        if self.is_point:
            return self.lower.abs()
        return torch.maximum(self.lower.abs(), self.upper.abs())

    @property
    def shape(self) -> torch.Size:
        return (self._lower if self._lower is not None else self.centre).shape

    def contains(self, value: Tensor) -> bool:
        """Whether every entry of ``value`` lies inside. NaN never does."""
        return bool(((self.lower <= value) & (value <= self.upper)).all())

    def __getitem__(self, index: Tensor | int | slice) -> Interval:
        """The same index of both edges."""
        if self.is_point:
            return Interval.point(self.lower[index], self.nonnegative)
        return Interval(self.lower[index], self.upper[index], self.nonnegative)

    def __repr__(self) -> str:
        return f"Interval(lower={self.lower}, upper={self.upper})"
