"""Learning a task reads that task alone: neither what was, nor what is to come, nor test data change a bit of it.

Strangers are the one thing that is read beside it, and of them only those that no task holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, overload

import numpy as np
import pytest
import torch
from torch import Tensor

from intercontinet.learners.exact import parts_of
from intercontinet.learners.exact_settings import ExactSettings
from intercontinet.study.config import Config, configure
from intercontinet.study.run import Run
from intercontinet.study.state import State
from intercontinet.study.studies import VOLUME
from intercontinet.tasks import SCENARIOS, Scenario, Stream, Task, stream
from tests.tiny import Pair, same

STRANGE: dict[str, Any] = {"tuning": "shifted", "fit_rate": 0.1}
IMAGES = ("exact on a dictionary", "exact by sight")
METHODS: dict[str, dict[str, Any]] = {
    "exact on levels": {"method": "exact", "net": "levels-40-5"},
    "exact, capped": {"method": "exact", "net": "capped-levels-40-5"},
    "exact, strangers": {"method": "exact", "net": "capped-levels-40-5", "settings": STRANGE},
    "exact on winners": {"method": "exact", "net": "winners-80-8"},
    "exact on a dictionary": {
        "method": "exact",
        "net": "capped-dictionary-20-1-10-1-40-5",
        "settings": {"mirror": True},
    },
    "exact by sight": {
        "method": "exact",
        "net": "capped-sight-2-40-5",
        "settings": {"mirror": True, "tuning": "shifted"},
    },
    "intercontinet": {"method": "intercontinet", "net": "mlp-8", "epochs": 2},
    "intercontinet, improved": {
        "method": "intercontinet",
        "net": "mlp-8",
        "settings": {**VOLUME, "centre_epochs": 2, "radii_epochs": 2},
    },
    "ewc": {"method": "ewc", "net": "mlp-8", "epochs": 2, "settings": {"strength": 1}},
}
everywhere = pytest.mark.parametrize(
    ("name", "scenario"),
    [
        (name, scenario)
        for name in METHODS
        for scenario in SCENARIOS
        if scenario != "task" or "capped" not in METHODS[name]["net"]  # heads of their own have no ceiling
    ],
)


@pytest.fixture(scope="module", autouse=True)
def _strangers(tmp_path_factory: pytest.TempPathFactory) -> None:
    STRANGE["strangers_from"] = str(strangers_in(tmp_path_factory.mktemp("others")))


def strangers_in(folder: Path, seed: int = 0, *more: Tensor) -> Path:
    """A data set of noise in the shape of digits, and, as its last class, of whatever else is given."""
    x = np.random.default_rng(seed).random((120, 64), np.float32)
    x = np.concatenate([x, *(part.numpy() for part in more)])
    y = np.minimum(np.arange(len(x)) // 40, 3)
    np.savez(folder / "others.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    return folder / "others.npz"


@cache
def digits(scenario: Scenario, name: str = "") -> Stream:
    """Three tasks, and of their examples a quarter; as images, where a method is for those."""
    whole = stream("digits", scenario, tasks=3)
    shape = (1, 8, 8) if name in IMAGES else whole.shape

    def quarter(pair: Pair) -> Pair:
        return pair[0][::4].reshape(-1, *shape), pair[1][::4]

    few = [replace(t, train=quarter(t.train), test=quarter(t.test)) for t in whole.tasks]
    return replace(whole, tasks=few)


def asked(name: str, scenario: Scenario) -> Config:
    return configure("digits", scenario, seeds=(0, 4), **METHODS[name])


@cache
def unbroken(name: str, scenario: Scenario) -> tuple[Run, list[State]]:
    run = Run(asked(name, scenario), "cpu", tasks=digits(scenario, name))
    states = [run.begin()]
    while states[-1].done < run.lessons:
        states.append(run.advance(states[-1]))
    return run, states


def noise(pair: Pair) -> Pair:
    """Other images, and labels in another order: of the same shape, and the same labels occur."""
    generator = torch.Generator().manual_seed(len(pair[0]))
    return torch.rand(pair[0].shape, generator=generator), pair[1][torch.randperm(len(pair[1]), generator=generator)]


def changed(tasks: Sequence[Task], which: Callable[[int], bool], test: bool) -> list[Task]:
    """Noise for the training data of some tasks, and for the test data of all, if asked for."""
    return [
        replace(
            task, train=noise(task.train) if which(place) else task.train, test=noise(task.test) if test else task.test
        )
        for place, task in enumerate(tasks)
    ]


def learned_the_same(one: State, other: State) -> None:
    assert same({"weights": one.weights, **one.memory}, {"weights": other.weights, **other.memory})
    for mine, theirs in zip(one.lines, other.lines, strict=True):
        kept = ("floor", "region", "train_accuracy", "learned", "loss", "accuracy")
        told = [[{k: line.get(k) for k in kept[: 6 if line["event"] == "epoch" else 4]} for line in lines]
                for lines in (mine, theirs)]  # fmt: skip
        assert told[0] == told[1]


def run_on(name: str, scenario: Scenario, tasks: Sequence[Task]) -> Run:
    """A new run on these tasks; an encoder that was fitted to the first task's images stays the one it was."""
    run = Run(asked(name, scenario), "cpu", tasks=replace(digits(scenario, name), tasks=tasks))
    run._models.encoders = unbroken(name, scenario)[0]._models.encoders
    return run


@everywhere
def test_other_tasks_training_data_change_nothing(name: str, scenario: Scenario) -> None:
    _, states = unbroken(name, scenario)
    for now in range(3):
        tasks = changed(digits(scenario, name).tasks, lambda place, now=now: place != now, test=False)  # type: ignore[misc]
        learned_the_same(run_on(name, scenario, tasks).advance(states[now]), states[now + 1])


