"""What the commands ``run`` and ``reproduce`` need besides running: reading what is asked, showing what came of it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from intercontinet.errors import InvalidSetting, WriteError
from intercontinet.learners.catalogue import METHODS, PROMISING
from intercontinet.report.metrics import overall_accuracy
from intercontinet.report.paper import yardstick
from intercontinet.report.record import METHODS as METHOD_NAMES
from intercontinet.report.record import Record
from intercontinet.study import guarantee, trials
from intercontinet.study.config import Config, check_count, configure, epochs_in
from intercontinet.study.figures import figure3, figure4
from intercontinet.study.folder import stored_config
from intercontinet.study.sources import read_config, read_yaml
from intercontinet.study.store import cells, load_records
from intercontinet.study.studies import chosen
from intercontinet.study.tables import (
    FELL_SHORT,
    SHORT,
    TABLES,
    certified_text,
    epochs_text,
    number_text,
    ours_text,
    paper_text,
    rich_table,
)
from intercontinet.study.tradeoff import tradeoff

HALF = 0.5  # of a task's training set


@dataclass(frozen=True)
class Asked:
    """A run as it was asked for: what, where, into which folder, and what a person should be told about it."""

    config: Config
    device: str
    out: Path
    notes: tuple[str, ...]


def asked(flags: Mapping[str, Any], settings: Sequence[str], file: Path | None, resume: bool = False) -> Asked:
    """Flags over a YAML file over the data set's preset.

    Args:
        flags: By name; None where left out.
        settings: "NAME=VALUE", values as in YAML.
        file: A YAML file, or None.
        resume: Whether a run is taken up again: what its folder says need not be said again.
    """
    stored = dict(read_config(file)) if file is not None else {}
    own = {**stored.pop("settings", {}), **dict(_setting(text) for text in settings)}
    values = {**stored, **{name: value for name, value in flags.items() if value is not None}}
    device, out, keep = str(values.pop("device", "auto")), values.pop("out", None), values.pop("keep", None)
    if out is not None and not str(out):
        raise InvalidSetting("out is empty: name a folder, or leave it out")
    if "seeds" in values:
        values["seeds"] = _seeds(values["seeds"])
    usual = configure(**{name: values[name] for name in ("dataset", "scenario", "method") if name in values})
    name = f"{Path(usual.dataset).stem}-{usual.scenario}-{usual.method}"
    folder = Path(out) if out is not None else Path("runs") / name
    before = stored_config(folder) if resume else None
    method = (usual if before is None else before).method
    notes = []
    if keep is not None:
        if METHODS[method].settings in PROMISING:
            own["keep"] = keep
        else:
            notes.append(f"keep is left out: {method} promises nothing")
    if before is not None:
        _check_same(folder, before, values, own)
    return Asked(before or configure(**values, settings=own), device, folder, tuple(notes))


def _check_same(folder: Path, before: Config, values: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Refuse what was asked for and is not what the folder's run does; what was not asked for is as it was."""
    theirs = {**before.record(), "epochs": epochs_of(before)}
    asked_for = {name: list(value) if name == "seeds" else value for name, value in values.items()}
    if all(theirs[name] == value for name, value in asked_for.items()):  # or else the settings may be another method's
        parts = {item.name: getattr(before, item.name) for item in fields(Config)}
        again = configure(**{**parts, "settings": {**before.settings, **own}})
        theirs, asked_for = dict(before.settings), {name: again.settings[name] for name in own}
    odd = [f"{name} {theirs[name]}, not {value}" for name, value in asked_for.items() if theirs[name] != value]
    if odd:
        raise InvalidSetting(
            f"{folder} holds a run with {'; '.join(odd)}: leave that out, since --out {folder} --resume alone goes on "
            "with it, or choose another --out"
        )


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidSetting(f"'{text}' is no setting: write NAME=VALUE")
    return name, read_yaml(f"value: {value}", f"--set {text}")["value"]


def _seeds(given: object) -> tuple[int, ...]:
    """A count, or a list of seeds: 5 -> 0 ... 4, "3,7" -> 3, 7."""
    try:
        if isinstance(given, list):
            return tuple(int(str(seed)) for seed in given)
        if isinstance(given, str) and "," in given:
            return tuple(int(seed) for seed in given.split(",") if seed.strip())
        count = int(str(given))
    except ValueError:
        raise InvalidSetting(f"seeds is {given!r}: give how many, 5, or which, 3,7,9") from None
    check_count(count)
    return tuple(range(count))


def epochs_of(config: Config) -> int:
    """How many epochs a task takes, all phases together."""
    return epochs_in(config.settings) or 1  # the exact learner tells of a task once


