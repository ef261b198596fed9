"""Seeds that take turns are told apart in what a listener hears, and in what is left behind nothing changes."""

from __future__ import annotations

import io
import re
from typing import Any

from rich.console import Console

from intercontinet.engine.loop import Progress
from intercontinet.report.live import Live
from intercontinet.study.config import configure
from intercontinet.study.run import Run, complete


def exact(*seeds: int) -> Run:
    return Run(configure("digits", "class", "exact", seeds, 2, net="levels-40-5"), "cpu")


def lines_of(run: Run, epochs: int) -> list[str]:
    """What is printed where there is no terminal."""
    file = io.StringIO()
    with Live(Console(file=file, width=200)) as live:
        complete(run, listen=live.listener("it", run.lessons, epochs))
    return file.getvalue().splitlines()


def test_of_the_exact_learner_each_seed_is_named_with_what_is_certain() -> None:
    found = lines_of(exact(2, 5), 1)
    for line, (task, seed) in zip(
        found, [(task, seed) for task in ("0/1/2/3/4", "5/6/7/8/9") for seed in (2, 5)], strict=True
    ):
        wanted = rf"it: task {task}, seed {seed}, learning 1/1, accuracy \d+%, certain \d+%"
        assert re.fullmatch(wanted, line), line
    assert "task 0/1/2/3/4, learning 1/1" in lines_of(exact(2), 1)[0], "alone it need not be named"


def test_what_is_certain_is_the_share_that_the_floor_counts() -> None:
    heard: list[Progress] = []
    run = exact(2)
    state = complete(run, listen=heard.append)
    floors = [line["floor"] for line in state.tasks(0)]
    expected = [((floor["certified"] / floor["total"], floor["accuracy"]),) for floor in floors]
    assert [progress.statistics for progress in heard] == expected


def test_metrics_are_as_they_were() -> None:
    run = exact(2, 5)
    for lines in complete(run).lines:
        epochs: list[dict[str, Any]] = [line for line in lines if line["event"] == "epoch"]
        assert [line["phase"] for line in epochs] == ["learning"] * 2
        names = {"event", "task", "phase", "epoch", "epochs", "loss", "accuracy", "index"}
        assert all(set(line) == names for line in epochs)


def test_short_of_memory_too_and_the_bar_knows_how_far_it_is() -> None:
    config = configure("digits", "domain", "intercontinet", (0, 3, 4), 2, net="mlp-8", epochs=2)
    run = Run(config, "cpu")
    run.turns.at_once = 2  # as when memory gave out with three
    live = Live(Console(file=io.StringIO(), force_terminal=True))
    listen = live.listener("it", run.lessons, 2)
    phases, places = [], []

    def hear(progress: Progress) -> None:
        listen(progress)
        phases.append(progress.phase)
        places.append(live._bars.tasks[0].completed)

    complete(run, listen=hear)
    turns = ["seeds 0, 3, centres", "seeds 0, 3, radii", "seed 4, centres", "seed 4, radii", "learned"]
    assert phases == turns * 2
    assert places == [1, 2, 1, 2, 2, 3, 4, 3, 4, 4]
