"""One HTML page of a run, or of a study: everything in it, nothing from elsewhere, no script.

Records are read with care: a page is made from whole files that say what they should, or not at all.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from intercontinet.errors import InvalidData, InvalidSetting
from intercontinet.files import write_atomically
from intercontinet.report.svg import Bar, Line, bars, down, heat_map, lines, mean, percent
from intercontinet.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

FORMAT, VERSION = "intercontinet run", 1
SCENARIOS = ("task", "domain", "class")
METHODS = {
    "sgd": "SGD",
    "adam": "Adam",
    "l2": "L2",
    "ewc": "EWC",
    "oewc": "oEWC",
    "si": "SI",
    "mas": "MAS",
    "lwf": "LwF",
    "intercontinet-published": "InterContiNet, as published",
    "intercontinet": "InterContiNet, enforced",
    "offline": "Offline",
}


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
    study = not (folder / "summary.json").exists()
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
    out.filters |= {"plain": plain, "picture": Markup}  # our own SVG, which has escaped its words
    return out


# What a run found.


@dataclass(frozen=True)
class Floor:
    """What is certain of one task: ``certified`` of ``total`` training examples. ``kept`` is None without a promise."""

    certified: int
    total: int
    accuracy: float
    kept: bool | None

    @property
    def share(self) -> float:
        return self.certified / self.total if self.total else 0.0


@dataclass(frozen=True)
class Seed:
    """What became of one seed. Lists have an entry a task learned; ``matrix`` has a column a task besides."""

    seed: int
    matrix: list[list[float]]
    average: float | None
    forgetting: float | None
    backward: float | None
    forward: float | None
    flips: list[float]
    floors: list[Floor]
    radii: list[float | None]
    dead: list[float | None]


@dataclass(frozen=True)
class Source:
    """Where seeds come from: a file, when it was made and on what."""

    file: str
    complete: bool
    started: str
    seconds: float
    commit: str
    versions: dict[str, object]
    hardware: dict[str, object]


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
    """One task over all seeds: means, the floor with the least to spare, and the seeds whose floor is too low."""

    task: str
    trained: float | None
    just_after: float | None
    now: float | None
    flips: float | None
    certified: float | None
    worst: Floor | None
    promise: float | None
    broken: list[int]


@dataclass(frozen=True)
class Run:
    """One method in one scenario, with all its seeds. ``apart``: what sets it apart from the like in its study."""

    dataset: str
    scenario: str
    method: str
    variant: str
    keep: float | None
    net: str
    tasks: tuple[str, ...]
    settings: dict[str, object]
    seeds: tuple[Seed, ...]
    sources: tuple[Source, ...]
    epochs: tuple[list[Epoch], ...] = ()
    apart: str = ""

    @property
    def name(self) -> str:
        return METHODS.get(self.method, self.method)

    @property
    def complete(self) -> bool:
        return all(source.complete for source in self.sources)

    @property
    def seconds(self) -> float:
        return math.fsum(source.seconds for source in self.sources)

    @property
    def floors(self) -> list[Floor]:
        return [floor for seed in self.seeds for floor in seed.floors if floor.kept is not None]

    @property
    def promises(self) -> bool:
        return self.keep is not None or bool(self.floors)

    @property
    def lowest(self) -> float | None:
        return min((floor.share for floor in self.floors), default=None)

    @property
    def average(self) -> float | None:
        return mean(seed.average for seed in self.seeds if seed.average is not None)

    @property
    def reached(self) -> int:
        """Rows of the matrix that every seed has."""
        return min((len(seed.matrix) for seed in self.seeds), default=0)

    @property
    def broken(self) -> int:
        return sum(floor.kept is False for floor in self.floors)

    @property
    def matrix(self) -> list[list[float | None]]:
        """Mean over the seeds that got that far."""
        rows = max((len(seed.matrix) for seed in self.seeds), default=0)
        reached = [[seed.matrix[i] for seed in self.seeds if i < len(seed.matrix)] for i in range(rows)]
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
            flips=mean(seed.flips[place] for seed in self.seeds if place < len(seed.flips)),
            certified=mean(floor.share for floor in floors) if self.promises else None,
            worst=worst if self.promises else None,
            promise=None if self.keep is None or worst is None else self.keep * worst.accuracy,
            broken=[seed for seed, floor in learned if floor.kept is False],
        )

    # Its pictures.

    @property
    def heat_map(self) -> str:
        at_once = self.method == "offline"
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
        """Sum of radii, and share of weights that can no longer move, after each task; nothing without a region."""
        seeds = [seed for seed in self.seeds if seed.radii]
        tasks = self.tasks[: max((len(seed.radii) for seed in seeds), default=0)]
        radii = Line.over_seeds("sum of radii", [seed.radii for seed in seeds])
        dead = Line.over_seeds("dead weights", [seed.dead for seed in seeds])
        titles = "Sum of radii after each task", "Share of dead weights after each task"
        return [lines([radii], tasks, titles[0]), lines([dead], tasks, titles[1], shares=True)] if seeds else []

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


# Words for numbers.


def points(difference: float | None) -> str:
    """A difference of accuracies, with its sign.

    >>> points(-0.0123), points(0.004), points(-0.00001)
    ('-1.2%', '+0.4%', '0.0%')
    """
    return f"{difference:+.1%}" if difference and round(difference, 3) else percent(difference and 0.0)


def spread(values: Iterable[float | None]) -> str:
    """Mean and sample standard deviation.

    >>> spread([0.98, 0.96]), spread([0.98]), spread([None])
    ('97.0% ± 1.4', '98.0%', '-')
    """
    kept = [value for value in values if value is not None]
    return percent(mean(kept)) + (f" ± {100 * statistics.stdev(kept):.1f}" if len(kept) > 1 else "")


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(12.34), duration(252), duration(7500)
    ('12.3 s', '4 min 12 s', '2 h 5 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{seconds:.1f} s"
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def plain(value: object) -> str:
    """A setting without the quotes of JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# Reading.


