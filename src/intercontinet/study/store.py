"""The results store: folders of records of runs, written whole, read with care, pooled into the cells of a table."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from intercontinet.errors import InvalidData, WriteError
from intercontinet.files import write_atomically
from intercontinet.report.cells import completed, difference, newest
from intercontinet.report.metrics import (
    average_accuracy,
    backward_transfer,
    forgetting,
    forward_transfer,
    overall_accuracy,
)
from intercontinet.report.parts import damaged
from intercontinet.report.record import CellKey, Record, SeedRecord, parse_record, read_record

__all__ = ["Cell", "CellKey", "cells", "listed", "load_records", "place_for", "record_name", "save_record"]

_NEAR = 1e-5  # how far a stored mean may be from the mean of what is stored


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
        return statistics.fmean(self.overall)

    @property
    def std(self) -> float | None:
        """Sample standard deviation over seeds (divisor n - 1); None for a single seed."""
        return statistics.stdev(self.overall) if len(self.seeds) > 1 else None

    @property
    def overall(self) -> list[float]:
        """Accuracy over all test examples of all tasks, for each seed."""
        sizes = self.records[0].test_examples
        return [overall_accuracy(seed.accuracy_matrix, sizes) for seed in self.seeds]

    @property
    def certified(self) -> tuple[float, ...] | None:
        """Certified share of each task's training set, mean over seeds; None for a method that promises nothing."""
        if self.records[0].keep is None:
            return None
        tasks = zip(*(seed.floors for seed in self.seeds), strict=True)
        return tuple(statistics.fmean(floor.share for floor in task) for task in tasks)

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
    for record in records:
        if what := difference(completed(first), completed(record)):
            raise InvalidData(
                f"{first.source} and {record.source} are both of {key} on {key.dataset}, but differ in {what}: "
                "delete one, or give one a variant"
            )
    taken = newest(records).values()
    used = {record.source: record for record, _ in taken}
    return Cell(key, tuple(used[name] for name in sorted(used)), tuple(seed for _, seed in taken))


def record_name(record: Mapping[str, object]) -> str:
    """The file name for a record, a JSON object.

    Raises:
        InvalidData: It is no complete record.
    """
    new = _checked(parse_record(_text(record), "the record"))
    return _name(new.key, _numbers(new))


def save_record(folder: Path, record: Mapping[str, object], several: bool = False) -> Path:
    """Write a record, a JSON object, into a study's folder; the same cell and seeds, run again, replace the old file.

    Raises:
        InvalidData: It is no complete record, or its file holds what would be lost, see :func:`place_for`.
        WriteError: The file cannot be written.
    """
    text = _text(record)
    new = _checked(parse_record(text, "the record"))
    path = place_for(folder, new.key, _numbers(new), several)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(f"cannot make the folder {folder}: {error.strerror}. Choose another") from error
    write_atomically(path, text.encode())
    return path


def place_for(folder: Path, key: CellKey, seeds: Collection[int], several: bool = False) -> Path:
    """The file in which a cell's record with these seeds belongs, so that one knows before training whether it can.

    Where the study is of ``several`` data sets, the file's name begins with the record's own.

    Raises:
        InvalidData: The file is there and holds another cell, or seeds that would be lost.
    """
    path = folder / ((f"{key.dataset}-" if several else "") + _name(key, seeds))
    if path.exists():
        old = read_record(path)
        lost = set(_numbers(old)) - set(seeds)
        if old.key != key or lost:
            kind = f"seeds {sorted(lost)}" if old.key == key else f"{old.key} on {old.key.dataset}"
            raise InvalidData(f"{path} holds {kind}, which saving this record would lose: move that file away first")
    return path


def load_records(folder: Path) -> list[Record]:
    """Every record of a study's folder, by file name; none if there is no such folder.

    Raises:
        InvalidData: The folder cannot be read, or a ``.json`` file there is no complete record.
    """
    return [_checked(read_record(path)) for path in listed(folder) if path.suffix == ".json"]


def listed(folder: Path) -> list[Path]:
    """All that lies in a folder of the store, by name; nothing if there is no such folder.

    Raises:
        InvalidData: It cannot be read: taken for empty, it would be run anew.
    """
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InvalidData(
            f"cannot read the folder {folder}: {error.strerror}. Make it readable, or choose another store with --out"
        ) from error


def _name(key: CellKey, seeds: Collection[int]) -> str:
    """``<scenario>-<method>[-<variant>]-seeds-<first>-<last>.json``."""
    return f"{str(key).replace('/', '-')}-seeds-{min(seeds)}-{max(seeds)}.json"


def _numbers(record: Record) -> list[int]:
    return [seed.seed for seed in record.seeds]


def _checked(record: Record) -> Record:
    """The same, if its means are those of its accuracies."""
    for seed in record.seeds:
        expected = {
            "average_accuracy": average_accuracy(seed.accuracy_matrix),
            "forgetting": forgetting(seed.accuracy_matrix),
            "backward_transfer": backward_transfer(seed.accuracy_matrix),
            "forward_transfer": forward_transfer(seed.accuracy_matrix, seed.initial_accuracy),
        }
        for name, value in expected.items():
            stored = getattr(seed, name)
            if (stored is None) != (value is None) or (value is not None and abs(stored - value) > _NEAR):
                raise damaged(record.source, f"{name} of seed {seed.seed} is {stored}, but its accuracies give {value}")
    return record


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
