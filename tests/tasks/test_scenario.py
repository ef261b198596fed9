"""Streams: who sees which examples, under which labels."""

from __future__ import annotations

import pytest
import torch

from intercontinet.errors import DeviceMismatch, InvalidData, InvalidSetting
from intercontinet.tasks import SCENARIOS, Scenario, digits, split, split_digits
from intercontinet.tasks.scenario import Pair, asked_anew

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


@pytest.mark.parametrize(
    ("groups", "complaint"),
    [
        ([], "at least one group"),
        ([(0, 1), ()], "at least one class in every group"),
        ([(0, 1), (1, 2)], "class 1 is negative or is named twice"),
        ([(0, -1)], "class -1 is negative"),
    ],
)
def test_groups_that_make_no_sense_are_refused(groups: list[tuple[int, ...]], complaint: str) -> None:
    with pytest.raises(InvalidSetting, match=complaint):
        split((X, Y), (X, Y), groups, "class")


@pytest.mark.parametrize(
    ("train", "test", "complaint"),
    [
        ((X, Y[:5]), (X, Y), r"training labels have shape \(5,\); expected one for each of 6"),
        ((X, Y), (X, Y.float()), "test labels are float32; expected whole numbers"),
        ((X, Y - 1), (X, Y), "training label -1 is negative"),
        ((X.double(), Y), (X, Y), "training examples: inputs are float64"),
        ((X, Y), (X[:0], Y[:0]), "test examples: the data is empty"),
        ((X, Y), (X[:, :1], Y), r"training examples have shape \(2,\) and test examples \(1,\)"),
        ((X, Y), (X / 0, Y), "test examples: example 0 holds NaN or infinite"),
        ((X, Y.to("meta")), (X, Y), "examples are on cpu and their labels on meta"),
    ],
)
def test_examples_that_cannot_be_used_are_refused(train: Pair, test: Pair, complaint: str) -> None:
    with pytest.raises((InvalidData, DeviceMismatch), match=complaint):
        split(train, test, GROUPS, "class")


def test_lazy_tasks_are_built_when_asked_for_and_only_the_last_is_kept() -> None:
    built = []

    def build(place: int) -> tuple[Pair, Pair]:
        built.append(place)
        return (X, Y), (X, Y)

    stream = asked_anew(["a", "b", "c"], [4, 4, 4], build, "task")
    assert stream.names == ("a", "b", "c") and len(stream.tasks) == 3 and not built
    assert stream.shape == (2,) and stream.tasks[0].name == "a" and built == [0]
    assert stream.tasks[-1].name == "c" and stream.tasks[2].classes == (8, 9, 10, 11) and built == [0, 2]
    assert [task.name for task in stream.tasks] == ["a", "b", "c"] and built == [0, 2, 0, 1, 2]
    rest = stream.tasks[1:]
    assert len(rest) == 2 and built == [0, 2, 0, 1, 2] and rest[0].name == "b" and rest[-1].name == "c"
    with pytest.raises(IndexError):
        stream.tasks[3]


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
