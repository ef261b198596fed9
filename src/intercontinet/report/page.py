"""One HTML page of a run, or of a study: everything in it, nothing from elsewhere, no script."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from intercontinet.errors import InvalidData, InvalidSetting
from intercontinet.files import write_atomically
from intercontinet.report.cells import completed, difference, newest
from intercontinet.report.metrics import overall_accuracy
from intercontinet.report.paper import yardstick
from intercontinet.report.parts import damaged, parse_object, read_bytes
from intercontinet.report.record import (
    FORMAT,
    METRICS,
    SUMMARY,
    CellKey,
    Floor,
    Record,
    SeedRecord,
    method_place,
    read_record,
)
from intercontinet.report.svg import Bar, Line, bars, heat_map, lines
from intercontinet.report.words import down, duration, mean, percent, plain, points, spread
from intercontinet.tasks import SCENARIOS
from intercontinet.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment


PAPERS_TASKS = 5  # in its tables
NAMES = ("method_name", "dataset", "scenario_name", "variant")  # of a key: what a run is called by


def write_page(folder: Path, out: Path | None = None) -> Path:
    """Write the page of a run, or of all the records and runs in a folder, to ``out`` or else into the folder.

    Returns:
        Where the page is.

    Raises:
        InvalidData: There is no run in the folder, or a file of it is missing, damaged, foreign or too new.
        InvalidSetting: Jinja2 is not installed.
        WriteError: The page could not be written.
    """
    template = _templates().get_template("page.html")
    runs, unfinished = _find(folder)
    study = not (folder / SUMMARY).exists()
    page = template.render(
        runs=runs, study=study, folder=folder.resolve().name, unfinished=unfinished, version=__version__
    )
    target = folder / "report.html" if out is None else out
    write_atomically(target, page.encode("utf-8", "replace"))  # JSON can hold halves of characters
    return target


def _templates() -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise InvalidSetting("a page needs Jinja2: pip install 'intercontinet[cli]'") from None
    loader = PackageLoader("intercontinet.report")
    out = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    out.filters |= {"percent": percent, "down": down, "points": points, "spread": spread, "duration": duration}
    out.filters |= {"plain": plain, "fields": asdict, "short": short, "mean": mean}
    out.filters |= {"picture": Markup}  # our own SVG, which has escaped its words
    return out


def short(source: str) -> str:
    """A record by its file, or by its folder, where all files have one name.

    >>> short("results/table1/task-ewc-seeds-0-4.json"), short("runs/mine/summary.json")
    ('task-ewc-seeds-0-4.json', 'mine')
    """
    path = Path(source)
    return path.parent.name if path.name == SUMMARY else path.name


# What a run found.


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


# Reading.


def _find(folder: Path) -> tuple[list[Run], list[str]]:
    """All runs in a folder, those of one cell pooled; and the names of run folders that have no summary yet."""
    if not folder.is_dir():
        raise InvalidData(f"{folder} is not a folder: give the one that 'intercontinet run' or a study wrote")
    if (folder / SUMMARY).exists():
        return _runs([folder / SUMMARY]), []
    if (folder / "config.json").exists():
        raise InvalidData(f"{folder / SUMMARY} is missing: let the run go on until it writes it, or run again")
    files = [path for path in sorted(folder.glob("*.json")) if not path.name.startswith(".")]
    inside = _folders(folder)
    begun = [own for own in inside if (own / "config.json").exists()]
    files += [own / SUMMARY for own in inside if (own / SUMMARY).exists()]
    if not files:
        if studies := [own.name for own in inside if own not in begun and _holds_records(own)]:
            raise InvalidData(f"{folder} holds studies: give one of them, as in {folder / studies[0]}; there are "
                              f"{', '.join(studies)}")  # fmt: skip
        if begun:
            names = ", ".join(own.name for own in begun)
            raise InvalidData(
                f"{folder} holds unfinished runs alone, {names}: let them go on until one task is learned"
            )
        raise InvalidData(
            f"{folder} holds no run: neither summary.json, nor records (*.json), nor folders with a summary.json. "
            "Give the folder that 'intercontinet run' or a study wrote"
        )
    unfinished = [own.name for own in begun if own / SUMMARY not in files]
    return _set_apart(sorted(_runs(files), key=_order)), unfinished


def _holds_records(folder: Path) -> bool:
    """Whether some file says first of itself that it is one."""
    return any(f'"format": "{FORMAT}"' in path.read_text(errors="replace")[:100] for path in folder.glob("*.json"))


def _folders(folder: Path) -> list[Path]:
    """The folders inside, by name. One that may not be entered is an error: its runs would be missed."""
    inside = sorted(own for own in folder.iterdir() if own.is_dir() and not own.name.startswith("."))
    for own in inside:
        if not os.access(own, os.R_OK | os.X_OK):
            raise InvalidData(f"cannot read the folder {own}: make it readable, or move it elsewhere")
    return inside


def _runs(files: Iterable[Path]) -> list[Run]:
    """The records in files, pooled where they are alike."""
    groups: list[list[Record]] = []
    for record in (read_record(file, incomplete=True) for file in files):
        alike = next((group for group in groups if not difference(completed(group[0]), completed(record))), None)
        if alike is None:
            groups.append([record])
        else:
            alike.append(record)
    return list(map(_pool, groups))


def _pool(records: Sequence[Record]) -> Run:
    taken = newest(records).values()
    used = {record.source: record for record, _ in taken} or {record.source: record for record in records}
    runs = [(Path(r.source).parent, s) for r, s in taken if Path(r.source).name == SUMMARY]
    metrics = [(folder / f"seed-{seed.seed}" / METRICS, len(seed.accuracy_matrix)) for folder, seed in runs]
    return Run(
        records=tuple(used[source] for source in sorted(used)),
        seeds=tuple(seed for _, seed in taken),
        epochs=tuple(_epochs(path, learned) for path, learned in metrics if path.exists()),
    )


def _order(run: Run) -> tuple[str, int, int, str, float]:
    return run.key.dataset, SCENARIOS.index(run.key.scenario), *method_place(run.key.method), run.keep or 0.0


def _set_apart(runs: Sequence[Run]) -> list[Run]:
    """Name runs by method and by whatever else a study has several of; and what else like runs differ in."""
    several = {"method_name", *(name for name in NAMES if len({getattr(run.key, name) for run in runs}) > 1)}
    settings = [{"net": run.first.net, "tasks": len(run.tasks), **completed(run.first).settings} for run in runs]
    out = []
    for run, own in zip(runs, settings, strict=True):
        like = [its for other, its in zip(runs, settings, strict=True) if _order(other)[:4] == _order(run)[:4]]
        differ = [key for key in own if any(its.get(key) != own[key] for its in like)]
        told = [f"{key} {plain(own[key])}" for key in differ if key != "keep" and own[key] not in ("", None, [])]
        words = {name: getattr(run.key, name) for name in NAMES}
        heading, common = (
            ", ".join(word for name, word in words.items() if word and (name in several) is wanted)
            for wanted in (True, False)
        )
        out.append(replace(run, heading=heading, common=common, apart=", ".join(told)))
    return out


def _epochs(file: Path, learned: int) -> list[Epoch]:
    """The epochs in a file of metrics; NaN is not known.

    Files are written whole, metrics before the summary that counts ``learned`` tasks: what ends early was cut off.
    """
    out, tasks = [], 0
    *whole, rest = read_bytes(file).split(b"\n")
    for number, line in enumerate(whole, start=1):
        part = parse_object(line, str(file), f"line {number}, ", nan=lambda _: None)
        tasks += part.content.get("event") == "task"
        if part.content.get("event") == "epoch":
            place = part.whole("index"), part.text("phase"), part.whole("epoch")
            certified = part.maybe("certified", 0, 1) if "certified" in part.content else None
            out.append(Epoch(place, part.text("task"), part.maybe("loss"), part.maybe("accuracy", 0, 1), certified))
    if rest:
        raise damaged(str(file), f"its last line, {len(whole) + 1}, is cut off")
    if tasks < learned:
        raise damaged(str(file), f"it tells of {tasks} learned task(s), and {SUMMARY} of {learned}")
    return out
