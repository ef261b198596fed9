"""Floors: how many examples of a task no weights in a region get wrong."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from intercontinet.criterion import Criterion
from intercontinet.data import Data, Inputs, collect, fingerprint
from intercontinet.errors import InvalidRegion, InvalidSetting
from intercontinet.inference import evaluated
from intercontinet.question import Passes, Question, movable_in
from intercontinet.region import Region
from intercontinet.taskfloor import TaskFloor

__all__ = ["Margins", "TaskFloor", "certain_examples", "certify", "count", "floor_of"]

Margins = Literal["joint", "separate"]


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
    criterion: Criterion | None = None,
    drift: float | None = None,
) -> TaskFloor:
    """Count the examples that every weight in the region gets right, in float32, in any summation order.

    Args:
        model: The module; its own weights give ``accuracy``, the region gives ``certified``.
        region: The box of weights.
        data: Examples.
        task: A name for the record.
        classes: The outputs that take part, where each task has a head of its own; labels name outputs.
        keep: A share of today's accuracy to hold the result against (see :attr:`TaskFloor.kept`).
        margins: "joint", bounded as one expression, or "separate", the paper's looser definition.
        criterion: What counts as right, where it is not a class: :func:`~intercontinet.regression`,
            :func:`~intercontinet.multi_label`, or your own :class:`~intercontinet.Criterion`.
        drift: By default every rounding is bounded, which deep frozen layers make hopeless. A number instead takes the
            outputs of layers that cannot move as computed here, give or take that much of an example's largest entry:
            a weaker promise, which the record states. Zero means bit for bit.

    Raises:
        InvalidRegion: The model lies outside the region, or the region leaves a class that takes part unbounded.

    >>> model = nn.Linear(2, 2)
    >>> data = torch.randn(8, 2), torch.randint(2, (8,))
    >>> floor = certify(model, Region.around(model, 0.01), data)
    >>> floor.certified <= floor.correct <= floor.total
    True
    """
    region = region.with_values(model)
    outside = region.excess(model)
    if outside:
        name, excess = next(iter(outside.items()))
        raise InvalidRegion(
            f"the model's '{name}' lies {excess:.6g} outside the region: certify a model in its own region"
        )
    if drift is not None and not 0 <= drift < 1:
        raise InvalidSetting(f"drift is {drift}: a share of an example's largest entry is needed, such as 1e-5")
    x, y = collect(data)
    question = Question.of(
        model, (x, y), next(iter(region.lower.values())).device, classes, criterion, margins == "joint"
    )
    if classes is None:
        _check_bounded(region)
    return count(model, region, question, (x, y), task, classes, keep, drift)


def count(
    model: nn.Module,
    region: Region,
    question: Question,
    data: tuple[Inputs, Tensor],
    task: str,
    classes: Sequence[int] | None,
    keep: float | None,
    drift: float | None,
) -> TaskFloor:
    """:func:`certify` without its checks."""
    right, predicted = question.today(model)
    passes = Passes(question.x, model, region, movable_in(region), drift, quick=False)
    certain, stable = passes.tally(region, question, right, predicted)
    floor = floor_of(data, certain, int(right.sum()), task, classes, keep)
    criterion = floor.criterion if question.criterion is None else question.criterion.name
    return replace(floor, stable=stable, drift=drift, criterion=criterion)


def _check_bounded(region: Region) -> None:
    for name, lower in region.lower.items():
        if bool(lower.isinf().any() or region.upper[name].isinf().any()):
            raise InvalidRegion(
                f"'{name}' has infinite edges, as heads of tasks to come do: say which outputs take part, with classes="
            )


def floor_of(
    data: tuple[Inputs, Tensor],
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
        total=len(y),
        correct=correct,
        classes=None if classes is None else tuple(int(c) for c in classes),
        keep=None if keep is None else float(keep),
        data=fingerprint(x, y),
        unseen_certified=unseen_certified,
        unseen_total=unseen_total,
    )


@torch.no_grad()
def certain_examples(
    model: nn.Module,
    region: Region,
    x: Inputs,
    labels: Tensor,
    classes: Tensor | None,
    joint: bool = True,
    quick: bool = False,
    drift: float | None = None,
    movable: Collection[str] = (),
) -> Tensor:
    """Which examples are certain, [examples]: :func:`certify` without its checks, for those who call it often.

    ``quick`` computes in float32 and ignores rounding: a fast guess, never a promise. With ``drift``, layers without
    any ``movable`` parameter are taken as they are computed.
    """
    passes = Passes(x, model, region, movable, drift, quick)
    with evaluated(model, exact=False) if quick else nullcontext():  # sound arithmetic ignores Dropout by itself
        return passes.certain(region, Question(x, labels, classes, None, joint))
