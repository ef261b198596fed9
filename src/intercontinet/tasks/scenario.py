"""Streams of tasks cut from one classification data set, in the three scenarios of continual learning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from intercontinet.errors import InvalidData, InvalidSetting

Scenario = Literal["task", "domain", "class"]
SCENARIOS: tuple[Scenario, ...] = get_args(Scenario)
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    """A few classes of a data set.

    Attributes:
        name: Its classes, as people read them: "0/1".
        train: Examples to learn from, (x, y).
        test: Examples nobody learns from.
        classes: The outputs among which to choose when the task is known; None where it is not.
    """

    name: str
    train: Pair
    test: Pair
    classes: tuple[int, ...] | None


@dataclass(frozen=True)
class Stream:
    """Tasks in the order in which they come, and the number of outputs that a network needs for them."""

    tasks: tuple[Task, ...]
    outputs: int
    scenario: Scenario


def split(train: Pair, test: Pair, groups: Sequence[Sequence[int]], scenario: Scenario) -> Stream:
    """Cut a data set into tasks, one for each group of classes.

    * "task": the task is known when asked, so that only its own outputs compete (a head per task).
    * "domain": always the same question, which member of its group an example is: as many outputs as a group has.
    * "class": which of all classes it is, and nobody says from which task.

    >>> x, y = torch.rand(6, 2), torch.tensor([0, 1, 2, 3, 2, 0])
    >>> [(t.name, t.train[1].tolist()) for t in split((x, y), (x, y), [(0, 1), (2, 3)], "domain").tasks]
    [('0/1', [0, 1, 0]), ('2/3', [0, 1, 0])]
    """
    if scenario not in SCENARIOS:
        raise InvalidSetting(f"there is no scenario '{scenario}': choose one of {', '.join(SCENARIOS)}")

    def part(data: Pair, group: Sequence[int]) -> Pair:
        x, y = data
        rows = torch.isin(y, torch.tensor(list(group)))
        if not bool(rows.any()):
            raise InvalidData(f"no example is of the classes {', '.join(map(str, group))}")
        labels = y[rows]
        if scenario == "domain":
            labels = (labels[:, None] == torch.tensor(list(group))).int().argmax(1)
        return x[rows], labels

    tasks = tuple(
        Task(
            name="/".join(map(str, group)),
            train=part(train, group),
            test=part(test, group),
            classes=tuple(group) if scenario == "task" else None,
        )
        for group in groups
    )
    outputs = max(map(len, groups)) if scenario == "domain" else 1 + max(max(group) for group in groups)
    return Stream(tasks, outputs, scenario)
