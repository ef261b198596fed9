"""What was tried for cells that lie far from the paper's: each trial beside its cell of the paper's tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from intercontinet.errors import InvalidData
from intercontinet.report.cells import completed
from intercontinet.report.paper import yardstick
from intercontinet.report.record import CellKey
from intercontinet.study.store import Cell, cells, load_records
from intercontinet.study.studies import named
from intercontinet.study.tables import FELL_SHORT, SHORT, certified_text, markdown_row, ours_text, paper_text, place_of
from intercontinet.tasks import SCENARIOS

if TYPE_CHECKING:
    from rich.table import Table

STUDY, TITLE = "trials", "Trials: what was tried for cells that lie far from the paper's"
TABLES = {"mnist": "table1", "fashion-mnist": "table2", "cifar-10": "table3", "cifar-100": "figure4"}
LEGEND = (
    "Each row is a cell of a table above, or of figure 4, with other settings; all others are the same.",
    "Accuracy and certified shares are read as in the tables, and so is bold.",
)
_HEADS = ("cell", "tried", "accuracy", "in its table", "by the paper", "certified, task by task")


@dataclass(frozen=True)
class Trial:
    """A cell with other settings, and the cell itself as its table has it (None: not run)."""

    ours: Cell
    usual: Cell | None

    @property
    def changed(self) -> list[tuple[str, object, object]]:
        """Each setting that is not as usual: its name, and its values in the trial and in the table."""
        if self.usual is None:
            return []
        mine, its = (completed(cell.records[0]).settings for cell in (self.ours, self.usual))
        return [(name, mine[name], its.get(name)) for name in mine if mine[name] != its.get(name)]

    def texts(self, mark: str = "{}") -> tuple[str, ...]:
        """One text a column; floors that fell short go through ``mark``."""
        key = self.ours.key
        return (
            f"{key.dataset}/{key}",
            "; ".join(f"{name} {_plain(tried)}, not {_plain(usual)}" for name, tried, usual in self.changed),
            ours_text(self.ours),
            ours_text(self.usual),
            paper_text(yardstick(key.dataset, key.scenario, key.method)),
            certified_text(self.ours, broken=mark.format),
        )


def _plain(value: object) -> str:
    return " and ".join(map(str, value)) if isinstance(value, list) else f"{value}".lower()


def found(results: Path) -> list[Trial]:
    """All trials that were run, in the order of the tables."""
    ours = cells(load_records(results / STUDY))
    usual = {study: cells(load_records(results / study)) for study in TABLES.values()}
    for key, cell in ours.items():
        if key.dataset not in TABLES:
            raise InvalidData(f"{cell.records[0].source} is of {key.dataset}, of which there is no table: move it away")
    keys = sorted(ours, key=_place)
    return [Trial(ours[key], usual[TABLES[key.dataset]].get(replace(key, variant=""))) for key in keys]


def left_words(shown: Iterable[Trial], mark: str = "{}") -> str:
    """Which trials are planned and not among these, so that nobody takes a plan for something that was tried."""
    ran = {trial.ours.key for trial in shown}
    left = [mark.format(f"{plan.dataset}/{plan.key}") for plan in named(STUDY).plans if plan.key not in ran]
    return f"Planned, and not run yet; the command runs them, too: {', '.join(left) or 'none'}."


def _place(key: CellKey) -> tuple[object, ...]:
    return list(TABLES).index(key.dataset), SCENARIOS.index(key.scenario), *place_of(key.method, key.variant)


def rich_table(shown: Iterable[Trial]) -> Table:
    """For the terminal. Red and *: a promise that did not hold with every seed, which is explained below it."""
    from rich.table import Table

    out = Table(title=TITLE, title_justify="left", title_style="bold")
    for head in _HEADS:
        out.add_column(head, overflow="fold", justify="left" if head in _HEADS[:2] else "right")
    for trial in shown:
        out.add_row(*trial.texts(FELL_SHORT))
    out.caption, out.caption_justify = f"*: {SHORT}.", "left"
    return out


def section(results: Path) -> tuple[str, tuple[str, ...]]:
    """For documents: the table, and how to read it."""
    shown = found(results)
    return markdown(shown), (*LEGEND, left_words(shown, "`{}`"))


def markdown(shown: Iterable[Trial]) -> str:
    """Bold: a promise that did not hold with every seed."""
    lines = [markdown_row(_HEADS), "|---|---|" + "---:|" * (len(_HEADS) - 2)]
    return "\n".join([*lines, *(markdown_row(trial.texts("**{}**")) for trial in shown)])
