"""One method on one stream of tasks with any number of seeds: train, measure, and leave a record."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from intercontinet.certificate import Certificate
from intercontinet.data import digests, fingerprint
from intercontinet.engine.augment import flipped_and_cropped
from intercontinet.engine.loop import Listener, Progress
from intercontinet.errors import InvalidData, InvalidSetting
from intercontinet.floor import TaskFloor
from intercontinet.inference import answered
from intercontinet.learners.boxes import check_layers, region_of
from intercontinet.learners.intercontinet import Hyperrectangles
from intercontinet.learners.method import Lesson, Memory, Method, Nets, diverged
from intercontinet.learners.plain import Offline
from intercontinet.learners.shares import Past
from intercontinet.region import Region
from intercontinet.report.record import FORMAT, VERSION
from intercontinet.report.results import epoch_record
from intercontinet.study import machine
from intercontinet.study.argue import argue_with
from intercontinet.study.config import Config, build_method, settings_of
from intercontinet.study.encoders import Encoder, Examples, Models
from intercontinet.study.promises import (
    floor_record,
    progress_of,
    size_record,
    unseen_counts,
    words_on_broken,
    words_on_left_out,
)
from intercontinet.study.state import State
from intercontinet.study.summary import Line, seed_record
from intercontinet.study.turns import Turns
from intercontinet.tasks import Stream, stream


class Run:
    """A configuration brought to life.

    Args:
        config: What to run.
        device: Where.
        say: Told what a person should know, in a line.
        curves: Whether test accuracy and region are measured after every epoch, for figures.
        argue: With how many examples of every task its promise is argued with, inside its own region; 0 for not at all.
        tasks: The configuration's stream, where it is at hand already.
    """

    def __init__(
        self,
        config: Config,
        device: str = "auto",
        say: Callable[[str], None] = print,
        curves: bool = False,
        argue: int = 0,
        tasks: Stream | None = None,
    ) -> None:
        self.config, self.device = config, machine.chosen_device(device)
        self._say, self._curves, self._argue = say, curves, argue
        self.stream = stream(config.dataset, config.scenario, tasks=config.tasks) if tasks is None else tasks
        self.method = _with_heads(build_method(config), self.stream)
        shape, mirror = self.stream.shape, config.settings.get("mirror")
        for name, wanted, fits in (("augment", config.augment, len(shape) == 3), ("mirror", mirror, len(shape) > 1)):
            if wanted and not fits:
                raise InvalidSetting(f"{name} is for images, and these examples are of shape {shape}: leave it out")
        self._models = Models.built(config, self.method, self.stream, self.device)
        learning = self._models.learning
        self.nets = Nets(learning[0].to(self.device), config.seeds, flipped_and_cropped if config.augment else None)
        if isinstance(self.method, Hyperrectangles):
            check_layers(self.method.settings, self.nets)
        flat = [self.nets.layout.flatten(dict(model.named_parameters())).detach().cpu() for model in learning]
        self._start = torch.stack(flat)
        self._tests, self._classes = [], []
        for task in self.stream.tasks:  # each is built once: a lazy stream's are too large to keep
            self._tests.append(Examples(task.test, task.classes, self.device))
            self._classes.append(task.classes)
        at_once = 1 if self._models.encoders[0] is not None else len(config.seeds)
        self.turns = Turns(self.device, at_once, say)
        self._hashes: dict[int, str] = {}
        self._test_hashes: list[str] = []
        self._origin = {
            "versions": machine.versions(),
            "hardware": machine.hardware(self.device),
            "commit": machine.commit(),
        }

    @property
    def lessons(self) -> int:
        """How many things there are to learn: the tasks, or, offline, all of them as one."""
        return 1 if isinstance(self.method, Offline) else len(self.stream.tasks)

    def begin(self) -> State:
        """The state before the first task."""
        right = self._right(self._start)
        initial = [[_share(task[row]) for task in right] for row in range(len(self.config.seeds))]
        lines: list[list[Line]] = [[] for _ in self.config.seeds]
        return State(self._start, {}, initial, lines, origins=[self._origin], encoders=self._models.hashes)

    def advance(self, state: State, listen: Listener | None = None) -> State:
        """The state after one more task; the one given is left as it is.

        Where seeds take turns, the phase that ``listen`` hears of says whose turn it is: "seed 3, learning". Where a
        promise was made true after training, ``listen`` hears of that too, as a last phase, "learned".
        """
        lesson, names, learned = self._lesson(state.done)
        known, past = Past(state.digests, whole=True, asked=self._holds_back).given(lesson.x)
        lesson = replace(lesson, known=known)
        before = self._right(state.weights, state.done)
        lines: list[list[Line]] = [[] for _ in self.config.seeds]

        def attempt(rows: range) -> Listener:
            """A listener for some seeds, from their first epoch on: what an attempt that failed left is dropped."""
            curve = _Curve(self, state, lesson.index, rows) if self._curves else None
            for row in rows:
                lines[row].clear()
            seeds = ", ".join(str(self.config.seeds[row]) for row in rows)
            turn = "" if len(rows) == len(lines) else f"seed{'s' if len(rows) > 1 else ''} {seeds}, "

            def hear(progress: Progress) -> None:
                for place, row in enumerate(rows):
                    line = {**epoch_record(progress, place), "index": lesson.index}
                    lines[row].append(line | (curve.point(progress, place, row) if curve else {}))
                if listen is not None:
                    listen(replace(progress, phase=turn + progress.phase))

            return hear

        began = time.perf_counter()
        learn = partial(self._learn, lesson, learned[0], attempt)  # a closure would outlive an error, and with it self
        weights, memory = self.turns.through(state.weights, state.memory, learn)
        seconds = time.perf_counter() - began
        lost = diverged(weights, self.nets)
        self._tell_diverged(lost, lesson)
        for words in words_on_left_out(memory, lesson, self.config.seeds):
            self._say(words)
        after = self._right(weights)
        answers = self._answers(weights, learned)
        for row in range(len(lines)):
            flips = [b[row] & ~a[row] for b, a in zip(before, after[: state.done], strict=True)]
            right = [own[row] for own in answers]
            lines[row].append(
                {
                    "event": "task",
                    "task": lesson.name,
                    "index": lesson.index,
                    "accuracy": [_share(task[row]) for task in after],
                    "train_accuracy": _share(torch.cat(right)),
                    "learned": [
                        {"task": name, "total": len(hits), "accuracy": _share(hits)}
                        for name, hits in zip(names, right, strict=True)
                    ],
                    "floor": floor_record(memory, row, lesson, self.config.keep, self.config.settings.get("drift")),
                    "region": size_record(self.region(memory, row), tuple(self.nets.layout.shapes)),
                    "negative_flips": _share(torch.cat(flips)) if flips else 0.0,
                    "seconds": seconds / len(lines),
                    **({"diverged": True} if self.config.seeds[row] in lost else {}),
                }
            )
        for words in words_on_broken([line[-1] for line in lines], self.config.seeds):
            self._say(words)
        if listen is not None and isinstance(self.method, Hyperrectangles):
            listen(progress_of([line[-1] for line in lines], weights))
        state = replace(
            state,
            weights=weights,
            memory=memory,
            lines=[[*old, *new] for old, new in zip(state.lines, lines, strict=True)],
            done=state.done + 1,
            seconds=state.seconds + seconds,
            digests=past.digests,
        )
        if self._argue and "lower" in memory:
            argue_with(self, state, lesson, learned[0], self._argue, self._say)
        return state

    def encoder(self, row: int) -> Encoder | None:
        """What lies below one seed's part that learns, if anything does."""
        return self._models.encoders[row]

    def _lesson(self, index: int) -> tuple[Lesson, Sequence[str], Sequence[Examples]]:
        """What is learned next, and the names and examples of the tasks that are in it, which share its memory."""
        if isinstance(self.method, Offline):
            tasks = self.stream.tasks
            xs, ys = zip(*(task.train for task in tasks), strict=True)
            sizes = [len(part) for part in ys]
            x, y = torch.cat(xs).to(self.device), torch.cat(ys).to(self.device)
            pairs = zip(torch.split(x, sizes), torch.split(y, sizes), strict=True)
            learned = [Examples(pair, task.classes, self.device) for pair, task in zip(pairs, tasks, strict=True)]
            return Lesson("all", 0, x, y), [task.name for task in tasks], learned
        task = self.stream.tasks[index]
        x, y = (part.to(self.device) for part in task.train)
        return Lesson(task.name, index, x, y, task.classes), [task.name], [Examples((x, y), task.classes, self.device)]

    @property
    def _holds_back(self) -> bool:
        """Whether some examples are not learned from."""
        return any(self.config.settings.get(name) for name in ("held_out", "unseen"))

    def _learn(
        self,
        lesson: Lesson,
        examples: Examples,
        attempt: Callable[[range], Listener],
        rows: slice,
        weights: Tensor,
        memory: Memory,
    ) -> tuple[Tensor, Memory]:
        """What some seeds come to."""
        listen = attempt(range(rows.start, rows.stop))
        shown = self._models.lesson(lesson, examples, rows.start, bool(self.config.settings.get("mirror")))
        return self.method.learn(self.nets.rows(rows), weights, memory, shown, listen)

    def _tell_diverged(self, lost: Sequence[int], lesson: Lesson) -> None:
        if lost:
            self._say(
                f"training diverged to NaN in task {lesson.name} for seed(s) {', '.join(map(str, lost))}, whose nets "
                "now answer with their first class: a lower rate or strength may mend it"
            )

    def _right(self, weights: Tensor, tasks: int | None = None) -> list[Tensor]:
        """Which test examples of each task, or of the first few, every seed gets right: [seeds, examples] a task."""
        return self._answers(weights, self._tests[:tasks])

    def _answers(self, weights: Tensor, sets: Sequence[Examples], first: int = 0) -> list[Tensor]:
        """Which examples of each set some seeds, from one row on, get right: [seeds, examples] a set."""
        answers: list[list[Tensor]] = [[] for _ in sets]
        for row, own in enumerate(weights, first):
            state = self.nets.layout.unflatten(own.to(self.device))  # once for all sets
            for examples, right in zip(sets, answers, strict=True):
                x = examples.shown.to(self._models.encoders[row], row)
                right.append(answered(self.nets.model, state, x, examples.labels, examples.classes).cpu())
        return [torch.stack(right) for right in answers]

    def region(self, memory: Memory, row: int) -> Region | None:
        """One seed's region, or None where the method has none."""
        if "lower" not in memory:
            return None
        return region_of(self.nets, *(memory[side][row].to(self.device) for side in ("lower", "upper")))

    def model(self, state: State, row: int) -> nn.Module:
        """One seed's network, with its weights, on the CPU."""
        return self._models.loaded(row, self.nets.layout.unflatten(state.weights[row]))

    def certificate(self, state: State, row: int) -> Certificate | None:
        """One seed's certificate, or None where the method promises nothing."""
        if "lower" not in state.memory:
            return None
        edges = (state.memory[side][row] for side in ("lower", "upper"))
        region = region_of(self.nets, *edges).to("cpu")  # of what rests, too
        floors = []
        for line in state.tasks(row):
            floor, index = line["floor"], line["index"]
            counts = (floor["certified"], floor["total"], floor["correct"])
            data = state.data[index] if index < len(state.data) else self.hash_of(index)
            unseen = unseen_counts(state.memory, row, index)
            made = TaskFloor(floor["task"], *counts, self._classes[index], self.config.keep, data, *unseen)
            floors.append(replace(made, drift=self.config.settings.get("drift")))
        whole = self._models.region(row, region)
        return Certificate.of(self._models.whole[row], whole, floors, method=self.config.method)

    def hash_of(self, index: int) -> str:
        """Of a task's training set, or offline of all tasks'."""
        if index not in self._hashes:
            lesson, *_ = self._lesson(index)
            self._hashes[index] = fingerprint(lesson.x, lesson.y)
        return self._hashes[index]

    def hashes_of_tests(self) -> list[str]:
        """Of every task's test set, counted once."""
        if not self._test_hashes:
            self._test_hashes = [fingerprint(*task.test) for task in self.stream.tasks]
        return self._test_hashes

    def taken_up(self, state: State) -> State:
        """A state that another process left, checked against the data as they are now.

        Raises:
            InvalidData: It is of other nets.
            InvalidSetting: A task that was learned has other examples now, or any task other test examples.
        """
        if state.weights.shape != self._start.shape:
            theirs, ours = (" nets of ".join(map(str, part.shape)) for part in (state.weights, self._start))
            raise InvalidData(f"the checkpoint is of {theirs} weights, not {ours}: start afresh in another --out")
        before, now = len(state.initial[0]), len(self.stream.tasks)
        if before != now:
            raise InvalidSetting(
                f"the run began with {before} task(s), and there are {now} now: put the old data back, or start afresh "
                "in another --out"
            )
        names = self.stream.names if state.tests else ()  # a release that did not ask left none
        for name, old, new in zip(names, state.tests, self.hashes_of_tests() if names else (), strict=True):
            if old != new:
                raise InvalidSetting(
                    f"the test examples of task {name} are not those that accuracies were measured on: put the old "
                    "data back, or start afresh in another --out"
                )
        for index, stored in enumerate(state.data):
            if self.hash_of(index) != stored:
                raise InvalidSetting(
                    f"the examples of task {self.stream.names[index]} are not those that were learned: put the old "
                    "data back, or start afresh in another --out"
                )
        if state.encoders != self._models.hashes:
            raise InvalidSetting(
                "the encoders fitted here are not those that the run began with: hardware or versions differ. Go on "
                "where it began, or start afresh in another --out"
            )
        if self._holds_back and not len(state.digests):  # left by a release that did not ask
            earlier = [digests(self.stream.tasks[index].train[0]) for index in range(state.done)]
            state = replace(state, digests=torch.cat(earlier))
        known = self._origin in state.origins
        return state if known else replace(state, origins=[*state.origins, self._origin])

    def summary(self, state: State) -> dict[str, Any]:
        """The record of the run so far."""
        config = self.config
        return {
            "format": FORMAT,
            "version": VERSION,
            "complete": state.done == self.lessons,
            "dataset": config.dataset,
            "scenario": config.scenario,
            "method": config.method,
            "keep": config.keep,
            "net": config.net,
            "tasks": list(self.stream.names),
            "test_examples": [len(test) for test in self._tests],
            "settings": settings_of(config),
            "started": state.started,
            "seconds": state.seconds,
            **state.origins[0],
            **({"resumed": state.origins[1:]} if len(state.origins) > 1 else {}),
            "seeds": [
                seed_record(seed, state.initial[row], state.lines[row], self._curves)
                for row, seed in enumerate(config.seeds)
            ],
        }


