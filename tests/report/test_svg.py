"""Pictures: every number is in them, nothing can break out of them, and they can be read in any light."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from intercontinet.report.svg import DARK, LIGHT, Bar, Line, bars, heat_map, lines, ramp
from intercontinet.report.words import down, percent

HOSTILE = "</title></svg><script>alert('x')</script>&\"<b>"


def tree(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def words(svg: str, kind: str = "text") -> list[str]:
    return [element.text or "" for element in tree(svg).iter(kind)]


def with_class(svg: str, name: str) -> list[ElementTree.Element]:
    return [element for element in tree(svg).iter() if name in element.get("class", "").split()]


def places(svg: str, of: str = "polyline") -> list[list[tuple[float, float]]]:
    pairs = [(element.get("points") or "").split() for element in tree(svg).iter(of)]
    return [[(float(p.split(",")[0]), float(p.split(",")[1])) for p in points] for points in pairs]


# All pictures.

PICTURES = {
    "heat map": heat_map([[0.5]], [HOSTILE], [HOSTILE], HOSTILE),
    "bars": bars([Bar(HOSTILE, 0.9, 0.8, 0.85, kept=False)], HOSTILE),
    "lines": lines([Line(HOSTILE, [1.0])], [HOSTILE], HOSTILE),
}


@pytest.mark.parametrize("svg", PICTURES.values(), ids=PICTURES)
def test_words_stay_words(svg: str) -> None:
    assert {element.tag for element in tree(svg).iter()}.isdisjoint({"script", "b"})
    assert "<script" not in svg
    assert tree(svg).findtext("title") == HOSTILE


@pytest.mark.parametrize("svg", PICTURES.values(), ids=PICTURES)
def test_a_picture_says_what_it_is(svg: str) -> None:
    root = tree(svg)
    assert [child.tag for child in root][:2] == ["title", "desc"]
    assert root.get("role") == "img"
    assert root.findtext("desc")
    assert "xlink" not in svg and "http" not in svg


@pytest.mark.parametrize(
    "svg", [heat_map([], [], ["a"], "t"), bars([], "t"), lines([], [], "t"), lines([Line("x", [None])], ["a"], "t")]
)
def test_nothing_is_drawn_of_nothing(svg: str) -> None:
    assert not with_class(svg, "cell") and not with_class(svg, "row") and not with_class(svg, "line")


# Heat map.


def test_every_cell_has_its_number_and_tells_row_and_column() -> None:
    svg = heat_map([[0.991, 0.5], [0.8765, 1.0]], ["after a", "after b"], ["a", "b"], "Accuracy")
    assert words(svg) == ["a", "b", "after a", "99.1", "50.0", "after b", "87.6", "100.0"]
    assert "after b, a: 87.6%" in words(svg, "title")
    assert tree(svg).findtext("desc") == "after a: a 99.1%, b 50.0%; after b: a 87.6%, b 100.0%"


def test_what_was_not_learned_yet_has_no_colour() -> None:
    values = [[0.9, 0.5, 0.5], [0.9, 0.9, 0.5]]
    assert len(with_class(heat_map(values, ["x", "y"], ["a", "b", "c"], "t", stairs=True), "cell")) == 3
    assert len(with_class(heat_map(values, ["x", "y"], ["a", "b", "c"], "t"), "cell")) == 6
    assert len(with_class(heat_map([[None, 0.5]], ["x"], ["a", "b"], "t"), "ahead")) == 1


def contrast(a: str, b: str) -> float:
    """Of two colours, as the web's accessibility guidelines count it."""

    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("stops", "ink"), [(LIGHT, "#0c1c1b"), (DARK, "#ffffff")])
def test_numbers_are_readable_on_every_colour(stops: tuple[str, ...], ink: str) -> None:
    assert min(contrast(ramp(share / 100, stops), ink) for share in range(101)) >= 4.5


def test_colours_go_from_stop_to_stop_and_no_further() -> None:
    assert [ramp(share, LIGHT) for share in (-1, 0, 0.5, 1, 2)] == [LIGHT[0], *LIGHT, LIGHT[2]]


# Bars.


def test_bars_are_as_long_as_their_shares() -> None:
    svg = bars([Bar("a", accuracy=1.0, floor=0.5, promise=0.4)], "t")
    (known,), (floor,), (promise,) = (with_class(svg, name) for name in ("known", "floor", "promise"))
    start, whole = float(known.get("x") or 0), float(known.get("width") or 0)
    assert float(floor.get("width") or 0) == pytest.approx(whole / 2)
    assert float(promise.get("x1") or 0) == pytest.approx(start + 0.4 * whole)
    assert words(svg)[-1] == "50.0%"
    assert not with_class(svg, "broken")


