"""What a run found, as its page shows it: numbers for tables, and charts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from intercontinet.report.metrics import overall_accuracy
from intercontinet.report.paper import yardstick
from intercontinet.report.record import CellKey, Floor, Record, SeedRecord
from intercontinet.report.svg import Bar, Line, bars, heat_map, lines
from intercontinet.report.words import mean

PAPERS_TASKS = 5  # in its tables


@dataclass(frozen=True)
class Epoch:
    """A line of metrics.jsonl. ``place``: index of the task, phase, epoch."""

    place: tuple[int, str, int]
    task: str
    loss: float | None
    accuracy: float | None
    certified: float | None


@dataclass(frozen=True)
class TaskRow:
    """One task over all seeds: means, the floor with the least to spare, and the seeds whose floor is too low.

    ``unseen`` is the floor that promises the least of unseen data, of those that promise any.
    """

    task: str
    trained: float | None
    just_after: float | None
    now: float | None
    flips: float | None
    certified: float | None
    worst: Floor | None
    unseen: Floor | None
    promise: float | None
    broken: list[int]


@dataclass(frozen=True)
class Run:
    """One method in one scenario: the records its seeds are from, and all its seeds, in order.

    ``epochs`` has a list for each seed that has metrics. Of a study, ``heading`` says what not all its runs have in
    common, ``common`` what they do, and ``apart`` which settings tell this one from the like.
    """

    records: tuple[Record, ...]
    seeds: tuple[SeedRecord, ...]
    epochs: tuple[list[Epoch], ...]
    heading: str = ""
    common: str = ""
    apart: str = ""

    @property
    def first(self) -> Record:
        """What it says of data, net, promise and settings, all say."""
        return self.records[0]

    @property
    def key(self) -> CellKey:
        return self.first.key

    @property
    def keep(self) -> float | None:
        return self.first.keep

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.first.tasks

    @property
    def complete(self) -> bool:
        return all(record.complete for record in self.records)

    @property
    def seconds(self) -> float:
        return math.fsum(seed.seconds for seed in self.seeds)

    @property
    def floors(self) -> list[Floor]:
        return [floor for seed in self.seeds for floor in seed.floors if floor.kept is not None]

    @property
    def promises(self) -> bool:
        return self.keep is not None or bool(self.floors)

    @property
    def speaks_of_unseen(self) -> bool:
        return any(floor.unseen_floor is not None for floor in self.floors)

    @property
    def drift(self) -> float | None:
        """What all floors rest on, if any rests on frozen layers that compute nearly the same."""
        return max((floor.drift for floor in self.floors if floor.drift is not None), default=None)

    @property
    def lowest(self) -> float | None:
        return min((floor.share for floor in self.floors), default=None)

    @property
    def overall(self) -> list[float | None]:
        """Accuracy over all test examples of all tasks, for each seed, as tables have it; None before there is one."""
        matrices, sizes = (seed.accuracy_matrix for seed in self.seeds), self.first.test_examples
        return [overall_accuracy(matrix, sizes) if matrix else None for matrix in matrices]

    @property
    def paper(self) -> str:
        """The paper's number for it, where it has one: of five tasks, and of no variant."""
        key, lessons = self.key, len(self.tasks)
        cell = yardstick(key.dataset, key.scenario, key.method) if lessons == PAPERS_TASKS and not key.variant else None
        return "" if cell is None else f"{cell.mean:.1f}% ± {cell.std:.1f}"

    @property
    def reached(self) -> int:
        """Rows of the matrix that every seed has."""
        return min((len(seed.accuracy_matrix) for seed in self.seeds), default=0)

    @property
    def empty(self) -> int:
        """How many floors promise nothing, as of tasks that were not learned: no share of nothing is too little."""
        return sum(floor.certified == 0 for floor in self.floors)

    @property
    def diverged(self) -> list[SeedRecord]:
        return [seed for seed in self.seeds if seed.diverged is not None]

    @property
    def broken(self) -> int:
        return sum(floor.kept is False for floor in self.floors)

    @property
    def matrix(self) -> list[list[float | None]]:
        """Mean over the seeds that got that far."""
        known = [seed.accuracy_matrix for seed in self.seeds]
        rows = max(map(len, known), default=0)
        reached = [[matrix[i] for matrix in known if i < len(matrix)] for i in range(rows)]
        return [[mean(column) for column in zip(*matrices, strict=True)] for matrices in reached]

    @property
    def rows(self) -> list[TaskRow]:
        """One for each task, learned or not."""
        return [self._row(place) for place in range(len(self.tasks))]

    def _row(self, place: int) -> TaskRow:
        matrix = self.matrix
        learned = [(seed.seed, seed.floors[place]) for seed in self.seeds if place < len(seed.floors)]
        floors = [floor for _, floor in learned]
        keep = self.keep or 0.0
        worst = min(
            floors, key=lambda floor: (floor.kept is not False, floor.share - keep * floor.accuracy), default=None
        )
        return TaskRow(
            task=self.tasks[place],
            trained=mean(floor.accuracy for floor in floors),
            just_after=matrix[place][place] if place < len(matrix) else None,
            now=matrix[-1][place] if matrix else None,
            flips=mean(seed.negative_flips[place] for seed in self.seeds if place < len(seed.negative_flips)),
            certified=mean(floor.share for floor in floors) if self.promises else None,
            worst=worst if self.promises else None,
            unseen=min(
                (floor for floor in floors if floor.unseen_floor is not None),
                key=lambda floor: floor.unseen_floor or 0.0,
                default=None,
            ),
            promise=None if self.keep is None or worst is None else self.keep * worst.accuracy,
            broken=[seed for seed, floor in learned if floor.kept is False],
        )

    # Its pictures.

    @property
    def heat_map(self) -> str:
        at_once = self.key.method == "offline"
        rows = ["all tasks"] if at_once else self.tasks
        names = [f"after {row}" for row in rows[: len(self.matrix)]]
        return heat_map(self.matrix, names, self.tasks, "Mean test accuracy, in percent", stairs=not at_once)

    @property
    def bars(self) -> str:
        title = "Certified floors against accuracy" if self.promises else "Accuracy when learned"
        tasks = [
            Bar(row.task, row.worst.accuracy, row.worst.share, row.promise, kept=not row.broken)
            if row.worst
            else Bar(row.task, row.trained or 0.0)
            for row in self.rows
            if row.trained is not None
        ]
        return bars(tasks, f"{title}, on the training set of each task")

    @property
    def sizes(self) -> list[str]:
        """Sum of radii, log-volume, and share of weights that can no longer move, after each task; nothing without a
        region."""
        seeds = [seed.region for seed in self.seeds if seed.region]
        tasks = self.tasks[: max(map(len, seeds), default=0)]
        radii = Line.over_seeds("sum of radii", [[room.sum_of_radii for room in region] for region in seeds])
        volume = Line.over_seeds("log-volume", [[room.log_volume for room in region] for region in seeds])
        dead = Line.over_seeds("dead weights", [[room.dead for room in region] for region in seeds])
        if not seeds:
            return []
        return [
            lines([radii], tasks, "Sum of radii after each task"),
            lines([volume], tasks, "Log-volume after each task"),
            lines([dead], tasks, "Share of dead weights after each task", shares=True),
        ]

    @property
    def curves(self) -> list[str]:
        """Accuracy and loss over the epochs of all tasks; nothing without metrics."""
        names = {epoch.place: epoch.task for epochs in self.epochs for epoch in epochs}
        order = sorted(names, key=lambda place: place[0])  # by task; phases and epochs as they came
        if not order:
            return []
        labels = [names[p] if not i or p[0] != order[i - 1][0] else "" for i, p in enumerate(order)]
        none = Epoch((0, "", 0), "", None, None, None)
        known = [{epoch.place: epoch for epoch in epochs} for epochs in self.epochs]
        seeds = [[by_place.get(place, none) for place in order] for by_place in known]
        accuracy = Line.over_seeds("accuracy", [[epoch.accuracy for epoch in epochs] for epochs in seeds])
        certified = Line.over_seeds("certified", [[epoch.certified for epoch in epochs] for epochs in seeds])
        loss = Line.over_seeds("loss", [[epoch.loss for epoch in epochs] for epochs in seeds])
        known_shares = [line for line in (accuracy, certified) if any(v is not None for v in line.values)]
        shares = lines(known_shares, labels, "Accuracy while training", shares=True)
        return [shares, lines([loss], labels, "Loss while training")]
