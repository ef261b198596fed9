"""``run --method exact``: certificates that can be counted again, floors for unseen data, an encoder for each seed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
from torch import nn
from typer.testing import CliRunner

import intercontinet as icn
from intercontinet.cli import app
from intercontinet.errors import InvalidSetting
from intercontinet.files import load_weights
from intercontinet.learners.exact import ExactInterContiNet, parts_of
from intercontinet.report.record import read_record
from intercontinet.statistics import lowest_share
from intercontinet.study.config import configure
from intercontinet.study.encoders import Encoder
from intercontinet.study.folder import leave, resume, start
from intercontinet.study.run import Run, complete
from intercontinet.study.state import State
from intercontinet.tasks import SCENARIOS, Scenario, Stream, stream
from tests.study.test_folder import left_in
from tests.tiny import same

NET = "levels-60-5"


@cache
def few(dataset: str, scenario: Scenario, *, tasks: int | None) -> Stream:
    """A third of the examples."""
    whole = stream(dataset, scenario, tasks=tasks)
    return replace(whole, tasks=[replace(task, train=(task.train[0][::3], task.train[1][::3])) for task in whole.tasks])


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intercontinet.study.run.stream", few)


def go(folder: Path, scenario: str, *more: str) -> str:
    asked = ["--method", "exact", "--net", NET, "--scenario", scenario, "--tasks", "3", "--device", "cpu"]
    done = CliRunner().invoke(app, ["run", *asked, *more, "--out", str(folder)])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def small(scenario: str = "class", seeds: tuple[int, ...] = (2, 5), **changes: Any) -> Run:
    return Run(configure("digits", scenario, "exact", seeds, 3, net=NET, settings=changes), "cpu")


def states_of(run: Run) -> Iterator[State]:
    """After each task."""
    state = run.begin()
    while state.done < run.lessons:
        state = run.advance(state)
        yield state


# What is left behind.


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_certificate_left_behind_verifies_and_is_counted_again(tmp_path: Path, scenario: str) -> None:
    go(tmp_path, scenario, "--seeds", "2,5")
    run = small(scenario)
    record = read_record(tmp_path / "summary.json")
    for row, seed in enumerate(record.seeds):
        own = tmp_path / f"seed-{seed.seed}"
        certificate, weights = icn.Certificate.load(own / "model.icn"), load_weights(own / "model.safetensors")
        assert icn.verify(weights, certificate)
        said = CliRunner().invoke(app, ["verify", str(own / "model.safetensors"), str(own / "model.icn")])
        assert said.exit_code == 0 and all(name in said.output for name in run.stream.names)
        model = run.model(run.begin(), row)
        model.load_state_dict(weights)
        assert [floor.certified for floor in seed.floors] == [floor.certified for floor in certificate.tasks]
        for task, floor in zip(run.stream.tasks, certificate.tasks, strict=True):
            again = icn.certify(model, certificate.region, task.train, classes=task.classes)
            assert (again.total, again.data, again.classes) == (floor.total, floor.data, floor.classes)
            assert floor.certified <= again.certified, "later regions lie in earlier ones"
            assert floor.kept and floor.certified > 0 and again.correct >= floor.certified
        assert (again.certified, again.correct) == (floor.certified, floor.correct), "of the last task, the same"
        moved = {**weights, "2.weight": weights["2.weight"] + 1e-3}
        with pytest.raises(icn.Violation, match=r"2\.weight"):
            icn.verify(moved, certificate)
        other = {**weights, "1.level": weights["1.level"] + 1e-3}
        with pytest.raises(icn.Violation, match=r"1\.level"):
            icn.verify(other, certificate)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_floor_is_counted_again_when_its_task_was_just_learned(tmp_path: Path, scenario: str) -> None:
    run = small(scenario, seeds=(2,))
    start(tmp_path, run)
    for index, state in enumerate(states_of(run)):
        leave(tmp_path, run, state)
        own = tmp_path / "seed-2"
        certificate = icn.Certificate.load(own / "model.icn")
        model = run.model(run.begin(), 0)
        model.load_state_dict(load_weights(own / "model.safetensors"))
        task, floor = run.stream.tasks[index], certificate.tasks[-1]
        again = icn.certify(model, certificate.region, task.train, classes=task.classes)
        assert (again.certified, again.correct, again.data) == (floor.certified, floor.correct, floor.data)
        assert len(certificate.tasks) == index + 1


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_run_ends_as_the_learner_does(scenario: str) -> None:
    run = small(scenario, seeds=(5,), parts=2 if scenario == "class" else 1)
    state = complete(run)
    model = cast(nn.Sequential, run.model(run.begin(), 0))
    learner = ExactInterContiNet(model, seed=5, **run.config.settings)
    for task in run.stream.tasks:
        learner.learn(task.train, task.name, classes=task.classes)
    certificate = run.certificate(state, 0)
    assert certificate is not None
    assert same(dict(model.named_parameters()), dict(run.model(state, 0).named_parameters()))
    assert same(dict(learner.region.lower), dict(certificate.region.lower))
    assert same(dict(learner.region.upper), dict(certificate.region.upper))
    assert learner.certificate.tasks == certificate.tasks


def test_a_run_killed_after_a_task_is_resumed_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advance = Run.advance

    def interrupted(run: Run, state: State, *rest: Any) -> State:
        if state.done == 2:
            raise KeyboardInterrupt
        return advance(run, state, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "advance", interrupted)
        with pytest.raises(AssertionError, match="Interrupted after 2 of 3"):
            go(tmp_path / "broken", "domain", "--seeds", "2")
    go(tmp_path / "broken", "domain", "--seeds", "2", "--resume")
    go(tmp_path / "whole", "domain", "--seeds", "2")
    assert left_in(tmp_path / "broken") == left_in(tmp_path / "whole")


def test_a_run_is_not_taken_up_with_another_encoder(tmp_path: Path) -> None:
    run = small()
    start(tmp_path, run)
    leave(tmp_path, run, run.advance(run.begin()))
    assert resume(tmp_path, small()) is not None
    again = small()
    levels = dict(cast(Encoder, again._models.encoders[1]).own.named_buffers())["1.level"]
    levels += 1e-3
    with pytest.raises(InvalidSetting, match="encoders fitted here are not those"):
        resume(tmp_path, again)


def test_epochs_are_refused_by_name(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["run", "--method", "exact", "--epochs", "3", "--out", str(tmp_path / "run")])
    assert isinstance(done.exception, InvalidSetting) and "epochs makes no sense" in str(done.exception)
    assert not (tmp_path / "run").exists()


# Floors for unseen data.


def test_floors_say_how_much_of_the_unseen_is_certain(tmp_path: Path) -> None:
    go(tmp_path, "class", "--seeds", "2,5")
    summary = json.loads((tmp_path / "summary.json").read_text())
    seen = 0
    for seed in summary["seeds"]:
        certificate = icn.Certificate.load(tmp_path / f"seed-{seed['seed']}" / "model.icn")
        for floor, counted in zip(seed["floors"], certificate.tasks, strict=True):
            names = ("unseen_certified", "unseen_total", "unseen_floor")
            found = [floor.get(name) for name in names]
            assert found == [getattr(counted, name) for name in names]
            if counted.unseen_total is not None:
                seen += 1
                assert floor["unseen_total"] == int(0.1 * floor["total"])
                assert floor["unseen_floor"] == lowest_share(floor["unseen_certified"], floor["unseen_total"], 0.95)
                assert 0 < floor["unseen_certified"] <= floor["certified"]
            else:
                assert not any(name in floor for name in names)
    assert seen >= 3


def test_without_unseen_examples_floors_say_nothing_of_them() -> None:
    run = small(seeds=(2,), unseen=0.0)
    state = complete(run)
    (seed,) = run.summary(state)["seeds"]
    assert not any(name.startswith("unseen") for floor in seed["floors"] for name in floor)
    certificate = run.certificate(state, 0)
    assert certificate is not None and all(floor.unseen_floor is None for floor in certificate.tasks)


# Seeds and curves.


def test_seeds_have_encoders_of_their_own_and_end_as_they_do_alone() -> None:
    both = small()
    state = complete(both)
    models = [both.model(state, row) for row in (0, 1)]
    first, second = (dict(parts_of(model)[0].named_buffers()) for model in models)
    assert not same(first, second)
    for row, seed in enumerate((2, 5)):
        alone = small(seeds=(seed,))
        end = complete(alone)
        assert same(models[row].state_dict(), alone.model(end, 0).state_dict())
        assert [line["floor"] for line in end.tasks(0)] == [line["floor"] for line in state.tasks(row)]
        certificates = both.certificate(state, row), alone.certificate(end, 0)
        assert certificates[0] is not None and certificates[1] is not None
        assert same(dict(certificates[0].region.lower), dict(certificates[1].region.lower))


def test_domains_have_a_column_for_each_time_an_output_comes() -> None:
    for scenario, parts, columns in (("domain", 1, 3), ("domain", 2, 6), ("class", 2, 2), ("task", 1, 1)):
        run = small(scenario, seeds=(0,), parts=parts)
        table = parts_of(run.model(run.begin(), 0))[1]
        assert (table.slots, table.columns) == (columns, columns * run.stream.outputs)


def test_curves_end_each_task_where_the_record_stands() -> None:
    run = Run(small().config, "cpu", curves=True)
    for seed in run.summary(complete(run))["seeds"]:
        assert [(point["task"], point["phase"]) for point in seed["curve"]] == [(i, "learning") for i in range(3)]
        for task, (row, point) in enumerate(zip(seed["accuracy_matrix"], seed["curve"], strict=True)):
            assert (point["current"], point["first"]) == pytest.approx((row[task], row[0]))
