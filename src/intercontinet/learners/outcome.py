"""What came of a task for the exact learner."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from intercontinet.engine.loop import Progress
from intercontinet.learners.method import Lesson
from intercontinet.learners.shares import Shares
from intercontinet.learners.table import Box


@final
@dataclass(frozen=True)
class Outcome:
    """What came of one task.

    Attributes:
        box: What is known now.
        certified: Examples of the task that are certain.
        correct: Examples that are right.
        unseen_certified: Of those that shaped nothing, how many are certain.
        unseen_total: How many shaped nothing.
        left_out: Outputs for which too little room was left: they were not learned.
        enough: Whether as much as was asked for is certain, among all that was not unseen and among the watched alone.
    """

    box: Box
    certified: int
    correct: int
    unseen_certified: int
    unseen_total: int
    left_out: tuple[int, ...] = ()
    enough: bool = True


def progress_of(made: Sequence[Outcome], lesson: Lesson) -> Progress:
    """What a listener hears of a task, once, when it is done: what is certain, and accuracy; of a loss nothing."""
    shares = tuple((one.certified / len(lesson.x), one.correct / len(lesson.x)) for one in made)
    weights = torch.stack([one.box.weight.flatten() for one in made])
    return Progress("learning", 1, 1, (math.nan,) * len(made), shares, 0.0, weights, lesson.name)


def outcome_of(box: Box, certain: Tensor, hits: Tensor, shares: Shares) -> Outcome:
    """Counts of the examples that are certain and sure, and of those that are right, [examples] each."""
    certain = certain & shares.sure
    counts = int(certain.sum()), int(hits.sum()), *shares.of_unseen(certain)
    return Outcome(box, *counts, enough=shares.enough(certain, hits))
