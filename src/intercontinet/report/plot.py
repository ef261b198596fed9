"""The picture of a run: what is certain, what an attack found, what the model knows, and how much room is left."""

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
SMALLEST = 1e-6  # what is smaller is drawn here
LAYERS = ("#0b6e6e", "#e09f3e", "#7353ba", "#d1495b")
WORDS = {
    "task": "the task is known when asked",
    "domain": "one question for all tasks",
    "class": "which of ten digits, task unknown",
}


def draw(results: Sequence[ScenarioResult], title: str) -> Figure:
    """One column a scenario: accuracy and floors above, region size below."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        2, len(results), figsize=(4.3 * len(results), 6.8), height_ratios=(3, 1.7), sharex="col", squeeze=False
    )
    for column, result in enumerate(results):
        _accuracies(axes[0][column], result)
        _room(axes[1][column], result)
        if column:
            axes[0][column].tick_params(labelleft=False)
            axes[1][column].tick_params(labelleft=False)
    axes[0][0].set_ylabel("share of the task's training set")
    axes[1][0].set_ylabel("mean radius of the weights")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.suptitle(title, fontsize=15, color=INK, y=0.985, fontweight="bold")
    figure.legend(handles, labels, loc="upper center", ncols=len(labels), frameon=False, bbox_to_anchor=(0.5, 0.945))
    figure.tight_layout(rect=(0, 0, 1, 0.93))
    return figure


def _accuracies(axis: Axes, result: ScenarioResult) -> None:
    places = range(len(result.tasks))
    axis.bar(places, [t.now for t in result.tasks], width=0.62, color=KNOWN, label="accuracy now")
    axis.bar(places, [t.floor for t in result.tasks], width=0.62, color=FLOOR, label="certified floor")
    for place, task in zip(places, result.tasks, strict=True):
        high = task.floor > 0.12
        axis.text(
            place,
            task.floor / 2 if high else task.now + 0.03,
            f"{task.floor:.0%}",
            ha="center",
            va="center" if high else "bottom",
            color="white" if high else INK,
            fontsize=10,
        )
    axis.scatter(
        places, [t.attacked for t in result.tasks], marker="_", s=420, linewidths=2.4, color=ATTACK, zorder=3,
        label="worst found by attack",
    )  # fmt: skip
    axis.scatter(
        places, [t.after for t in result.tasks], s=46, facecolors="white", edgecolors=INK, zorder=4, linewidths=1.3,
        label="accuracy just after learning",
    )  # fmt: skip
    axis.set_title(f"{result.scenario}: {WORDS[result.scenario]}\ntest accuracy {result.average_test:.0%}", fontsize=11)
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
