"""Progress of long work: bars on a terminal; elsewhere a line a phase, and a line a minute where phases are long."""

from __future__ import annotations

import time
from types import TracebackType
from typing import final

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from intercontinet.engine.loop import LEARNED, Listener
from intercontinet.engine.loop import Progress as Heard

ROOMY = 110  # columns of a terminal that has room for a bar beside what matters more
QUIET = 60.0  # seconds after which a log should say where the work is


@final
class Live:
    """Shows one bar for each piece of work: task, phase, epoch, accuracy, certified share, time left.

    >>> with Live(Console(quiet=True)) as live:
    ...     listen = live.listener("mnist/task/ewc", lessons=5, epochs=30)
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        name = Column(no_wrap=True, overflow="ellipsis", ratio=1)  # the first to give way
        clock, note = Column(no_wrap=True, min_width=len("0:00:00")), Column(no_wrap=True, overflow="ellipsis")
        columns: list[ProgressColumn] = [TextColumn("{task.description}", markup=False, table_column=name)]
        if console.width >= ROOMY:
            columns += [BarColumn(bar_width=16), TimeElapsedColumn(table_column=clock.copy())]
        columns += [
            TimeRemainingColumn(table_column=clock),
            TextColumn("left", table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[note]}", markup=False, table_column=note),
        ]
        self._bars = Progress(*columns, console=console, disable=not console.is_terminal, expand=True)

    def __enter__(self) -> Live:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.out(text, style="yellow", highlight=False)

    def listener(self, label: str, lessons: int, epochs: int, done: int = 0) -> Listener:
        """A listener for one piece of work.

        Args:
            label: Its name.
            lessons: How many tasks it learns.
            epochs: How many a task takes.
            done: Tasks that are learned already.
        """
        total = lessons * epochs
        row = self._bars.add_task(label, total=total, completed=done * epochs, note="starting")
        tasks: list[str] = []
        told = time.monotonic()

        def listen(heard: Heard) -> None:
            nonlocal told
            if heard.task not in tasks:
                tasks.append(heard.task)
            radii = heard.phase.endswith("radii")  # before which may stand whose they are
            learned = heard.phase == LEARNED
            before = (done + len(tasks) - 1) * epochs + (epochs - heard.epochs if radii or learned else 0)
            place = LEARNED if learned else f"{heard.phase} {heard.epoch}/{heard.epochs}"
            word = "certain so far" if radii else "certain"
            certain = f", {word} {heard.mean(0):.0%}" if len(heard.statistics[0]) > 1 else ""
            note = f"task {heard.task}, {place}, accuracy {heard.mean(-1):.0%}{certain}"
            completed = before + heard.epoch  # not counted on: where memory is short, seeds take turns at a task
            self._bars.update(row, completed=completed, visible=completed < total, note=note)
            if not self._console.is_terminal and (heard.epoch == heard.epochs or time.monotonic() - told >= QUIET):
                self._console.out(f"{label}: {note}", highlight=False)
                told = time.monotonic()

        return listen
