"""Figures: the numbers drawn, the files left, and records that do not fit."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest

from intercontinet.errors import InvalidData
from intercontinet.study.figures import figure3, figure4, keep_csv, keep_lines, method_csv, method_lines
from tests.study.records import parsed, record, seed_record


def curve(current: float, radii: float | None = 8.0, epochs: int = 2) -> list[dict[str, Any]]:
    return [
        {"task": task, "phase": phase, "epoch": epoch, "current": current, "first": 0.5, "sum_of_radii": radii}
        for task in range(2)
        for phase in ("centres", "radii")
        for epoch in range(1, epochs + 1)
    ]


def study(keep: float, *curves: list[dict[str, Any]], method: str = "intercontinet") -> dict[str, Any]:
    seeds = [seed_record(seed, certified=(90, 90), curve=points) for seed, points in enumerate(curves)]
    stream = {"dataset": "fashion-mnist", "scenario": "domain"}
    return record(seeds=seeds, method=method, keep=keep, variant=f"keep-{keep}", **stream)


def hundred(method: str, *values: float) -> dict[str, Any]:
    certified = (90, 90) if method.startswith("inter") else None
    rows = 1 if method == "offline" else None
    seeds = [seed_record(seed, final, certified=certified, rows=rows) for seed, final in enumerate(values)]
    return record(seeds=seeds, method=method, dataset="cifar-100")


def numbers(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_figure_3_has_a_line_for_each_keep_the_mean_over_seeds(tmp_path: Path) -> None:
    records = parsed(tmp_path, study(0.9, curve(0.8, 8.0), curve(0.6, 4.0)), study(0.05, curve(0.7)))
    lines = keep_lines(records)
    assert [(line.keep, line.seeds) for line in lines] == [(0.05, 1), (0.9, 2)]
    assert [point.current for point in lines[1].points] == pytest.approx([0.7] * 8)
    assert lines[1].points[0].sum_of_radii == 6.0
    rows = numbers(keep_csv(lines))
    assert len(rows) == 16
    assert rows[10] == {
        "method": "intercontinet", "keep": "0.9", "seeds": "2", "step": "3", "task": "0", "phase": "radii",
        "epoch": "1", "current": "0.7", "first": "0.5", "sum_of_radii": "6",
    }  # fmt: skip


@pytest.mark.parametrize("radii", [8.0, 0.0, None], ids=["some room", "none left", "no region"])
def test_figure_3_is_drawn_whatever_room_is_left(tmp_path: Path, radii: float | None) -> None:
    records = parsed(
        tmp_path / "store", study(0.9, curve(0.8, radii)), study(0.9, curve(0.7), method="intercontinet-published")
    )
    figure3(records, tmp_path / "figure3")
    _three_files(tmp_path, "figure3")
    picture = (tmp_path / "figure3.svg").read_text()
    assert "keep 0.9, InterContiNet, as published" in picture and "shaded: radii" in picture


def test_what_lines_of_figure_3_have_in_common_is_said_once(tmp_path: Path) -> None:
    drawn = figure3_of(tmp_path, study(0.05, curve(0.9)), study(0.5, curve(0.8)), study(0.95, curve(0.8)))
    assert [words for words in drawn if "keep" in words] == ["keep 0.05", "keep 0.5, 0.95"], "one line for what is one"
    assert drawn.count("InterContiNet, enforced") == 1


def test_ticks_are_where_they_say_they_are(tmp_path: Path) -> None:
    drawn = figure3_of(tmp_path, study(0.05, curve(0.98)), study(0.95, curve(0.82)))
    ticks = [words for words in drawn if words.endswith("%")]
    assert ticks[:9] == [f"{percent}%" for percent in range(82, 100, 2)], "not 82, 85, 88, for 82.5 and so on"
    figure4(parsed(tmp_path / "level", hundred("sgd", 0.501)), tmp_path / "figure4")
    near = [words for words in written(tmp_path / "figure4.svg") if words.endswith("%")]
    assert len(set(near)) == len(near), "where steps are smaller than a percent, decimals tell them apart"


def figure3_of(folder: Path, *contents: dict[str, Any]) -> list[str]:
    figure3(parsed(folder / "store", *contents), folder / "figure3")
    return written(folder / "figure3.svg")


def written(picture: Path) -> list[str]:
    """The words in an SVG; what is drawn as paths says in a comment what it reads."""
    return re.findall("<!-- (.*?) -->", picture.read_text())


def test_figure_4_shows_what_guessing_gets_right(tmp_path: Path) -> None:
    figure4(parsed(tmp_path / "store", hundred("sgd", 0.6)), tmp_path / "figure4")
    assert "chance, 50%" in written(tmp_path / "figure4.svg"), "of tasks of two classes"


def test_figure_4_leaves_lwf_and_offline_out_and_figure_5_brings_lwf_back(tmp_path: Path) -> None:
    contents = [hundred(name, 0.6, 0.8) for name in ("lwf", "offline", "intercontinet", "sgd")]
    records = parsed(tmp_path, *contents)
    assert [line.key.method for line in method_lines(records)] == ["sgd", "intercontinet"]
    assert [line.key.method for line in method_lines(records, full=True)] == ["sgd", "lwf", "intercontinet"]


def test_figure_4_is_over_the_tasks_so_far_with_the_sample_deviation(tmp_path: Path) -> None:
    lines = method_lines(parsed(tmp_path, hundred("sgd", 0.6, 0.8), hundred("ewc", 0.5)))
    assert lines[0].mean == pytest.approx((0.71, 0.70))
    assert lines[0].std == pytest.approx((0.02**0.5, 0.02**0.5))
    rows = numbers(method_csv(lines))
    assert [row["tasks"] for row in rows] == ["1", "2", "1", "2"]
    assert rows[1] == {"method": "sgd", "variant": "", "seeds": "2", "tasks": "2", "mean": "0.7", "std": "0.141421"}
    assert rows[3]["std"] == ""


def test_figures_4_and_5_are_drawn_the_same_every_time(tmp_path: Path) -> None:
    records = parsed(tmp_path / "store", hundred("sgd", 0.6, 0.8), hundred("lwf", 0.9), hundred("own", 0.7))
    for name in ("figure5", "again"):
        figure4(records, tmp_path / name, full=True)
        _three_files(tmp_path, name)
    assert (tmp_path / "figure5.svg").read_bytes() == (tmp_path / "again.svg").read_bytes()
    picture = (tmp_path / "figure5.svg").read_text()
    assert "<!-- LwF -->" in picture and "<!-- own -->" in picture


def _three_files(folder: Path, name: str) -> None:
    assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in (folder / f"{name}.svg").read_text()
    assert len((folder / f"{name}.csv").read_text().splitlines()) > 1


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match="no records to draw figure 3 from"):
        figure3([], tmp_path / "figure3")
    with pytest.raises(InvalidData, match="no records to draw figure 4 from"):
        figure4(parsed(tmp_path, hundred("lwf", 0.9)), tmp_path / "figure4")
    assert not list(tmp_path.glob("figure*"))


def test_curves_must_be_there_and_of_the_same_epochs(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match=r"curve .*domain-intercontinet-keep-0.9-seeds-0-0.json"):
        keep_lines(parsed(tmp_path / "a", study(0.9, [])))
    with pytest.raises(InvalidData, match=r"curve of the same epochs .*seeds-0-1.json"):
        keep_lines(parsed(tmp_path / "b", study(0.9, curve(0.8), curve(0.8, epochs=3))))
    with pytest.raises(InvalidData, match="run all with the same epochs"):
        keep_lines(parsed(tmp_path / "c", study(0.9, curve(0.8)), study(0.8, curve(0.8, epochs=3))))


def test_records_of_another_stream_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match="figure 3 is of fashion-mnist, domain, but a record is of mnist, task/ewc"):
        keep_lines(parsed(tmp_path / "a", record()))
    with pytest.raises(InvalidData, match="figure 4 is of cifar-100, task, but a record is of mnist, task/ewc"):
        method_lines(parsed(tmp_path / "b", record()))
    other = {**hundred("sgd", 0.5), "tasks": ["a", "b"], "seeds": [seed_record(tasks=("a", "b"))]}
    with pytest.raises(InvalidData, match="different tasks"):
        method_lines(parsed(tmp_path / "c", hundred("ewc", 0.5), other))