def test_a_floor_below_its_promise_is_marked_and_said() -> None:
    svg = bars([Bar("a", 0.99, 0.95, 0.9), Bar("b", 0.99, 0.7, 0.9, kept=False)], "t")
    (row,) = with_class(svg, "broken")
    assert row.findtext("title") == "b: accuracy 99.0%, certified floor 70.0%, promised 90.0%, below its promise"
    assert "✗ 70.0%" in words(svg)


def test_without_a_promise_there_is_accuracy_alone() -> None:
    svg = bars([Bar("a", 0.99)], "t")
    assert words(svg)[-1] == "99.0%"
    assert not with_class(svg, "floor") and not with_class(svg, "promise")


# Lines.


def test_higher_is_higher_and_later_is_further_right() -> None:
    (points,) = places(lines([Line("size", [1.0, 3.0, 2.0])], ["a", "b", "c"], "t"))
    (x1, y1), (x2, y2), (x3, y3) = points
    assert x1 < x2 < x3
    assert y2 < y3 < y1


def test_a_gap_stays_a_gap() -> None:
    svg = lines([Line("size", [1.0, 2.0, None, 3.0])], ["a", "b", "c", "d"], "t")
    assert [len(run) for run in places(svg)] == [2, 1]


def test_sizes_of_many_magnitudes_are_drawn_on_a_logarithmic_scale_with_zero_at_its_foot() -> None:
    svg = lines([Line("size", [1000.0, 10.0, 0.1, 0.0])], ["a", "b", "c", "d"], "t")
    ((_, top), (_, middle), (_, low), (_, zero)) = places(svg)[0]
    assert middle - top == pytest.approx(low - middle, abs=0.2)
    assert zero == low
    assert {"10³", "10⁻¹"} <= set(words(svg))
    assert len(with_class(svg, "none")) == 1


@pytest.mark.parametrize("values", [[0.0, 0.0], [5.0, 5.0], [-1.0, 2.0], [1e-320], [1e300, 1e-300], [2e-9, 7e-9]])
def test_all_sizes_stay_in_the_picture(values: list[float]) -> None:
    svg = lines([Line("size", values)], ["a"] * len(values), "t")
    assert all(0 <= y <= 210 and math.isfinite(x) for run in places(svg) for x, y in run)
    assert len(words(svg)) >= 3


def test_a_band_goes_from_the_lowest_seed_to_the_highest() -> None:
    line = Line.over_seeds("loss", [[1.0, 2.0, 3.0], [3.0, None]])
    assert (line.values, line.low, line.high) == ([2.0, 2.0, 3.0], [1.0, 2.0, 3.0], [3.0, 2.0, 3.0])
    (band,) = places(lines([line], ["a", "b", "c"], "t"), of="polygon")
    assert len(band) == 6
    assert not Line.over_seeds("loss", [[1.0]]).low


def test_labels_are_thinned_where_they_would_touch() -> None:
    names = [f"t{i}" for i in range(25)]
    shown = [word for word in words(lines([Line("x", [1.0] * 25)], names, "t")) if word.startswith("t")]
    assert shown == names[::3]


# Names.


def test_names_of_twenty_tasks_fit_where_they_stand() -> None:
    names = ["/".join(str(5 * task + k) for k in range(5)) for task in range(20)]
    short = [f"{5 * task}-{5 * task + 4}" for task in range(20)]
    short[:2] = names[:2]  # nine characters
    narrow = ["0-4", "5-9", *short[2:]]
    floors = bars([Bar(name, 0.9, 0.8) for name in names], "t")
    assert [label.text for label in with_class(floors, "label")] == short
    assert all(name in "\n".join(words(floors, "title")) for name in names)
    svg = heat_map([[0.5] * 20] * 20, [f"after {name}" for name in names], names, "t")
    labels = [(label.text, next(iter(label)).text) for label in with_class(svg, "label")]
    assert labels[:20] == list(zip(narrow, names, strict=True))
    assert labels[-1] == ("after 95-99", "after 95/96/97/98/99")


def test_long_names_are_cut_to_their_room() -> None:
    (label,) = with_class(bars([Bar("10/12/14/16/18/20", 0.9)], "t"), "label")
    assert label.text == "10/12/14/…"
    svg = heat_map([[0.5]], ["after x"], ["aquarium"], "t")
    assert with_class(svg, "label")[0].text == "aquari…"


def test_labels_under_lines_do_not_touch() -> None:
    names = ["/".join(str(5 * task + k) for k in range(5)) for task in range(20)]
    svg = lines([Line("x", [1.0] * 20)], names, "t")
    shown = [word for word in words(svg) if "-" in word]
    assert shown == [f"{first}-{first + 4}" for first in range(0, 100, 15)]
    assert "15/16/17/18/19" in words(svg, "title")


# Words.


def test_floors_are_never_rounded_up() -> None:
    assert down(0.8999999) == "89.9%"
    assert [down(k / 1000) for k in range(1001)] == [percent(k / 1000) for k in range(1001)]
