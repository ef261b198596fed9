"""Tables: the paper's order, honest differences, what is certain, and what was not run."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from intercontinet.errors import InvalidData, InvalidSetting
from intercontinet.report.paper import Published
from intercontinet.study.store import Cell, CellKey, cells
from intercontinet.study.tables import (
    Entry,
    certified_text,
    difference_text,
    entries,
    epochs_text,
    markdown,
    method_name,
    ours_text,
    pooled_deviation,
    rich_table,
)
from tests.study.records import finals, parsed, record, seed_record

KEY = CellKey("mnist", "task", "ewc")


def cell(folder: Path, *values: float, **changes: Any) -> Cell:
    (found,) = cells(parsed(folder, record(seeds=finals(*values), **changes))).values()
    return found


def rendered(study: str, found: dict[CellKey, Cell], width: int = 160) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(rich_table(study, found))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def line_with(text: str, *words: str) -> str:
    (found,) = [line for line in text.splitlines() if all(word in line for word in words)]
    return found


@pytest.mark.parametrize(
    ("study", "names"),
    [
        ("table1", "SGD Adam L2 EWC oEWC SI MAS LwF published enforced Offline"),
        ("table2", "SGD Adam L2 EWC oEWC SI MAS LwF published enforced Offline"),
        ("table3", "SGD EWC oEWC SI MAS LwF published enforced Offline"),
    ],
)
def test_rows_come_in_the_papers_order(study: str, names: str) -> None:
    for row in entries(study, {}).values():
        assert [method_name(entry.key).split()[-1] for entry in row] == names.split()


def test_what_was_not_run_says_so_everywhere() -> None:
    assert list(entries("table1", {})) == ["task", "domain", "class"]
    for text in (markdown("table1", {}), rendered("table1", {})):
        assert text.count("not run") == 3 * 11 * 3
    assert "| EWC | not run | 97.01 ± 0.13 | not run | not run |" in markdown("table1", {})


def test_a_cell_shows_mean_deviation_seeds_paper_and_difference(tmp_path: Path) -> None:
    found = cells(parsed(tmp_path, record(seeds=finals(0.97, 0.971, 0.972))))
    assert "| EWC | 97.10 ± 0.10, 3 seeds | 97.01 ± 0.13 | +0.09 | - |" in markdown("table1", found)
    line = line_with(rendered("table1", found), " EWC ", "97.10 ± 0.10, 3 seeds")
    assert "97.01 ± 0.13" in line and "+0.09 " in line and "!" not in line


def test_certified_shares_of_every_task_are_shown_and_broken_promises_marked(tmp_path: Path) -> None:
    seeds = [seed_record(certified=(90, 82), kept=(True, False))]
    found = cells(parsed(tmp_path, record(seeds=seeds, method="intercontinet-published")))
    assert line_with(markdown("table1", found), "published", "1 seed").endswith("| .90 **.82** |")
    text = rendered("table1", found)
    assert ".90 .82* " in line_with(text, "published", "1 seed "), "though a pipe shows no colours"
    assert "!: more than 2 pooled deviations from the paper's. *: less was certain than was promised" in text


def test_shares_are_rounded_down_but_not_by_rounding_errors(tmp_path: Path) -> None:
    seeds = [seed_record(i, certified=shares) for i, shares in enumerate([(99, 29), (100, 29), (100, 29)])]
    (found,) = cells(parsed(tmp_path, record(seeds=seeds, method="intercontinet"))).values()
    assert certified_text(found) == ".99 .29"
    seeds = [seed_record(certified=(100, 0))]
    (full,) = cells(parsed(tmp_path / "full", record(seeds=seeds, method="intercontinet"))).values()
    assert certified_text(full) == "1.00 .00"


def test_the_enforced_row_is_held_against_the_published_numbers(tmp_path: Path) -> None:
    found = cells(parsed(tmp_path, record(method="intercontinet", seeds=finals(0.9893, 0.9893, certified=(90, 90)))))
    row = line_with(markdown("table1", found), "enforced", "2 seeds")
    assert "98.93 ± 0.05 | +0.00 |" in row


@pytest.mark.parametrize(
    ("values", "paper", "flagged"),
    [
        ((0.96, 0.97, 0.98), Published(98.4, 1.0), False),  # 1.4 deviations
        ((0.96, 0.97, 0.98), Published(98.99, 1.0), False),  # 1.99
        ((0.96, 0.97, 0.98), Published(99.01, 1.0), True),
        ((0.96, 0.97, 0.98), Published(99.01, 1.5), False),
        ((0.1, 0.1), Published(10.0, 0.0), False),  # nothing varies and nothing differs
        ((0.1009, 0.1009), Published(10.0, 0.0), False),  # nine images are no difference
        ((0.1011, 0.1011), Published(10.0, 0.0), True),
        ((0.96,), Published(97.9, 1.0), False),  # one seed: the paper's deviation
        ((0.96,), Published(98.1, 1.0), True),
    ],
)
def test_flags_are_for_more_than_two_pooled_deviations(
    tmp_path: Path, values: tuple[float, ...], paper: Published, flagged: bool
) -> None:
    entry = Entry(KEY, cell(tmp_path, *values), paper)
    assert entry.flagged is flagged
    assert difference_text(entry).endswith("!") is flagged


def test_the_pooled_deviation_is_symmetric_and_never_tiny() -> None:
    assert pooled_deviation(1.0, 2.0) == pooled_deviation(2.0, 1.0) == pytest.approx(2.5**0.5)
    assert pooled_deviation(0.0, 1.0) == pytest.approx(((0.05**2 + 1) / 2) ** 0.5)


def test_no_difference_has_no_minus_sign_and_one_seed_no_deviation(tmp_path: Path) -> None:
    found = cell(tmp_path, 0.96996)
    assert difference_text(Entry(KEY, found, Published(97.0, 1.0))) == "+0.00"
    assert ours_text(found) == "97.00, 1 seed"
    assert difference_text(Entry(KEY, found, None)) == "-"


def test_methods_and_variants_that_the_paper_lacks_are_shown_too(tmp_path: Path) -> None:
    found = cells(
        parsed(
            tmp_path,
            record(dataset="cifar-10", method="adam"),
            record(dataset="cifar-10", method="newest"),
            record(dataset="cifar-10", method="ewc", variant="slow"),
        )
    )
    names = [method_name(entry.key) for entry in entries("table3", found)["task"]]
    assert names[:4] == ["SGD", "Adam", "EWC", "EWC (slow)"] and names[-1] == "newest"
    assert "| Adam | 90.00 ± 0.00, 2 seeds | - | - | - |" in markdown("table3", found)


def test_a_narrow_terminal_loses_no_digit(tmp_path: Path) -> None:
    found = cells(parsed(tmp_path, record(seeds=finals(0.97, 0.971, 0.972))))
    assert "…" not in rendered("table1", found, width=80)


def test_below_a_table_is_how_many_epochs_its_cells_took(tmp_path: Path) -> None:
    def said(name: str, *contents: dict[str, Any]) -> str:
        return rendered("table1", cells(parsed(tmp_path / name, *contents))).splitlines()[-1].strip()

    offline = record(method="offline", settings={"epochs": 100})
    rest = [record(method=method, settings={"epochs": 30}) for method in ("ewc", "sgd")]
    assert said("usual", *rest, offline) == "Epochs a task: 30; 100 for Offline."
    slips = [
        record(method="sgd", scenario="class", settings={"epochs": 1}),
        record(method="l2", settings={"epochs": 1}),
    ]
    assert said("slips", *rest, *slips, record(scenario="domain")) == (
        "Epochs a task: 30; 1 instead of the paper's 30 for class/sgd, L2."
    )
    phases = {"centre_epochs": 15, "radii_epochs": 5}
    few = said("phases", record(method="intercontinet", settings=phases))
    assert few == "Epochs a task: 20 instead of the paper's 30."
    assert epochs_text(cells(parsed(tmp_path / "none", record(method="newest", settings={}))).values()) == ""
    own = record(dataset="digits", settings={"epochs": 7})
    assert epochs_text(cells(parsed(tmp_path / "own", own)).values()) == "Epochs a task: 7."


def test_records_of_another_data_set_and_unknown_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match="Table 2: Split FashionMNIST is of fashion-mnist, but task/ewc"):
        markdown("table2", cells(parsed(tmp_path, record())))
    with pytest.raises(InvalidSetting, match="no table 'table4': choose one of table1, table2, table3"):
        rich_table("table4", {})
