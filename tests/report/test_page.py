"""The page: self-contained, complete, safe whatever a record says; and what is no record is refused by name."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from intercontinet.errors import InvalidData, InvalidSetting, WriteError
from intercontinet.report.page import write_page
from intercontinet.report.words import duration
from tests.report.pages import Page, break_a_floor, page_of
from tests.report.records import PAIRS, Record, metrics, record, write_run
from tests.report.test_svg import contrast

HOSTILE = "<script>alert(1)</script>\"'&<img src=x onerror=y>"


# What any page is.


@pytest.mark.parametrize("study", [False, True])
def test_a_page_needs_nothing_from_elsewhere(tmp_path: Path, study: bool) -> None:
    write_run(tmp_path / "run", break_a_floor(record()), metrics())
    page = Page(write_page(tmp_path if study else tmp_path / "run"))
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.tags}
    targets = [value for _, attributes in page.tags for name in ("src", "href") if (value := attributes.get(name))]
    assert all(target.startswith("#") for target in targets)
    assert {"id": targets[0][1:]} in page.all("div") if study else not targets
    assert not re.search(r"https?:|//|url\(|@import|javascript", page.source)
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "default-src 'none'" in page.source


def test_a_page_suits_phones_readers_and_the_dark(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")
    assert page.all("html") == [{"lang": "en"}]
    assert "prefers-color-scheme: dark" in page.source and "@media print" in page.source
    assert all(head.get("scope") in ("col", "row") for head in page.all("th"))
    assert page.source.count('<div class="scroll"') == len(page.all("table")) + len(page.all("svg")) - 1  # but the mark
    assert len(page.all("h1")) == 1


def test_words_can_be_read_on_their_grounds_in_light_and_dark(tmp_path: Path) -> None:
    source = page_of(tmp_path).source
    light, dark = (
        dict(re.findall(r"--([a-z0-9-]+): (#\w{6});", block)) for block in re.findall(r":root {(.*?)}", source, re.S)
    )
    assert set(light) == set(dark)
    for colours in (light, dark):
        for word in ("ink", "soft", "red", "link"):
            assert contrast(colours[word], colours["card"]) >= 4.5 and contrast(colours[word], colours["page"]) >= 4.5
        for word in ("red", "amber", "green"):
            assert contrast(colours[word], colours[f"{word}-back"]) >= 4.5
        assert min(contrast(colours[line], colours["card"]) for line in ("s0", "s1")) >= 3
    assert ".cell text { fill: #0c1c1b; }" in source and ".cell text { fill: #ffffff; }" in source


def test_records_cannot_smuggle_anything_in(tmp_path: Path) -> None:
    lines = [{**line, "task": HOSTILE} for line in metrics()]
    content = record(tasks=[HOSTILE] * 3, dataset=HOSTILE, net=HOSTILE, commit=HOSTILE)
    content |= {"settings": {HOSTILE: HOSTILE}, "versions": {HOSTILE: HOSTILE}}
    content["hardware"] |= {"name": HOSTILE, "device": HOSTILE}
    write_run(tmp_path / HOSTILE.replace("/", ""), break_a_floor(content), lines)
    for folder in (tmp_path, next(tmp_path.iterdir())):
        page = Page(write_page(folder))
        assert not {"script", "img"} & {tag for tag, _ in page.tags}
        assert page.text.count(HOSTILE) > 10
        assert "<script" not in page.source and "<img" not in page.source


def test_halves_of_characters_do_no_harm(tmp_path: Path) -> None:
    assert "odd ?" in page_of(tmp_path, record(dataset="odd \ud800")).text


def test_the_same_records_give_the_same_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path, record(), metrics())
    first = write_page(folder).read_bytes()
    assert write_page(folder).read_bytes() == first


# The page of a run.


def test_a_run_is_shown_whole(tmp_path: Path) -> None:
    page = page_of(tmp_path, record(), metrics())
    for words in (
        "InterContiNet, enforced", "mnist, task-incremental, 5 tasks one after another, mlp-400-400, 2 seeds",
        "Accuracy on every task, after every task", "Floors against accuracy", "Seeds", "Region size over time",
        "Sum of radii", "Log-volume", "Dead weights", "Training", "Accuracy", "Loss",
        "Settings", "head per-task", "rate 0.1",
        "Versions and hardware", "torch 2.9.0", "name NVIDIA H200", "memory gib 128.0", "commit f34dd4f",
        "1 min 15 s", "forgetting 1.3% ± 0.1", "lowest floor 90.4%", "-1.2%", "+0.4%", "5 of 5",
        "All 10 floors are as high as promised: at least 90% of the accuracy",
    ):  # fmt: skip
        assert words in page.text
    assert "Incomplete" not in page.text and "Not kept" not in page.text


def test_the_mean_matrix_is_there_in_numbers(tmp_path: Path) -> None:
    content = record()
    for seed, shift in zip(content["seeds"], (0.0, 0.01), strict=True):
        seed["accuracy_matrix"] = [[0.5 + 0.05 * i + 0.02 * j + shift for j in range(5)] for i in range(5)]
    page = page_of(tmp_path, content)
    for i in range(5):
        for j in range(5):
            assert f"{50.5 + 5 * i + 2 * j:.1f}" in page.words
            assert f"after {PAIRS[i]}, {PAIRS[j]}: {50.5 + 5 * i + 2 * j:.1f}%" in page.words


def test_floors_for_unseen_data_have_a_column_where_there_are_any(tmp_path: Path) -> None:
    content = record()
    assert "nseen" not in page_of(tmp_path, content).text
    for seed, certified, floor in zip(content["seeds"], (900, 850), (0.8829, 0.82997), strict=True):
        unseen = {"unseen_certified": certified, "unseen_total": 1000, "unseen_floor": floor}
        seed["floors"][1] |= unseen
    content["seeds"][0]["floors"][2] |= {"unseen_certified": 0, "unseen_total": 1, "unseen_floor": 0.0}
    page = page_of(tmp_path, content)
    assert "promised there unseen, 95 % kept" in page.text
    assert "89.1% 82.9% from 850 of 1000 ✓ yes" in page.text, "of the lowest seed, rounded down"
    assert "89.1% 0.0% from 0 of 1 ✓ yes" in page.text
    assert page.text.count("89.1% - ✓ yes") == 3, "the other tasks"
    assert "at 95 % confidence, in the seed where it is lowest" in page.text


def test_what_floors_rest_on_is_said_where_they_are_praised(tmp_path: Path) -> None:
    content = record()
    assert "frozen layers" not in page_of(tmp_path, content).text
    for seed in content["seeds"]:
        for floor in seed["floors"]:
            floor["drift"] = 1e-05
    said = "is certain, wherever the frozen layers put out what they did here, give or take 1e-05 of an example's"
    assert said in page_of(tmp_path, content).text


def test_floors_that_promise_nothing_are_not_praised(tmp_path: Path) -> None:
    content = record()
    floors = [floor for seed in content["seeds"] for floor in seed["floors"]]
    assert "promise nothing" not in page_of(tmp_path, content).text
    floors[0] |= {"certified": 0, "accuracy": 0.0}
    page = page_of(tmp_path, content)
    assert "1 of them is 0, and promises nothing." in page.text and 'class="banner good"' in page.source
    for floor in floors:
        floor |= {"certified": 0, "accuracy": 0.0}
    page = page_of(tmp_path, content)
    assert "10 of them are 0, and promise nothing." in page.text and 'class="banner warn"' in page.source


def test_a_broken_promise_is_red_and_said(tmp_path: Path) -> None:
    page = page_of(tmp_path, break_a_floor(record()))
    assert (
        "Not kept. 1 of 10 floors lies below its promise: 4/5: in seed 1; 81.6% certified, 89.1% promised" in page.text
    )
    assert "✗ not in seed 1" in page.text and "9800 of 12000" in page.text
    assert 'class="n bad">81.6%' in page.source and 'class="row broken"' in page.source
    assert "as high as promised" not in page.text


def test_the_seed_that_broke_its_promise_is_the_one_shown(tmp_path: Path) -> None:
    content = record()
    content["seeds"][0]["floors"][0] |= {"certified": 6000, "accuracy": 0.5}  # lower, but more than was promised
    content["seeds"][1]["floors"][0] |= {"certified": 10000, "kept": False}
    assert "0/1: in seed 1; 83.3% certified, 89.1% promised" in page_of(tmp_path, content).text


def test_a_method_without_a_promise_says_so(tmp_path: Path) -> None:
    page = page_of(tmp_path, record("ewc"), metrics(certifies=False))
    assert "No promise. EWC has no region and promises nothing" in page.text
    assert "EWC promises nothing and has no region." in page.text
    assert "Sum of radii" not in page.text and "certified" not in page.text
    assert "lowest floor none" in page.text


def test_offline_learns_everything_in_one_row(tmp_path: Path) -> None:
    page = page_of(tmp_path, record("offline"))
    assert "after all tasks" in page.text and "5 tasks at once" in page.text
    assert "All tasks are learned at once." in page.text


def test_one_seed_has_no_spread(tmp_path: Path) -> None:
    page = page_of(tmp_path, record(seeds=(3,)))
    assert "±" not in page.text and "band" not in page.text and "worst seed" not in page.text


def test_an_incomplete_run_says_so(tmp_path: Path) -> None:
    content = record(complete=False)
    for name in ("accuracy_matrix", "floors", "negative_flips", "region"):
        content["seeds"][1][name] = content["seeds"][1][name][:2]
    page = page_of(tmp_path, content)
    assert "Incomplete." in page.text and "2 of 5 steps" in page.text
    assert "All 7 floors" in page.text


def test_a_run_before_its_first_task_says_so(tmp_path: Path) -> None:
    content = record(complete=False, seeds=(0,))
    empty = ("accuracy_matrix", "floors", "negative_flips", "region")
    means = ("average_accuracy", "forgetting", "backward_transfer", "forward_transfer")
    content["seeds"][0] |= {name: [] for name in empty} | dict.fromkeys(means)
    page = page_of(tmp_path, content)
    assert "0 of 5 steps" in page.text and "average accuracy -" in page.text


def test_a_run_without_any_seed_yet_says_so(tmp_path: Path) -> None:
    page = page_of(tmp_path, record(complete=False, seeds=()))
    assert "no seed has results yet" in page.text and "Settings" in page.text


def test_curves_leave_out_numbers_that_are_none(tmp_path: Path) -> None:
    lines = metrics()
    lines[3]["loss"] = float("nan")
    page = page_of(tmp_path, record(seeds=(0,)), lines)
    assert "Epoch by epoch" in page.text
    assert page.source.count("<polyline") == 3 + 1 + 5 + 2  # sizes, accuracy, certified of five tasks, loss with a gap


def test_without_metrics_there_are_no_curves(tmp_path: Path) -> None:
    assert "No curves" in page_of(tmp_path).text


# Where it goes, and what stops it.


def test_the_page_goes_where_it_is_wanted(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", record())
    assert write_page(folder) == folder / "report.html"
    assert write_page(folder, tmp_path / "other.html") == tmp_path / "other.html"
    assert (tmp_path / "other.html").read_bytes() == (folder / "report.html").read_bytes()
    with pytest.raises(WriteError, match="nowhere"):
        write_page(folder, tmp_path / "nowhere" / "page.html")


def test_without_jinja2_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(InvalidSetting, match=re.escape("pip install 'intercontinet[cli]'")):
        write_page(write_run(tmp_path, record()))


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    for folder, words in ((tmp_path, "holds no run"), (tmp_path / "gone", "not a folder")):
        with pytest.raises(InvalidData, match=words) as caught:
            write_page(folder)
        assert str(folder) in str(caught.value) and "intercontinet run" in str(caught.value)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InvalidData, match=r"summary\.json is missing.*run again"):
        write_page(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_a_folder_inside_that_may_not_be_entered_is_named_and_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Imagined, since root may enter all."""
    closed = write_run(tmp_path / "b", record())
    write_run(tmp_path / "a", record())
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, how: path != closed and may(path, how))
    with pytest.raises(InvalidData, match=rf"cannot read the folder {re.escape(str(closed))}: make it readable"):
        write_page(tmp_path)


