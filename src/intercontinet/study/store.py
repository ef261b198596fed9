"""The results store: folders of records of runs, written whole, read with care, pooled into the cells of a table."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NoReturn, TypeVar, cast

from intercontinet.errors import InvalidData, WriteError
from intercontinet.files import write_atomically
from intercontinet.study.metrics import (
    average_accuracy,
    backward_transfer,
    forgetting,
    forward_transfer,
    overall_accuracy,
)
from intercontinet.tasks import SCENARIOS

FORMAT, VERSION = "intercontinet run", 1
_WORD = re.compile(r"[a-z0-9][a-z0-9.-]*")  # what names files and cells
_NEAR = 1e-5  # how far a stored mean may be from the mean of what is stored
T = TypeVar("T")


@dataclass(frozen=True)
class Floor:
    """What was certain of a task's training set once it was learned; ``kept`` is None where nothing was promised."""

    task: str
    certified: int
    total: int
    accuracy: float
    kept: bool | None


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
    """One seed of a run: what tables and figures need of it. ``accuracy_matrix`` is as in :mod:`.metrics`.

    ``average_accuracy`` is the mean over tasks, ``overall_accuracy`` that over all test examples of all tasks.
    """

    seed: int
    seconds: float
    initial_accuracy: tuple[float, ...]
    accuracy_matrix: tuple[tuple[float, ...], ...]
    average_accuracy: float
    overall_accuracy: float
    forgetting: float | None
    backward_transfer: float | None
    forward_transfer: float | None
    floors: tuple[Floor, ...]
    curve: tuple[CurvePoint, ...]


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


@dataclass(frozen=True)
class Record:
    """One run of one method on one stream, with some seeds. ``source`` is the file it came from."""

    source: str
    key: CellKey
    keep: float | None
    net: str
    tasks: tuple[str, ...]
    settings: Mapping[str, object]
    commit: str
    started: datetime
    seconds: float
    versions: Mapping[str, str]
    hardware: Hardware
    seeds: tuple[SeedRecord, ...]

    @property
    def name(self) -> str:
        """The file that it is stored in: ``<scenario>-<method>[-<variant>]-seeds-<first>-<last>.json``."""
        numbers = [seed.seed for seed in self.seeds]
        return f"{str(self.key).replace('/', '-')}-seeds-{min(numbers)}-{max(numbers)}.json"


@dataclass(frozen=True)
class Cell:
    """All records of one cell, pooled.

    Attributes:
        key: Which cell.
        records: Those that a seed was taken from, by file name.
        seeds: Every seed once, in order.
    """

    key: CellKey
    records: tuple[Record, ...]
    seeds: tuple[SeedRecord, ...]

    @property
    def mean(self) -> float:
        """Mean over seeds of the overall accuracy, in [0, 1]."""
        return statistics.fmean(seed.overall_accuracy for seed in self.seeds)

    @property
    def std(self) -> float | None:
        """Sample standard deviation over seeds (divisor n - 1); None for a single seed."""
        return statistics.stdev(seed.overall_accuracy for seed in self.seeds) if len(self.seeds) > 1 else None

    @property
    def certified(self) -> tuple[float, ...] | None:
        """Certified share of each task's training set, mean over seeds; None for a method that promises nothing."""
        if self.records[0].keep is None:
            return None
        tasks = zip(*(seed.floors for seed in self.seeds), strict=True)
        return tuple(statistics.fmean(floor.certified / floor.total for floor in task) for task in tasks)

    @property
    def kept(self) -> tuple[bool, ...]:
        """For each task, whether its promise held with every seed."""
        tasks = zip(*(seed.floors for seed in self.seeds), strict=True)
        return tuple(all(floor.kept is not False for floor in task) for task in tasks)


def cells(records: Iterable[Record]) -> dict[CellKey, Cell]:
    """Pool records of the same data set, scenario, method and variant. Of a seed that was run twice, the newest counts.

    Raises:
        InvalidData: Records of one cell were made with different settings: their mean would mean nothing.
    """
    groups: defaultdict[CellKey, list[Record]] = defaultdict(list)
    for record in records:
        groups[record.key].append(record)
    return {key: _pool(key, groups[key]) for key in sorted(groups)}


def _pool(key: CellKey, records: list[Record]) -> Cell:
    first = records[0]
    newest: dict[int, tuple[Record, SeedRecord]] = {}
    for record in sorted(records, key=lambda r: (r.started, r.source)):
        for what in ("settings", "keep", "net", "tasks"):
            if getattr(record, what) != getattr(first, what):
                raise InvalidData(
                    f"{first.source} and {record.source} are both of {key} on {key.dataset}, but differ in {what}: "
                    "delete one, or give one a variant"
                )
        newest |= {seed.seed: (record, seed) for seed in record.seeds}
    used = {record.source: record for record, _ in newest.values()}
    return Cell(key, tuple(used[name] for name in sorted(used)), tuple(newest[seed][1] for seed in sorted(newest)))


