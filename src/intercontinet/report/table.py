"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from intercontinet.report.results import ScenarioResult
from intercontinet.tasks import SetDescription

HARDLY = 0.6  # accuracy on a pair of classes; guessing gives one half at best


def table(result: ScenarioResult) -> Table:
    """One row a task. A floor below its promise is red; a task that was hardly learned is yellow."""
    out = Table(
        title=f"{result.scenario}-incremental, keep {result.keep:.0%}", title_justify="left", title_style="bold"
    )
    out.add_column("task")
    for head in ("just after", "now", "certified floor", "under attack", "test, now"):
        out.add_column(head, justify="right")
    for task in result.tasks:
        floor = f"{task.floor:.1%} ({task.certified}/{task.total})"
        style = "yellow" if task.after < HARDLY else None
        out.add_row(
            task.task,
            f"{task.after:.1%}",
            f"{task.now:.1%}",
            floor if task.kept else f"[bold red]{floor} NOT CERTIFIED[/]",
            f"{task.attacked:.1%}",
            f"{task.test:.1%}",
            style=style,
        )
    out.add_section()
    out.add_row("average", "", "", "", "", f"{result.average_test:.1%}", style="bold")
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
            "[green]yes[/]" if each.present else "no",
        )
    return out
