"""What a promise costs: accuracy against the share that must stay certain, of the paper's learner and the exact one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from intercontinet.errors import InvalidData
from intercontinet.files import write_atomically
from intercontinet.report.plot import INK, save
from intercontinet.report.record import METHODS, CellKey, Record
from intercontinet.study.figures import COLOURS, STYLE, table_csv
from intercontinet.study.store import Cell, cells

TITLE = "What a promise costs: Split MNIST"
CAPTION = (
    "Test accuracy after the last task against the share of each task's accuracy that must stay certain; bands are one "
    "sample deviation over seeds"
)


def tradeoff(records: Iterable[Record], stem: Path) -> None:
    """Accuracy over the share to keep, a panel a scenario; writes ``stem``.png, .svg and .csv.

    Raises:
        InvalidData: There is nothing to draw.
    """
    lines = tradeoff_lines(cells(records))
    if not lines:
        raise InvalidData("there are no records to draw the trade-off from: run it first")
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    scenarios = [scenario for scenario in ("domain", "class") if any(scenario == key[0] for key in lines)]
    with matplotlib.rc_context(STYLE):
        figure, panels = plt.subplots(1, len(scenarios), figsize=(4.4 * len(scenarios), 4), sharey=True, squeeze=False)
        for axis, scenario in zip(panels[0], scenarios, strict=True):
            for (where, method), points in lines.items():
                if where == scenario:
                    keeps, means, stds = zip(*points, strict=True)
                    colour = COLOURS.get(method, INK)
                    axis.plot(keeps, means, color=colour, marker="o", markersize=4, linewidth=2)
                    low = [mean - std for mean, std in zip(means, stds, strict=True)]
                    high = [mean + std for mean, std in zip(means, stds, strict=True)]
                    axis.fill_between(keeps, low, high, color=colour, alpha=0.15, linewidth=0)
                    axis.annotate(METHODS[method], (keeps[0], means[0]), (4, 8), textcoords="offset points",
                                  color=colour, fontsize=9, fontweight="bold")  # fmt: skip
            axis.set_title(f"incremental {scenario}", fontsize=11, color=INK)
            axis.set_xlabel("share of the accuracy that must stay certain")
            axis.set_ylim(0, 1.12)
            axis.yaxis.set_major_formatter("{x:.0%}")
        panels[0][0].set_ylabel("test accuracy after the last task")
        figure.suptitle(TITLE, fontsize=13, color=INK, fontweight="bold")
        figure.tight_layout()
        save(figure, stem)
    head = ("scenario", "method", "keep", "mean", "std")
    rows = [(*key, *point) for key, points in lines.items() for point in points]
    write_atomically(stem.with_suffix(".csv"), table_csv(head, rows).encode())


def tradeoff_lines(pooled: Mapping[CellKey, Cell]) -> dict[tuple[str, str], list[tuple[float, float, float]]]:
    """(scenario, method) -> (keep, mean accuracy, sample deviation or 0) by increasing keep."""
    lines: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for key, cell in pooled.items():
        keep = cell.records[0].keep
        if keep is not None:
            lines.setdefault((key.scenario, key.method), []).append((keep, cell.mean, cell.std or 0.0))
    return {key: sorted(points) for key, points in sorted(lines.items())}
