"""The paper's figures 3, 4 and 5, drawn from records. Each is saved as PNG, SVG and, for its numbers, CSV."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intercontinet.errors import InvalidData
from intercontinet.files import write_atomically
from intercontinet.report.metrics import accuracy_so_far
from intercontinet.report.plot import ATTACK, FLOOR, INK, save
from intercontinet.report.record import METHODS, CellKey, CurvePoint, Record
from intercontinet.study.store import Cell, cells
from intercontinet.study.tables import method_name, place_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE: Any = {  # matplotlib types its keys one by one
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#e3e7ea",
    "grid.linewidth": 0.8,
    "svg.hashsalt": "intercontinet",  # the same picture, the same bytes
}
STREAMS = {"figure 3": ("fashion-mnist", "domain"), "figure 4": ("cifar-100", "task")}
RADII = "#eef1f3"
DASHES = {"intercontinet-published": (0, (4, 2))}
COLOURS = {
    "sgd": "#9aa5b1",
    "adam": "#5c6b7a",
    "l2": "#b08968",
    "ewc": "#e09f3e",
    "oewc": "#f2c14e",
    "si": "#7353ba",
    "mas": ATTACK,
    "lwf": "#3a86c8",
    "intercontinet-published": FLOOR,
    "intercontinet": FLOOR,
    "exact": "#7b2cbf",
}


@dataclass(frozen=True)
class KeepLine:
    """A line of figure 3: the mean over seeds after every epoch, for one method and one share to keep."""

    method: str
    keep: float
    seeds: int
    points: tuple[CurvePoint, ...]


@dataclass(frozen=True)
class MethodLine:
    """A line of figure 4: accuracy over the tasks so far after each task [tasks]; no deviation of a single seed."""

    key: CellKey
    tasks: tuple[str, ...]
    seeds: int
    mean: tuple[float, ...]
    std: tuple[float, ...] | None


def keep_lines(records: Iterable[Record]) -> list[KeepLine]:
    """The lines of figure 3, by method and share.

    Raises:
        InvalidData: A record is of another stream or has no curve, or the curves are not of the same epochs.
    """
    lines = [_keep_line(cell) for cell in _pooled(records, "figure 3")]
    if len({tuple(map(_moment, line.points)) for line in lines}) > 1:
        raise InvalidData(
            "the curves of figure 3 are of different tasks, phases or epochs: run all with the same epochs"
        )
    return sorted(lines, key=lambda line: (line.method, line.keep))


def _keep_line(cell: Cell) -> KeepLine:
    keep, curves = cell.records[0].keep, [seed.curve for seed in cell.seeds]
    moments = {tuple(map(_moment, curve)) for curve in curves}
    if keep is None or len(moments) > 1 or not curves[0]:
        sources = ", ".join(record.source for record in cell.records)
        raise InvalidData(
            f"figure 3 needs a share to keep and a curve of the same epochs for every seed: see {sources}"
        )
    return KeepLine(
        cell.key.method, keep, len(curves), tuple(_mean_point(points) for points in zip(*curves, strict=True))
    )


def _moment(point: CurvePoint) -> tuple[int, str, int]:
    return point.task, point.phase, point.epoch


def _mean_point(points: Sequence[CurvePoint]) -> CurvePoint:
    radii = [point.sum_of_radii for point in points if point.sum_of_radii is not None]
    return CurvePoint(
        *_moment(points[0]),
        current=statistics.fmean(point.current for point in points),
        first=statistics.fmean(point.first for point in points),
        sum_of_radii=statistics.fmean(radii) if len(radii) == len(points) else None,
    )


def keep_csv(lines: Sequence[KeepLine]) -> str:
    """Figure 3's numbers; ``step`` counts epochs over all tasks and phases."""
    head = ("method", "keep", "seeds", "step", "task", "phase", "epoch", "current", "first", "sum_of_radii")
    return table_csv(
        head,
        (
            (line.method, line.keep, line.seeds, step, *_moment(p), p.current, p.first, p.sum_of_radii)
            for line in lines
            for step, p in enumerate(line.points, start=1)
        ),
    )


