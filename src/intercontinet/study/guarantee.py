"""What each learner promises and still learns: ours beside the paper's, with floors for seen and unseen examples."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from intercontinet.report.paper import PUBLISHED, Published
from intercontinet.report.record import METHODS, CellKey
from intercontinet.study.store import Cell, cells, load_records
from intercontinet.study.tables import (
    FELL_SHORT,
    NONE,
    NOT_RUN,
    SHORT,
    certified_text,
    epochs_text,
    markdown_row,
    number_text,
    ours_text,
    paper_text,
)
from intercontinet.tasks import SCENARIOS

if TYPE_CHECKING:
    from rich.table import Table

TITLE = "A guarantee that leaves room to learn"
ENFORCED = {"mnist": "table1", "fashion-mnist": "table2", "cifar-10": "table3"}  # where InterContiNet's cells are
# What stands in rows of its own: variants of the exact learner, and the paper's method improved.
BELOW = {
    ("exact", "strangers"): "with strangers",
    ("exact", "dictionary"): "encoder of the first task",
    ("intercontinet", "volume"): "InterContiNet improved",
}
STREAMS = (*((dataset, scenario) for dataset in ENFORCED for scenario in SCENARIOS), ("cifar-100", "task"))
_HEADS = (
    "data, scenario",
    "keep",
    "accuracy",
    "each seed",
    "certain of the training set",
    "certain of unseen examples, at least",
    "attack: points above",
    "paper's method, enforced",
    "paper's method, by the paper",
    "best other, by the paper",
)
LEGEND = (
    "Rows are of the exact learner, unless they say otherwise. Accuracy is over all test examples of all tasks after "
    "the last task, in percent.",
    "Certain of the training set: the share of each task's training examples, first task first, that no weights in the "
    "region get wrong; mean over seeds, rounded down.",
    "Certain of unseen examples: a tenth of each task's training data shapes nothing; the share of it that is certain "
    "gives a Clopper-Pearson lower bound at 95 % confidence for examples of its kind. The lowest over seeds, rounded "
    f"down; {NONE} where there is none (docs/method.md says when). Settings were chosen on training data, of which "
    "these examples are a part, and by how near such bounds lie to the shares before them: they are a little kind.",
    "Encoders are fitted to the first task's images before anything is learned, without labels. For CIFAR-10, and for "
    'FashionMNIST in the class scenario, they see with "sight", a network of whole numbers that was trained on the '
    "images of CIFAR-100, without labels. Below those rows are others with settings of their own: encoders that have "
    "seen the first task's images and no others, and, with strangers, up to 10,000 images of CIFAR-100 that every "
    "task's classes are told from, too.",
    "Attack: each task's promise is argued with as soon as it is made, inside its own region, on 1,000 examples: the "
    "weights verified, the examples certified afresh from their pixels on, and the worst weights hunted for. Shown is "
    "by how many points more of those examples the worst weights found get right than are certain, on average over "
    "seeds: 0.0 means that a floor is no lower than it must be. Were it below zero with any seed, the promise would be "
    "refuted.",
    "InterContiNet, enforced, is the paper's method on the paper's network, as run here, held to what its settings "
    "promise; "
    'improved, the same with `aim="volume"` and what goes with it, held to the same share as the exact learner, on the '
    "training set and on a watched tenth of it, too.",
    "The best other is the best of the paper's methods that learn one task after another, by its own figures.",
)


@dataclass(frozen=True)
class Row:
    """One stream of tasks: the exact learner's cell and what stands beside it; or one from below it, alone."""

    key: CellKey
    ours: Cell | None
    enforced: Cell | None

    def texts(self, mark: str = "{}") -> tuple[str, ...]:
        """One text a column; floors that fell short go through ``mark``."""
        keep = NONE if self.ours is None or self.ours.records[0].keep is None else f"{self.ours.records[0].keep:g}"
        other = _best_other(self.key)
        what = BELOW.get((self.key.method, self.key.variant))
        name = ", ".join([self.key.dataset, self.key.scenario, *([] if what is None else [what])])
        beside = (
            enforced_text(self.enforced),
            paper_text(PUBLISHED.get((self.key.dataset, self.key.scenario, "intercontinet-published"))),
            NONE if other is None else f"{METHODS[other[0]]} {number_text(*other[1])}",
        )
        return (
            name,
            keep,
            ours_text(self.ours),
            NOT_RUN if self.ours is None else " ".join(f"{100 * share:.1f}" for share in self.ours.overall),
            certified_text(self.ours, broken=mark.format),
            NOT_RUN if self.ours is None else unseen_text(self.ours),
            NOT_RUN if self.ours is None else attack_text(self.ours, broken=mark.format),
            *((NONE,) * len(beside) if self.key.variant else beside),
        )


