"""Tables of a few rows for tests of the exact learner: examples of them, learning them, and their sums by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from intercontinet.learners.exact_method import learn_task
from intercontinet.learners.exact_settings import ExactSettings
from intercontinet.learners.method import Lesson
from intercontinet.learners.outcome import Outcome
from intercontinet.learners.table import Box, Table

GROUPS, BINS = 12, 8
SIZE = GROUPS * BINS
Floats = NDArray[np.float64]


def table(outputs: int = 6, slots: int = 1) -> Table:
    bag = nn.EmbeddingBag(SIZE, outputs * slots, mode="sum", _weight=torch.zeros(SIZE, outputs * slots))
    return Table.of(nn.Sequential(bag, *([nn.MaxPool1d(slots)] if slots > 1 else [])))


def everything(of: Table) -> Box:
    upper = torch.full((SIZE, of.columns), math.inf)
    return Box(torch.zeros(SIZE, of.columns), -upper, upper)


def examples(labels: Sequence[int], each: int = 30, sharp: float = 0.8, seed: int = 0, modes: int = 1) -> Lesson:
    """Every class has a bin of its own in each group, or one for each mode; it is chosen with probability ``sharp``."""
    generator = torch.Generator().manual_seed(1000 * seed + min(labels))
    homes = torch.randint(BINS, (max(labels) + 1, modes, GROUPS), generator=torch.Generator().manual_seed(seed))
    y = torch.tensor(list(labels)).repeat_interleave(each)
    mode = torch.randint(modes, (len(y),), generator=generator)
    elsewhere = torch.randint(BINS, (len(y), GROUPS), generator=generator)
    bins = torch.where(torch.rand(len(y), GROUPS, generator=generator) < sharp, homes[y, mode], elsewhere)
    return Lesson("/".join(map(str, labels)), 0, bins + BINS * torch.arange(GROUPS), y)


def learn(how: ExactSettings, of: Table, box: Box, lesson: Lesson, key: int = 0) -> Outcome:
    return learn_task(how, of, box, lesson, torch.ones(len(lesson.y), dtype=torch.bool), key)


def in_turn(how: ExactSettings, of: Table, lessons: Sequence[Lesson]) -> list[Outcome]:
    made: list[Outcome] = []
    for lesson in lessons:
        made.append(learn(how, of, made[-1].box if made else everything(of), lesson, key=len(made)))
    return made


def same_bits(one: Box, other: Box) -> bool:
    pairs = ((one.weight, other.weight), (one.lower, other.lower), (one.upper, other.upper))
    return all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in pairs)


# By hand.


def logs_of_shares(rows: list[list[int]], how: ExactSettings) -> Floats:
    """log K P(b) of every row, K rows being there for each that is chosen."""
    found = np.full(SIZE, -how.depth)
    for row in range(SIZE):
        share = sum(row in chosen for chosen in rows) / len(rows)
        if share:
            found[row] = min(how.cap, max(-how.depth, math.log(BINS * share)))
    return found


def scores(weight: Tensor, rows: Tensor, slots: int) -> Floats:
    """[examples, outputs] in float64: sums of plain columns, and the largest of each output's."""
    plain, chosen = weight.double().numpy(), rows.numpy()
    sums = np.stack([plain[example].sum(0) for example in chosen])
    found: Floats = sums.reshape(len(sums), -1, slots).max(2)
    return found


def worst_margins(box: Box, lesson: Lesson, slots: int) -> Floats:
    """By how much each example's class leads at the corner of the box that is worst for it."""
    low, high = scores(box.lower, lesson.x, slots), scores(box.upper, lesson.x, slots)
    margins = []
    for own, others, label in zip(low, high, lesson.y.tolist(), strict=True):
        margins.append(own[label] - max(other for output, other in enumerate(others) if output != label))
    return np.array(margins)


def altered(lesson: Lesson, which: Tensor, seed: int) -> Lesson:
    """Random rows for some examples, which keep their labels."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randint(BINS, lesson.x.shape, generator=generator) + BINS * torch.arange(GROUPS)
    return replace(lesson, x=torch.where(which[:, None], noise, lesson.x))


def spread(examples: int) -> Tensor:
    """Rows in the upper half of each group's bins, each as seldom as any other."""
    bins = torch.arange(examples)[:, None] + torch.arange(GROUPS)
    return bins % (BINS // 2) + BINS // 2 + BINS * torch.arange(GROUPS)


def typical(label: int, each: int) -> Tensor:
    """Rows in the lower half: nine of ten in the bin that is the class's own."""
    generator = torch.Generator().manual_seed(label)
    strange = torch.rand(each, GROUPS, generator=generator) < 0.1
    bins = torch.where(strange, torch.randint(BINS // 2, (each, GROUPS), generator=generator), label)
    return bins + BINS * torch.arange(GROUPS)
