"""Pictures of the demo: what is certain, what an attack found, what the models know, and how much room is left."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from intercontinet.files import write_atomically
from intercontinet.report.results import ScenarioResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FLOOR, KNOWN, ATTACK, INK = "#0b6e6e", "#bfe3dc", "#d1495b", "#22313f"
TEST = "#7353ba"
SMALLEST = 1e-6  # what is smaller is drawn here
LAYERS = ("#0b6e6e", "#e09f3e", "#7353ba", "#d1495b")
WORDS = {
    "task": "the task is known when asked",
    "domain": "one question for all tasks",
    "class": "which of ten digits, task unknown",
}


def draw(results: Sequence[ScenarioResult], title: str) -> Figure:
    """One column a scenario, one row a method: accuracy and floor of each task, and the average test accuracy."""
    methods = list(dict.fromkeys(result.method for result in results))
    scenarios = list(dict.fromkeys(result.scenario for result in results))
    figure, axes = _panels(len(methods), len(scenarios), 3.3)
    for result in results:
        row, column = methods.index(result.method), scenarios.index(result.scenario)
        axis = axes[row][column]
        _accuracies(axis, result)
        if not row:
            axis.set_title(f"{result.scenario}: {WORDS[result.scenario]}", fontsize=11)
        if not column:
            axis.set_ylabel(f"{result.name}\n", fontsize=12, fontweight="bold", color=INK)
        if row == len(methods) - 1:
            axis.set_xlabel("digits, in the order learned")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.suptitle(title, fontsize=15, color=INK, y=0.985, fontweight="bold")
    figure.legend(handles, labels, loc="upper center", ncols=len(labels), frameon=False, bbox_to_anchor=(0.5, 0.95))
    figure.tight_layout(rect=(0, 0, 1, 0.92))
    return figure


def draw_room(results: Sequence[ScenarioResult], title: str) -> Figure:
    """One column a scenario: how far the weights of each layer can still move."""
    figure, axes = _panels(1, len(results), 3.4)
    for axis, result in zip(axes[0], results, strict=True):
        _room(axis, result)
        axis.set_title(f"{result.scenario}: {WORDS[result.scenario]}", fontsize=11)
    axes[0][0].set_ylabel("mean radius of the weights")
    figure.suptitle(title, fontsize=15, color=INK, fontweight="bold")
    figure.tight_layout()
    return figure


def _panels(rows: int, columns: int, height: float) -> tuple[Figure, Sequence[Sequence[Axes]]]:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    size = (4.3 * columns, height * rows + 0.6)
    figure, axes = plt.subplots(rows, columns, figsize=size, sharex="col", sharey=True, squeeze=False)
    return figure, axes.tolist()


def _accuracies(axis: Axes, result: ScenarioResult) -> None:
    places, last = range(len(result.tasks)), len(result.tasks) + 0.3
    axis.bar(places, [t.now for t in result.tasks], width=0.7, color=KNOWN, label="accuracy, training set")
    axis.bar(places, [t.floor for t in result.tasks], width=0.7, color=FLOOR, label="of it certified: the floor")
    axis.scatter(
        places, [t.attacked for t in result.tasks], marker="_", s=420, linewidths=2.4, color=ATTACK, zorder=3,
        label="worst found by attack",
    )  # fmt: skip
    axis.bar([last], [result.average_test], width=0.9, color=TEST, label="average accuracy, test sets")
    bars = [(place, task.floor, max(task.now, task.attacked)) for place, task in zip(places, result.tasks, strict=True)]
    for place, share, top in (*bars, (last, result.average_test, result.average_test)):
        high = share > 0.12
        axis.text(
            place,
            share / 2 if high else top + 0.03,
            f"{100 * share:.1f}",  # to the table's digit: a floor of 99.7 must not pass for 100
            ha="center",
            va="center" if high else "bottom",
            color="white" if high else INK,
            fontsize=10,
        )
    axis.set_xticks([*places, last], [*(task.task for task in result.tasks), "test"])
    axis.set_ylim(0, 1.08)
    axis.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25%", "50%", "75%", "100%"])
    _quiet(axis)


def _room(axis: Axes, result: ScenarioResult) -> None:
    places = range(len(result.tasks))
    for colour, layer in zip(LAYERS, result.tasks[0].radii, strict=False):
        sizes = [max(task.radii[layer], SMALLEST) for task in result.tasks]
        gone = [place for place in places if sizes[place] == SMALLEST]
        axis.plot(places, sizes, marker="o", color=colour, clip_on=False)
        axis.scatter(gone, [SMALLEST] * len(gone), color="white", edgecolors=colour, zorder=3, clip_on=False)
        axis.annotate(layer, (0, sizes[0]), (0, 7), textcoords="offset points", color=colour, fontsize=9)
        if gone:
            words = "points: a head for each task" if result.scenario == "task" else "no room left"
            axis.annotate(
                words, (max(gone[0], 1), SMALLEST), (0, 7), textcoords="offset points", color=colour, fontsize=9
            )
    axis.set_yscale("log")
    axis.set_ylim(SMALLEST, 1)
    axis.set_xticks(list(places), [task.task for task in result.tasks])
    axis.set_xlabel("digits, in the order learned")
    _quiet(axis)


def _quiet(axis: Axes) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="#e3e7ea", linewidth=0.8)
    axis.set_axisbelow(True)


def save(figure: Figure, stem: Path) -> None:
    """Write ``stem``.png and ``stem``.svg."""
    import matplotlib.pyplot as plt

    for kind in ("png", "svg"):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
        write_atomically(stem.with_suffix(f".{kind}"), buffer.getvalue())
    plt.close(figure)
