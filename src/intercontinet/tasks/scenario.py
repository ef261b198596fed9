"""Streams of tasks in the three scenarios of continual learning, cut from one data set or asked anew each time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, final, get_args, overload

import torch
from torch import Tensor

from intercontinet.data import check_inputs
from intercontinet.errors import DeviceMismatch, InvalidData, InvalidSetting

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


@final
class LazyTasks(Sequence[Task]):
    """Tasks built when they are asked for, since all at once may not fit into memory. Only the last one is kept.

    Args:
        names: One for each task.
        build: From a task's place to the task.
    """

    def __init__(self, names: Sequence[str], build: Callable[[int], Task]) -> None:
        self.names = tuple(names)
        self._build = build
        self._last: tuple[int, Task] | None = None

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> Task: ...

    @overload
    def __getitem__(self, index: slice) -> LazyTasks: ...

    def __getitem__(self, index: int | slice) -> Task | LazyTasks:
        if isinstance(index, slice):
            places = range(len(self))[index]
            return LazyTasks(self.names[index], lambda i: self[places[i]])
        place = range(len(self))[index]
        if self._last is None or self._last[0] != place:
            self._last = None  # so that no two are in memory
            self._last = (place, self._build(place))
        return self._last[1]


@dataclass(frozen=True)
class Stream:
    """Tasks in the order in which they come, and the number of outputs that a network needs for them."""

    tasks: Sequence[Task]
    outputs: int
    scenario: Scenario

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example."""
        return tuple(self.tasks[0].train[0].shape[1:])

    @property
    def names(self) -> tuple[str, ...]:
        """Of the tasks, none of which is built for it."""
        return self.tasks.names if isinstance(self.tasks, LazyTasks) else tuple(task.name for task in self.tasks)


def split(train: Pair, test: Pair, groups: Sequence[Sequence[int]], scenario: Scenario) -> Stream:
    """Cut a data set into tasks, one for each group of classes; examples of other classes are left out.

    * "task": the task is known when asked, so that only its own outputs compete (a head per task).
    * "domain": always the same question, which member of its group an example is: as many outputs as a group has.
    * "class": which of all classes it is, and nobody says from which task.

    Args:
        train: Examples to learn from: x [n, ...] in float32, y [n] of whole numbers from zero.
        test: Examples nobody learns from, of the same shape.
        groups: The classes of each task.
        scenario: One of the three.

    >>> x, y = torch.rand(6, 2), torch.tensor([0, 1, 2, 3, 2, 0])
    >>> [(t.name, t.train[1].tolist()) for t in split((x, y), (x, y), [(0, 1), (2, 3)], "domain").tasks]
    [('0/1', [0, 1, 0]), ('2/3', [0, 1, 0])]
    """
    _check_scenario(scenario)
    check_examples(train, test)
    _check_groups(groups)

    def part(data: Pair, group: Sequence[int], kind: str) -> Pair:
        x, y = data
        members = torch.tensor(list(group), device=y.device)
        rows = torch.isin(y, members)
        if not bool(rows.any()):
            raise InvalidData(f"no {kind} example is of the classes {', '.join(map(str, group))}")
        labels = y[rows].long()
        if scenario == "domain":
            labels = (labels[:, None] == members).int().argmax(1)
        return x[rows], labels

    tasks = tuple(
        Task(
            name="/".join(map(str, group)),
            train=part(train, group, "training"),
            test=part(test, group, "test"),
            classes=tuple(group) if scenario == "task" else None,
        )
        for group in groups
    )
    outputs = max(map(len, groups)) if scenario == "domain" else 1 + max(max(group) for group in groups)
    return Stream(tasks, outputs, scenario)


def asked_anew(
    names: Sequence[str], widths: Sequence[int], build: Callable[[int], tuple[Pair, Pair]], scenario: Scenario
) -> Stream:
    """Tasks that each have classes of their own, labelled from zero, though they may look alike.

    * "domain": the labels as they are; tasks share their outputs.
    * "task" and "class": every class of every task is an output of its own, in the order in which they come.

    Args:
        names: One for each task.
        widths: How many classes each task has.
        build: From a task's place to its train and test examples. It is called when the task is asked for.
        scenario: One of the three.

    >>> x, y = torch.rand(3, 2), torch.tensor([0, 1, 0])
    >>> stream = asked_anew(["here", "there"], [2, 2], lambda place: ((x + place, y), (x + place, y)), "class")
    >>> stream.tasks[1].train[1].tolist(), stream.outputs
    ([2, 3, 2], 4)
    """
    _check_scenario(scenario)
    starts = [0] * len(widths) if scenario == "domain" else [0, *accumulate(widths)]

    def task(place: int) -> Task:
        (x, y), (x_test, y_test) = build(place)
        start = starts[place]
        return Task(
            name=names[place],
            train=(x, y + start),
            test=(x_test, y_test + start),
            classes=tuple(range(start, start + widths[place])) if scenario == "task" else None,
        )

    outputs = max(widths) if scenario == "domain" else sum(widths)
    return Stream(LazyTasks(names, task), outputs, scenario)


def _check_scenario(scenario: str) -> None:
    if scenario not in SCENARIOS:
        raise InvalidSetting(f"there is no scenario '{scenario}': choose one of {', '.join(SCENARIOS)}")


def check_examples(train: Pair, test: Pair) -> None:
    """Examples must be float32 and finite, train and test alike, with one whole number from zero as label for each.

    Raises:
        InvalidData: They are not.
    """
    for kind, (x, y) in (("training", train), ("test", test)):
        try:
            check_inputs(x, x.device)
        except InvalidData as error:
            raise InvalidData(f"{kind} examples: {error}") from None
        if x.device != y.device:
            raise DeviceMismatch(f"{kind} examples are on {x.device} and their labels on {y.device}: move one")
        if y.shape != (len(x),):
            raise InvalidData(f"{kind} labels have shape {tuple(y.shape)}; expected one for each of {len(x)} examples")
        if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
            raise InvalidData(f"{kind} labels are {str(y.dtype).removeprefix('torch.')}; expected whole numbers")
        if int(y.min()) < 0:
            raise InvalidData(f"{kind} label {int(y.min())} is negative: number the classes from zero")
    shapes = [tuple(x.shape[1:]) for x, _ in (train, test)]
    if shapes[0] != shapes[1]:
        raise InvalidData(f"training examples have shape {shapes[0]} and test examples {shapes[1]}: give them one")


def _check_groups(groups: Sequence[Sequence[int]]) -> None:
    if not groups or not all(len(group) for group in groups):
        raise InvalidSetting("give at least one group of classes, and at least one class in every group")
    seen: set[int] = set()
    for member in (member for group in groups for member in group):
        if member < 0 or member in seen:
            raise InvalidSetting(f"class {member} is negative or is named twice: each class belongs to one task")
        seen.add(member)