def record_name(record: Mapping[str, object]) -> str:
    """The file name for a record, a JSON object.

    Raises:
        InvalidData: It is no complete record.
    """
    return _parse(_load(_text(record), "the record"), "the record").name


def save_record(folder: Path, record: Mapping[str, object]) -> Path:
    """Write a record, a JSON object, into a study's folder; the same cell and seeds, run again, replace the old file.

    Raises:
        InvalidData: It is no complete record, or its file holds another cell, or seeds that would be lost.
        WriteError: The file cannot be written.
    """
    text = _text(record)
    new = _parse(_load(text, "the record"), "the record")
    path = folder / new.name
    if path.exists():
        old = read_record(path)
        lost = {seed.seed for seed in old.seeds} - {seed.seed for seed in new.seeds}
        if old.key != new.key or lost:
            kind = f"seeds {sorted(lost)}" if old.key == new.key else f"{old.key} on {old.key.dataset}"
            raise InvalidData(f"{path} holds {kind}, which saving this record would lose: move that file away first")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(f"cannot make the folder {folder}: {error.strerror}. Choose another") from error
    write_atomically(path, text.encode())
    return path


def load_records(folder: Path) -> list[Record]:
    """Every record of a study's folder, by file name; none if there is no such folder.

    Raises:
        InvalidData: A ``.json`` file there is no complete record.
    """
    return [read_record(path) for path in sorted(folder.glob("*.json"))]


