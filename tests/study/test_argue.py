"""Arguing with every task's promise inside its own region, and what records and tables make of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from intercontinet.errors import InvalidData, Violation
from intercontinet.floor import TaskFloor, certify
from intercontinet.report.record import Argued, parse_record
from intercontinet.study import argue
from intercontinet.study.config import configure
from intercontinet.study.guarantee import attack_text
from intercontinet.study.run import Run, complete
from intercontinet.study.store import Cell, cells
from tests.report.records import record

NETS = {"exact": "capped-levels-60-5", "intercontinet": "mlp-20"}


def run_of(method: str, scenario: str = "class", say: Any = print, argue: int = 100) -> Run:
    net = NETS[method] if scenario != "task" else NETS[method].removeprefix("capped-")
    epochs = 12 if method == "intercontinet" else None
    return Run(configure("digits", scenario, method, (0, 1), 3, net=net, epochs=epochs), "cpu", say, argue=argue)


@pytest.mark.parametrize("scenario", ["task", "domain", "class"])
@pytest.mark.parametrize("method", NETS)
def test_every_promise_is_argued_with_in_its_own_region(method: str, scenario: str) -> None:
    run = run_of(method, scenario)
    seeds = run.summary(complete(run))["seeds"]
    for seed in seeds:
        for floor in seed["floors"]:
            found = Argued(**floor["argued"])
            assert found.examples == 100 and found.certain <= found.attacked <= found.right
            if method == "exact":
                assert found.attacked == found.certain, "its bounds are exact, and the attack gets there"
    first = [Argued(**seed["floors"][0]["argued"]) for seed in seeds]
    if scenario != "task":
        assert all(found.attacked < found.right for found in first), "there was room to do harm in"


def test_methods_without_a_region_are_not_argued_with() -> None:
    run = Run(configure("digits", "class", "sgd", (0,), 2, epochs=1), "cpu", argue=10)
    assert "argued" not in run.summary(complete(run))["seeds"][0]["floors"][0]


def test_a_promise_that_an_attack_refutes_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def flattering(*args: Any, **options: Any) -> TaskFloor:
        honest = certify(*args, **options)
        return replace(honest, certified=honest.correct)

    monkeypatch.setattr(argue, "certify", flattering)
    said: list[str] = []
    run = run_of("exact", say=said.append)
    run.advance(run.begin())
    assert len(said) == 2 and all(text.startswith("REFUTED: of 100 examples of task 0/1/2") for text in said)


def test_weights_that_left_their_region_are_found() -> None:
    run = run_of("exact", argue=0)
    state = run.advance(run.begin())
    certificate, region = run.certificate(state, 0), run.region(state.memory, 0)
    assert certificate is not None and region is not None
    model = run.model(state, 0)
    x, y = run.stream.tasks[0].train
    rest = (region, torch.zeros(len(y), 60), (x, y), None, "joint", None)
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    with pytest.raises(Violation):
        argue.Case(model, certificate, model, *rest).argued(10, seed=0)  # type: ignore[arg-type]


def argued_cell(*counts: tuple[int, int]) -> Cell:
    content = record()
    for seed, (certain, attacked) in zip(content["seeds"], counts, strict=False):
        for floor in seed["floors"]:
            floor["argued"] = {"examples": 200, "certain": certain, "attacked": attacked, "right": 199}
    (cell,) = cells([parse_record(json.dumps(content), "here")]).values()
    return cell


def test_tables_show_how_near_attacks_come() -> None:
    seeds = len(argued_cell().seeds)
    assert attack_text(argued_cell(*[(180, 183)] * seeds)) == " ".join(["1.5"] * 5)
    assert attack_text(argued_cell()) == "- - - - -"
    refuted = argued_cell((180, 179), *[(180, 190)] * (seeds - 1))
    assert attack_text(refuted, broken="<{}>".format).count("<") == 5, "below zero with one seed, whatever the mean"


def test_a_record_holds_what_was_found() -> None:
    assert argued_cell((180, 183)).seeds[0].floors[0].argued == Argued(200, 180, 183, 199)


@pytest.mark.parametrize(
    "change", [{"examples": 0}, {"attacked": 200, "right": 199}, {"certain": 300}, {"examples": 10**6}]
)
def test_counts_that_make_no_sense_are_refused(change: dict[str, int]) -> None:
    content = record()
    argued = {"examples": 200, "certain": 180, "attacked": 183, "right": 199, **change}
    content["seeds"][0]["floors"][0]["argued"] = argued
    with pytest.raises(InvalidData, match="makes no sense"):
        parse_record(json.dumps(content), "here")
