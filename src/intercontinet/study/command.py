"""What the commands ``run`` and ``reproduce`` need besides running: reading what is asked, showing what came of it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from intercontinet.errors import InvalidSetting, WriteError
from intercontinet.learners.catalogue import METHODS, PROMISING
from intercontinet.report.metrics import overall_accuracy
from intercontinet.report.paper import yardstick
from intercontinet.report.record import METHODS as METHOD_NAMES
from intercontinet.report.record import Record
from intercontinet.report.table import fits
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

SAME = {"keep": ("keep",), "epochs": ("epochs", "centre_epochs", "radii_epochs")}  # an option, and settings like it
HALF = 0.5  # of a task's training set
MOST_OF_A_NAME = 24  # characters of a task's name in a line


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
    pairs = [_setting(text) for text in settings]
    given = dict(pairs)
    if twice := [name for name in given if sum(other == name for other, _ in pairs) > 1]:
        raise InvalidSetting(f"--set {twice[0]} is given twice: leave one out")
    _check_said_once(flags, given, "--{} and --set {}")
    filed = stored.pop("settings", {})
    _check_said_once(stored, filed, f"{file}: {{}} and {{}} under settings")
    for flag, names in SAME.items():  # flags over the file
        if any(name in given for name in names):
            stored.pop(flag, None)
    own = {**filed, **given}
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


def _check_said_once(options: Mapping[str, Any], settings: Mapping[str, Any], words: str) -> None:
    """Refuse options and settings that speak of the same thing: one of them would not count."""
    for option, names in SAME.items():
        both = [name for name in names if name in settings]
        if both and options.get(option) is not None:
            raise InvalidSetting(f"{words.format(option, both[0])} speak of the same thing: leave one of them out")


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


@dataclass(frozen=True)
class Outcome:
    """What a run has come to, as a table that fits the console: whatever is left out, no number is cut."""

    summary: Mapping[str, Any]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """A row a seed with a column a task, or else a row a task, or else the tasks that matter most alone."""
        told = self.summary
        name = f"{told['dataset']}, {told['scenario']}-incremental, {METHOD_NAMES[told['method']]}"
        tables = [(where, layout(told)) for where, layout in LAYOUTS]
        where, table = next((pair for pair in tables if fits(pair[1], console, options)), tables[-1])
        yield Text(name, "bold")  # no string: brackets in a name are no markup
        yield table
        yield Text.from_markup(_caption(told, where), style="table.caption")


def outcome(summary: Mapping[str, Any]) -> Outcome:
    """What a run has come to, to print."""
    return Outcome(summary)


def _by_seed(summary: Mapping[str, Any]) -> Table:
    """One row a seed, one column a task."""
    table = Table()
    for head in ("seed", "accuracy", "forgetting", *summary["tasks"], "seconds"):
        table.add_column(Text(head), justify="right", no_wrap=True)
    for seed in summary["seeds"]:
        shares = _told(seed)
        shares += [""] * (len(summary["tasks"]) - len(shares))
        table.add_row(*_means(seed), *shares, f"{seed['seconds']:.1f}")
    return table


def _by_task(summary: Mapping[str, Any]) -> Table:
    """One row a task, one column a seed."""
    seeds = summary["seeds"]
    table = Table(Column("", overflow="fold", max_width=MOST_OF_A_NAME))
    for seed in seeds:
        table.add_column(f"seed {seed['seed']}", justify="right", no_wrap=True)
    for head, place in (("accuracy", 1), ("forgetting", 2)):
        table.add_row(head, *(_means(seed)[place] for seed in seeds))
    table.add_section()
    told = [_told(seed) for seed in seeds]
    for place, task in enumerate(summary["tasks"]):
        table.add_row(Text(task), *(own[place] if place < len(own) else "" for own in told))
    table.add_section()
    table.add_row("seconds", *(f"{seed['seconds']:.1f}" for seed in seeds))
    return table


def _lowest(summary: Mapping[str, Any]) -> Table:
    """One row a seed with its lowest floor, and one more for every other promise that was not kept."""
    table = Table()
    for head in ("seed", "accuracy", "forgetting", "lowest"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("of task", overflow="fold", max_width=MOST_OF_A_NAME)
    table.add_column("seconds", justify="right", no_wrap=True)
    for seed in summary["seeds"]:
        first, *rest = _least(seed)
        table.add_row(*_means(seed), *first, f"{seed['seconds']:.1f}")
        for floor in rest:
            table.add_row("", "", "", *floor, "")
    return table


def _by_line(summary: Mapping[str, Any]) -> Table:
    """One row a number, for the narrowest consoles."""
    table = Table(Column("", no_wrap=True), Column("", overflow="fold"), show_header=False)
    for seed in summary["seeds"]:
        for head, mean in zip(("seed", "accuracy", "forgetting"), _means(seed), strict=True):
            table.add_row(head, mean)
        for share, task in _least(seed):
            table.add_row("lowest", share)
            table.add_row("of task", task)
        table.add_row("seconds", f"{seed['seconds']:.1f}", end_section=True)
    return table


def _least(seed: Mapping[str, Any]) -> list[tuple[str, Text]]:
    """The lowest floor and its task, and every other promise that was not kept; or else the lowest accuracy."""
    floors = [floor for floor in seed["floors"] if floor["kept"] is not None]
    if not floors:
        end, task = min(_ends(seed), default=(None, ""))
        return [("" if end is None else f"{end:.1%}", Text(task))]
    lowest = min(floors, key=lambda floor: float(floor["certified"] / floor["total"]))
    shown = [lowest, *(floor for floor in floors if floor is not lowest and not floor["kept"])]
    return [(_share(floor), Text(floor["task"])) for floor in shown]


def _told(seed: Mapping[str, Any]) -> list[str]:
    """Of each task learned what is certain, or, where nothing was promised, the test accuracy at the end."""
    if any(floor["kept"] is not None for floor in seed["floors"]):
        return [_share(floor) for floor in seed["floors"]]
    return [f"{end:.1%}" for end, _ in _ends(seed)]


def _ends(seed: Mapping[str, Any]) -> list[tuple[float, str]]:
    """Test accuracy at the end on each task learned, and its name."""
    names = [floor["task"] for floor in seed["floors"]]
    return list(zip(seed["accuracy_matrix"][-1], names, strict=False)) if names else []


LAYOUTS: tuple[tuple[str, Callable[[Mapping[str, Any]], Table]], ...] = (  # the first that fits, or the last
    ("Below each task, the share of its training set", _by_seed),
    ("Beside each task, the share of its training set", _by_task),
    ("Under lowest, the least share of any task's training set", _lowest),
    ("Beside lowest, the least share of any task's training set", _by_line),
)


def _means(seed: Mapping[str, Any]) -> tuple[str, str, str]:
    """Which seed it is, and its averages, blank before there are any."""
    means = ("" if seed[name] is None else f"{seed[name]:.2%}" for name in ("average_accuracy", "forgetting"))
    accuracy, forgetting = means
    return str(seed["seed"]), accuracy, forgetting


def _caption(summary: Mapping[str, Any], where: str) -> str:
    """What the numbers are, in markup."""
    caption = f"Test accuracy at the end, mean over tasks{_over_examples(summary)}."
    floors = [floor for seed in summary["seeds"] for floor in seed["floors"] if floor["kept"] is not None]
    if not floors and not any(seed["floors"] for seed in summary["seeds"]):
        return caption
    if not floors:
        place = where.partition(",")[0]
        what = "that on it alone" if place.endswith("task") else "the least on any task"
        return f"{caption} {place}, {what}: this method promises nothing"
    unseen = any("unseen_floor" in floor for floor in floors)
    of_unseen = ", and, after >=, that of unseen examples at 95 % confidence" if unseen else ""
    caption += f" {where} that is certain{of_unseen}."
    return f"{caption} [yellow]Yellow and ~[/]: less than half of it was learned"


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
        lines = [f"[yellow]~{lines[0]}[/]"]  # not by colour alone
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
        console.print(trials.rich_table(shown := trials.found(results)))
        console.out(trials.left_words(shown), highlight=False)
        return
    if study not in TABLES and not records:
        console.out(f"{results / study} holds no records yet.", highlight=False)
        return
    for key in keys:
        cell, published = pooled.get(key), yardstick(key.dataset, key.scenario, key.method)
        paper = f", paper {paper_text(published)}" if study in TABLES else ""
        floors = certified_text(cell, broken=FELL_SHORT.format)
        text = f"{escape(str(key))}: {ours_text(cell)}{paper}; certified {floors}"
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
