"""docs/results.md, made whole from the records in results/ and the notes beside them, so that no result is typed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path

from intercontinet.errors import InvalidData, WriteError
from intercontinet.files import write_atomically
from intercontinet.learners.regression import EPOCHS
from intercontinet.nets.table import CAPPED
from intercontinet.report.record import CellKey, Record
from intercontinet.study import guarantee, tradeoff, trials
from intercontinet.study.figures import figure3, figure4
from intercontinet.study.store import Cell, cells, listed, load_records
from intercontinet.study.studies import named
from intercontinet.study.tables import (
    LEGEND,
    NOT_RUN,
    TABLES,
    Entry,
    entries,
    markdown,
    markdown_row,
    method_name,
    ours_text,
    paper_text,
    place_of,
)
from intercontinet.tasks import SCENARIOS

COMMAND = "intercontinet reproduce docs"
FIGURES = {
    "figure3": "Figure 3: what the share to keep does, FashionMNIST, incremental domain",
    "figure4": "Figures 4 and 5: Split CIFAR-100, twenty tasks",
}
OURS = {trials.STUDY: trials.TITLE, "guarantee": guarantee.TITLE, "tradeoff": tradeoff.TITLE}
SECTIONS = {trials.STUDY: trials.section, "guarantee": guarantee.section}  # of several data sets
STUDIES = {study: title for study, (_, title) in TABLES.items()} | FIGURES | OURS
_CAPTIONS = {
    "figure3": "Accuracy on the current and the first task, and the sum of radii, after each epoch; mean over seeds",
    "figure4": "Average accuracy over the tasks so far; bands are one sample deviation over seeds",
    "figure5": "The same with LwF (the paper's figure 5)",
    "tradeoff": tradeoff.CAPTION,
}
_LEGEND = (
    *LEGEND,
    "Certified shares in **bold** fell short of what the method promised, with at least one seed. One that is .00 and "
    "not bold kept an empty promise: next to nothing of that task had been learned.",
)
_INTRODUCTION = f"""# Results

<!-- Made by `{COMMAND}` from the records in results/. Do not edit: notes belong into results/<study>/notes.md. -->

Every number in tables and figures comes from a record in [results/](../results/README.md), and every record from a
command below. The notes say where their own numbers are from."""


def results_document(results: Path) -> str:
    """The whole document, as Markdown. The same records and notes give the same text.

    Raises:
        InvalidData: There are no records, or one cannot be used or lies in a folder that is no study's.
    """
    found = {study: cells(load_records(results / study)) for study in STUDIES}
    _refuse_strangers(results)
    if not any(found.values()):
        raise InvalidData(
            f"{results} holds no records to make a document of: name the results store with --out, or run a study "
            "first, as with: intercontinet reproduce table1"
        )
    parts = [_INTRODUCTION, _commands(found)]
    parts.append("## How to read the tables\n\n" + "\n".join(f"- {line}" for line in _LEGEND))
    for study, title in STUDIES.items():
        pooled = found[study]
        parts.append(f"## {title}\n\n`{_command(study, pooled)}`{_more_seeds(pooled)}")
        notes = _notes(results / study)
        if not pooled:
            parts.append("Not run yet.")
        elif study in SECTIONS:
            table, legend = SECTIONS[study](results)
            parts += [table, "\n".join(f"- {line}" for line in legend)]
            parts += [
                _what_was_run(_of_one(pooled, dataset), f" on {dataset}")
                for dataset in dict.fromkeys(key.dataset for key in pooled)
            ]
        elif study in TABLES:
            parts += [markdown(study, pooled).strip(), _flagged(entries(study, pooled), notes), _what_was_run(pooled)]
        else:
            parts += [_pictures(study, pooled), _what_was_run(pooled)]
        if notes:
            parts.append(f"### Notes\n\n{notes.strip()}")
    return "\n\n".join(parts) + "\n"


def write_document(results: Path, docs: Path) -> None:
    """Write ``docs``/results.md, and the figures that it shows into ``docs``/images."""
    text = results_document(results)
    images = docs / "images"
    try:
        images.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(f"cannot make the folder {images}: {error.strerror}. Choose another") from error
    if shares := load_records(results / "tradeoff"):
        tradeoff.tradeoff(shares, images / "tradeoff")
    if keeps := load_records(results / "figure3"):
        figure3(keeps, images / "figure3")
    methods = load_records(results / "figure4")
    for name in _figures_of("figure4", cells(methods)):
        figure4(methods, images / name, full=name == "figure5")
    write_atomically(docs / "results.md", text.encode())


def _refuse_strangers(results: Path) -> None:
    for folder in listed(results):
        for path in listed(folder) if folder.is_dir() and folder.name not in STUDIES else ():
            if path.suffix == ".json":
                raise InvalidData(f"{path} belongs to no study: move it to one of {', '.join(STUDIES)}")


def _command(study: str, pooled: Mapping[CellKey, Cell]) -> str:
    """What a study's cells come from; where they have fewer seeds than it takes, a command that adds none."""
    fewest = min(_seeds_of(pooled), default=0)
    few = 0 < fewest < named(study).seeds
    return f"intercontinet reproduce {study}" + (f" --seeds {fewest}" if few else "")