@everywhere
def test_test_data_change_nothing_but_what_is_measured_on_them(name: str, scenario: Scenario) -> None:
    _, states = unbroken(name, scenario)
    run = Run(asked(name, scenario), "cpu", tasks=replace(digits(scenario, name), tasks=changed(
        digits(scenario, name).tasks, lambda _: False, test=True)))  # fmt: skip
    state = run.begin()
    for expected in states[1:]:
        state = run.advance(state)
        learned_the_same(state, expected)
    measured = [[line["accuracy"] for line in end.tasks(0)] for end in (state, states[-1])]
    assert measured[0] != measured[1]


@everywhere
def test_tasks_to_come_change_nothing(name: str, scenario: Scenario) -> None:
    _, states = unbroken(name, scenario)
    for done in (1, 2):
        tasks = changed(digits(scenario, name).tasks, lambda place, done=done: place >= done, test=True)  # type: ignore[misc]
        run = Run(asked(name, scenario), "cpu", tasks=replace(digits(scenario, name), tasks=tasks))
        state = run.begin()
        for _ in range(done):
            state = run.advance(state)
        learned_the_same(state, states[done])


@everywhere
def test_the_tasks_own_data_change_what_is_learned(name: str, scenario: Scenario) -> None:
    """Or else the tests above would say nothing."""
    _, states = unbroken(name, scenario)
    tasks = changed(digits(scenario, name).tasks, lambda place: place == 1, test=False)
    after = run_on(name, scenario, tasks).advance(states[1])
    assert not torch.equal(after.weights, states[2].weights)


class Guarded(Sequence[Task]):
    """Tasks of which one alone may be looked at."""

    def __init__(self, tasks: Sequence[Task], allowed: int) -> None:
        self.tasks, self.allowed = tasks, allowed
        self.asked = 0

    def __len__(self) -> int:
        return len(self.tasks)

    @overload
    def __getitem__(self, index: int) -> Task: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...

    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        assert index == self.allowed, f"task {index} was read while task {self.allowed} was learned"
        self.asked += 1
        return self.tasks[index]


@everywhere
def test_no_other_task_is_even_asked_for(name: str, scenario: Scenario) -> None:
    run, states = unbroken(name, scenario)
    for now in range(3):
        guarded = Guarded(digits(scenario, name).tasks, now)
        fresh = Run(run.config, "cpu", tasks=digits(scenario, name))
        fresh.stream = replace(fresh.stream, tasks=guarded)
        learned_the_same(fresh.advance(states[now]), states[now + 1])
        assert guarded.asked
        with pytest.raises(AssertionError, match="was read while"):
            guarded[(now + 1) % 3]


# Strangers.


def test_strangers_that_another_task_holds_shape_nothing(tmp_path: Path) -> None:
    run, states = unbroken("exact, strangers", "class")
    last = digits("class").tasks[2]

    def first_task_with(file: Path) -> State:
        config = replace(run.config, settings={**run.config.settings, "strangers_from": str(file)})
        other = Run(config, "cpu", tasks=digits("class"))
        return other.advance(other.begin())

    known = strangers_in(tmp_path, 0, last.train[0][:20], last.test[0][:20])
    learned_the_same(first_task_with(known), states[1])
    assert not torch.equal(first_task_with(strangers_in(tmp_path, 1)).weights, states[1].weights), "others do"


# Encoders.


def encoders(run: Run) -> list[dict[str, Tensor]]:
    return [dict(parts_of(run.model(run.begin(), row))[0].named_buffers()) for row in range(len(run.config.seeds))]


def with_first(task: Task) -> Run:
    tasks = [task, *digits("class").tasks[1:]]
    return Run(asked("exact on levels", "class"), "cpu", tasks=replace(digits("class"), tasks=tasks))


def test_encoders_are_fitted_to_the_first_tasks_images_without_labels() -> None:
    first = digits("class").tasks[0]
    x, y = first.train
    usual = encoders(with_first(first))
    for labels in (noise(first.train)[1], y.flip(0), torch.full_like(y, 2)):
        assert all(map(same, encoders(with_first(replace(first, train=(x, labels)))), usual))
    others = encoders(with_first(replace(first, train=noise(first.train))))
    assert not any(map(same, others, usual)), "of other images there are other levels"
    later = changed(digits("class").tasks, lambda place: place > 0, test=True)
    assert all(map(same, encoders(with_first(later[0])), usual)), "and of tests and later tasks nothing"
    run = Run(asked("exact on levels", "class"), "cpu", tasks=replace(digits("class"), tasks=later))
    assert all(map(same, encoders(run), usual))


def test_every_seed_has_an_encoder_of_its_own() -> None:
    run, _ = unbroken("exact on levels", "class")
    one, other = encoders(run)
    assert one.keys() == other.keys() and not same(one, other)
    alone = Run(replace(run.config, seeds=(4,)), "cpu", tasks=digits("class"))
    assert same(encoders(alone)[0], other), "whoever is beside it"


def test_an_encoder_does_not_see_what_is_to_stay_unseen() -> None:
    first = digits("class").tasks[0]
    x, y = first.train
    unseen = ~ExactSettings().shaping(len(x), seed=0)
    assert 0 < int(unseen.sum()) < len(x) / 5
    for place, alike in ((unseen, True), (~unseen, False)):
        other = x.clone()
        other[place] = 1 - other[place]
        config = replace(asked("exact on levels", "class"), seeds=(0,))
        tasks = [replace(first, train=(other, y)), *digits("class").tasks[1:]]
        run = Run(config, "cpu", tasks=replace(digits("class"), tasks=tasks))
        usual = Run(config, "cpu", tasks=digits("class"))
        assert same(encoders(run)[0], encoders(usual)[0]) is alike
