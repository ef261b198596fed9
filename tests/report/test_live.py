"""Progress: task, phase, epoch, accuracy, certified share and time left on a terminal; lines elsewhere."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from intercontinet.engine.loop import LEARNED, Progress
from intercontinet.report.live import Live


def heard(task: str = "0/1", phase: str = "train", epoch: int = 1, epochs: int = 2) -> Progress:
    own = (0.25, 0.75) if phase == "radii" else (0.75,)
    return Progress(phase, epoch, epochs, (0.5, 0.5), (own, own), 0.0, torch.zeros(2, 3), task)


def learned(task: str = "0/1") -> Progress:
    return replace(heard(task, "radii", epochs=1), phase=LEARNED)


def console(terminal: bool) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=terminal, width=160), file


def test_on_a_terminal_everything_is_in_one_bar() -> None:
    screen, file = console(terminal=True)
    with Live(screen) as live:
        listen = live.listener("mnist/task/ewc", lessons=2, epochs=2)
        listen(heard("2/3", "radii"))
        live._bars.refresh()
    text = file.getvalue()
    for word in ("mnist/task/ewc", "task 2/3", "radii 1/2", "accuracy 75%", "certain so far 25%", "left", "-:--:--"):
        assert word in text


def test_elsewhere_there_is_a_line_a_phase() -> None:
    screen, file = console(terminal=False)
    with Live(screen) as live:
        listen = live.listener("digits/task/intercontinet", 1, 3)
        for progress in (
            heard(phase="centres"),
            heard(phase="centres", epoch=2),
            heard(phase="radii", epochs=1),
            learned(),
        ):
            listen(progress)
    assert file.getvalue().splitlines() == [
        "digits/task/intercontinet: task 0/1, centres 2/2, accuracy 75%",
        "digits/task/intercontinet: task 0/1, radii 1/1, accuracy 75%, certain so far 25%",
        "digits/task/intercontinet: task 0/1, learned, accuracy 75%, certain 25%",
    ]


def test_elsewhere_long_phases_are_heard_of_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("intercontinet.report.live.time.monotonic", lambda: now)
    screen, file = console(terminal=False)
    listen = Live(screen).listener("one", 1, 9)
    for epoch in range(1, 10):
        now = 25.0 * epoch
        listen(heard(epoch=epoch, epochs=9))
    epochs = [line.split("train ")[1].split(",")[0] for line in file.getvalue().splitlines()]
    assert epochs == ["3/9", "6/9", "9/9"]


def completed(live: Live) -> list[float]:
    return [task.completed for task in live._bars.tasks]


def test_the_bar_knows_how_far_it_is_over_tasks_and_phases() -> None:
    live = Live(console(terminal=True)[0])
    listen = live.listener("one", lessons=2, epochs=3)
    found = []
    for task in ("0/1", "2/3"):
        for progress in (heard(task, "centres"), heard(task, "centres", 2), heard(task, "radii", epochs=1)):
            listen(progress)
            found += completed(live)
        listen(learned(task))
        found += completed(live)
    assert found == [1, 2, 3, 3, 4, 5, 6, 6]
    assert not live._bars.tasks[0].visible, "a bar that is full goes"


def test_a_run_that_is_resumed_begins_where_it_stood() -> None:
    live = Live(console(terminal=True)[0])
    listen = live.listener("one", lessons=5, epochs=2, done=3)
    assert completed(live) == [6]
    listen(heard("6/7"))
    assert completed(live) == [7]


def test_seeds_that_take_turns_do_not_count_twice() -> None:
    live = Live(console(terminal=True)[0])
    listen = live.listener("one", lessons=2, epochs=2)
    for epoch in (1, 1, 2, 1, 2):  # all seeds, until memory gave out; then some; then the others
        listen(heard(epoch=epoch))
    assert completed(live) == [2]
    listen(heard("2/3", epoch=2))
    assert completed(live) == [4]


def test_pieces_of_work_have_bars_of_their_own() -> None:
    live = Live(console(terminal=True)[0])
    first, second = live.listener("one", 1, 2), live.listener("two", 1, 2)
    first(heard())
    second(heard(epoch=2))
    assert completed(live) == [1, 2]


def test_words_are_said_as_they_are_in_one_line() -> None:
    screen, file = console(terminal=False)
    words = "seeds [0, 1] of [bold]my data[/] in /a/:cat:/" + "x" * 200
    Live(screen).say(words)
    assert file.getvalue() == words + "\n"
    listen = Live(screen).listener("[red]x[/]", 1, 1)
    listen(heard("[cat]/dog", epochs=1))
    assert "[red]x[/]: task [cat]/dog, train 1/1" in file.getvalue()
