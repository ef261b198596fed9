"""The paper's tables and figures, and ours, cell by cell: what is in the results store is not run again."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed, wait
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from threading import Event
from typing import Any

import torch

from intercontinet.complaints import nearest
from intercontinet.engine.loop import Listener, Progress
from intercontinet.engine.record import give_back_memory, stream_of_thread
from intercontinet.errors import InterContiNetError, InvalidSetting, OutOfMemory, memory_gave_out
from intercontinet.learners.catalogue import Values, defaults_of
from intercontinet.study.config import Config, check_count, configure, settings_of
from intercontinet.study.machine import chosen_device
from intercontinet.study.run import Run, complete
from intercontinet.study.store import Cell, CellKey, cells, load_records, save_record
from intercontinet.tasks import SCENARIOS, Stream, stream

ANCHORED = ("l2", "ewc", "oewc", "si", "mas")
INTERVALS = ("intercontinet-published", "intercontinet")
LANES = 5  # cells side by side on a GPU
EPOCHS_WORTH = {"offline": 4, "intercontinet": 3, "intercontinet-published": 2}  # roughly, of one of plain SGD
KEEPS = (0.05, 0.5, 0.8, 0.9, 0.95)  # of the acc_thresh study
SHARES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)  # of the study of what a promise costs


@dataclass(frozen=True)
class Plan:
    """One cell: what to run for it."""

    dataset: str
    scenario: str
    method: str
    variant: str = ""
    settings: Values = field(default_factory=dict)
    net: str | None = None  # the preset's by default

    @property
    def key(self) -> CellKey:
        return CellKey(self.dataset, self.scenario, self.method, self.variant)


@dataclass(frozen=True)
class Study:
    """A table or figure, of the paper or ours.

    Attributes:
        plans: Its cells.
        seeds: How many it takes.
        curves: Whether curves are drawn from it.
        epochs: Of a task, where ours are fewer than the paper's.
        argue: With how many examples of every task its promise is argued with; 0 for not at all.
    """

    plans: tuple[Plan, ...]
    seeds: int
    curves: bool = False
    epochs: int | None = None
    argue: int = 0

    @property
    def several(self) -> bool:
        """Whether it is of more than one data set."""
        return len({plan.dataset for plan in self.plans}) > 1


def _grid(dataset: str, scenarios: Sequence[str], methods: Sequence[str]) -> tuple[Plan, ...]:
    return tuple(Plan(dataset, scenario, method) for scenario in scenarios for method in methods)


# The paper's method on the paper's network, with all that was found to leave it more room (docs/method.md).
VOLUME: Values = {
    "margins": "joint",
    "widen": True,
    "edges": "asymmetric",
    "shift": "clamped",
    "aim": "volume",
    "worst": "lost",
    "optimizer": "adam",
    "rate": 0.001,
    "later_rate": 0.002,
    "centre_epochs": 25,  # with a fifth held back, as many steps as 20 of all
    "radii_epochs": 26,
    "radii_rate": 0.03,
    "radius": 0.3,
    "held_out": 0.1,
    "unseen": 0.1,
}
# Classes told from the images of another data set, too.
STRANGE: Values = {
    "fit_rate": 0.1,
    "strangers_from": "cifar-100",
    "tuning": "shifted",
    "typical": 1.0,
}
# Encoders that were fitted to the first task's images and no others, where presets have one that was trained elsewhere.
_ALONE = "dictionary-400-3-10-0.1-4000-5"
_TRAINED: Values = {"fit_rate": 0.1, "mirror": True}
_EXACT = ("exact",)
_ALL = ("sgd", "adam", *ANCHORED, "lwf", *INTERVALS, "offline")
STUDIES: dict[str, Study] = {
    "table1": Study(_grid("mnist", SCENARIOS, _ALL), 5),
    "table2": Study(_grid("fashion-mnist", SCENARIOS, _ALL), 5),
    "table3": Study(_grid("cifar-10", SCENARIOS, ("sgd", *ANCHORED[1:], "lwf", *INTERVALS, "offline")), 5, epochs=75),
    "figure3": Study(
        tuple(
            Plan("fashion-mnist", "domain", "intercontinet-published", f"keep-{keep:g}", {"keep": keep})
            for keep in KEEPS
        ),
        5,
        curves=True,
    ),
    "figure4": Study(_grid("cifar-100", ("task",), ("sgd", *ANCHORED, "lwf", "intercontinet-published")), 3, epochs=20),
    "guarantee": Study(
        (
            *(plan for dataset in ("mnist", "fashion-mnist", "cifar-10") for plan in _grid(dataset, SCENARIOS, _EXACT)),
            *_grid("cifar-100", ("task",), _EXACT),
            *(
                Plan("cifar-10", scenario, "exact", "strangers", STRANGE, net="capped-sight-4-4000-5")
                for scenario in ("domain", "class")
            ),
            *(
                Plan(dataset, scenario, "exact", "dictionary", settings, net)
                for dataset, scenario, settings, net in (
                    ("cifar-10", "task", _TRAINED, _ALONE),
                    ("cifar-10", "domain", {**_TRAINED, "at_ceiling": 0.7, "typical": 1.0}, f"capped-{_ALONE}"),
                    ("cifar-10", "class", {**_TRAINED, "at_ceiling": 0.75, "typical": 2.0}, f"capped-{_ALONE}"),
                    (
                        "fashion-mnist",
                        "class",
                        {"fit_rate": 0.1, "at_ceiling": 0.8, "typical": 1.5, "tuning": "multiplied"},
                        "capped-dictionary-150-4-40-30-600-9",
                    ),
                )
            ),
            *(
                Plan(dataset, scenario, "intercontinet", "volume", {**VOLUME, "keep": keep})
                for dataset in ("mnist", "fashion-mnist")
                for scenario, keep in (("task", 0.9), ("domain", 0.8), ("class", 0.8))
            ),
        ),
        5,
        argue=1000,
    ),
    "tradeoff": Study(
        tuple(
            Plan("mnist", scenario, method, f"keep-{keep:g}", {"keep": keep})
            for scenario in ("domain", "class")
            for method in ("intercontinet", *_EXACT)
            for keep in SHARES
        ),
        5,
    ),
}


@dataclass(frozen=True)
class Step:
    """One cell to run, with the seeds that are missing."""

    plan: Plan
    config: Config


def named(study: str) -> Study:
    """A study by its name."""
    if study not in STUDIES:
        known = (*STUDIES, "docs")  # which is none, but goes where studies go
        raise InvalidSetting(f"there is no study '{study}'{nearest(study, known)}: choose one of {', '.join(known)}")
    return STUDIES[study]


def chosen(study: str, only: Sequence[str]) -> list[Plan]:
    """The cells of a study that bear one of some names, "class/ewc", "domain", "mas", "mnist"; without any, all.

    Raises:
        InvalidSetting: There is no such study, or a name is no cell's.
    """
    plans = named(study).plans
    for part in only:
        if not any(bears(plan.key, part) for plan in plans):
            words = {
                what: list(dict.fromkeys(name for plan in plans if (name := getattr(plan, what))))
                for what in ("dataset", "scenario", "method", "variant")
            }
            known = [name for names in words.values() for name in names]
            told = "; ".join(f"{what} {', '.join(names)}" for what, names in words.items() if names)
            raise InvalidSetting(
                f"no cell of {study} is called {part}{nearest(part, known)}: its cells are named by {told}; or by "
                f"several, as in {plans[0].key}"
            )
    return [plan for plan in plans if not only or any(bears(plan.key, part) for part in only)]


def steps(study: str, results: Path, seeds: int | None, epochs: int | None, only: Sequence[str] = ()) -> list[Step]:
    """The cells of a study that are not yet in the store, each with the seeds it lacks.

    Args:
        study: A key of ``STUDIES``.
        results: The store.
        seeds: How many seeds a cell should have; None for the study's own number.
        epochs: A task's; None for the study's own.
        only: Names of cells, or parts of them, see :func:`chosen`.

    Raises:
        InvalidSetting: There is no such study or cell, or the store holds seeds of a cell with other settings.
    """
    whole = named(study)
    if seeds is not None:
        check_count(seeds)
    wanted = range(whole.seeds if seeds is None else seeds)
    stored = cells(load_records(results / study))
    left: list[Step] = []
    for plan in chosen(study, only):
        cell = stored.get(plan.key)
        have = {seed.seed for seed in cell.seeds} if cell is not None else set()
        missing = tuple(seed for seed in wanted if seed not in have)
        asked = (plan.dataset, plan.scenario, plan.method, missing or tuple(wanted))
        config = configure(
            *asked, net=plan.net, settings=plan.settings, epochs=whole.epochs if epochs is None else epochs
        )
        _check_alike(cell, config)  # though nothing is missing: what is shown must be what was asked for
        if missing:
            left.append(Step(plan, config))
    return left


def _check_alike(cell: Cell | None, config: Config) -> None:
    """Seeds of one cell must be run alike, which is better known before than after.

    A setting that is younger than a record had its default then.
    """
    if cell is None:
        return
    record = cell.records[0]
    defaults = defaults_of(config.method)
    stored = {**defaults, "net": record.net, **record.settings}
    asked = {**defaults, "net": config.net, **settings_of(config)}
    odd = [f"{k} {stored.get(k)}, not {asked.get(k)}" for k in {**stored, **asked} if stored.get(k) != asked.get(k)]
    if odd:
        raise InvalidSetting(f"{record.source} holds seeds of {cell.key} with {', '.join(odd)}: choose another --out, "
                             "move that file away, or look at it as it is with --show")  # fmt: skip


def bears(key: CellKey, part: str) -> bool:
    """Whether consecutive words of a cell's name are these.

    >>> bears(CellKey("mnist", "class", "ewc"), "class/ewc"), bears(CellKey("mnist", "class", "ewc"), "mnist/ewc")
    (True, False)
    """
    name = f"/{key.dataset}/{key}/"
    return f"/{part}/" in name


Hear = Callable[[Step, Run], Listener | None]


def lanes_on(device: torch.device) -> int:
    """How many cells run side by side: several on a GPU, which a few small nets leave mostly idle."""
    return LANES if device.type == "cuda" else 1


def work_through(
    study: str,
    todo: Sequence[Step],
    results: Path,
    device: str = "auto",
    say: Callable[[str], None] = print,
    hear: Hear = lambda step, run: None,
) -> Iterator[Path]:
    """Run cells, the longest first, storing each as soon as it is done; yields the records' paths.

    A cell that runs out of memory beside others is run again by itself once they are done. One that fails is told of,
    and its error raised in the end.
    """
    at = chosen_device(device)
    lanes = lanes_on(at)
    stop = Event()
    streams: dict[tuple[str, str], Stream] = {}
    for step in todo:
        place = (step.config.dataset, step.config.scenario)
        if place not in streams:
            streams[place] = stream(step.config.dataset, step.config.scenario)

    def record_of(step: Step) -> dict[str, Any]:
        tasks = streams[step.config.dataset, step.config.scenario]
        with torch.cuda.stream(stream_of_thread(at, "running")) if at.type == "cuda" else nullcontext():
            run = Run(step.config, device, say, STUDIES[study].curves, STUDIES[study].argue, tasks)
            state = complete(run, listen=_until(stop, hear(step, run)))
            return {**run.summary(state), "variant": step.plan.variant}

    def attempt(step: Step, alone: bool) -> dict[str, Any] | None:
        """The record, or None where memory gave out beside others."""
        try:
            return record_of(step)
        except Exception as error:
            if not memory_gave_out(error):
                raise
        if alone:  # and out of the clause above, where the error would keep the run's tensors alive
            when = ", by itself too" if lanes > 1 else ""
            raise OutOfMemory(
                f"{step.plan.key} on {step.plan.dataset} ran out of memory{when}: use --device cpu, or fewer --seeds "
                "at a time, which are added to those in the store"
            )
        return None

    pool = ThreadPoolExecutor(lanes)
    again: list[Step] = []

    def side_by_side() -> Iterator[tuple[Step, Future[dict[str, Any] | None]]]:
        longest_first = sorted(todo, key=lambda step: EPOCHS_WORTH.get(step.config.method, 1), reverse=True)
        futures = {pool.submit(attempt, step, min(lanes, len(todo)) == 1): step for step in longest_first}
        for done in as_completed(futures):
            yield futures[done], done

    def one_by_one() -> Iterator[tuple[Step, Future[dict[str, Any] | None]]]:
        for step in again:
            give_back_memory()
            done = pool.submit(attempt, step, True)
            wait([done])
            yield step, done

    failures: list[InterContiNetError] = []
    try:
        for step, done in chain(side_by_side(), one_by_one()):
            failure = done.exception()
            if isinstance(failure, InterContiNetError):
                say(f"{step.plan.key} failed: {failure}")
                traceback.clear_frames(failure.__traceback__)  # else the run's tensors would stay until the end
                failures.append(failure)
            elif (record := done.result()) is None:
                say(f"{step.plan.key} ran out of memory beside others: will be run by itself")
                again.append(step)
            else:
                yield save_record(results / study, record, STUDIES[study].several)
        if failures:
            raise failures[0]
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _until(stop: Event, listen: Listener | None) -> Listener:
    """A listener that ends its run once ``stop`` is set."""

    def hear(progress: Progress) -> None:
        if stop.is_set():
            raise CancelledError
        if listen is not None:
            listen(progress)

    return hear
