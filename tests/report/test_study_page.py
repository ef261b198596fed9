"""The page of a study: an overview, a section for each run, and names that tell runs apart."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from intercontinet.report.page import write_page
from intercontinet.report.record import read_record
from intercontinet.study.store import cells
from tests.report.pages import Page, break_a_floor, store
from tests.report.records import metrics, record, write_run


def test_a_study_has_an_overview_and_a_section_for_each(tmp_path: Path) -> None:
    store(tmp_path, a=record("ewc"), b=record("offline", scenario="class"))
    write_run(tmp_path / "mine", break_a_floor(record()), metrics())
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.json").write_text("{}")
    page = Page(write_page(tmp_path))
    assert f"Study: {tmp_path.name}" in page.text and "mnist, 3 runs, 6 trained models, 3 min 46 s in all" in page.text
    assert len(page.all("details")) == 3
    assert [a["href"] for a in page.all("a")] == ["#run-1", "#run-2", "#run-3"]
    assert {"id": "run-3"} in page.all("div")
    second, first, third = re.findall(r"<tr>\n(.*?)</tr>", page.source, re.S)[:3]
    assert (
        "InterContiNet, enforced" in first and "81.6%" in first and "1 of 10 below promise" in first and "90%" in first
    )
    assert "EWC" in second and "no promise" in second and "97.5% ± 0.5" in second and "1.3% ± 0.1" in second
    assert "Offline" in third and "class" in third and "mnist" not in third and "1 min 15 s" in third
    heads = re.findall(r'<th scope="col"[^>]*>([^<]+)', page.source)
    assert heads[:4] == ["scenario", "method", "accuracy", "by the paper"], "first what a phone has room for"
    assert "Left out: begun" in page.text
    assert "Training" in page.text and "Epoch by epoch" in page.text


def test_accuracy_is_that_of_the_tables_with_the_papers_beside_it(tmp_path: Path) -> None:
    """Tasks of different sizes: over all examples as tables have it, and averaged over tasks among the seeds."""
    sizes = [900, 25, 25, 25, 25]
    content = record("lwf", scenario="class", seeds=(0,), test_examples=sizes)
    last = [0.5, 0.9, 0.9, 0.9, 0.9]
    content["seeds"][0] |= {"accuracy_matrix": [*content["seeds"][0]["accuracy_matrix"][:-1], last]}
    content["seeds"][0] |= {"average_accuracy": 0.82}
    store(tmp_path, a=content)
    page = Page(write_page(tmp_path))
    assert cells([read_record(tmp_path / "a.json")]).popitem()[1].mean == pytest.approx(0.54)
    (row,) = re.findall(r"<tr>\n(.*?)</tr>", page.source, re.S)
    assert "54.0%" in row and "49.4% ± 0.7" in row and "82.0%" not in row
    assert "<b>54.0%</b>" in page.source and "accuracy 54.0% forgetting" in page.text
    assert re.search(r"seed accuracy average over tasks .*? 0 54\.0% 82\.0% ", page.text)
    assert "Accuracy: over all test examples of all tasks" in page.text
    single = Page(write_page(write_run(tmp_path / "alone", content)))
    assert "average accuracy 82.0%" in single.text and "accuracy 54.0%" not in single.text


def test_the_paper_has_no_number_for_other_streams_and_variants(tmp_path: Path) -> None:
    short = record("ewc", tasks=["0/1", "2/3"])
    store(tmp_path, a=short, b=record("ewc", dataset="digits"), c=record("ewc", variant="slow"))
    assert "by the paper" not in Page(write_page(tmp_path)).text
    store(tmp_path, d=record("ewc"))
    page = Page(write_page(tmp_path))
    assert "by the paper" in page.text and page.text.count("97.0% ± 0.1") == 1
    assert "data set" in page.text and "<td>digits</td>" in page.source, "which have a column where there are several"


def test_seeds_added_later_are_pooled(tmp_path: Path) -> None:
    store(tmp_path, x=record(seeds=(5, 6)), y=record(seeds=(0, 1), commit="0ddba11"))
    page = Page(write_page(tmp_path))
    assert "1 run, 4 trained models" in page.text
    assert "Versions and hardware: x.json" in page.text and "Versions and hardware: y.json" in page.text
    assert "0ddba11" in page.text
    assert re.search(r"seed accuracy average over tasks .*? 0 97.*? 1 9.*? 5 9.*? 6 9", page.text)


def test_of_a_seed_that_was_run_twice_the_newest_counts(tmp_path: Path) -> None:
    new = record(seeds=(1,), started="2026-11-17T10:00:00+00:00")
    write_run(tmp_path / "new", break_a_floor(new, seed=0), metrics())
    write_run(tmp_path / "old", record(seeds=(0, 1, 2)), metrics())
    page = Page(write_page(tmp_path))
    assert "1 run, 3 trained models, 1 min 53 s in all" in page.text
    assert "1 of 15 below promise" in page.text and "4/5: in seed 1;" in page.text
    assert "Versions and hardware: new" in page.text and "Versions and hardware: old" in page.text
    store(tmp_path, newest=record(seeds=(0, 1, 2), started="2026-11-18T10:00:00+00:00"))
    page = Page(write_page(tmp_path))
    assert "1 run, 3 trained models" in page.text and "below promise" not in page.text
    assert "No curves" in page.text and "Versions and hardware started 2026-11-18 10:00:00+00:00" in page.text


def test_a_seed_that_did_not_finish_does_not_displace_one_that_did(tmp_path: Path) -> None:
    begun = record(complete=False, started="2026-11-17T10:00:00+00:00")
    page = Page(write_page(store(tmp_path, x=record(), y=begun)))
    assert "1 run, 2 trained models" in page.text and "incomplete" not in page.text


def test_runs_that_differ_in_a_setting_are_told_apart_by_it(tmp_path: Path) -> None:
    store(
        tmp_path,
        x=record(settings={"epochs": 5, "rate": 0.1}),
        y=record(settings={"epochs": 5, "rate": 0.3}, seeds=(7,)),
    )
    small = re.findall("<small>(rate.*?|epochs.*?)</small>", Page(write_page(tmp_path)).source)
    assert small == ["rate 0.1", "rate 0.3"]


def test_runs_that_differ_in_their_number_of_tasks_are_told_apart_by_it(tmp_path: Path) -> None:
    store(tmp_path, x=record("ewc"), y=record("ewc", tasks=["0/1/2/3/4", "5/6/7/8/9"]))
    small = re.findall("<small>(tasks.*?)</small>", Page(write_page(tmp_path)).source)
    assert small == ["tasks 5", "tasks 2"]


def test_settings_that_are_younger_than_a_record_tell_nothing_apart(tmp_path: Path) -> None:
    old, new = {"at_ceiling": 0.8}, {"at_ceiling": 0.8, "tuning": "multiplied", "strangers_from": "", "mirror": False}
    store(
        tmp_path,
        old=record("exact", settings=old, variant="old"),
        new=record("exact", settings=new),
        strange=record("exact", settings={**new, "strangers_from": "cifar-100"}, variant="strange"),
    )
    small = re.findall("<th scope=.row.><a.*?</a>(.*?)</th>", Page(write_page(tmp_path)).source)
    assert sorted(small) == ["", "<small>old</small>", "<small>strange, strangers_from cifar-100</small>"]


def test_seeds_from_before_and_after_a_setting_came_are_pooled(tmp_path: Path) -> None:
    before = {"rate": 0.1}
    store(tmp_path, x=record(settings=before), y=record(settings={**before, "aim": "loss", "budgets": []}, seeds=(7,)))
    assert "1 run, 3 trained models" in Page(write_page(tmp_path)).text
    store(tmp_path, z=record(settings={**before, "aim": "volume"}, seeds=(8,)))
    page = Page(write_page(tmp_path))
    assert "2 runs, 4 trained models" in page.text and "<small>aim volume</small>" in page.source


def test_a_share_to_keep_has_a_column_and_is_not_said_again(tmp_path: Path) -> None:
    store(tmp_path, **{f"at{keep}": record(keep=keep, settings={"keep": keep}) for keep in (0.8, 0.9)})
    assert "<small>keep" not in Page(write_page(tmp_path)).source


def test_headings_say_what_a_study_has_several_of(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    store(first, a=record("ewc"), b=record("ewc", scenario="class"), c=record("ewc", dataset="digits", variant="wide"))
    assert headings(first) == {
        "EWC, digits, task-incremental, wide": "",
        "EWC, mnist, task-incremental": "",
        "EWC, mnist, class-incremental": "",
    }
    store(second, a=record("ewc"), b=record(variant="wide"))
    assert headings(second) == {"EWC": "mnist, task-incremental",
                                "InterContiNet, enforced, wide": "mnist, task-incremental, keep 90%"}  # fmt: skip


def headings(study: Path) -> dict[str, str]:
    """Of the runs of a study, with what is said beside them."""
    return dict(re.findall("<summary><h2>(.*?)</h2><span>(.*?)</span>", Page(write_page(study)).source))


def test_a_variant_is_named_and_never_pooled_with_another(tmp_path: Path) -> None:
    store(tmp_path, x=record(variant="wide"), y=record(seeds=(7,)))
    page = Page(write_page(tmp_path))
    assert "2 runs" in page.text and "<small>wide</small>" in page.source


def test_an_incomplete_run_stands_out_in_a_study(tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    page = Page(write_page(store(tmp_path / "study", x=record(complete=False), y=record("ewc"))))
    assert page.text.count("incomplete") == 2  # in the table and over the section