def _find(folder: Path) -> tuple[list[Run], list[str]]:
    """All runs in a folder, those of one cell pooled; and the names of run folders that have no summary yet."""
    if not folder.is_dir():
        raise InvalidData(f"{folder} is not a folder: give the one that 'intercontinet run' or a study wrote")
    if (folder / "summary.json").exists():
        return [_read(folder / "summary.json")], []
    if (folder / "config.json").exists():
        raise InvalidData(f"{folder / 'summary.json'} is missing: let the run go on until it writes it, or run again")
    files = [path for path in sorted(folder.glob("*.json")) if not path.name.startswith(".")]
    files += sorted(folder.glob("*/summary.json"))
    if not files:
        raise InvalidData(
            f"{folder} holds no run: neither summary.json, nor records (*.json), nor folders with a summary.json. "
            "Give the folder that 'intercontinet run' or a study wrote"
        )
    unfinished = [p.parent.name for p in sorted(folder.glob("*/config.json")) if p.parent / "summary.json" not in files]
    return _set_apart(sorted(_pool(map(_read, files)), key=_order)), unfinished


def _pool(runs: Iterable[Run]) -> list[Run]:
    """Records of one cell with different seeds become one run."""
    out: list[Run] = []
    for run in runs:
        numbers = {seed.seed for seed in run.seeds}
        for place, other in enumerate(out):
            if _cell(other) == _cell(run) and numbers.isdisjoint(seed.seed for seed in other.seeds):
                seeds = tuple(sorted(other.seeds + run.seeds, key=lambda seed: seed.seed))
                sources, epochs = other.sources + run.sources, other.epochs + run.epochs
                out[place] = replace(other, seeds=seeds, sources=sources, epochs=epochs)
                break
        else:
            out.append(run)
    return out


def _cell(run: Run) -> tuple[object, ...]:
    return run.dataset, run.scenario, run.method, run.variant, run.keep, run.net, run.tasks, run.settings


def _order(run: Run) -> tuple[str, int, int, str, float]:
    scenario = SCENARIOS.index(run.scenario) if run.scenario in SCENARIOS else len(SCENARIOS)
    method = list(METHODS).index(run.method) if run.method in METHODS else len(METHODS)
    return run.dataset, scenario, method, run.method, run.keep or 0.0


def _set_apart(runs: Sequence[Run]) -> list[Run]:
    """Name variants, and the settings in which runs of one method on the same tasks differ."""
    out = []
    for run in runs:
        like = [other for other in runs if _order(other)[:4] == _order(run)[:4]]
        settings = {"net": run.net, **run.settings}
        differ = [key for key in settings if any({"net": r.net, **r.settings}.get(key) != settings[key] for r in like)]
        words = [run.variant] if run.variant else []
        out.append(replace(run, apart=", ".join(words + [f"{key} {plain(settings[key])}" for key in differ])))
    return out


def _read(file: Path) -> Run:
    record = _parse(file, _bytes(file))
    if record.content.get("format") != FORMAT:
        raise InvalidData(f"{file} is not the record of a run: move it elsewhere, or give another folder")
    if (version := record.whole("version")) > VERSION:
        raise InvalidData(
            f"{file} has format version {version}, this program reads {VERSION}: pip install --upgrade intercontinet"
        )
    names = record.inside("tasks", list)
    tasks = tuple(names.text(key) for key in names.content)
    metrics = sorted(file.parent.glob("seed-*/metrics.jsonl")) if file.name == "summary.json" else []
    run = Run(
        dataset=record.text("dataset"),
        scenario=record.text("scenario"),
        method=record.text("method"),
        variant=record.text("variant") if "variant" in record.content else "",
        keep=record.maybe("keep", 0, 1),
        net=record.text("net"),
        tasks=tasks,
        settings=record.inside("settings", dict).content,
        seeds=tuple(_seed(part, len(tasks)) for part in record.objects("seeds")),
        sources=(_source(record),),
        epochs=tuple(_epochs(path) for path in metrics),
    )
    learned = 1 if run.method == "offline" else len(tasks)
    if run.complete and (not run.seeds or any(len(seed.matrix) != learned for seed in run.seeds)):
        raise record.wrong("seeds", "results of all tasks, for the record says that it is complete")
    return run