def read_record(path: Path) -> Record:
    """One record.

    Raises:
        InvalidData: The file is damaged, foreign, of a newer version, or of a run that did not finish.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidData(f"{path} cannot be read: {error}") from error
    return _parse(_load(text, str(path)), str(path))


def _text(record: Mapping[str, object]) -> str:
    """JSON, one line a field and a seed, so that changes are easy to see."""

    def dump(value: object) -> str:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)

    try:
        fields = [f"{dump(name)}: {dump(value)}" for name, value in record.items() if name != "seeds"]
        seeds = ",\n".join(dump(seed) for seed in cast(Iterable[object], record.get("seeds", ())))
    except (TypeError, ValueError) as error:
        raise InvalidData(f"the record cannot be written as JSON: {error}") from error
    return "{" + ",\n".join([*fields, f'"seeds": [\n{seeds}\n]']) + "}\n"


def _load(text: str, source: str) -> object:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"it holds {constant}, which is no JSON")

    try:
        return cast(object, json.loads(text, parse_constant=refuse))
    except (ValueError, RecursionError) as error:
        raise InvalidData(f"{source} is not a record of a run, or is damaged: {error}") from error


class _Wrong(Exception):
    """What is wrong with a record; :func:`_parse` adds whose."""


def _parse(content: object, source: str) -> Record:
    """A record from a JSON object; ``source`` names it in errors."""
    if not isinstance(content, Mapping) or content.get("format") != FORMAT:
        raise InvalidData(f'{source} is not a record of a run: its "format" is not "{FORMAT}"')
    if content.get("version") != VERSION:
        raise InvalidData(
            f"{source} is of format version {content.get('version')!r}, and this package reads version {VERSION}: "
            "use the version of intercontinet that wrote it"
        )
    if content.get("complete") is not True:
        raise InvalidData(f"{source} is of a run that did not finish: finish it, or delete the file")
    try:
        return _record(content, source)
    except _Wrong as error:
        raise InvalidData(f"{source} is a damaged record: {error}. Run it again") from error


def _record(content: Mapping[str, object], source: str) -> Record:
    key = CellKey(
        dataset=_get(content, "dataset", str),
        scenario=_get(content, "scenario", str),
        method=_get(content, "method", str),
        variant=_is(content.get("variant", ""), str, "variant"),
    )
    if key.scenario not in SCENARIOS:
        raise _Wrong(f"there is no scenario '{key.scenario}'")
    for word in filter(None, (key.dataset, key.method, key.variant)):
        if not _WORD.fullmatch(word):
            raise _Wrong(f"'{word}' is no name: small letters, digits, dots and dashes")
    tasks = tuple(_is(task, str, "tasks") for task in _get(content, "tasks", list))
    sizes = tuple(_is(size, int, "test_examples") for size in _get(content, "test_examples", list))
    if len(sizes) != len(tasks) or min(sizes, default=0) < 1:
        raise _Wrong("test_examples are not one positive number for each task")
    seeds = tuple(_seed(_is(seed, dict, "seeds"), tasks, sizes) for seed in _get(content, "seeds", list))
    if not tasks or not seeds or len({seed.seed for seed in seeds}) < len(seeds):
        raise _Wrong("it needs at least one task and one seed, and every seed once")
    keep = _optional(content, "keep")
    if keep is not None and any(floor.kept is None for seed in seeds for floor in seed.floors):
        raise _Wrong(f"{keep:g} was to be kept, but a floor does not say whether it was")
    versions = _get(content, "versions", dict)
    hardware = _get(content, "hardware", dict)
    return Record(
        source=source,
        key=key,
        keep=keep,
        net=_get(content, "net", str),
        tasks=tasks,
        settings=_get(content, "settings", dict),
        commit=_get(content, "commit", str),
        started=_time(_get(content, "started", str)),
        seconds=_number(content, "seconds"),
        versions={name: _get(versions, name, str) for name in versions},
        hardware=Hardware(
            device=_get(hardware, "device", str),
            name=_get(hardware, "name", str),
            cores=_get(hardware, "cores", int),
            threads=_get(hardware, "threads", int),
            memory_gib=_number(hardware, "memory_gib"),
        ),
        seeds=seeds,
    )


def _seed(content: Mapping[str, object], tasks: tuple[str, ...], sizes: tuple[int, ...]) -> SeedRecord:
    matrix = tuple(_shares(row, len(tasks)) for row in _get(content, "accuracy_matrix", list))
    if len(matrix) not in (1, len(tasks)):
        raise _Wrong(f"accuracy_matrix has {len(matrix)} rows for {len(tasks)} tasks")
    floors = tuple(_floor(_is(floor, dict, "floors")) for floor in _get(content, "floors", list))
    if tuple(floor.task for floor in floors) != tasks:
        raise _Wrong("floors are not one for each task, in order")
    initial = _shares(content.get("initial_accuracy"), len(tasks))
    found = SeedRecord(
        seed=_get(content, "seed", int),
        seconds=_number(content, "seconds"),
        initial_accuracy=initial,
        accuracy_matrix=matrix,
        average_accuracy=_number(content, "average_accuracy"),
        overall_accuracy=overall_accuracy(matrix, sizes),
        forgetting=_optional(content, "forgetting"),
        backward_transfer=_optional(content, "backward_transfer"),
        forward_transfer=_optional(content, "forward_transfer"),
        floors=floors,
        curve=tuple(
            _point(_is(point, dict, "curve"), len(tasks)) for point in _is(content.get("curve", []), list, "curve")
        ),
    )
    expected = {
        "average_accuracy": average_accuracy(matrix),
        "forgetting": forgetting(matrix),
        "backward_transfer": backward_transfer(matrix),
        "forward_transfer": forward_transfer(matrix, initial),
    }
    for name, value in expected.items():
        stored = getattr(found, name)
        if (stored is None) != (value is None) or (value is not None and abs(stored - value) > _NEAR):
            raise _Wrong(f"{name} of seed {found.seed} is {stored}, but its accuracies give {value}")
    return found


def _floor(content: Mapping[str, object]) -> Floor:
    certified, total = _get(content, "certified", int), _get(content, "total", int)
    kept = content.get("kept")
    if not 0 <= certified <= total or (kept is not None and not total):
        raise _Wrong(f"a floor certifies {certified} of {total} examples")
    return Floor(
        task=_get(content, "task", str),
        certified=certified,
        total=total,
        accuracy=_share(content.get("accuracy")),
        kept=None if kept is None else _is(kept, bool, "kept"),
    )


def _point(content: Mapping[str, object], tasks: int) -> CurvePoint:
    task = _get(content, "task", int)
    if not 0 <= task < tasks:
        raise _Wrong(f"a point of the curve is of task {task}, of {tasks} counted from 0")
    return CurvePoint(
        task=task,
        phase=_get(content, "phase", str),
        epoch=_get(content, "epoch", int),
        current=_share(content.get("current")),
        first=_share(content.get("first")),
        sum_of_radii=_optional(content, "sum_of_radii"),
    )


def _is(value: object, kind: type[T], name: str) -> T:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _Wrong(f'"{name}" is {value!r:.60}, which is no {kind.__name__}')
    return value


def _get(content: Mapping[str, object], name: str, kind: type[T]) -> T:
    if name not in content:
        raise _Wrong(f'"{name}" is missing')
    return _is(content[name], kind, name)


def _number(content: Mapping[str, object], name: str) -> float:
    value = content.get(name)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise _Wrong(f'"{name}" is {value!r:.60}, which is no number')
    return float(value)


def _optional(content: Mapping[str, object], name: str) -> float | None:
    if name not in content:
        raise _Wrong(f'"{name}" is missing')
    return None if content[name] is None else _number(content, name)


def _share(value: object) -> float:
    share = _number({"accuracy": value}, "accuracy")
    if not 0 <= share <= 1:
        raise _Wrong(f"an accuracy is {share}, which is not between 0 and 1")
    return share


def _shares(values: object, count: int) -> tuple[float, ...]:
    shares = tuple(_share(value) for value in _is(values, list, "accuracies"))
    if len(shares) != count:
        raise _Wrong(f"there are {len(shares)} accuracies for {count} tasks")
    return shares


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise _Wrong(f'"started" is {text!r}, which is no time') from None
    if time.tzinfo is None:
        raise _Wrong(f'"started" is {text!r}, which has no time zone')
    return time
