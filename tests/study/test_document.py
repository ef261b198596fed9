"""docs/results.md is what the records say, and says what they do not."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from intercontinet.errors import InvalidData
from intercontinet.learners.catalogue import METHODS
from intercontinet.study.document import COMMAND, STUDIES, results_document, write_document
from intercontinet.study.figures import keep_csv, keep_lines, method_csv, method_lines
from intercontinet.study.store import load_records, save_record
from intercontinet.study.tradeoff import tradeoff
from tests.study.records import finals, record, seed_record
from tests.study.test_figures import curve, hundred, study

ROOT = Path(__file__).parents[2]
STALE = f"differs from what the records in results/ say: run `{COMMAND}` and look at the changes"


def section(text: str, title: str) -> str:
    return text.split(f"\n## {title}")[1].split("\n## ")[0]


def test_the_document_is_what_the_records_say() -> None:
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert text == results_document(ROOT / "results"), f"docs/results.md {STALE}"


def test_the_figures_are_what_the_records_say(tmp_path: Path) -> None:
    tradeoff(load_records(ROOT / "results" / "tradeoff"), tmp_path / "tradeoff")
    methods = load_records(ROOT / "results" / "figure4")
    drawn = {
        "figure3": keep_csv(keep_lines(load_records(ROOT / "results" / "figure3"))),
        "figure4": method_csv(method_lines(methods)),
        "figure5": method_csv(method_lines(methods, full=True)),
        "tradeoff": (tmp_path / "tradeoff.csv").read_text(encoding="utf-8"),
    }
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for name, numbers in drawn.items():
        if f"images/{name}.csv" in text:
            path = ROOT / "docs" / "images" / f"{name}.csv"
            assert path.read_text(encoding="utf-8") == numbers, f"{path} {STALE}"


@pytest.mark.parametrize("made", [True, False], ids=["empty folder", "no folder"])
def test_a_store_without_records_makes_no_document(tmp_path: Path, made: bool) -> None:
    results, docs = tmp_path / "results", tmp_path / "docs"
    if made:
        (results / "table1").mkdir(parents=True)
    docs.mkdir()
    (docs / "results.md").write_text("as it was")
    with pytest.raises(InvalidData, match=r"results holds no records .*--out.*intercontinet reproduce table1"):
        write_document(results, docs)
    assert (docs / "results.md").read_text() == "as it was"


def test_commands_add_no_seed_to_what_was_run(tmp_path: Path) -> None:
    save_record(tmp_path / "table1", record(seeds=finals(0.9, 0.9)))
    save_record(tmp_path / "table1", record(seeds=finals(0.9, 0.9, 0.9), method="mas"))
    save_record(tmp_path / "table2", record(seeds=finals(*[0.9] * 5), dataset="fashion-mnist"))
    save_record(tmp_path / "figure3", study(0.9, *[curve(0.8)] * 6))
    save_record(tmp_path / "tradeoff", record(seeds=[seed_record(1)]))
    text = results_document(tmp_path)
    assert text.count("Not run yet.") == len(STUDIES) - 4
    options = {"table1": " --seeds 2"}  # the fewest; table2 and figure3 have all, and tradeoff lacks the first
    for name in STUDIES:
        assert text.count(f"`intercontinet reproduce {name}{options.get(name, '')}`") == 2, name
    assert (
        "`intercontinet reproduce table1 --seeds 2`; cells that have more seeds, as listed below, with `--seeds 3` and"
        in text
    )
    assert text.count("have more seeds") == 1


def test_what_was_run_for_the_guarantee_is_told_of_each_data_set(tmp_path: Path) -> None:
    for dataset in ("mnist", "cifar-10"):
        promised = record([seed_record(certified=(90, 80))], method="exact", keep=0.8, dataset=dataset)
        save_record(tmp_path / "guarantee", promised, several=True)
    found = re.findall(r"### What was run(.*)", section(results_document(tmp_path), "A guarantee"))
    assert found == [" on cifar-10", " on mnist"]


def test_a_table_is_shown_with_all_that_was_run(tmp_path: Path) -> None:
    save_record(tmp_path / "table1", record(seeds=finals(0.97, 0.971, 0.972)))
    save_record(
        tmp_path / "table1",
        record(
            method="intercontinet",
            scenario="class",
            settings={"centre_epochs": 20, "radii_epochs": 10, "rate": 1.0},
            commit="",
            seeds=[seed_record(1, certified=(90, 80)), seed_record(4, certified=(90, 80))],
        ),
    )
    text = results_document(tmp_path)
    table = section(text, "Table 1")
    assert "Every number in tables and figures comes from a record" in text
    assert "| EWC | 97.10 ± 0.10, 3 seeds | 97.01 ± 0.13 | +0.09 | - |" in table
    assert "Hardware: Some CPU (cpu), 4 cores, 2 threads, 16 GiB of memory." in table
    assert "Versions: intercontinet 0.2, numpy 2.1.0, python 3.12.1, torch 2.6.0." in table
    assert "Commit: `0123456789ab` (1 record)." in table and "Commit: not recorded (1 record)." in table
    assert "Time: 10 s, the sum of the cells' own times" in table
    assert "| EWC | seeds 0 to 2, epochs 30, 6.0 s | not run |" in table
    assert (
        "| InterContiNet, enforced | not run | seeds 1, 4, centre epochs 20, radii epochs 10, keep 0.9, 4.0 s |"
        in table
    )
    assert "Not run yet." in section(text, "Table 2")


def test_flagged_cells_need_a_note_of_their_own(tmp_path: Path) -> None:
    for method in ("ewc", "intercontinet", "intercontinet-published"):
        save_record(tmp_path / "table1", record(method=method, scenario="class"))
    assert results_document(tmp_path).count("**not explained yet**") == 3
    notes = "# Of `class/intercontinet-published`\n\nTried *everything*.\n"
    (tmp_path / "table1" / "notes.md").write_text(notes, encoding="utf-8")
    table = section(results_document(tmp_path), "Table 1")
    assert notes.strip() in table
    flagged = dict(re.findall(r"- `(class/\S+)` .*; (.*)\.\n", table))
    assert flagged == {
        "class/ewc": "**not explained yet**",
        "class/intercontinet-published": "see the notes below",
        "class/intercontinet": "**not explained yet**",
    }
    assert "90.00 ± 0.00, 2 seeds, against 18.90 ± 0.06: +71.10 points, 1287.4 pooled deviations" in table


def test_nothing_flagged_is_said(tmp_path: Path) -> None:
    save_record(tmp_path / "table1", record(seeds=finals(0.97, 0.971)))
    assert "No cell that was run is marked." in section(results_document(tmp_path), "Table 1")


def test_the_same_records_give_the_same_text_in_any_order(tmp_path: Path) -> None:
    contents = [record(method=method) for method in ("sgd", "ewc", "mas", "offline")]
    for content in contents:
        save_record(tmp_path / "one" / "table1", content)
    for content in reversed(contents):
        save_record(tmp_path / "other" / "table1", content)
    assert results_document(tmp_path / "one") == results_document(tmp_path / "other")


def test_every_picture_of_the_document_is_drawn(tmp_path: Path) -> None:
    save_record(tmp_path / "results" / "figure3", study(0.9, curve(0.8)))
    save_record(tmp_path / "results" / "figure4", hundred("sgd", 0.6, 0.7))
    docs = tmp_path / "docs"
    write_document(tmp_path / "results", docs)
    text = (docs / "results.md").read_text(encoding="utf-8")
    assert text == results_document(tmp_path / "results")
    links = re.findall(r"\((images/[^)]+)\)", text)
    assert len(links) == 6 and all((docs / link).is_file() for link in links)
    assert "figure5" not in text  # LwF was not run

    save_record(tmp_path / "results" / "figure4", hundred("lwf", 0.8))
    assert "![The same with LwF (the paper's figure 5)](images/figure5.png)" in results_document(tmp_path / "results")


def test_a_record_in_a_folder_of_no_study_is_not_passed_over(tmp_path: Path) -> None:
    save_record(tmp_path / "table4", record())
    with pytest.raises(InvalidData, match=r"table4.*belongs to no study: move it to one of table1, "):
        results_document(tmp_path)


def test_every_setting_that_can_be_set_is_listed() -> None:
    text = (ROOT / "docs" / "runs.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`([a-z_]+)(?:: [a-z0-9-]+)?`", text))
    listed |= set(re.findall(r"^  ([a-z_]+): ", text, re.MULTILINE))
    for method, kind in METHODS.items():
        for item in fields(kind.settings):
            assert item.name in kind.fixed or item.name in listed, f"{method} has {item.name}"
