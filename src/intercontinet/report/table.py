"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from intercontinet.report.results import ScenarioResult, TaskResult
from intercontinet.tasks import SetDescription

HARDLY = 0.6  # accuracy on a pair of classes; guessing gives one half at best
ENDLESS = 1_000_000  # columns, for a table to say how many it wants


COLUMNS: dict[str, Callable[[TaskResult], float]] = {
    "learned": lambda task: task.after,
    "now": lambda task: task.now,
    "floor": lambda task: task.floor,
    "attack": lambda task: task.attacked,
    "test": lambda task: task.test,
}


def fits(table: Table, console: Console, options: ConsoleOptions) -> bool:
    """Whether a table has all the room that it wants."""
    return Measurement.get(console, options.update(max_width=ENDLESS), table).maximum <= options.max_width


@dataclass(frozen=True)
class Compared:
    """The methods' tables of one scenario: side by side where the console has room for all numbers, or else stacked."""

    results: Sequence[ScenarioResult]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        first = self.results[0]
        both = _beside(self.results)
        out = [both] if fits(both, console, options) else [_beside([result]) for result in self.results]
        yield Text(f"{first.scenario}-incremental, keep {first.keep:.0%}", "bold")
        yield from out


def table(results: Sequence[ScenarioResult]) -> Compared:
    """One scenario, to print: a row a task, and all methods, side by side if there is room.

    A floor below its promise is red; a task that was hardly learned is yellow.
    """
    return Compared(results)


def _beside(results: Sequence[ScenarioResult]) -> Table:
    out = Table()
    names = Table(box=SIMPLE_HEAD, show_edge=False, padding=0)
    names.add_column("task")
    for task in results[0].tasks:
        names.add_row(task.task)
    names.add_section()
    names.add_row("average", style="bold")
    out.add_column("")
    for result in results:
        out.add_column(result.name, justify="center")
    out.add_row(names, *map(_figures, results))
    return out


def _figures(result: ScenarioResult) -> Table:
    """What one method came to."""
    out = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, 1))
    for head in COLUMNS:
        out.add_column(head, justify="right")
    for task in result.tasks:
        row = {head: f"{figure(task):.1%}" for head, figure in COLUMNS.items()}
        if not task.kept:
            row["floor"] = f"[bold red]{row['floor']} NOT CERTIFIED[/]"
        out.add_row(*row.values(), style="yellow" if task.after < HARDLY else None)
    out.add_section()
    out.add_row(*(f"{result.average(figure):.1%}" for figure in COLUMNS.values()), style="bold")
    return out


def data_table(sets: Sequence[SetDescription]) -> Table:
    """One row a data set."""
    out = Table(title="Data sets", title_justify="left", title_style="bold")
    for head in ("name", "images", "classes", "train", "test", "download", "here"):
        out.add_column(head, justify="left" if head in ("name", "here") else "right")
    for each in sets:
        out.add_row(
            each.name,
            " x ".join(map(str, each.shape)),
            str(each.classes),
            f"{each.train:,}",
            f"{each.test:,}",
            f"{each.download / 1e6:.0f} MB",
            "[red]damaged[/]" if each.damage else "[green]yes[/]" if each.present else "no",
        )
    damaged = [each.damage for each in sets if each.damage]
    out.caption = "\n".join(map(escape, damaged)) or None
    return out