def complete(run: Run, state: State | None = None, listen: Listener | None = None) -> State:
    """All tasks that are left, one after the other."""
    state = run.begin() if state is None else state
    while state.done < run.lessons:
        state = run.advance(state, listen)
    return state


class _Curve:
    """Test accuracy on the task being learned and on the first one, and the sum of radii, epoch by epoch."""

    def __init__(self, run: Run, state: State, index: int, rows: range) -> None:
        self._run, self._index = run, index
        self._radii: dict[int, float | None] = {}
        for row in rows:
            region = run.region(state.memory, row)
            self._radii[row] = None if region is None else region.size().radii
        self._accuracy: dict[int, tuple[float, float]] = {}

    def point(self, progress: Progress, place: int, row: int) -> Line:
        values = progress.parameters[place : place + 1]
        if progress.phase == "radii":
            entries = self._run._start.shape[1]  # a radius each, or a distance on either side of each
            sides = values.shape[1] // entries
            self._radii[row] = float(values[:, : sides * entries].double().sum()) / sides
        else:
            tests = self._run._tests
            current, first = map(_share, self._run._answers(values, [tests[self._index], tests[0]], row))
            self._accuracy[row] = (current, first)
        current, first = self._accuracy[row]
        return {"current": current, "first": first, "sum_of_radii": self._radii[row]}


def _share(hits: Tensor) -> float:
    return float(hits.double().mean())


def _with_heads(method: Method, tasks: Stream) -> Method:
    """Offline training must know which outputs compete, where tasks have heads of their own."""
    if isinstance(method, Offline) and tasks.scenario == "task":
        return replace(method, heads=tuple(task.classes for task in tasks.tasks if task.classes is not None))
    return method
