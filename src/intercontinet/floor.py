"""Floors: how many examples of a task no weights in a region get wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor, nn

from intercontinet.bounds import Float32, Network, Real, certain, in_float64, worst_margins
from intercontinet.data import Data, check_inputs, check_labels, collect, fingerprint
from intercontinet.errors import InvalidRegion
from intercontinet.inference import evaluated, examples_at_once, outputs_of, positions, right
from intercontinet.interval import Interval
from intercontinet.region import Region
from intercontinet.statistics import lowest_share

Margins = Literal["joint", "separate"]
CONFIDENCE = 0.95  # of floors for unseen examples


@final
@dataclass(frozen=True)
class TaskFloor:
    """How much of one task is certain.

    Attributes:
        task: The task's name.
        certified: Number of examples that no weight in the region can get wrong.
        total: Number of examples counted.
        correct: Number of examples that the model got right when it was certified.
        classes: The outputs that took part, or None for all.
        keep: The share of ``correct`` that was asked for, or None.
        data: Hash of the examples, whatever their order.
        unseen_certified: How many of the unseen examples are certain, or None where none were held back.
        unseen_total: How many examples of ``total`` shaped nothing, neither weights nor region, or None.

    >>> print(TaskFloor("0/1", certified=880, total=1000, correct=960, unseen_certified=85, unseen_total=100))
    0/1: 880 of 1000 certain (88.0%), accuracy 96.0%; of unseen examples at least 77.8% (95% confidence)
    """

    task: str
    certified: int
    total: int
    correct: int
    classes: tuple[int, ...] | None = None
    keep: float | None = None
    data: str = ""
    unseen_certified: int | None = None
    unseen_total: int | None = None

    @property
    def floor(self) -> float:
        """Accuracy on these examples that no weight in the region falls below."""
        return self.certified / self.total

    @property
    def accuracy(self) -> float:
        """Accuracy of the model's own weights on these examples, when it was certified."""
        return self.correct / self.total

    @property
    def unseen_floor(self) -> float | None:
        """The share of unseen examples that is certain, at 95 % confidence: a bound from those that were held back."""
        if self.unseen_certified is None or self.unseen_total is None:
            return None
        return lowest_share(self.unseen_certified, self.unseen_total, CONFIDENCE)

    @property
    def kept(self) -> bool:
        """Whether the floor is as high as was asked for."""
        return self.keep is None or self.certified >= self.keep * self.correct

    def __str__(self) -> str:
        words = "" if self.kept else f" - NOT the {self.keep:.0%} of its accuracy that was asked for"
        if (share := self.unseen_floor) is not None:
            down = math.floor(1000 * share) / 10
            words += f"; of unseen examples at least {down:.1f}% ({CONFIDENCE:.0%} confidence)"
        count = f"{self.certified} of {self.total} certain ({self.floor:.1%})"
        return f"{self.task or 'data'}: {count}, accuracy {self.accuracy:.1%}{words}"


@torch.no_grad()
def certify(
    model: nn.Module,
    region: Region,
    data: Data,
    *,
    task: str = "",
    classes: Sequence[int] | None = None,
    keep: float | None = None,
    margins: Margins = "joint",
) -> TaskFloor:
    """Count the examples that every weight in the region classifies right, in float32, in any summation order.

    Args:
        model: The module; its own weights give ``accuracy``, the region gives ``certified``.
        region: The box of weights.
        data: Examples.
        task: A name for the record.
        classes: The outputs that take part, where each task has a head of its own; labels name outputs.
        keep: A share of today's accuracy to hold the result against (see :attr:`TaskFloor.kept`).
        margins: "joint", bounded as one expression, or "separate", the paper's looser definition.

    Raises:
        InvalidRegion: The model lies outside the region, or the region leaves a class that takes part unbounded.

    >>> model = nn.Linear(2, 2)
    >>> data = torch.randn(8, 2), torch.randint(2, (8,))
    >>> floor = certify(model, Region.around(model, 0.01), data)
    >>> floor.certified <= floor.correct <= floor.total
    True
    """
    outside = region.excess(model)
    if outside:
        name, excess = next(iter(outside.items()))
        raise InvalidRegion(
            f"the model's '{name}' lies {excess:.6g} outside the region: certify a model in its own region"
        )
    x, y = collect(data)
    check_inputs(x, next(iter(region.lower.values())).device)
    check_labels(y, len(x), outputs_of(model, x), classes)
    if classes is None:
        _check_bounded(region)
    labels, index = positions(y, classes)
    certified = int(certain_examples(model, region, x, labels, index, margins == "joint").sum())
    correct = int(right(model, {}, x, labels, index).sum())
    return floor_of((x, y), certified, correct, task, classes, keep)


def _check_bounded(region: Region) -> None:
    for name, lower in region.lower.items():
        if bool(lower.isinf().any() or region.upper[name].isinf().any()):
            raise InvalidRegion(
                f"'{name}' has infinite edges, as heads of tasks to come do: say which outputs take part, with classes="
            )


def floor_of(
    data: tuple[Tensor, Tensor],
    certified: int,
    correct: int,
    task: str,
    classes: Sequence[int] | None,
    keep: float | None,
    *,
    unseen_certified: int | None = None,
    unseen_total: int | None = None,
) -> TaskFloor:
    """The record of a count: :func:`certify` for those who have counted already, those held back (unseen) too."""
    x, y = data
    return TaskFloor(
        task=str(task),
        certified=certified,
        total=len(x),
        correct=correct,
        classes=None if classes is None else tuple(int(c) for c in classes),
        keep=None if keep is None else float(keep),
        data=fingerprint(x, y),
        unseen_certified=unseen_certified,
        unseen_total=unseen_total,
    )


def sensible(floor: TaskFloor) -> bool:
    """Whether all counts can be of one set of examples, of which some may have been held back."""
    unseen = floor.unseen_certified, floor.unseen_total
    certain, held_back = (0, 0) if unseen == (None, None) else unseen
    if not isinstance(certain, int) or not isinstance(held_back, int):
        return False
    seen_certified, seen = floor.certified - certain, floor.total - held_back
    return (
        floor.total > 0
        and 0 <= floor.correct <= floor.total
        and 0 <= certain <= held_back
        and 0 <= seen_certified <= seen
    )


@torch.no_grad()
def certain_examples(
    model: nn.Module,
    region: Region,
    x: Tensor,
    labels: Tensor,
    classes: Tensor | None,
    joint: bool = True,
    quick: bool = False,
) -> Tensor:
    """Which examples are certain, [examples]: :func:`certify` without its checks, for those who call it often.

    ``quick`` computes in float32 and ignores rounding: a fast guess, never a promise.
    """
    network = Network(model)
    boxes = region.intervals(torch.float32 if quick else torch.float64)
    arithmetic = Real(exact=True) if quick else Float32()
    parts = []
    with evaluated(model, exact=False) if quick else nullcontext():  # sound arithmetic ignores Dropout by itself
        at_once = examples_at_once(x)
        for start in range(0, len(x), at_once):
            batch = Interval.point(x[start : start + at_once])
            batch = batch if quick else in_float64(batch)
            own = labels[start : start + at_once]
            parts.append(certain(worst_margins(network, boxes, batch, own, arithmetic, classes, joint), own))
    return torch.cat(parts)