def test_a_store_of_studies_is_told_from_a_study(tmp_path: Path) -> None:
    for study in ("table1", "table2"):
        (tmp_path / study).mkdir()
        (tmp_path / study / "record.json").write_text(json.dumps(record()))
    with pytest.raises(InvalidData, match=r"holds studies: give one of them, as in .*table1; there are table1, table2"):
        write_page(tmp_path)
    assert write_page(tmp_path / "table2")
    (tmp_path / "begun" / "one").mkdir(parents=True)
    (tmp_path / "begun" / "one" / "config.json").write_text("{}")
    with pytest.raises(InvalidData, match="holds unfinished runs alone, one: let them go on"):
        write_page(tmp_path / "begun")
    (tmp_path / "web" / "src").mkdir(parents=True)
    (tmp_path / "web" / "src" / "package.json").write_text("{}")
    with pytest.raises(InvalidData, match="holds no run"):
        write_page(tmp_path / "web")


def test_seeds_that_diverged_are_named(tmp_path: Path) -> None:
    content = record()
    assert "Diverged" not in page_of(tmp_path / "fine", content).text
    content["seeds"][1]["diverged"] = content["tasks"][-1]
    text = page_of(tmp_path / "lost", content).text
    assert re.search(
        rf"Diverged\..*seed {content['seeds'][1]['seed']}, in task {content['tasks'][-1]}", text, re.DOTALL
    )
    content["seeds"][1]["diverged"] = 3
    with pytest.raises(InvalidData, match=r"diverged is 3 and should be text"):
        page_of(tmp_path / "wrong", content)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({**record(), "version": 2}, "version 2.*pip install --upgrade intercontinet"),
        ({**record(), "keep": 1.5}, "keep is 1.5 and should be a number from 0 to 1.*fresh copy"),
        ({}, "not a record of a run.*Move it elsewhere"),
    ],
)
@pytest.mark.parametrize("name", ["summary.json", "other.json"])
def test_damaged_foreign_and_newer_files_are_named(tmp_path: Path, name: str, content: Record, words: str) -> None:
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(InvalidData, match=words) as caught:
        write_page(tmp_path)
    assert str(tmp_path / name) in str(caught.value)
    assert not (tmp_path / "report.html").exists()