def _more_seeds(pooled: Mapping[CellKey, Cell]) -> str:
    """What cells come from that have more seeds than those with the fewest."""
    more = sorted(set(_seeds_of(pooled)))[1:]
    if not more:
        return ""
    numbers = " or ".join(f"`--seeds {number}`" for number in more)
    return f"; cells that have more seeds, as listed below, with {numbers} and `--only` their names"


def _seeds_of(pooled: Mapping[CellKey, Cell]) -> list[int]:
    return [_from_zero(seed.seed for seed in cell.seeds) for cell in pooled.values()]


def _from_zero(seeds: Iterable[int]) -> int:
    """How many seeds there are from 0 on, without a gap."""
    known = set(seeds)
    return next(seed for seed in count() if seed not in known)


def _commands(found: Mapping[str, Mapping[CellKey, Cell]]) -> str:
    rows = [(title.split(":")[0], f"`{_command(study, found[study])}`") for study, title in STUDIES.items()]
    rows.append(("this document", f"`{COMMAND}`"))
    return "\n".join(["## How to reproduce it", "", "| | command |", "|---|---|", *map(markdown_row, rows)])


def _notes(folder: Path) -> str:
    path = folder / "notes.md"
    try:
        return path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidData(f"{path} cannot be read: {error}") from error


def _flagged(table: Mapping[str, list[Entry]], notes: str) -> str:
    """The cells that are far from the paper's, and whether the notes speak of them."""
    lines = ["### Far from the paper", ""]
    for entry in (entry for row in table.values() for entry in row if entry.flagged):
        words = "see the notes below" if mentioned(entry.key, notes) else "**not explained yet**"
        lines.append(
            f"- `{entry.key}` ({method_name(entry.key)}): {ours_text(entry.ours)}, against {paper_text(entry.paper)}: "
            f"{entry.difference:+.2f} points, {entry.deviations:.1f} pooled deviations; {words}."
        )
    return "\n".join(lines if len(lines) > 2 else [*lines, "No cell that was run is marked."])


def mentioned(key: CellKey, notes: str) -> bool:
    """Whether notes name a cell, as "scenario/method", and not only a longer name that begins like it.

    >>> mentioned(CellKey("mnist", "class", "intercontinet"), "Why `class/intercontinet` is low: ...")
    True
    >>> mentioned(CellKey("mnist", "class", "intercontinet"), "Why class/intercontinet-published is low: ...")
    False
    """
    return re.search(rf"(?<![\w/-]){re.escape(str(key))}(?![/.-]?\w)", notes) is not None


def _figures_of(study: str, pooled: Mapping[CellKey, Cell]) -> list[str]:
    """The figures that a study's records can draw: figure 5 is figure 4 and LwF."""
    methods = {key.method for key in pooled} - {"offline"}
    if study != "figure4" or not methods:
        return [study] if methods else []
    return ["figure4"] * bool(methods - {"lwf"}) + ["figure5"] * ("lwf" in methods)


