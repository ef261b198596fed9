"""Runs: every method in every scenario, measured again by hand; seed by seed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import intercontinet as icn
from intercontinet.engine.loop import Progress
from intercontinet.learners.catalogue import METHODS
from intercontinet.report.record import parse_record, read_record
from intercontinet.study.run import Run, complete
from intercontinet.study.state import State
from intercontinet.study.store import save_record
from intercontinet.tasks import SCENARIOS, Scenario, Task, stream
from tests.study.runs import alike, digits, running, states_of, timeless, tiny

INTERVALS = ("intercontinet", "intercontinet-published")
PROMISING = (*INTERVALS, "exact")


# Measured again by hand.


def right(run: Run, state: State, row: int, data: tuple[Tensor, Tensor], task: Task) -> Tensor:
    """Which examples one seed gets right, by a plain loop over a plain module."""
    scores: Tensor = run.model(state, row)(data[0]).detach()
    if task.classes is not None:
        others = [output for output in range(scores.shape[1]) if output not in task.classes]
        scores[:, others] = -torch.inf
    return scores.argmax(1) == data[1]


def share(hits: Tensor) -> float:
    return int(hits.sum()) / len(hits)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_in_every_scenario_measured_by_hand(method: str, scenario: Scenario, tmp_path: Path) -> None:
    run = running(tiny(method, scenario))
    tasks = run.stream.tasks
    states = states_of(run)
    summary = run.summary(states[-1])
    assert [seed["seed"] for seed in summary["seeds"]] == [0, 1]
    assert sum(seed["seconds"] for seed in summary["seeds"]) == pytest.approx(summary["seconds"])
    for row, found in enumerate(summary["seeds"]):
        hits = [[right(run, state, row, task.test, task) for task in tasks] for state in states]
        assert found["initial_accuracy"] == pytest.approx([share(h) for h in hits[0]])
        matrix = [[share(h) for h in after] for after in hits[1:]]
        assert [list(r) for r in found["accuracy_matrix"]] == [pytest.approx(r) for r in matrix]
        assert found["average_accuracy"] == pytest.approx(sum(matrix[-1]) / len(tasks))
        flips = [0.0]
        if method != "offline":
            lost = hits[1][0] & ~hits[2][0]
            flips.append(share(lost))
            learned = [[task] for task in tasks]
        else:
            learned = [list(tasks)]
        assert found["negative_flips"] == pytest.approx(flips)
        trained = [
            share(torch.cat([right(run, state, row, task.train, task) for task in own]))
            for state, own in zip(states[1:], learned, strict=True)
        ]
        assert found["train_accuracy"] == pytest.approx(trained)
        assert [floor["task"] for floor in found["floors"]] == list(run.stream.names)
        if method in PROMISING:
            check_boxes(run, states, row, found)
        else:
            assert found["region"] == []
            assert {(floor["certified"], floor["kept"]) for floor in found["floors"]} == {(0, None)}
    for done, state in enumerate(states):
        so_far = parse_record(json.dumps(run.summary(state)), "so far", incomplete=True)
        assert (so_far.complete, so_far.lessons) == (done == run.lessons, run.lessons)
        assert {len(seed.accuracy_matrix) for seed in so_far.seeds} == {done}
    stored = read_record(save_record(tmp_path, summary))
    assert [seed.average_accuracy for seed in stored.seeds] == [s["average_accuracy"] for s in summary["seeds"]]
    assert stored.keep == (None if method not in PROMISING else run.config.settings["keep"])


def test_negative_flips_are_counted_over_all_earlier_examples_and_not_averaged_over_tasks() -> None:
    whole = stream("digits", "domain", tasks=3)
    tasks = [
        replace(task, test=(task.test[0][: 10 * 3**i], task.test[1][: 10 * 3**i])) for i, task in enumerate(whole.tasks)
    ]
    run = running(tiny(settings={"rate": 0.5}, seeds=[0]), replace(whole, tasks=tasks))
    states = states_of(run)
    hits = [[right(run, state, 0, task.test, task) for task in tasks] for state in states]
    lost = [hits[2][index] & ~hits[3][index] for index in (0, 1)]
    shares = [share(part) for part in lost]
    assert shares[0] != shares[1], "or a mean over tasks would be the same"
    (found,) = run.summary(states[-1])["seeds"]
    assert found["negative_flips"][2] == pytest.approx(share(torch.cat(lost)))


def check_boxes(run: Run, states: list[State], row: int, found: dict[str, Any]) -> None:
    """Floors are counted again, sizes summed again, and boxes lie one in the other."""
    settings = run.config.settings
    outer: icn.Region | None = None
    places = zip(states[1:], run.stream.tasks, found["floors"], found["region"], strict=True)
    for place, (state, task, floor, size) in enumerate(places):
        model, certificate = run.model(state, row), run.certificate(state, row)
        assert certificate is not None
        region = certificate.region
        margins = settings.get("margins", "separate")  # what is counted has columns that share nothing
        again = icn.certify(model, region, task.train, classes=task.classes, margins=margins)
        assert (floor["certified"], floor["total"]) == (again.certified, len(task.train[0]))
        assert floor["accuracy"] == pytest.approx(again.accuracy)
        assert floor["kept"] == (again.certified >= settings["keep"] * again.correct)
        assert floor["kept"] or not settings.get("enforce", True)
        widths = (state.memory["upper"][row] - state.memory["lower"][row]).double()
        widths = widths[widths.isfinite()]
        alive = widths[widths > 0]
        assert size["sum_of_radii"] == pytest.approx(float(widths.sum()) / 2)
        assert size["mean_radius"] == pytest.approx(float(widths.mean()) / 2)
        assert size["log_volume"] == pytest.approx(float(widths.clamp(min=2.0**-149).log().sum()))
        assert size["dead"] == pytest.approx(1 - len(alive) / len(widths))
        assert outer is None or region.within(outer)
        outer = region
        assert icn.verify(model, certificate)
        assert [t.certified for t in certificate.tasks] == [f["certified"] for f in found["floors"]][: place + 1]
        assert certificate.tasks[place].data == again.data


def test_offline_learns_all_at_once_and_has_nothing_to_forget() -> None:
    run = running(tiny("offline", "task"))
    assert run.lessons == 1
    seed = run.summary(complete(run))["seeds"][0]
    assert len(seed["accuracy_matrix"]) == len(seed["train_accuracy"]) == 1
    assert seed["forgetting"] is seed["backward_transfer"] is seed["forward_transfer"] is None
    assert [floor["total"] for floor in seed["floors"]] == [len(task.train[0]) for task in run.stream.tasks]


def test_a_run_that_is_not_complete_says_so() -> None:
    run = running(tiny("intercontinet"))
    state = run.begin()
    summary = run.summary(state)
    assert summary["complete"] is False
    assert summary["seeds"][0]["average_accuracy"] is None
    assert run.certificate(state, 0) is None
    assert run.summary(run.advance(state))["complete"] is False
    begun = running(tiny("offline"))
    assert begun.summary(begun.begin())["seeds"][0]["floors"] == []
    assert state.done == 0 and not state.memory and state.lines == [[], []], "the state given is left as it is"


def test_lines_are_one_an_epoch_and_one_a_task() -> None:
    state = complete(running(tiny("intercontinet", epochs=3)))
    for lines in state.lines:
        found = [(line["event"], line["index"], line.get("phase"), line.get("epoch")) for line in lines]
        assert found == [
            (event, index, phase, epoch)
            for index in range(2)
            for event, phase, epoch in [
                ("epoch", "centres", 1), ("epoch", "centres", 2), ("epoch", "radii", 1), ("task", None, None)
            ]
        ]  # fmt: skip
        assert all(("certified" in line) == (line.get("phase") == "radii") for line in lines)


def test_what_is_certain_in_the_end_is_heard_of_last() -> None:
    """After the promise was made true: during the radii phase less is certain, or more."""
    heard: list[Progress] = []
    run = running(tiny("intercontinet", epochs=3))
    state = states_of(run, heard.append)[-1]
    told = [progress for progress in heard if progress.phase == "learned"]
    assert [progress.task for progress in told] == list(run.stream.names)
    for row, lines in enumerate(state.lines):
        floors = [line["floor"] for line in lines if line["event"] == "task"]
        for progress, floor in zip(told, floors, strict=True):
            certain, right = progress.statistics[row]
            counts = certain * floor["total"], right * floor["total"]
            assert counts == pytest.approx((floor["certified"], floor["correct"]))
    nothing: list[Progress] = []
    states_of(running(tiny("ewc")), nothing.append)
    assert {progress.phase for progress in nothing} == {"train"}, "nothing is promised"


# Curves.


@pytest.mark.parametrize(
    "settings",
    [{}, {"edges": "asymmetric"}, {"edges": "asymmetric", "aim": "volume", "optimizer": "adam", "radii_rate": 0.03}],
    ids=["the paper's", "two distances each", "for volume"],
)
def test_curves_end_each_task_where_the_record_stands(settings: dict[str, Any]) -> None:
    run = running(tiny("intercontinet-published", epochs=4, settings=settings), curves=True)
    heard: list[str] = []
    state = states_of(run, lambda progress: heard.append(progress.phase))[-1]
    seed = run.summary(state)["seeds"][1]
    points = seed["curve"]
    assert [(p["task"], p["phase"], p["epoch"]) for p in points] == [
        (task, phase, epoch) for task in (0, 1) for phase, epochs in (("centres", 3), ("radii", 1))
        for epoch in range(1, epochs + 1)
    ]  # fmt: skip
    assert heard == [*[point["phase"] for point in points[:4]], "learned"] * 2
    for task, (row, size) in enumerate(zip(seed["accuracy_matrix"], seed["region"], strict=True)):
        last = points[4 * task + 3]
        assert (last["current"], last["first"]) == pytest.approx((row[task], row[0]))
        assert last["sum_of_radii"] == pytest.approx(size["sum_of_radii"], rel=1e-3)
    assert [p["sum_of_radii"] for p in points[:3]] == [None] * 3, "there is no region yet"
    assert points[4]["sum_of_radii"] == pytest.approx(seed["region"][0]["sum_of_radii"])


def test_without_curves_there_are_none() -> None:
    run = running(tiny())
    assert "curve" not in run.summary(complete(run))["seeds"][0]


# Seeds and tasks.


@pytest.mark.parametrize("method", ["sgd", "ewc", "si", "lwf", "intercontinet-published", "intercontinet", "exact"])
def test_a_seed_alone_ends_as_beside_others(method: str) -> None:
    together = complete(running(tiny(method, seeds=(5, 1, 3))))
    alone = complete(running(tiny(method, seeds=(1,))))
    alike(alone, together, slice(1, 2))


@pytest.mark.parametrize("method", ["adam", "lwf", "intercontinet", "exact"])
def test_the_same_run_again_gives_the_same_bits(method: str) -> None:
    first, second = (complete(running(tiny(method, "class"))) for _ in range(2))
    assert torch.equal(first.weights, second.weights)
    assert timeless(first) == timeless(second)


@pytest.mark.parametrize(
    "method", [method for method in METHODS if method not in ("offline", "exact")]
)  # see test_leak
def test_learning_a_task_reads_no_other_tasks_data_and_no_test_data(method: str) -> None:
    config = tiny(method, "task")
    states = states_of(running(config))
    tasks = digits("task").tasks

    def poisoned(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return torch.full_like(pair[0], torch.nan), pair[1]

    for learned in range(len(tasks)):
        kept = [
            replace(task, test=poisoned(task.test), train=task.train if place == learned else poisoned(task.train))
            for place, task in enumerate(tasks)
        ]
        after = running(config, replace(digits("task"), tasks=kept)).advance(states[learned])
        assert torch.equal(after.weights, states[learned + 1].weights)
        assert all(torch.equal(after.memory[name], tensor) for name, tensor in states[learned + 1].memory.items())


def test_what_intervals_remember_does_not_grow_with_the_tasks_but_for_two_counts() -> None:
    config = tiny("intercontinet", seeds=(0,))
    states = states_of(running(config, stream("digits", "domain")))
    entries = states[0].weights.numel()
    for tasks in (1, 5):
        memory = states[tasks].memory
        assert sum(tensor.numel() for tensor in memory.values()) == 2 * entries + 2 * tasks
