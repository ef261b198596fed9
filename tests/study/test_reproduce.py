"""Studies cell by cell: only what is missing is run, what is done stays, and cells of one kind are run alike."""

from __future__ import annotations

import gc
import json
import re
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from intercontinet.engine.loop import Listener, Progress
from intercontinet.errors import InvalidData, InvalidSetting, OutOfMemory, WriteError
from intercontinet.study import reproduce
from intercontinet.study.config import settings_of
from intercontinet.study.reproduce import Step, steps, work_through
from intercontinet.study.run import Run, complete
from intercontinet.study.store import cells, load_records, save_record
from intercontinet.study.studies import KEEPS, STUDIES, Plan, Study, named
from tests.study.records import record

KEPT = {"keep": 0.5}
TINY = Study(
    (
        Plan("digits", "domain", "sgd"),
        Plan("digits", "domain", "offline"),
        Plan("digits", "task", "sgd"),
        Plan("digits", "domain", "intercontinet-published", "keep-0.5", KEPT),
    ),
    2,
    curves=True,
)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STUDIES, "tiny", TINY)


def names(todo: list[Step]) -> list[str]:
    return [str(step.plan.key) for step in todo]


def through(results: Path, todo: list[Step], **changes: Any) -> list[Path]:
    return list(work_through("tiny", todo, results, "cpu", **changes))


def test_only_what_is_missing_is_run_and_cells_are_pooled(tmp_path: Path) -> None:
    todo = steps("tiny", tmp_path, 1, 2)
    assert names(todo) == ["domain/sgd", "domain/offline", "task/sgd", "domain/intercontinet-published/keep-0.5"]
    assert len(todo) == 4
    assert {step.config.seeds for step in todo} == {(0,)}
    first = through(tmp_path, todo)
    assert sorted(path.name for path in first) == [
        "domain-intercontinet-published-keep-0.5-seeds-0-0.json",
        "domain-offline-seeds-0-0.json",
        "domain-sgd-seeds-0-0.json",
        "task-sgd-seeds-0-0.json",
    ]
    assert first[0].name.startswith("domain-offline"), "the longest first"
    assert steps("tiny", tmp_path, 1, 2) == []
    more = steps("tiny", tmp_path, 3, 2, ["domain/sgd"])
    assert [step.config.seeds for step in more] == [(1, 2)]
    assert [path.name for path in through(tmp_path, more)] == ["domain-sgd-seeds-1-2.json"]
    pooled = cells(load_records(tmp_path / "tiny"))
    assert [seed.seed for seed in pooled[TINY.plans[0].key].seeds] == [0, 1, 2]
    assert len(pooled) == 4
    lacking = steps("tiny", tmp_path, None, 2)
    assert [(len(step.config.seeds), step.config.seeds) for step in lacking] == [(1, (1,))] * 3, "the study's own two"


def test_a_file_that_would_be_lost_is_found_before_training(tmp_path: Path) -> None:
    save_record(tmp_path / "tiny", record(scenario="domain", method="sgd"))
    with pytest.raises(
        InvalidData, match=r"domain-sgd-seeds-0-1\.json holds domain/sgd on mnist, .* move that file away"
    ):
        steps("tiny", tmp_path, 2, 2)
    assert names(steps("tiny", tmp_path, 2, 2, ["task"])) == ["task/sgd"], "which that file is not in the way of"
    assert names(steps("tiny", tmp_path, 1, 2, ["domain/sgd"])) == ["domain/sgd"]


def test_records_are_whole_with_variant_and_curves(tmp_path: Path) -> None:
    (path,) = through(tmp_path, steps("tiny", tmp_path, 2, 2, ["keep-0.5"]))
    content = json.loads(path.read_text())
    assert (content["variant"], content["keep"], content["settings"]["keep"]) == ("keep-0.5", 0.5, 0.5)
    assert content["complete"] is True
    (record,) = load_records(tmp_path / "tiny")
    assert [len(seed.curve) for seed in record.seeds] == [5 * 2, 5 * 2]


