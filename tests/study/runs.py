"""Small runs on Split Digits, that tests share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from intercontinet.engine.loop import Listener
from intercontinet.study.config import Config, configure
from intercontinet.study.run import Run
from intercontinet.study.state import State
from intercontinet.tasks import Scenario, Stream, stream

ENCODER = "levels-60-5"
CALM = {"ewc": {"strength": 1}, "oewc": {"strength": 1}}  # the small net diverges with more


@cache
def digits(scenario: Scenario) -> Stream:
    """Two tasks of five digits, and of their examples a quarter."""
    whole = stream("digits", scenario, tasks=2)
    few = [
        replace(task, train=(task.train[0][::4], task.train[1][::4]), test=(task.test[0][::4], task.test[1][::4]))
        for task in whole.tasks
    ]
    return replace(whole, tasks=few)


def tiny(method: str = "sgd", scenario: str = "domain", seeds: Sequence[int] = (0, 1), **changes: Any) -> Config:
    usual = {"net": ENCODER} if method == "exact" else {"net": "mlp-8", "epochs": 2}  # counting knows no epochs
    asked = {**usual, "settings": CALM.get(method), **changes}
    return configure("digits", scenario, method, tuple(seeds), **asked)


def running(config: Config, tasks: Stream | None = None, **changes: Any) -> Run:
    return Run(config, "cpu", tasks=digits(config.scenario) if tasks is None else tasks, **changes)


def states_of(run: Run, listen: Listener | None = None) -> list[State]:
    """Before the first task, and after each one."""
    states = [run.begin()]
    while states[-1].done < run.lessons:
        states.append(run.advance(states[-1], listen))
    return states


def timeless(state: State) -> list[list[dict[str, Any]]]:
    """What happened, but for how long it took."""
    return [[{k: v for k, v in line.items() if k != "seconds"} for line in lines] for lines in state.lines]


def alike(one: State, other: State, rows: slice = slice(None)) -> None:
    """The same to within rounding."""
    torch.testing.assert_close(one.weights, other.weights[rows], rtol=1e-3, atol=1e-4)
    for mine, theirs in zip(one.lines, other.lines[rows], strict=True):
        assert [line["event"] for line in mine] == [line["event"] for line in theirs]
        for a, b in zip(mine, theirs, strict=True):
            assert a["accuracy"] == pytest.approx(b["accuracy"], abs=0.01)