def _pictures(study: str, pooled: Mapping[CellKey, Cell]) -> str:
    return "\n\n".join(
        f"![{_CAPTIONS[name]}](images/{name}.png)\n\n{_CAPTIONS[name]}. [Its numbers](images/{name}.csv), "
        f"and as [SVG](images/{name}.svg)."
        for name in _figures_of(study, pooled)
    )


def _of_one(pooled: Mapping[CellKey, Cell], dataset: str) -> dict[CellKey, Cell]:
    return {key: cell for key, cell in pooled.items() if key.dataset == dataset}


def _what_was_run(pooled: Mapping[CellKey, Cell], where: str = "") -> str:
    """Seeds, epochs and seconds of every cell; hardware, versions, commits and networks of all of them."""
    records = [record for cell in pooled.values() for record in cell.records]
    scenarios = [scenario for scenario in SCENARIOS if any(key.scenario == scenario for key in pooled)]
    rows = {(key.method, key.variant): key for key in pooled}
    lines = [
        f"### What was run{where}",
        "",
        *_each("Hardware", map(_hardware, records)),
        *_each("Versions", (", ".join(f"{k} {v}" for k, v in sorted(r.versions.items())) for r in records)),
        *_each("Commit", (f"`{r.commit[:12]}`" if r.commit else "not recorded" for r in records)),
        *_each("Network", (r.net for r in records)),
        f"- Time: {_seconds(pooled.values())}, the sum of the cells' own times, training and certifying; on a GPU, "
        "several cells ran side by side.",
        "",
        markdown_row(("method", *scenarios)),
        "|---" * (1 + len(scenarios)) + "|",
    ]
    for method, variant in sorted(rows, key=lambda row: place_of(*row)):
        key = rows[method, variant]
        found = (pooled.get(CellKey(key.dataset, scenario, method, variant)) for scenario in scenarios)
        lines.append(markdown_row((method_name(key), *map(_effort, found))))
    return "\n".join(lines)


def _each(what: str, texts: Iterable[str]) -> list[str]:
    """One line for each text that occurs; how often, where there are several."""
    counts = sorted(Counter(texts).items())
    often = [f" ({n} record{'s' if n > 1 else ''})" if len(counts) > 1 else "" for _, n in counts]
    return [f"- {what}: {text}{times}." for (text, _), times in zip(counts, often, strict=True)]


def _hardware(record: Record) -> str:
    it = record.hardware
    return f"{it.name} ({it.device}), {it.cores} cores, {it.threads} threads, {it.memory_gib:g} GiB of memory"


def _seconds(pooled: Iterable[Cell]) -> str:
    seconds = sum(seed.seconds for cell in pooled for seed in cell.seeds)
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def _passes(key: CellKey, net: str) -> str:
    """How often a method without a setting of epochs sees an example."""
    if key.method != "exact":
        return "epochs not recorded"
    if key.scenario == "task":
        return f"heads trained for {EPOCHS} epochs"
    return f"columns trained for {EPOCHS} epochs" if net.startswith(CAPPED) else "counted once"


def _effort(cell: Cell | None) -> str:
    """What one cell took: "seeds 0 to 4, epochs 30, 12 s"."""
    if cell is None:
        return NOT_RUN
    seeds = [seed.seed for seed in cell.seeds]
    row = len(seeds) > 1 and seeds == list(range(seeds[0], seeds[-1] + 1))
    numbers = f"{seeds[0]} to {seeds[-1]}" if row else ", ".join(map(str, seeds))
    record = cell.records[0]
    epochs = [f"{name.replace('_', ' ')} {value}" for name, value in record.settings.items() if "epochs" in name]
    keep = [] if record.keep is None else [f"keep {record.keep:g}"]
    words = [
        f"seed{'s' if len(seeds) > 1 else ''} {numbers}",
        *(epochs or [_passes(cell.key, record.net)]),
        *keep,
    ]
    return ", ".join([*words, _seconds([cell])])