@pytest.mark.parametrize(
    ("only", "found"),
    [
        (["task"], ["task/sgd"]),
        (["sgd"], ["domain/sgd", "task/sgd"]),
        (["domain/sgd", "offline"], ["domain/sgd", "domain/offline"]),
        (["keep-0.5"], ["domain/intercontinet-published/keep-0.5"]),
        (["intercontinet-published/keep-0.5"], ["domain/intercontinet-published/keep-0.5"]),
    ],
)
def test_only_some_cells_by_parts_of_their_names(tmp_path: Path, only: list[str], found: list[str]) -> None:
    assert names(steps("tiny", tmp_path, 1, 2, only)) == found


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("tini", None, None, ()), "there is no study 'tini' (did you mean 'tiny'?)"),
        (("tiny", 0, None, ()), "seeds is 0"),
        (("tiny", 20_000_000, None, ()), "seeds is 20000000, and one run takes at most 10,000"),
        (("tiny", None, 0, ()), "epochs is 0"),
        (("tiny", None, None, ("intercontinet",)), "no cell of tiny is called 'intercontinet'"),
        (("tiny", None, None, ("dom",)), "no cell of tiny is called 'dom'"),
        (("tiny", None, None, ("sgd", "ofline")), "no cell of tiny is called 'ofline' (did you mean 'offline'?)"),
        (
            ("tiny", None, None, ("ewc",)),
            "its cells are named by dataset digits; scenario domain, task; method sgd, offline, "
            "intercontinet-published; variant keep-0.5; or by several, as in domain/sgd",
        ),
        (("dcos", None, None, ()), "there is no study 'dcos' (did you mean 'docs'?)"),
    ],
)
def test_what_makes_no_sense_is_named(tmp_path: Path, asked: Any, words: str) -> None:
    study, seeds, epochs, only = asked
    with pytest.raises(InvalidSetting, match=re.escape(words)):
        steps(study, tmp_path, seeds, epochs, only)


def test_seeds_of_one_cell_are_not_run_with_different_settings(tmp_path: Path) -> None:
    through(tmp_path, steps("tiny", tmp_path, 1, 2, ["domain/sgd"]))
    with pytest.raises(InvalidSetting, match="epochs 2, not 3") as caught:
        steps("tiny", tmp_path, 2, 3)
    assert "domain-sgd-seeds-0-0.json" in str(caught.value)
    with pytest.raises(InvalidSetting, match="epochs 2, not 3"):
        steps("tiny", tmp_path, 1, 3, ["domain/sgd"])  # though no seed is missing
    with pytest.raises(InvalidSetting, match=r"epochs 2, not 30.* --show"):
        steps("tiny", tmp_path, 1, None, ["domain/sgd"])  # or it would be shown as if it had been run with 30
    assert names(steps("tiny", tmp_path, 1, 2, ["sgd"])) == ["task/sgd"], "a cell that lacks nothing is not run again"


def test_stopped_between_cells_it_keeps_those_that_are_done(tmp_path: Path) -> None:
    todo = steps("tiny", tmp_path, 1, 2, ["sgd"])
    working = work_through("tiny", todo, tmp_path, "cpu")
    done = next(iter(working))
    working.close()  # type: ignore[attr-defined]
    assert [path.name for path in (tmp_path / "tiny").iterdir()] == [done.name]
    assert names(steps("tiny", tmp_path, 1, 2, ["sgd"])) == ["task/sgd"]


def test_an_interrupt_stops_the_cell_in_hand_at_its_next_epoch(tmp_path: Path) -> None:
    heard: list[str] = []

    def hear(step: Step, run: Run) -> Listener:
        def listen(progress: Progress) -> None:
            heard.append(f"{step.plan.key} {progress.task}")
            if step.plan.scenario == "task" and progress.task == "2/3":
                raise KeyboardInterrupt

        return listen

    todo = steps("tiny", tmp_path, 1, 2, ["sgd"])
    with pytest.raises(KeyboardInterrupt):
        through(tmp_path, todo, hear=hear)
    assert heard[-1] == "task/sgd 2/3"
    assert [path.name for path in (tmp_path / "tiny").iterdir()] == ["domain-sgd-seeds-0-0.json"]
    through(tmp_path, steps("tiny", tmp_path, 1, 2, ["sgd"]))
    assert len(load_records(tmp_path / "tiny")) == 2


def test_a_cell_that_fails_does_not_keep_the_others_from_being_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = Plan("digits", "domain", "intercontinet", "", {"rate": 1e30})
    monkeypatch.setitem(STUDIES, "tiny", Study((bad, TINY.plans[0]), 1))
    said: list[str] = []
    runs: list[weakref.ref[Run]] = []

    with pytest.raises(InvalidSetting, match="diverged") as raised:
        through(
            tmp_path, steps("tiny", tmp_path, 1, 2), say=said.append, hear=lambda _, run: runs.append(weakref.ref(run))
        )
    gc.collect()
    assert [ref() for ref in runs] == [None, None], f"a run outlives {raised.value}, and its memory the next cells"
    assert [path.name for path in (tmp_path / "tiny").iterdir()] == ["domain-sgd-seeds-0-0.json"]
    assert len(said) == 1 and said[0].startswith("domain/intercontinet failed: training diverged")


GIVING_OUT = [
    torch.OutOfMemoryError("CUDA out of memory"),
    OutOfMemory("too small for even one seed"),
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
]


