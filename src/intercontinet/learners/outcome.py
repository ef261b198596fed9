"""What came of a task for the exact learner, and which of its examples stand for what."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from intercontinet.engine.loop import Progress
from intercontinet.learners.method import Lesson
from intercontinet.learners.table import Box


@final
@dataclass(frozen=True)
class Counted:
    """What came of one task.

    Attributes:
        box: What is known now.
        certified: Examples of the task that are certain.
        correct: Examples that are right.
        unseen_certified: Of those that shaped nothing, how many are certain.
        unseen_total: How many shaped nothing.
        left_out: Outputs for which too little room was left: they were not learned.
    """

    box: Box
    certified: int
    correct: int
    unseen_certified: int
    unseen_total: int
    left_out: tuple[int, ...] = ()


def progress_of(made: Sequence[Counted], lesson: Lesson) -> Progress:
    """What a listener hears of a task, once, when it is done; counting has no loss."""
    shares = tuple((one.correct / len(lesson.x),) for one in made)
    weights = torch.stack([one.box.weight.flatten() for one in made])
    return Progress("counting", 1, 1, (math.nan,) * len(made), shares, 0.0, weights, lesson.name)


@final
@dataclass(frozen=True)
class Shares:
    """Which examples stand for what, and whether enough of them are certain."""

    keep: float
    sure: Tensor
    watched: Tensor
    unseen: Tensor

    def enough(self, certain: Tensor, hits: Tensor) -> bool:
        """Whether ``keep`` of the accuracy is certain among what was not unseen, and among what was watched."""
        kept = [int(certain[some].sum()) >= self.keep * int(hits[some].sum()) for some in (~self.unseen, self.watched)]
        return all(kept)

    def counted(self, box: Box, certain: Tensor, hits: Tensor) -> Counted:
        certain = certain & self.sure
        unseen = int((certain & self.unseen).sum())
        return Counted(box, int(certain.sum()), int(hits.sum()), unseen, int(self.unseen.sum()))
