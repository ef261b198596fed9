"""The record of a run, as its ``summary.json`` and the results store hold it: read with care, or refused by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from intercontinet.errors import InvalidData
from intercontinet.report.parts import Part, parse_object, read_bytes
from intercontinet.tasks import SCENARIOS

SUMMARY, METRICS = "summary.json", "metrics.jsonl"  # what a run leaves for people, and for each seed
FORMAT, VERSION = "intercontinet run", 1
METHODS = {  # what people call them, in the paper's order
    "sgd": "SGD",
    "adam": "Adam",
    "l2": "L2",
    "ewc": "EWC",
    "oewc": "oEWC",
    "si": "SI",
    "mas": "MAS",
    "lwf": "LwF",
    "intercontinet-published": "InterContiNet, as published",
    "exact": "ExactInterContiNet",
    "intercontinet": "InterContiNet, enforced",
    "offline": "Offline",
}
_WORD = re.compile(r"[a-z0-9][a-z0-9.-]*")  # what names cells, and their files


def method_place(method: str) -> tuple[int, str]:
    """What to sort methods by: the paper's order, those that it does not have last.

    >>> sorted(["zeta", "ewc", "alpha", "sgd"], key=method_place)
    ['sgd', 'ewc', 'alpha', 'zeta']
    """
    return list(METHODS).index(method) if method in METHODS else len(METHODS), method


@dataclass(frozen=True)
class Argued:
    """What came of arguing with a promise, in counts of ``examples``.

    Attributes:
        certain: By certifying them afresh, in the task's own region.
        attacked: Those that the worst weights found in that region get right.
        right: Those that the model does.
    """

    examples: int
    certain: int
    attacked: int
    right: int


@dataclass(frozen=True)
class Floor:
    """What was certain of a task's training set once it was learned; ``kept`` is None where nothing was promised.

    Of ``unseen_total`` examples that were held back, at least ``unseen_certified`` are certain, so that of unseen data
    at least ``unseen_floor`` is, at 95 % confidence; all three are None where none were held back. With ``drift`` it
    holds where frozen layers put out what they did here, give or take that share of an example's largest entry.
    ``argued`` is None where nobody did.
    """

    task: str
    certified: int
    total: int
    accuracy: float
    kept: bool | None
    unseen_certified: int | None = None
    unseen_total: int | None = None
    unseen_floor: float | None = None
    drift: float | None = None
    argued: Argued | None = None

    @property
    def share(self) -> float:
        return self.certified / self.total


@dataclass(frozen=True)
class Room:
    """How large the region was after a task; ``dead`` is the share of weights that could no longer move."""

    sum_of_radii: float
    log_volume: float
    dead: float


@dataclass(frozen=True)
class CurvePoint:
    """How things stood after an epoch; ``task`` is its index, accuracies are on test sets, no region is None."""

    task: int
    phase: str
    epoch: int
    current: float
    first: float
    sum_of_radii: float | None


@dataclass(frozen=True)
class SeedRecord:
    """One seed of a run: what tables, figures and pages need of it.

    Of T tasks, K things were learned: one a task, or, offline, all of them as one. Of a complete run, K is T or 1.

    Attributes:
        initial_accuracy: On every task's test set, before any learning [T].
        accuracy_matrix: The same after each thing learned [K, T].
        average_accuracy: Mean of the last row; None before there is one.
        negative_flips: Share of earlier tasks' test examples that each thing learned turned from right to wrong [K].
        floors: One for each task learned.
        region: One for each thing learned; empty for methods without a region.
        curve: One for each epoch, where that was asked for.
        diverged: The task in which its training ended in NaN; None where it did not, or where nobody noted it.
    """

    seed: int
    seconds: float
    initial_accuracy: tuple[float, ...]
    accuracy_matrix: tuple[tuple[float, ...], ...]
    average_accuracy: float | None
    forgetting: float | None
    backward_transfer: float | None
    forward_transfer: float | None
    negative_flips: tuple[float, ...]
    floors: tuple[Floor, ...]
    region: tuple[Room, ...]
    curve: tuple[CurvePoint, ...]
    diverged: str | None = None


@dataclass(frozen=True)
class Hardware:
    """What a run ran on."""

    device: str
    name: str
    cores: int
    threads: int
    memory_gib: float


@dataclass(frozen=True, order=True)
class CellKey:
    """What is pooled into one cell of a table. ``variant`` tells settings of one method apart, "keep-0.95"."""

    dataset: str
    scenario: str
    method: str
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(filter(None, (self.scenario, self.method, self.variant)))

    @property
    def method_name(self) -> str:
        """What people call the method."""
        return METHODS.get(self.method, self.method)

    @property
    def scenario_name(self) -> str:
        """What people call the scenario."""
        return f"{self.scenario}-incremental"


@dataclass(frozen=True)
class Record:
    """One run of one method on one stream, with some seeds. ``source`` is the file it came from.

    Attributes:
        complete: Whether all tasks are learned, with every seed.
        keep: The promised share, or None for methods that promise nothing.
        test_examples: How many each task has.
    """

    source: str
    complete: bool
    key: CellKey
    keep: float | None
    net: str
    tasks: tuple[str, ...]
    test_examples: tuple[int, ...]
    settings: Mapping[str, object]
    commit: str
    started: datetime
    seconds: float
    versions: Mapping[str, str]
    hardware: Hardware
    seeds: tuple[SeedRecord, ...]

    @property
    def lessons(self) -> int:
        """How many things there are to learn: the tasks, or, offline, all of them as one."""
        return 1 if self.key.method == "offline" else len(self.tasks)


def read_record(path: Path, incomplete: bool = False) -> Record:
    """The record in a file; with ``incomplete``, that of a run that did not finish too.

    Raises:
        InvalidData: The file is missing, damaged, foreign or too new, or is of a run that did not finish.
    """
    return parse_record(read_bytes(path), str(path), incomplete)


def parse_record(content: bytes | str, source: str, incomplete: bool = False) -> Record:
    """The same of JSON; ``source`` names it in errors."""
    part = parse_object(content, source)
    if part.content.get("format") != FORMAT:
        raise InvalidData(f'{source} is not a record of a run: its "format" is not "{FORMAT}". Move it elsewhere')
    if (version := part.whole("version")) != VERSION:
        raise InvalidData(
            f"{source} is of format version {version}, and this package reads version {VERSION}: "
            "pip install --upgrade intercontinet"
        )
    if not part.flag("complete") and not incomplete:
        raise InvalidData(f"{source} is of a run that did not finish: finish it, or delete the file")
    return _record(part)


def _record(part: Part) -> Record:
    versions = part.inside("versions", dict)
    record = Record(
        source=part.source,
        complete=part.flag("complete"),
        key=_key(part),
        keep=part.maybe("keep", 0, 1),
        net=part.text("net"),
        tasks=part.each("tasks", Part.text),
        test_examples=part.each("test_examples", Part.whole),
        settings=part.inside("settings", dict).content,
        commit=part.text("commit"),
        started=_time(part),
        seconds=part.number("seconds", 0),
        versions={name: versions.text(name) for name in versions.content},
        hardware=_hardware(part.inside("hardware", dict)),
        seeds=tuple(map(_seed, part.objects("seeds"))),
    )
    if not record.tasks or len(record.test_examples) != len(record.tasks) or not all(record.test_examples):
        raise part.wrong("it needs at least one task, and test_examples of each")
    if len({seed.seed for seed in record.seeds}) < len(record.seeds) or (record.complete and not record.seeds):
        raise part.wrong("it needs at least one seed, and every seed once")
    for seed, found in zip(part.objects("seeds"), record.seeds, strict=True):
        _check(seed, found, record)
    return record


def _key(part: Part) -> CellKey:
    variant = part.text("variant") if "variant" in part.content else ""
    key = CellKey(part.text("dataset"), part.text("scenario"), part.text("method"), variant)
    if key.scenario not in SCENARIOS:
        raise part.wrong(f"there is no scenario '{key.scenario}'")
    for word in filter(None, (key.method, key.variant)):
        if not _WORD.fullmatch(word):
            raise part.wrong(f"'{word}' is no name: small letters, digits, dots and dashes")
    return key


def _hardware(part: Part) -> Hardware:
    counts = part.whole("cores"), part.whole("threads")
    return Hardware(part.text("device"), part.text("name"), *counts, part.number("memory_gib", 0))


def _time(part: Part) -> datetime:
    try:
        time = datetime.fromisoformat(part.text("started"))
    except ValueError:  # InvalidData is one
        raise part.unlike("started", "a time") from None
    if time.tzinfo is None:
        raise part.unlike("started", "a time with its zone")
    return time


def _seed(part: Part) -> SeedRecord:
    return SeedRecord(
        seed=part.whole("seed"),
        seconds=part.number("seconds", 0),
        initial_accuracy=part.shares("initial_accuracy"),
        accuracy_matrix=part.each("accuracy_matrix", Part.shares),
        average_accuracy=part.maybe("average_accuracy", 0, 1),
        forgetting=part.maybe("forgetting", -1, 1),
        backward_transfer=part.maybe("backward_transfer", -1, 1),
        forward_transfer=part.maybe("forward_transfer", -1, 1),
        negative_flips=part.shares("negative_flips"),
        floors=tuple(map(_floor, part.objects("floors"))),
        region=tuple(map(_room, part.objects("region"))),
        curve=tuple(map(_point, part.objects("curve"))) if "curve" in part.content else (),
        diverged=part.text("diverged") if "diverged" in part.content else None,
    )


def _room(part: Part) -> Room:
    return Room(part.number("sum_of_radii", 0), part.number("log_volume"), part.number("dead", 0, 1))


def _floor(part: Part) -> Floor:
    certified, total = part.whole("certified"), part.whole("total")
    if not 0 < total >= certified:
        raise part.wrong(f"{certified} of {total} examples cannot be certified")
    kept = None if part.content.get("kept", part) is None else part.flag("kept")
    drift = part.maybe("drift", 0, 1) if "drift" in part.content else None
    argued = _argued(part.inside("argued", dict), total) if "argued" in part.content else None
    accuracy = part.number("accuracy", 0, 1)
    floor = Floor(part.text("task"), certified, total, accuracy, kept, drift=drift, argued=argued)
    if all(part.content.get(name) is None for name in ("unseen_certified", "unseen_total", "unseen_floor")):
        return floor
    unseen, held_back = part.whole("unseen_certified"), part.whole("unseen_total")
    share = part.number("unseen_floor", 0, 1)
    if unseen > min(held_back, certified) or held_back > total:  # of them more may have become certain since
        raise part.wrong(
            f"{unseen} of {held_back} unseen examples cannot be certified, with {certified} of all {total}"
        )
    if share * held_back > unseen:
        raise part.wrong(f"unseen_floor is {share}, with {unseen} of {held_back} unseen examples certified")
    return replace(floor, unseen_certified=unseen, unseen_total=held_back, unseen_floor=share)


def _argued(part: Part, total: int) -> Argued:
    argued = Argued(*(part.whole(name) for name in ("examples", "certain", "attacked", "right")))
    if not max(argued.certain, argued.attacked) <= argued.right <= argued.examples <= total or not argued.examples:
        raise part.wrong(f"{argued} makes no sense, of {total} examples")
    return argued


def _point(part: Part) -> CurvePoint:
    accuracies = part.number("current", 0, 1), part.number("first", 0, 1)
    return CurvePoint(
        part.whole("task"), part.text("phase"), part.whole("epoch"), *accuracies, part.maybe("sum_of_radii", 0)
    )


def _check(part: Part, seed: SeedRecord, record: Record) -> None:
    """What a seed says must fit together, and its record."""
    tasks, rows = record.tasks, len(seed.accuracy_matrix)
    for row in (seed.initial_accuracy, *seed.accuracy_matrix):
        if len(row) != len(tasks):
            raise part.wrong(f"there are {len(row)} accuracies for {len(tasks)} tasks")
    if rows > record.lessons or (record.complete and rows < record.lessons):
        raise part.wrong(f"accuracy_matrix has {rows} rows, where {record.lessons} would be complete")
    learned = tasks if rows == record.lessons else tasks[:rows]
    if tuple(floor.task for floor in seed.floors) != learned:
        raise part.wrong("floors are not one for each task learned, in order")
    if len(seed.negative_flips) != rows or len(seed.region) not in (0, rows):
        raise part.wrong(f"negative_flips or region are not {rows}, as the rows of accuracy_matrix")
    if (seed.average_accuracy is None) != (rows == 0):
        raise part.wrong(f"average_accuracy is {seed.average_accuracy} with {rows} rows in accuracy_matrix")
    if record.keep is not None and any(floor.kept is None for floor in seed.floors):
        raise part.wrong(f"{record.keep:g} was to be kept, but a floor does not say whether it was")
    if seed.curve and (latest := max(point.task for point in seed.curve)) >= len(tasks):
        raise part.wrong(f"a point of the curve is of task {latest}, of {len(tasks)} counted from 0")