def crowded(monkeypatch: pytest.MonkeyPatch, error: BaseException, times: int) -> list[str]:
    """Two lanes, in which a cell's memory gives out so many times; returns the cells that were begun, in order."""
    begun: list[str] = []

    def attempted(run: Run, **rest: Any) -> Any:
        cell = f"{run.config.scenario}/{run.config.method}"
        begun.append(cell)
        if cell == "task/sgd" and begun.count(cell) <= times:
            raise error
        return complete(run, **rest)

    monkeypatch.setattr(reproduce, "lanes_on", lambda device: 2)
    monkeypatch.setattr(reproduce, "complete", attempted)
    return begun


@pytest.mark.parametrize("error", GIVING_OUT, ids=lambda error: type(error).__name__)
def test_a_cell_that_runs_out_of_memory_beside_others_is_run_again_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    begun = crowded(monkeypatch, error, times=1)
    given_back: list[dict[str, bool]] = []
    monkeypatch.setattr(reproduce, "give_back_memory", lambda **how: given_back.append(how))
    said: list[str] = []
    stored = through(tmp_path, steps("tiny", tmp_path, 1, 2, ["sgd", "offline"]), say=said.append)
    assert said == ["task/sgd ran out of memory beside others: will be run by itself"]
    assert len(stored) == 3 and stored[-1].name == "task-sgd-seeds-0-0.json"
    assert begun[-1] == "task/sgd" and len(begun) == 4
    assert given_back == [{"alone": True}], "once nothing else runs, all of it"


def test_a_cell_that_runs_out_of_memory_by_itself_is_named_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = crowded(monkeypatch, GIVING_OUT[0], times=2)
    said: list[str] = []
    with pytest.raises(OutOfMemory, match="task/sgd on digits ran out of memory, by itself too: use fewer --seeds"):
        through(tmp_path, steps("tiny", tmp_path, 1, 2, ["sgd", "offline"]), say=said.append)
    assert len(load_records(tmp_path / "tiny")) == 2 and begun.count("task/sgd") == 2
    assert [word.split(":")[0] for word in said] == ["task/sgd ran out of memory beside others", "task/sgd failed"]


def test_a_cell_that_was_alone_anyway_is_not_tried_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = crowded(monkeypatch, GIVING_OUT[0], times=2)
    with pytest.raises(OutOfMemory):
        through(tmp_path, steps("tiny", tmp_path, 1, 2, ["task/sgd"]))
    monkeypatch.setattr(reproduce, "lanes_on", lambda device: 1)
    begun.clear()
    with pytest.raises(OutOfMemory, match="task/sgd on digits ran out of memory: use"):
        through(tmp_path, steps("tiny", tmp_path, 1, 2, ["sgd"]))
    assert sorted(begun) == ["domain/sgd", "task/sgd"]


def test_a_store_that_cannot_be_written_stops_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> None:
        raise WriteError("no space")

    monkeypatch.setattr("intercontinet.study.store.write_atomically", full)
    ran: list[str] = []

    def hear(step: Step, run: Run) -> None:
        ran.append(str(step.plan.key))

    with pytest.raises(WriteError):
        through(tmp_path, steps("tiny", tmp_path, 1, 2), hear=hear)
    assert len(ran) < 4


def test_an_error_that_is_a_bug_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(reproduce, "complete", broken)
    with pytest.raises(ZeroDivisionError):
        through(tmp_path, steps("tiny", tmp_path, 1, 2))


def test_the_papers_studies_have_its_cells_and_all_of_them_configure(tmp_path: Path) -> None:
    expected = {"table1": (33, 5), "table2": (33, 5), "table3": (27, 5), "figure3": (5, 5), "figure4": (8, 3)}
    for study, (count, seeds) in expected.items():
        todo = steps(study, tmp_path, None, None)
        assert len(todo) == len({step.plan.key for step in todo}) == count
        assert {step.config.seeds for step in todo} == {tuple(range(seeds))}
    assert [named(study).curves for study in expected] == [False, False, False, True, False]
    assert [step.config.keep for step in steps("figure3", tmp_path, None, None)] == list(KEEPS)


@pytest.mark.parametrize("study", [name for name in STUDIES if name != "tiny"])
def test_records_in_the_repository_are_of_the_plans_as_they_are(study: str) -> None:
    """One more seed could be added to every cell, and be pooled with those that are there."""
    results = Path(__file__).parents[2] / "results"
    records = load_records(results / study)
    stored = cells(records)
    planned = {plan.key for plan in STUDIES[study].plans}
    assert stored and stored.keys() <= planned, "a record without a plan"
    many = 1 + max(len(cell.seeds) for cell in stored.values())
    todo = steps(study, results, many, None)
    assert len(todo) == len(planned)
    for step in todo:
        if (cell := stored.get(step.plan.key)) is not None:
            old = cell.records[0]
            seeds = tuple(replace(old.seeds[0], seed=seed) for seed in step.config.seeds)
            records.append(replace(old, settings=settings_of(step.config), seeds=seeds, source=f"new/{step.plan.key}"))
    assert {key: len(cell.seeds) for key, cell in cells(records).items()} == dict.fromkeys(stored, many)
