"""What counts as right, where it is not a class: numbers within a tolerance, several labels, or a user's own rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from intercontinet.errors import InvalidData, InvalidSetting
from intercontinet.interval import Interval

LEAST = 2.0**-149  # the smallest float32 number above zero


@final
@dataclass(frozen=True)
class Criterion:
    """When an output is right.

    Attributes:
        name: Goes into certificates.
        slack: From an interval of outputs [batch, ...] and targets [batch, ...] to [batch]: not negative only where
            *every* output of the interval is right. It must not rise as the interval grows. For single outputs, whose
            interval is a point, it says whether they are right; and its size says by how much, which steers searches.
        predicted: From outputs to the targets they would be right for, where that makes sense: how predictions are
            told apart. None where there is no such thing.

    >>> above = Criterion("above", lambda out, y: out.lower.squeeze(1) - y)
    >>> above.slack(Interval(torch.tensor([[1.0]]), torch.tensor([[3.0]])), torch.tensor([0.5]))
    tensor([0.5000])
    """

    name: str
    slack: Callable[[Interval, Tensor], Tensor]
    predicted: Callable[[Tensor], Tensor] | None = None

    def holds(self, out: Interval, y: Tensor) -> Tensor:
        """Which examples are right for every output of the interval, [batch]. NaN never is."""
        slack = self.slack(out, y)
        if not isinstance(slack, Tensor) or slack.shape != (len(y),):
            shape = tuple(slack.shape) if isinstance(slack, Tensor) else type(slack).__name__
            raise InvalidData(f"the slack of criterion '{self.name}' gives {shape}; expected [{len(y)}]")
        return slack >= 0


def regression(tolerance: float) -> Criterion:
    """Every output at most ``tolerance`` away from its target.

    >>> within = regression(0.5)
    >>> within.holds(Interval.point(torch.tensor([[1.0], [2.0]])), torch.tensor([[1.4], [2.6]]))
    tensor([ True, False])
    """
    if not 0 <= tolerance < float("inf"):
        raise InvalidSetting(f"the tolerance is {tolerance}: a finite number, zero or more, is needed")

    def slack(out: Interval, y: Tensor) -> Tensor:
        target = _like(out, y)
        off = torch.maximum(out.upper - target, target - out.lower)
        return tolerance - off.reshape(len(y), -1).amax(1)

    return Criterion(f"regression within {tolerance}", slack)


def multi_label(threshold: float = 0.0) -> Criterion:
    """Every output above the threshold where its target is one (or true), and not above it where it is zero.

    >>> yes = multi_label()
    >>> yes.holds(Interval.point(torch.tensor([[1.0, -1.0], [1.0, 2.0]])), torch.tensor([[1, 0], [1, 0]]))
    tensor([ True, False])
    """

    if not abs(threshold) < float("inf"):
        raise InvalidSetting(f"the threshold is {threshold}: a finite number is needed")

    def slack(out: Interval, y: Tensor) -> Tensor:
        wanted = _like(out, y) > 0.5
        room = torch.where(wanted, out.lower - threshold - LEAST, threshold - out.upper)
        return room.reshape(len(y), -1).amin(1)

    def predicted(out: Tensor) -> Tensor:
        return (out.double() > threshold).to(out.dtype)  # compared as the slack is, where the threshold is not rounded

    return Criterion(f"multi-label above {threshold}", slack, predicted)


def _like(out: Interval, y: Tensor) -> Tensor:
    """Targets in the shape of the outputs, of which a last dimension of one may be missing."""
    target = y.to(out.lower.dtype)
    if target.shape != out.shape and (*target.shape, 1) == tuple(out.shape):
        target = target.unsqueeze(-1)
    if target.shape != out.shape:
        raise InvalidData(
            f"targets have shape {tuple(y.shape)} and outputs {tuple(out.shape)}: give one target an output"
        )
    return target
