"""The record of a floor: how much of one task is certain. Free of torch, so that files are verified without it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from intercontinet.statistics import lowest_share

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
        unseen_certified: How many of the unseen examples are certain, at least, or None where none were held back.
        unseen_total: How many examples of ``total`` had shaped nothing, neither weights nor region, when these were
            counted, or None. Where they broke the promise the region was drawn in further for their sake, and more of
            them may be certain now: a bound from the count before that is still true, and one from after would flatter.
        criterion: What counts as right: "classification", or a criterion's name.
        stable: Number of examples whose prediction, right or wrong, no weight in the region changes, or None.
        attacked: Number of examples right under the worst weights that an attack found, or None where none was made.
        drift: None where every rounding was bounded; else by how much the outputs of frozen layers may differ from
            those computed when this was certified, relative to an example's largest entry, for the floor to hold.

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
    criterion: str = "classification"
    stable: int | None = None
    attacked: int | None = None
    drift: float | None = None

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
        """The share of unseen examples that is certain at 95 % confidence, a bound from those that were held back."""
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
        if self.stable is not None:
            words += f"; {self.stable / self.total:.1%} of predictions cannot change"
        if self.attacked is not None:
            words += f"; under attack {self.attacked / self.total:.1%}"
        if self.drift is not None:
            words += f"; if the frozen layers' outputs drift by no more than {self.drift:g}"
        count = f"{self.certified} of {self.total} certain ({self.floor:.1%})"
        return f"{self.task or 'data'}: {count}, accuracy {self.accuracy:.1%}{words}"


def _count(value: object, least: int, most: int) -> bool:
    """No prediction or worst case can fall below what is certain."""
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and least <= value <= most)


def _share(value: object) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1)


MOST = 10**9  # examples in a count; a bound from more would take longer to compute than anybody waits


def sensible(floor: TaskFloor) -> bool:
    """Whether all counts can be of one set of examples, of which some may have been held back, and words are words."""
    unseen = floor.unseen_certified, floor.unseen_total
    certain, held_back = (0, 0) if unseen == (None, None) else unseen
    counts = floor.certified, floor.total, floor.correct, certain, held_back, *(floor.classes or ())
    if not all(isinstance(count, int) and not isinstance(count, bool) for count in counts):
        return False
    if not isinstance(floor.task, str) or not isinstance(floor.data, str):
        return False
    if floor.keep is not None and not (isinstance(floor.keep, (int, float)) and 0 <= floor.keep <= 1):
        return False
    if not isinstance(floor.criterion, str) or not _share(floor.drift):
        return False
    if not all(_count(count, floor.certified, floor.total) for count in (floor.stable, floor.attacked)):
        return False
    assert certain is not None and held_back is not None
    return (
        0 <= certain <= floor.certified <= floor.total
        and 0 < floor.total <= MOST
        and 0 <= floor.correct <= floor.total
        and certain <= held_back <= floor.total
    )
