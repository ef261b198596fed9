"""The paper's tables and figures, and ours, cell by cell: what is in the results store is not run again."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed, wait
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from threading import Event
from typing import Any

import torch

from intercontinet.engine.loop import Listener, Progress
from intercontinet.engine.record import give_back_memory, stream_of_thread
from intercontinet.errors import InterContiNetError, InvalidSetting, OutOfMemory, memory_gave_out
from intercontinet.learners.catalogue import defaults_of
from intercontinet.study.config import Config, check_count, configure, settings_of
from intercontinet.study.machine import chosen_device
from intercontinet.study.run import Run, complete
from intercontinet.study.store import Cell, cells, load_records, place_for, save_record
from intercontinet.study.studies import STUDIES, Plan, chosen, named
from intercontinet.tasks import Stream, stream

LANES = 5  # cells side by side on a GPU
EPOCHS_WORTH = {"offline": 4, "intercontinet": 3, "intercontinet-published": 2}  # roughly, of one of plain SGD


@dataclass(frozen=True)
class Step:
    """One cell to run, with the seeds that are missing."""

    plan: Plan
    config: Config


def steps(study: str, results: Path, seeds: int | None, epochs: int | None, only: Sequence[str] = ()) -> list[Step]:
    """The cells of a study that are not yet in the store, each with the seeds it lacks.

    Args:
        study: A key of ``STUDIES``.
        results: The store.
        seeds: How many seeds a cell should have; None for the study's own number.
        epochs: A task's; None for the study's own, or the cell's.
        only: Names of cells, or parts of them, see :func:`chosen`.

    Raises:
        InvalidSetting: There is no such study or cell, or the store holds seeds of a cell with other settings.
        InvalidData: The store cannot be read, or the file in which a cell belongs holds another.
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
        own = whole.epochs if plan.epochs is None else plan.epochs
        config = configure(*asked, net=plan.net, settings=plan.settings, epochs=own if epochs is None else epochs)
        _check_alike(cell, config)  # though nothing is missing: what is shown must be what was asked for
        if missing:
            place_for(results / study, plan.key, missing, whole.several)  # refused now, not once all is trained
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
            how = "use --device cpu, or fewer" if at.type == "cuda" else "use fewer"
            raise OutOfMemory(
                f"{step.plan.key} on {step.plan.dataset} ran out of memory{when}: {how} --seeds at a time, which are "
                "added to those in the store"
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
            give_back_memory(alone=True)
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
