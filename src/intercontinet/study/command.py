"""What the commands ``run`` and ``reproduce`` need besides running: reading what is asked, showing what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from intercontinet.errors import InvalidSetting, WriteError
from intercontinet.report.record import METHODS as METHOD_NAMES
from intercontinet.study import guarantee
from intercontinet.study.config import METHODS, PROMISING, Config, configure, read_config, read_yaml
from intercontinet.study.figures import figure3, figure4
from intercontinet.study.folder import stored_config
from intercontinet.study.store import cells, load_records
from intercontinet.study.tables import TABLES, certified_text, ours_text, rich_table
from intercontinet.study.tradeoff import tradeoff


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
    given = {name for name, value in flags.items() if value is not None}
    if resume and "out" in given and given <= {"out", "device"} and not settings and file is None:
        out = Path(flags["out"])
        return Asked(stored_config(out), flags.get("device") or "auto", out, ())
    stored = dict(read_config(file)) if file is not None else {}
    own = {**stored.pop("settings", {}), **dict(_setting(text) for text in settings)}
    values = {**stored, **{name: value for name, value in flags.items() if value is not None}}
    device, out, keep = str(values.pop("device", "auto")), values.pop("out", None), values.pop("keep", None)
    method = values.get("method", "intercontinet")
    notes = []
    if keep is not None:
        if method in METHODS and METHODS[method].settings not in PROMISING:
            notes.append(f"keep is left out: {method} promises nothing")
        else:
            own["keep"] = keep
    if "seeds" in values:
        values["seeds"] = _seeds(values["seeds"])
    config = configure(**values, settings=own)
    name = f"{Path(config.dataset).stem}-{config.scenario}-{config.method}"
    return Asked(config, device, Path(out) if out is not None else Path("runs") / name, tuple(notes))


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
    if count < 1:
        raise InvalidSetting(f"seeds is {given!r}: give at least one")
    return tuple(range(count))


def epochs_of(config: Config) -> int:
    """How many epochs a task takes, all phases together."""
    settings = config.settings
    names = ("epochs", "centre_epochs", "radii_epochs")
    return sum(int(settings[name]) for name in names if name in settings) or 1  # counting is done in one go


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
    table.caption = (
        "Test accuracy at the end, mean over tasks; below each task, the share of its training set that is certain"
    )
    return table


def _share(floor: Mapping[str, Any]) -> str:
    if floor["kept"] is None:
        return "-"
    share = f"{floor['certified'] / floor['total']:.3f}"
    return share if floor["kept"] else f"[red]{share} not kept[/]"


def present(study: str, results: Path, docs: Path, console: Console) -> None:
    """Show what the store holds of a study: a table beside the paper's, or a figure."""
    records = load_records(results / study)
    if study in TABLES:
        console.print(rich_table(study, cells(records)))
        return
    if study == "guarantee":
        console.print(guarantee.rich_table(guarantee.rows(results)))
        return
    if not records:
        console.out(f"{results / study} holds no records yet.", highlight=False)
        return
    images = docs / "images"
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
    for cell in cells(records).values():
        console.print(
            f"{cell.key}: {ours_text(cell)}; certified {certified_text(cell)}", highlight=False, soft_wrap=True
        )
    console.out(f"Drew {study} into {images}, as PNG, SVG and CSV.", highlight=False)
