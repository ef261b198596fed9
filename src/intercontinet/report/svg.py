"""Pictures of a run as SVG to stand inside an HTML page: pure functions from numbers to text, no script.

Colours are classes of the page, so that one picture serves light and dark; cells of the heat map bring one for either.
Every word is escaped, whatever a record holds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.etree import ElementTree

from intercontinet.report.words import down, mean, percent

Values = Sequence[float | None]
Height = Callable[[float], float]  # how far down a value is drawn
Scale = tuple[list[tuple[float, str]], Height]  # ticks, each with its height and word; and the height of any value

LIGHT = ("#f8efdf", "#c5e5da", "#3fae9c")  # 0%, 50%, 100% on a light page: black reads well on all
DARK = ("#2b2f30", "#1d4f4c", "#0c7a70")  # and on a dark one: white does
CELL_WIDTH, CELL_HEIGHT, GAP = 52, 36, 3
BARS_START, BARS_WIDTH, BAR_HEIGHT, BAR_STEP = 74, 220, 18, 32
WIDTH, HEIGHT = 360, 210
LEFT, RIGHT, TOP, BOTTOM = 44, 344, 12, 180
MOST_DOTS, MOST_LABELS, LINE_LABEL = 30, 10, 8
LOGARITHMIC = 100  # from this ratio of largest to smallest on
CHARACTER = 6.6  # how wide one is, on average, in labels; digits are wider, slashes much narrower
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Bar:
    """One task: its accuracy and, if something is promised, what is certified and what was promised; shares all."""

    name: str
    accuracy: float
    floor: float | None = None
    promise: float | None = None
    kept: bool = True


@dataclass(frozen=True)
class Line:
    """One value a place, with gaps where there is None; and a band round it, if ``low`` and ``high`` are given."""

    name: str
    values: Values
    low: Values = ()
    high: Values = ()

    @classmethod
    def over_seeds(cls, name: str, seeds: Sequence[Values]) -> Line:
        """The mean over seeds, in a band from the lowest to the highest. Seeds may differ in length.

        >>> Line.over_seeds("loss", [[3.0, 1.0], [1.0, None]]).values
        [2.0, 1.0]
        """
        length = max(map(len, seeds), default=0)
        at = [[v for seed in seeds if i < len(seed) and (v := seed[i]) is not None] for i in range(length)]
        means = [mean(values) for values in at]
        if len(seeds) < 2:
            return cls(name, means)
        return cls(name, means, [min(v, default=None) for v in at], [max(v, default=None) for v in at])


def heat_map(
    values: Sequence[Values], rows: Sequence[str], columns: Sequence[str], title: str, stairs: bool = False
) -> str:
    """A matrix of shares as coloured cells with their percentages; with ``stairs``, uncoloured right of the diagonal.

    >>> picture = heat_map([[1.0, 0.5], [0.875, 0.75]], ["first", "second"], ["a", "b"], "Accuracy")
    >>> "87.5" in picture and picture.startswith("<svg")
    True
    """
    names = [_shorten(name, 16) for name in rows]
    left = 10 + CHARACTER * max((len(name) for name in names), default=0)
    description = "; ".join(
        f"{name}: " + ", ".join(f"{column} {percent(v)}" for column, v in zip(columns, row, strict=True))
        for name, row in zip(rows, values, strict=True)
    )
    svg = _canvas(left + len(columns) * CELL_WIDTH, 24 + len(rows) * CELL_HEIGHT, title, description)
    for j, column in enumerate(columns):
        name, middle = _shorten(column, _fitting(CELL_WIDTH - GAP)), left + (j + 0.5) * CELL_WIDTH
        label = _add(svg, "text", name, class_="label middle", x=middle, y=15)
        _add(label, "title", column)
    for i, row in enumerate(values):
        y = 24 + i * CELL_HEIGHT
        label = _add(svg, "text", names[i], class_="label end", x=left - 8, y=y + CELL_HEIGHT / 2 + 3)
        _add(label, "title", rows[i])
        for j, value in enumerate(row):
            ahead = value is None or (stairs and j > i)
            colours = f"--light:{ramp(value or 0, LIGHT)};--dark:{ramp(value or 0, DARK)}"
            cell = _add(svg, "g", class_="ahead" if ahead else "cell", **({} if ahead else {"style": colours}))
            _add(cell, "title", f"{rows[i]}, {columns[j]}: {percent(value)}")
            x = left + j * CELL_WIDTH
            _add(cell, "rect", x=x, y=y, width=CELL_WIDTH - GAP, height=CELL_HEIGHT - GAP, rx=5)
            number = percent(value).rstrip("%")
            _add(cell, "text", number, class_="middle", x=x + (CELL_WIDTH - GAP) / 2, y=y + CELL_HEIGHT / 2 + 3)
    return _text(svg)


def bars(tasks: Sequence[Bar], title: str) -> str:
    """One bar a task: accuracy, in it the floor, a mark at the promise, and the number. A broken promise says so.

    >>> "below its promise" in bars([Bar("0/1", 0.99, floor=0.7, promise=0.8, kept=False)], "Floors")
    True
    """
    words = [_bar_words(task) for task in tasks]
    svg = _canvas(WIDTH, 24 + BAR_STEP * len(tasks), title, "; ".join(words))
    for share in (0, 0.25, 0.5, 0.75, 1):
        x = BARS_START + share * BARS_WIDTH
        _add(svg, "line", class_="grid", x1=x, x2=x, y1=16, y2=20 + BAR_STEP * len(tasks))
        _add(svg, "text", f"{share:.0%}", class_="tick middle", x=x, y=11)
    for place, task in enumerate(tasks):
        y = 24 + BAR_STEP * place
        row = _add(svg, "g", class_="row" if task.kept else "row broken")
        _add(row, "title", words[place])
        _add(row, "text", _shorten(task.name, _fitting(BARS_START - 8)), class_="label end", x=BARS_START - 8, y=y + 13)
        _add(row, "rect", class_="track", x=BARS_START, y=y, width=BARS_WIDTH, height=BAR_HEIGHT, rx=4)
        _add(row, "rect", class_="known", x=BARS_START, y=y, width=task.accuracy * BARS_WIDTH, height=BAR_HEIGHT, rx=4)
        if task.floor is not None:
            length = task.floor * BARS_WIDTH
            _add(row, "rect", class_="floor", x=BARS_START, y=y, width=length, height=BAR_HEIGHT, rx=4)
        if task.promise is not None:
            x = BARS_START + task.promise * BARS_WIDTH
            _add(row, "line", class_="promise", x1=x, x2=x, y1=y - 4, y2=y + BAR_HEIGHT + 4)
        number = percent(task.accuracy) if task.floor is None else down(task.floor)
        x = BARS_START + BARS_WIDTH + 8
        _add(row, "text", number if task.kept else f"✗ {number}", class_="number", x=x, y=y + 13)
    return _text(svg)


def _bar_words(task: Bar) -> str:
    words = f"{task.name}: accuracy {percent(task.accuracy)}"
    if task.floor is not None:
        words += f", certified floor {down(task.floor)}"
    if task.promise is not None:
        words += f", promised {percent(task.promise)}"
    return words if task.kept else f"{words}, below its promise"


def lines(series: Sequence[Line], labels: Sequence[str], title: str, shares: bool = False) -> str:
    """Lines over common places. ``labels``: the name of each place, or an empty word where none belongs.

    Sizes that differ a hundredfold are drawn on a logarithmic scale; what is zero then lies on its floor as a ring.

    >>> "10³" in lines([Line("size", [2000.0, 30.0, 1.5])], ["a", "b", "c"], "Room left")
    True
    """
    known = [v for line in series for v in (*line.values, *line.low, *line.high) if v is not None]
    ticks, height = _percents() if shares else _scale(known)
    svg = _canvas(WIDTH, HEIGHT, title, "; ".join(_line_words(line, shares) for line in series))
    for y, word in ticks:
        _add(svg, "line", class_="grid", x1=LEFT, x2=RIGHT, y1=y, y2=y)
        _add(svg, "text", word, class_="tick end", x=LEFT - 6, y=y + 4)
    step = (RIGHT - LEFT) / max(len(labels) - 1, 1)
    at = [(LEFT + RIGHT) / 2] if len(labels) == 1 else [LEFT + place * step for place in range(len(labels))]
    marked = [place for place, label in enumerate(labels) if label]
    for place in marked:
        _add(svg, "line", class_="grid", x1=at[place], x2=at[place], y1=BOTTOM, y2=BOTTOM + 4)
        if len(marked) < len(labels) and place:  # the start of something: draw it through
            _add(svg, "line", class_="start", x1=at[place], x2=at[place], y1=TOP, y2=BOTTOM)
    for place in _apart(marked, at, labels):
        label = _add(svg, "text", _shorten(labels[place], LINE_LABEL), class_="tick middle", x=at[place], y=BOTTOM + 18)
        _add(label, "title", labels[place])
    for number, line in enumerate(series):
        group = _add(svg, "g", class_=f"series s{number}")
        for run in _runs(line.low):
            edge = [(at[i], height(line.high[i] or 0)) for i in run]
            edge += [(at[i], height(line.low[i] or 0)) for i in reversed(run)]
            _add(group, "polygon", class_="band", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in edge))
        for run in _runs(line.values):
            points = [(at[i], height(line.values[i] or 0)) for i in run]
            _add(group, "polyline", class_="line", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points))
            if len(labels) <= MOST_DOTS:
                for i, (x, y) in zip(run, points, strict=True):
                    kind = "dot" if shares or line.values[i] else "dot none"
                    dot = _add(group, "circle", class_=kind, cx=x, cy=y, r=3.5)
                    _add(dot, "title", f"{labels[i]} {line.name}: {_word(line.values[i], shares)}".strip())
    return _text(svg)


def _apart(marked: Sequence[int], at: Sequence[float], labels: Sequence[str]) -> Sequence[int]:
    """Every so manieth place, for labels not to touch."""
    longest = max((len(_shorten(labels[place], LINE_LABEL)) for place in marked), default=0)
    nearest = min((at[b] - at[a] for a, b in pairwise(marked)), default=WIDTH)
    return marked[:: max(math.ceil(len(marked) / MOST_LABELS), math.ceil(longest * CHARACTER / nearest), 1)]


def _line_words(line: Line, shares: bool) -> str:
    shown = list(line.values)
    if len(shown) > MOST_DOTS:
        whole = [v for v in shown if v is not None]
        return f"{line.name}: from {_word(whole[0], shares)} to {_word(whole[-1], shares)}" if whole else line.name
    return f"{line.name}: " + ", ".join(_word(value, shares) for value in shown)


def _runs(values: Values) -> list[list[int]]:
    """Places of values, in stretches without a gap."""
    out: list[list[int]] = [[]]
    for place, value in enumerate(values):
        if value is not None:
            out[-1].append(place)
        elif out[-1]:
            out.append([])
    return [run for run in out if run]


def _percents() -> Scale:
    height = _linear(0, 1)
    return [(height(share), f"{share:.0%}") for share in (0, 0.25, 0.5, 0.75, 1)], height


def _scale(values: Sequence[float]) -> Scale:
    high, low = max(values, default=0.0), min(values, default=0.0)
    smallest = min((v for v in values if v > 0), default=1.0)
    if low >= 0 and high / smallest >= LOGARITHMIC:
        first, last = math.floor(math.log10(smallest)), math.ceil(math.log10(high))
        place = _linear(first, last)
        exponents = range(first, last + 1, math.ceil((last - first) / 5))
        ticks = [(place(e), "10" + str(e).translate(SUPERSCRIPT)) for e in exponents]
        return ticks, lambda value: place(math.log10(value) if value > 0 else first)
    high, low = (max(high, 0.0), min(low, 0.0)) if high or low else (1.0, 0.0)
    rough = max((high - low) / 4, 1e-300)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10, 20) if unit * factor >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    height = _linear(first * step, last * step)
    return [(height(k * step), _brief(k * step)) for k in range(first, last + 1)], height


def _brief(value: float) -> str:
    """A number in a few characters, for which there is room beside an axis.

    >>> [_brief(value) for value in (-200000.0, 12500.0, 2500.0, 2.5, 1e7, -3e9, 0.0)]
    ['-200k', '12.5k', '2500', '2.5', '10M', '-3G', '0']
    """
    large = ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))
    unit, word = next(((unit, word) for least, unit, word in large if abs(value) >= least), (1.0, ""))
    return f"{value / unit:.4g}{word}"


def _linear(low: float, high: float) -> Height:
    return lambda value: BOTTOM - (value - low) / (high - low) * (BOTTOM - TOP)


def ramp(share: float, stops: Sequence[str]) -> str:
    """The colour of a share between three stops.

    >>> ramp(0.25, ("#000000", "#808080", "#ffffff"))
    '#404040'
    """
    place = min(max(share, 0.0), 1.0) * 2
    low, high = (stops[0], stops[1]) if place < 1 else (stops[1], stops[2])
    part = place if place < 1 else place - 1
    mixed = (round(a + (b - a) * part) for a, b in zip(_channels(low), _channels(high), strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _word(value: float | None, share: bool) -> str:
    return percent(value) if share or value is None else f"{value:.4g}"


def _fitting(room: float) -> int:
    """How many characters there is room for."""
    return int(room / CHARACTER)


def _shorten(name: str, most: int) -> str:
    """A name in a few characters: consecutive numbers by their first and last, and what is still too long is cut.

    >>> [_shorten(name, 8) for name in ("0/1/2/3", "10/11/12/13/14", "10/12/13/14", "aquarium")]
    ['0/1/2/3', '10-14', '10/12/1…', 'aquarium']
    """
    if len(name) > most:
        name = re.sub(r"\b\d{1,9}(/\d{1,9})+\b", lambda found: _first_to_last(found[0]), name)
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _first_to_last(numbers: str) -> str:
    known = [int(number) for number in numbers.split("/")]
    consecutive = all(b == a + 1 for a, b in pairwise(known))
    return f"{known[0]}-{known[-1]}" if consecutive else numbers


def _canvas(width: float, height: float, title: str, description: str) -> ElementTree.Element:
    least = width * (0.72 if width <= WIDTH else 0.78)  # below this it is scrolled, not shrunk
    size = {"viewBox": f"0 0 {width:.0f} {height:.0f}", "style": f"--width:{width:.0f}px;--least:{least:.0f}px"}
    svg = ElementTree.Element("svg", {"class": "chart", "role": "img", **size})
    _add(svg, "title", title)
    _add(svg, "desc", description)
    return svg


def _add(
    parent: ElementTree.Element, tag: str, text: str | None = None, /, **attributes: object
) -> ElementTree.Element:
    """A child. ``class_`` stands for class; numbers are written with one decimal."""
    words = {
        name.rstrip("_"): f"{value:.1f}".removesuffix(".0") if isinstance(value, int | float) else str(value)
        for name, value in attributes.items()
    }
    child = ElementTree.SubElement(parent, tag, words)
    child.text = text
    return child


def _text(svg: ElementTree.Element) -> str:
    return ElementTree.tostring(svg, encoding="unicode")