def enforced_text(cell: Cell | None) -> str:
    """Accuracy, and the share of it that was kept: the paper's own settings have other ones than ours."""
    return NOT_RUN if cell is None else f"{ours_text(cell)}, keep {cell.records[0].keep:g}"


def unseen_text(cell: Cell) -> str:
    """ ".74 .75 -": for each task the lowest bound over seeds, rounded down."""
    texts = []
    for task in zip(*(seed.floors for seed in cell.seeds), strict=True):
        bounds = [floor.unseen_floor for floor in task if floor.unseen_floor is not None]
        lowest = min(bounds, default=0.0)
        texts.append(f"{math.floor(100 * lowest) / 100:.2f}".removeprefix("0") if len(bounds) == len(task) else NONE)
    return " ".join(texts)


def attack_text(cell: Cell, broken: Callable[[str], str] = str) -> str:
    """ "0.0 1.2 -": for each task, points by which the worst weights found are better than certain, on average."""
    texts = []
    for task in zip(*(seed.floors for seed in cell.seeds), strict=True):
        argued = [floor.argued for floor in task if floor.argued is not None]
        points = [100 * (one.attacked - one.certain) / one.examples for one in argued]
        text = f"{statistics.mean(points):.1f}" if len(points) == len(task) else NONE
        texts.append(broken(text) if min(points, default=0.0) < 0 else text)
    return " ".join(texts)


def _best_other(key: CellKey) -> tuple[str, Published] | None:
    """The paper's best method that is neither InterContiNet nor offline, and its cell."""
    others = {
        method: cell
        for (dataset, scenario, method), cell in PUBLISHED.items()
        if (dataset, scenario) == (key.dataset, key.scenario) and method not in ("intercontinet-published", "offline")
    }
    return max(others.items(), key=lambda item: item[1].mean) if others else None


def rows(results: Path) -> list[Row]:
    """All streams, from the stored records of this study and of the paper's tables."""
    ours = cells(load_records(results / "guarantee"))
    theirs: dict[CellKey, Cell] = {}
    for study in ENFORCED.values():
        theirs |= cells(load_records(results / study))
    found = []
    for dataset, scenario in STREAMS:
        key = CellKey(dataset, scenario, "exact", "")
        enforced = theirs.get(CellKey(dataset, scenario, "intercontinet", ""))
        found.append(Row(key, ours.get(key), enforced))
        others = (CellKey(dataset, scenario, *below) for below in BELOW)
        found += [Row(other, ours[other], None) for other in others if other in ours]
    return found


def rich_table(found: Iterable[Row]) -> Table:
    """For the terminal. Red and *: a promise that did not hold with every seed, which is explained below it."""
    from rich.table import Table

    out = Table(title=TITLE, title_justify="left", title_style="bold")
    for head in _HEADS:
        out.add_column(head, overflow="fold", justify="left" if head == _HEADS[0] else "right")
    shown = list(found)
    for row in shown:
        out.add_row(*row.texts(FELL_SHORT), style="dim" if row.ours is None else None)
    cells = [cell for row in shown for cell in (row.ours, row.enforced) if cell is not None]
    marks = f"*: {SHORT}; or, of an attack, it found fewer right than are certain."
    out.caption, out.caption_justify = f"{marks}\n{epochs_text(cells, _name)}".strip(), "left"
    return out


def _name(key: CellKey) -> str:
    what = BELOW.get((key.method, key.variant), key.method_name)
    return f"{what} on {key.dataset}"


def section(results: Path) -> tuple[str, tuple[str, ...]]:
    """For documents: the table, and how to read it."""
    return markdown(rows(results)), LEGEND


def markdown(found: Iterable[Row]) -> str:
    """Bold: a promise that did not hold with every seed."""
    lines = [markdown_row(_HEADS), "|---|" + "---:|" * (len(_HEADS) - 1)]
    return "\n".join([*lines, *(markdown_row(row.texts("**{}**")) for row in found)])