def _source(record: _Part) -> Source:
    return Source(
        file=record.file.parent.name if record.file.name == "summary.json" else record.file.name,
        complete=record.content.get("complete") is True,
        started=record.text("started").replace("T", " "),
        seconds=record.number("seconds", 0),
        commit=record.text("commit"),
        versions=record.inside("versions", dict).content,
        hardware=record.inside("hardware", dict).content,
    )


def _seed(part: _Part, tasks: int) -> Seed:
    rows = part.inside("accuracy_matrix", list)
    matrix = [rows.shares(key) for key in rows.content]
    floors = [_floor(floor) for floor in part.objects("floors")]
    flips, region = part.shares("negative_flips"), part.objects("region")
    if any(len(row) != tasks for row in matrix) or max(len(matrix), len(floors), len(flips), len(region)) > tasks:
        raise part.wrong("accuracy_matrix, floors, negative_flips, region", f"of {tasks} tasks, as many as have names")
    return Seed(
        seed=part.whole("seed"),
        matrix=matrix,
        average=part.maybe("average_accuracy", 0, 1),
        forgetting=part.maybe("forgetting", -1, 1),
        backward=part.maybe("backward_transfer", -1, 1),
        forward=part.maybe("forward_transfer", -1, 1),
        flips=flips,
        floors=floors,
        radii=[size.maybe("sum_of_radii", 0) for size in region],
        dead=[size.maybe("dead", 0, 1) for size in region],
    )


def _floor(part: _Part) -> Floor:
    certified, total, kept = part.whole("certified"), part.whole("total"), part.content.get("kept")
    if certified > total:
        raise part.wrong("certified", f"at most the total of {total}")
    if kept is not None and not isinstance(kept, bool):
        raise part.wrong("kept", "true, false or null")
    return Floor(certified, total, part.number("accuracy", 0, 1), kept)


def _epochs(file: Path) -> list[Epoch]:
    """The epochs in a file of metrics. A last line that is still being written does not count."""
    out = []
    for number, line in enumerate(_bytes(file).split(b"\n")[:-1], start=1):
        part = _parse(file, line, f"line {number}, ")
        if part.content.get("event") == "epoch":
            place = part.whole("index"), part.text("phase"), part.whole("epoch")
            shares = part.maybe("accuracy", 0, 1), part.maybe("certified", 0, 1)
            out.append(Epoch(place, part.text("task"), part.maybe("loss"), *shares))
    return out


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidData(f"cannot read {file}: {error.strerror}. Check that it is there and may be read") from error


def _parse(file: Path, content: bytes, place: str = "") -> _Part:
    try:
        value = json.loads(content, parse_constant=lambda _: None)  # NaN and the like: not known
    except (ValueError, RecursionError):
        raise InvalidData(f"{file} is damaged: {place}not whole JSON. Take a fresh copy, or run again") from None
    if not isinstance(value, dict):
        raise InvalidData(f"{file} is foreign: {place}not a JSON object. Move it elsewhere, or give another folder")
    return _Part(file, place, value)


@dataclass(frozen=True)
class _Part:
    """A JSON object, or a list by its places, that knows where it is from, for errors to name."""

    file: Path
    place: str
    content: dict[str, object]

    def wrong(self, key: str, wanted: str) -> InvalidData:
        return InvalidData(
            f"{self.file}: {self.place}{key} should be {wanted}. "
            "The file is damaged or was edited: take a fresh copy, or run again"
        )

    def text(self, key: str) -> str:
        value = self.content.get(key)
        if not isinstance(value, str):
            raise self.wrong(key, "text")
        return value

    def whole(self, key: str) -> int:
        value = self.content.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.wrong(key, "a whole number")
        return value

    def number(self, key: str, low: float = -math.inf, high: float = math.inf) -> float:
        value = self.content.get(key)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not low <= value <= high
            or abs(value) > 1e300
        ):
            raise self.wrong(key, "a number" if high == math.inf else f"a number from {low} to {high}")
        return float(value)

    def maybe(self, key: str, low: float = -math.inf, high: float = math.inf) -> float | None:
        return None if self.content.get(key) is None else self.number(key, low, high)

    def inside(self, key: str, kind: type[dict[str, object]] | type[list[object]]) -> _Part:
        value = self.content.get(key)
        if not isinstance(value, kind):
            raise self.wrong(key, "a list" if kind is list else "an object")
        return _Part(
            self.file,
            f"{self.place}{key}.",
            value if isinstance(value, dict) else {str(i): v for i, v in enumerate(value)},
        )

    def shares(self, key: str) -> list[float]:
        part = self.inside(key, list)
        return [part.number(place, 0, 1) for place in part.content]

    def objects(self, key: str) -> list[_Part]:
        part = self.inside(key, list)
        return [part.inside(place, dict) for place in part.content]
