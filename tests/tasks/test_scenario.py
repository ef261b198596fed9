"""Streams: who sees which examples, under which labels."""

from __future__ import annotations

import pytest
import torch

from intercontinet.errors import InvalidData, InvalidSetting
from intercontinet.tasks import SCENARIOS, Scenario, digits, split, split_digits

X, Y = torch.arange(12.0).reshape(6, 2), torch.tensor([0, 1, 2, 3, 3, 0])
GROUPS = [(0, 1), (3, 2)]


@pytest.mark.parametrize(
    ("scenario", "labels", "classes", "outputs"),
    [
        ("task", [[0, 1, 0], [2, 3, 3]], [(0, 1), (3, 2)], 4),
        ("domain", [[0, 1, 0], [1, 0, 0]], [None, None], 2),
        ("class", [[0, 1, 0], [2, 3, 3]], [None, None], 4),
    ],
)
def test_each_scenario_has_its_labels_and_outputs(
    scenario: Scenario, labels: list[list[int]], classes: list[tuple[int, ...] | None], outputs: int
) -> None:
    stream = split((X, Y), (X, Y), GROUPS, scenario)
    assert [task.train[1].tolist() for task in stream.tasks] == labels
    assert [task.classes for task in stream.tasks] == classes
    assert stream.outputs == outputs


def test_tasks_share_no_example() -> None:
    first, second = split((X, Y), (X, Y), GROUPS, "class").tasks
    assert sorted([*first.train[0][:, 0].tolist(), *second.train[0][:, 0].tolist()]) == X[:, 0].tolist()


def test_an_unknown_scenario_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="choose one of task, domain, class"):
        split((X, Y), (X, Y), GROUPS, "lifelong")  # type: ignore[arg-type]


def test_a_group_without_examples_is_refused() -> None:
    with pytest.raises(InvalidData, match="classes 7, 8"):
        split((X, Y), (X, Y), [(7, 8)], "class")


def test_digits_are_split_into_disjoint_train_and_test_sets_in_the_unit_interval() -> None:
    (x_train, y_train), (x_test, y_test) = digits()
    assert len(x_train) + len(x_test) == 1797
    assert float(x_train.min()) >= 0 and float(x_train.max()) <= 1
    assert torch.bincount(y_test).min() >= 34
    assert torch.bincount(y_train).min() >= 139


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_split_digits_has_five_tasks_of_two(scenario: Scenario) -> None:
    stream = split_digits(scenario)
    assert [len(set(task.train[1].tolist())) for task in stream.tasks] == [2] * 5
