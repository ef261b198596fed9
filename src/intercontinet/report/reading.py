"""The runs in a folder, read for a page: one run, a study's records, or folders of runs; those of one cell pooled."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from intercontinet.errors import InvalidData
from intercontinet.report.cells import completed, difference, newest
from intercontinet.report.parts import damaged, parse_object, read_bytes
from intercontinet.report.record import FORMAT, METRICS, SUMMARY, Record, method_place, read_record
from intercontinet.report.shown import Epoch, Run
from intercontinet.report.words import plain
from intercontinet.tasks import SCENARIOS

NAMES = ("method_name", "dataset", "scenario_name", "variant")  # of a key: what a run is called by


def runs_in(folder: Path) -> tuple[list[Run], list[str]]:
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
