"""Trials: each beside the cell that it is a trial of, with what was set otherwise as the records have it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from intercontinet.errors import InvalidData
from intercontinet.study.store import save_record
from intercontinet.study.studies import STUDIES
from intercontinet.study.trials import STUDY, TABLES, found, left_words, markdown, rich_table, section
from tests.study.records import record, seed_record

RESULTS = Path(__file__).parents[2] / "results"


def test_trials_are_told_by_what_differs_from_the_cell_in_its_table(tmp_path: Path) -> None:
    usual = {"epochs": 30, "milestones": [15, 27], "rate": 0.1}

    def save(study: str, **changes: Any) -> None:
        save_record(tmp_path / study, record(method="lwf", scenario="domain", **changes), several=study == STUDY)

    save("table3", dataset="cifar-10", settings=usual)
    save(STUDY, dataset="cifar-10", variant="more", settings={**usual, "epochs": 100, "milestones": [50, 90]})
    save(STUDY, dataset="cifar-10", variant="drops", settings={**usual, "old_drops": True})  # younger than the table's
    save(STUDY, dataset="mnist", variant="alone")
    alone, drops, more = found(tmp_path)
    assert drops.changed == [("old_drops", True, False)]
    assert more.changed == [("epochs", 100, 30), ("milestones", [50, 90], [15, 27])]
    name, tried, ours, table, paper, certified = more.texts()
    assert (name, paper, certified) == ("cifar-10/domain/lwf/more", "76.97 ± 0.91", "-")
    assert tried == "epochs 100, not 30; milestones 50 and 90, not 15 and 27"
    assert ours == table != "not run"
    assert alone.changed == [] and alone.texts()[3] == "not run", "there is nothing to hold it against"
    assert markdown([drops]).splitlines()[2].startswith("| cifar-10/domain/lwf/drops | old_drops true, not false |")


def test_a_promise_that_fell_short_is_marked(tmp_path: Path) -> None:
    seeds = [seed_record(certified=(90, 80), kept=(True, False))]
    short = record(seeds, method="intercontinet-published", variant="short")
    save_record(tmp_path / STUDY, short, several=True)
    (trial,) = found(tmp_path)
    assert trial.texts("<{}>")[-1] == ".90 <.80>"
    console = Console(width=200)
    with console.capture() as captured:
        console.print(rich_table([trial]))
    assert "*: less was certain than was promised" in captured.get()


def test_trials_in_the_repository_change_something_and_belong_to_a_cell() -> None:
    shown = found(RESULTS)
    assert shown
    for trial in shown:
        assert trial.usual is not None and trial.changed, trial.ours.key


def test_every_trial_that_is_planned_has_a_cell_in_its_table() -> None:
    for plan in STUDIES[STUDY].plans:
        cells = {other.key for other in STUDIES[TABLES[plan.dataset]].plans}
        assert any((plan.scenario, plan.method) == (key.scenario, key.method) for key in cells), plan.key


def test_what_is_planned_and_was_not_run_is_named() -> None:
    """So that nobody takes a plan for something that was tried."""
    ran = {trial.ours.key for trial in found(RESULTS)}
    words = section(RESULTS)[1][-1]
    for plan in STUDIES[STUDY].plans:
        assert (f"`{plan.dataset}/{plan.key}`" in words) == (plan.key not in ran)
    assert "cifar-10/task/offline/fewer-epochs" in left_words([])


def test_a_record_of_a_data_set_without_a_table_is_named(tmp_path: Path) -> None:
    save_record(tmp_path / STUDY, record(dataset="digits", variant="odd"), several=True)
    with pytest.raises(InvalidData, match=r"digits-.*json is of digits, of which there is no table"):
        found(tmp_path)