def test_damaged_metrics_are_named_with_their_line(tmp_path: Path) -> None:
    folder = write_run(tmp_path, record(seeds=(0,)), [metrics()[0]])
    file = folder / "seed-0" / "metrics.jsonl"
    for line, words in (('{"event"', "line 2"), ('{"event": "epoch", "index": "x"}', "line 2, index is 'x' and")):
        file.write_text(json.dumps(metrics()[0]) + f"\n{line}\n")
        with pytest.raises(InvalidData, match=words) as caught:
            write_page(folder)
        assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("keep", "words"),
    [
        (lambda whole: whole[:-1], "its last line, 85, is cut off"),
        (lambda whole: whole[: len(whole) // 2], "is cut off"),
        (lambda whole: b"".join(whole.splitlines(keepends=True)[:-1]), r"it tells of 4 learned task\(s\), and .* of 5"),
        (lambda whole: b"", r"it tells of 0 learned task\(s\)"),
    ],
)
def test_metrics_that_end_early_are_refused(tmp_path: Path, keep: Callable[[bytes], bytes], words: str) -> None:
    folder = write_run(tmp_path, record(seeds=(0,)), metrics())
    file = folder / "seed-0" / "metrics.jsonl"
    file.write_bytes(keep(file.read_bytes()))
    with pytest.raises(InvalidData, match=f"is damaged: .*{words}") as caught:
        write_page(folder)
    assert str(file) in str(caught.value)


def test_a_run_that_has_just_begun_has_no_metrics_yet(tmp_path: Path) -> None:
    content = record(seeds=(0,), complete=False)
    content["seeds"][0] |= {name: [] for name in ("accuracy_matrix", "floors", "negative_flips", "region")}
    content["seeds"][0] |= dict.fromkeys(("average_accuracy", "forgetting", "backward_transfer", "forward_transfer"))
    folder = write_run(tmp_path, content)
    (folder / "seed-0").mkdir()
    (folder / "seed-0" / "metrics.jsonl").touch()
    assert "0 of 5 steps" in Page(write_page(folder)).text


def test_a_folder_where_a_file_belongs_is_named(tmp_path: Path) -> None:
    (tmp_path / "summary.json").mkdir()
    with pytest.raises(InvalidData, match=r"cannot read .*summary\.json"):
        write_page(tmp_path)


def test_times_are_said_as_people_say_them() -> None:
    said = [duration(seconds) for seconds in (0, 59.4, 59.6, 3599.6)]
    assert said == ["0.0 s", "59.4 s", "1 min 0 s", "1 h 0 min"]
