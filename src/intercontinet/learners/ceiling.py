"""What all ceilings have in common: they fall until enough is certain, and the promise is for unseen examples too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor

from intercontinet.floor import certain_examples
from intercontinet.learners.method import Lesson
from intercontinet.learners.outcome import Outcome, outcome_of
from intercontinet.learners.shares import Shares
from intercontinet.learners.table import Box, Table, sums


def lowered(boxes: Iterable[Box], table: Table, lesson: Lesson, hits: Tensor, shares: Shares) -> Outcome:
    """What comes of the first box in which enough is certain, or else of the last.

    Args:
        boxes: Under lower and lower ceilings; at least one. Each may be the one before, changed.
        table: The net.
        lesson: The task.
        hits: Which of its examples are right, [examples].
        shares: What enough is.
    """
    for box in boxes:
        certain = certain_examples(table.net, box.region, lesson.x, lesson.y.long(), None, False)
        outcome = outcome_of(box, certain, hits, shares)
        if outcome.enough:
            break
    return outcome


def kept_for_all(under_a_ceiling: Callable[[Shares], Outcome], shares: Shares) -> Outcome:
    """The promise is for all examples: where the unseen ones break it, they are watched, too.

    What was counted of them before still tells of new ones, if the box now lies in the one they were counted in: what
    is certain in that is certain in this. If it does not, none of them counts as certain: a bound is given whether it
    flatters or not.
    """
    first = made = under_a_ceiling(shares)
    if made.certified < shares.keep * made.correct and made.unseen_total:
        made = under_a_ceiling(replace(shares, unseen=torch.zeros_like(shares.unseen)))
        still = first.unseen_certified if made.box.region.within(first.box.region) else 0
        made = replace(made, unseen_certified=still, unseen_total=first.unseen_total)
    return made


def own_sums(table: Table, weight: Tensor, lesson: Lesson) -> Tensor:
    """What the output of each example's own class says, [examples]."""
    return table.outputs(sums(lesson.x, weight)).gather(1, lesson.y.long()[:, None]).squeeze(1)


def rounding_of(chosen: int) -> float:
    """What share of their size sound bounds on sums of so many rows, and a quick sum of them, may lose together."""
    return 1.5 * (chosen + 4) * 2.0**-24