def outcome(summary: Mapping[str, Any]) -> Table:
    """One row a seed: what a run has come to."""
    title = f"{summary['dataset']}, {summary['scenario']}-incremental, {METHOD_NAMES[summary['method']]}"
    table = Table(title=title, title_justify="left", title_style="bold")
    for head in ("seed", "accuracy", "forgetting", *summary["tasks"], "seconds"):
        table.add_column(head, justify="right")
    for seed in summary["seeds"]:
        shares = [_share(floor) for floor in seed["floors"]]
        shares += [""] * (len(summary["tasks"]) - len(shares))
        table.add_row(
            str(seed["seed"]),
            "" if seed["average_accuracy"] is None else f"{seed['average_accuracy']:.2%}",
            "" if seed["forgetting"] is None else f"{seed['forgetting']:.2%}",
            *shares,
            f"{seed['seconds']:.1f}",
        )
    table.caption = f"Test accuracy at the end, mean over tasks{_over_examples(summary)}."
    if any(floor["kept"] is not None for seed in summary["seeds"] for floor in seed["floors"]):
        table.caption += (
            " Below each task, the share of its training set that is certain, and, after >=, that of unseen examples "
            "at 95 % confidence. [yellow]Yellow[/]: less than half of it was learned"
        )
    return table


def _over_examples(summary: Mapping[str, Any]) -> str:
    """What tables of studies would say of the run, once every seed has learned something."""
    matrices = [seed["accuracy_matrix"] for seed in summary["seeds"]]
    if not all(matrices):
        return ""
    found = [100 * overall_accuracy(matrix, summary["test_examples"]) for matrix in matrices]
    std = statistics.stdev(found) if len(found) > 1 else None
    return f"; over all test examples, as tables have it: {number_text(statistics.fmean(found), std)} %"


def _share(floor: Mapping[str, Any]) -> str:
    """What is certain of a task, for a person to see at once."""
    if floor["kept"] is None:
        return "-"
    lines = [f"{floor['certified'] / floor['total']:.3f}"]
    if not floor["kept"]:
        lines = [f"[red]{lines[0]} not kept[/]"]
    elif floor["accuracy"] < HALF:
        lines = [f"[yellow]{lines[0]}[/]"]
    if "unseen_floor" in floor:
        lines.append(f">={math.floor(1000 * floor['unseen_floor']) / 1000:.3f}")
    return "\n".join(lines)


def present(
    study: str, results: Path, docs: Path, console: Console, only: Sequence[str] = (), draw: bool = True
) -> None:
    """Show what the store holds of a study: a table beside the paper's, or cells of some names alone; draw a figure."""
    pooled = cells(records := load_records(results / study))
    keys = [plan.key for plan in chosen(study, only)] if only else list(pooled)
    if study in TABLES and not only:
        console.print(rich_table(study, pooled))
        return
    if study == "guarantee":
        console.print(guarantee.rich_table(row for row in guarantee.rows(results) if not only or row.key in keys))
        return
    if study == trials.STUDY and not only:
        console.print(trials.rich_table(trials.found(results)))
        return
    if study not in TABLES and not records:
        console.out(f"{results / study} holds no records yet.", highlight=False)
        return
    for key in keys:
        cell, published = pooled.get(key), yardstick(key.dataset, key.scenario, key.method)
        paper = f", paper {paper_text(published)}" if study in TABLES else ""
        text = f"{key}: {ours_text(cell)}{paper}; certified {certified_text(cell, broken=FELL_SHORT.format)}"
        console.print(text, highlight=False, soft_wrap=True)
    found = [pooled[key] for key in keys if key in pooled]
    broken = [f"*: {SHORT}."] if any(not all(cell.kept) for cell in found) else []
    for line in (*broken, *filter(None, [epochs_text(found)])):
        console.out(line, highlight=False)
    if study not in (*TABLES, trials.STUDY) and draw:
        _draw(study, records, docs / "images")
        console.out(f"Drew {study} into {docs / 'images'}, as PNG, SVG and CSV.", highlight=False)


def _draw(study: str, records: Sequence[Record], images: Path) -> None:
    try:
        images.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(f"cannot make the folder {images}: {error.strerror}. Choose another with --docs") from error
    if study == "figure3":
        figure3(records, images / "figure3")
    elif study == "tradeoff":
        tradeoff(records, images / "tradeoff")
    else:
        if any(record.key.method != "lwf" for record in records):  # which the paper's figure 4 leaves out
            figure4(records, images / "figure4")
        figure4(records, images / "figure5", full=True)