def figure3(records: Iterable[Record], stem: Path) -> None:
    """What the share to keep (the paper's acc_thresh) does to new tasks, to the first one and to the region's size.

    Writes ``stem``.png, ``stem``.svg and ``stem``.csv.

    Raises:
        InvalidData: There is nothing to draw, or the curves do not fit together.
    """
    lines = keep_lines(records)
    _something(lines, "figure 3")
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    keeps = sorted({line.keep for line in lines})
    shades = matplotlib.colormaps["viridis_r"]([0.15 + 0.85 * (i + 1) / len(keeps) for i in range(len(keeps))])
    colours = dict(zip(keeps, shades, strict=True))
    methods = {line.method for line in lines}
    with matplotlib.rc_context(STYLE):
        figure, axes = plt.subplots(3, 1, figsize=(8, 8.6), sharex=True)
        for line, label in _told_apart(lines):
            steps = range(1, len(line.points) + 1)
            values = (
                [point.current for point in line.points],
                [point.first for point in line.points],
                [float("nan") if point.sum_of_radii is None else point.sum_of_radii for point in line.points],
            )
            for axis, value in zip(axes, values, strict=True):
                axis.plot(
                    steps, value, color=colours[line.keep], linestyle=DASHES.get(line.method, "solid"), linewidth=1.6,
                    label=label,
                )  # fmt: skip
        for axis, name in zip(axes, ("current task", "first task"), strict=False):
            axis.set_ylabel(f"test accuracy, {name}")
            _in_percent(axis)
        axes[2].set_ylabel("sum of radii")
        if any(point.sum_of_radii for line in lines for point in line.points):
            axes[2].set_yscale("log", nonpositive="mask")
        axes[2].set_xlabel("epochs (shaded: radii)")
        for axis in axes:
            _shade(axis, lines[0].points)
        title = "What a stricter promise does, FashionMNIST, incremental domain"
        _finish(figure, axes[0], title, columns=2, over=_name(lines[0]) if len(methods) == 1 else "")
        save(figure, stem)
    write_atomically(stem.with_suffix(".csv"), keep_csv(lines).encode())


def _told_apart(lines: Sequence[KeepLine]) -> list[tuple[KeepLine, str]]:
    """Lines that can be told apart, each with a label: of shares that come to the same, one stands for all."""
    same: dict[tuple[str, tuple[CurvePoint, ...]], list[KeepLine]] = {}
    for line in lines:
        same.setdefault((line.method, line.points), []).append(line)
    several, out = len({line.method for line in lines}) > 1, []
    for group in same.values():
        label = "keep " + ", ".join(f"{line.keep:g}" for line in group)
        out.append((group[0], f"{label}, {_name(group[0])}" if several else label))
    return out


def _name(line: KeepLine) -> str:
    return METHODS.get(line.method, line.method)


def _shade(axis: Axes, points: Sequence[CurvePoint]) -> None:
    """Radii phases in grey, and a line where a task begins."""
    axis.margins(x=0)
    for step, point in enumerate(points, start=1):
        if point.phase == "radii":
            axis.axvspan(step - 0.5, step + 0.5, color=RADII, linewidth=0, zorder=0)
        if step > 1 and point.task != points[step - 2].task:
            axis.axvline(step - 0.5, color="#c3cbd2", linewidth=0.8, zorder=0.5)


def method_lines(records: Iterable[Record], full: bool = False) -> list[MethodLine]:
    """The lines of figure 4, or with ``full`` of figure 5, which has LwF too. Offline learns all at once: no line.

    Raises:
        InvalidData: A record is of another stream, or they are of different tasks.
    """
    left_out = {"offline"} if full else {"offline", "lwf"}
    pooled = [cell for cell in _pooled(records, "figure 4") if cell.key.method not in left_out]
    if len({cell.records[0].tasks for cell in pooled}) > 1:
        raise InvalidData("the records of figure 4 are of different tasks: run all on the same stream")
    return [_method_line(cell) for cell in sorted(pooled, key=lambda cell: place_of(cell.key.method, cell.key.variant))]


def _method_line(cell: Cell) -> MethodLine:
    columns = list(zip(*(accuracy_so_far(seed.accuracy_matrix) for seed in cell.seeds), strict=True))
    std = tuple(statistics.stdev(column) for column in columns) if len(cell.seeds) > 1 else None
    means = tuple(statistics.fmean(column) for column in columns)
    return MethodLine(cell.key, cell.records[0].tasks, len(cell.seeds), means, std)


def chance(tasks: Sequence[str]) -> float:
    """What guessing gets right where the task is known, on average over tasks that are named by their classes.

    >>> chance(["0/1/2/3/4", "5/6/7/8/9"])
    0.2
    """
    return statistics.fmean(1 / len(task.split("/")) for task in tasks)


def method_csv(lines: Sequence[MethodLine]) -> str:
    """Figure 4's numbers: after so many tasks, mean and sample deviation (divisor n - 1) over seeds."""
    return table_csv(
        ("method", "variant", "seeds", "tasks", "mean", "std"),
        (
            (
                line.key.method,
                line.key.variant,
                line.seeds,
                place + 1,
                mean,
                None if line.std is None else line.std[place],
            )
            for line in lines
            for place, mean in enumerate(line.mean)
        ),
    )


def figure4(records: Iterable[Record], stem: Path, full: bool = False) -> None:
    """Average accuracy over the tasks so far against tasks learned, with bands of one sample deviation over seeds.

    Writes ``stem``.png, ``stem``.svg and ``stem``.csv. With ``full``, LwF is in it: the paper's figure 5.

    Raises:
        InvalidData: There is nothing to draw, or the records are of different tasks.
    """
    lines = method_lines(records, full)
    _something(lines, "figure 5" if full else "figure 4")
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    with matplotlib.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(8, 5.6))
        for line in lines:
            places = range(1, len(line.mean) + 1)
            colour = COLOURS.get(line.key.method, INK)
            axis.plot(
                places, line.mean, color=colour, linestyle=DASHES.get(line.key.method, "solid"), linewidth=1.8,
                marker="o", markersize=3.5, label=method_name(line.key),
            )  # fmt: skip
            if line.std is not None:
                low, high = zip(*((m - s, m + s) for m, s in zip(line.mean, line.std, strict=True)), strict=True)
                axis.fill_between(places, low, high, color=colour, alpha=0.13, linewidth=0)
        guessing = chance(lines[0].tasks)
        axis.axhline(guessing, color=INK, linewidth=0.8, zorder=1)
        axis.annotate(f"chance, {guessing:.0%}", (0, guessing), (4, 3), xycoords=("axes fraction", "data"),
                      textcoords="offset points", color=INK, fontsize=9)  # fmt: skip
        axis.set_xlabel("tasks learned")
        axis.set_ylabel("test accuracy over the tasks so far")
        _in_percent(axis)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        _finish(figure, axis, "Split CIFAR-100, incremental task" + (", with LwF" if full else ""), columns=4)
        save(figure, stem)
    write_atomically(stem.with_suffix(".csv"), method_csv(lines).encode())


def _in_percent(axis: Axes) -> None:
    """Ticks in steps of 1, 2 or 5, written out: 92.5 % must not read 92 %."""
    from matplotlib.ticker import MaxNLocator

    axis.yaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10]))
    axis.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.4g}%")


def _finish(figure: Figure, axis: Axes, title: str, columns: int, over: str = "") -> None:
    """Title, and one legend under it for the whole figure, with ``over`` over it."""
    handles, labels = axis.get_legend_handles_labels()
    rows = -(-len(labels) // columns) + bool(over)
    inches = figure.get_size_inches()[1]
    heading = figure.suptitle(title, fontsize=13, color=INK, y=1 - 0.1 / inches, va="top", fontweight="bold")
    heading.set_in_layout(False)  # room for it is left below
    figure.legend(
        handles, labels, loc="upper center", ncols=min(columns, len(labels)), frameon=False, fontsize=9, handlelength=3,
        bbox_to_anchor=(0.5, 1 - 0.35 / inches), title=over,
    )  # fmt: skip
    figure.tight_layout(rect=(0, 0, 1, 1 - (0.5 + 0.22 * rows) / inches))


def _pooled(records: Iterable[Record], name: str) -> list[Cell]:
    dataset, scenario = STREAMS[name]
    pooled = cells(records)
    for key in pooled:
        if (key.dataset, key.scenario) != STREAMS[name]:
            raise InvalidData(f"{name} is of {dataset}, {scenario}, but a record is of {key.dataset}, {key}: move it")
    return list(pooled.values())


def _something(lines: Sequence[object], name: str) -> None:
    if not lines:
        raise InvalidData(f"there are no records to draw {name} from: run it first")


def table_csv(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    for row in rows:
        writer.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in row])
    return out.getvalue()
