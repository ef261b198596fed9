"""The paper's tables beside ours: accuracy, the paper's, how far apart, and what is certain of every task."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from intercontinet.errors import InvalidData, InvalidSetting
from intercontinet.learners.catalogue import METHODS
from intercontinet.report.paper import PUBLISHED, Published, yardstick
from intercontinet.report.record import CellKey, method_place
from intercontinet.study.config import configure, epochs_in
from intercontinet.study.store import Cell
from intercontinet.tasks import SCENARIOS

if TYPE_CHECKING:
    from rich.table import Table

TABLES = {
    "table1": ("mnist", "Table 1: Split MNIST"),
    "table2": ("fashion-mnist", "Table 2: Split FashionMNIST"),
    "table3": ("cifar-10", "Table 3: Split CIFAR-10"),
}
NOT_RUN, NONE = "not run", "-"
SMALLEST = 0.05  # a smaller deviation counts as this many points: five of 10,000 test images
FAR = 2.0  # pooled deviations
FELL_SHORT = "[bold red]{}*[/]"  # a share for the terminal, which a pipe robs of its colours
SHORT = "less was certain than was promised, with one seed or more"
IN_THE_PAPER = ("mnist", "fashion-mnist", "cifar-10", "cifar-100")
LEGEND = (
    "Accuracy is over all test examples of all tasks, after the last task, in percent: mean ± standard deviation over "
    "seeds. The paper calls its own an average over tasks, but its MNIST figures are those over all examples: Adam, "
    "incremental class, knows the last task alone, and 0.995 of 1,983 in 10,000 examples is the paper's 19.74, where a "
    "mean over tasks would be 19.90. For the other data sets, whose tasks are of one size, the two are the same.",
    "Our deviation is the sample deviation (divisor n - 1); the paper does not say which it gives, of five runs "
    "(in class cells of Table 3 this one fits: `python benchmarks/diverged.py`).",
    f"A difference is marked ! when it is more than {FAR:g} pooled deviations, sqrt((s1² + s2²) / 2). A deviation "
    f"below {SMALLEST} points counts as {SMALLEST} (five of 10,000 test images); a single seed borrows the paper's.",
    "Certified: the share of each task's training set, first task first, that no weights in the task's region get "
    f"wrong; mean over seeds, rounded down; {NONE} for methods that promise nothing.",
)


@dataclass(frozen=True)
class Entry:
    """One method in one scenario: ours (None: not run) and the paper's (None: not in the paper)."""

    key: CellKey
    ours: Cell | None
    paper: Published | None

    @property
    def difference(self) -> float | None:
        """Ours less the paper's, in points."""
        return None if self.ours is None or self.paper is None else 100 * self.ours.mean - self.paper.mean

    @property
    def deviations(self) -> float | None:
        """The size of the difference in pooled deviations."""
        if self.ours is None or self.paper is None:
            return None
        ours = None if self.ours.std is None else 100 * self.ours.std
        return abs(100 * self.ours.mean - self.paper.mean) / pooled_deviation(ours, self.paper.std)

    @property
    def flagged(self) -> bool:
        """Whether the two are more than ``FAR`` pooled deviations apart, which a single seed may be by chance."""
        return self.deviations is not None and self.deviations > FAR


def pooled_deviation(ours: float | None, paper: float) -> float:
    """sqrt((s1² + s2²) / 2), in points; neither less than ``SMALLEST``, and without ours, the paper's alone.

    >>> pooled_deviation(3.0, 4.0) == math.sqrt(12.5)
    True
    >>> pooled_deviation(None, 4.0), pooled_deviation(0.0, 0.0)
    (4.0, 0.05)
    """
    first, second = (max(deviation, SMALLEST) for deviation in (paper if ours is None else ours, paper))
    return math.sqrt((first**2 + second**2) / 2)


def entries(study: str, cells: Mapping[CellKey, Cell]) -> dict[str, list[Entry]]:
    """For each scenario, the methods of the paper's table in its order, with whatever else was run where it belongs.

    Raises:
        InvalidSetting: There is no such table.
        InvalidData: A cell is of another data set.
    """
    if study not in TABLES:
        raise InvalidSetting(f"there is no table '{study}': choose one of {', '.join(TABLES)}")
    dataset, title = TABLES[study]
    for key in cells:
        if key.dataset != dataset:
            raise InvalidData(f"{title} is of {dataset}, but {key} among its records is of {key.dataset}: move it")
    rows = {(method, "") for _, _, method in (key for key in PUBLISHED if key[0] == dataset)} | {("intercontinet", "")}
    rows |= {(key.method, key.variant) for key in cells}
    return {
        scenario: [
            Entry(
                key := CellKey(dataset, scenario, method, variant),
                cells.get(key),
                yardstick(dataset, scenario, method),
            )
            for method, variant in sorted(rows, key=lambda row: place_of(*row))
        ]
        for scenario in SCENARIOS
    }


def place_of(method: str, variant: str) -> tuple[int, str, str]:
    """What to sort rows by: the paper's order, methods that it does not have last."""
    return *method_place(method), variant


def method_name(key: CellKey) -> str:
    """What people call it."""
    return key.method_name + (f" ({key.variant})" if key.variant else "")


def number_text(mean: float, std: float | None) -> str:
    """
    >>> number_text(98.936, 0.3), number_text(98.936, None)
    ('98.94 ± 0.30', '98.94')
    """
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"


def ours_text(cell: Cell | None) -> str:
    """Mean, deviation and number of seeds."""
    if cell is None:
        return NOT_RUN
    count = len(cell.seeds)
    number = number_text(100 * cell.mean, None if cell.std is None else 100 * cell.std)
    return f"{number}, {count} seed{'s' if count > 1 else ''}"


def paper_text(paper: Published | None) -> str:
    """Mean and deviation."""
    return NONE if paper is None else number_text(*paper)


def difference_text(entry: Entry) -> str:
    """Signed points, with a ! when flagged."""
    if entry.ours is None:
        return NOT_RUN
    if entry.difference is None:
        return NONE
    return f"{round(entry.difference, 2) + 0.0:+.2f}" + (" !" if entry.flagged else "")


def certified_text(cell: Cell | None, broken: Callable[[str], str] = str) -> str:
    """ ".90 .82 .91", rounded down; ``broken`` marks the tasks whose promise did not hold with every seed. Where frozen
    layers were taken as computed, that is said."""
    if cell is None:
        return NOT_RUN
    if cell.certified is None:
        return NONE
    shares = (f"{math.floor(100 * share + 1e-9) / 100:.2f}".removeprefix("0") for share in cell.certified)
    drift = max((floor.drift for seed in cell.seeds for floor in seed.floors if floor.drift is not None), default=None)
    text = " ".join(text if kept else broken(text) for text, kept in zip(shares, cell.kept, strict=True))
    return text if drift is None else f"{text} (drift {drift:g})"


def epochs_text(cells: Iterable[Cell], name: Callable[[CellKey], str] = method_name) -> str:
    """ "Epochs a task: 30; 100 for Offline.": the usual number, and those that have another; "" where none is counted.

    Where the paper has another number, that is said too. Cells go by ``name``, or, where those of one name differ, by
    their own.
    """
    numbers = {cell.key: text for cell in cells if (text := _epochs(cell))}
    if not numbers:
        return ""
    usual = Counter(numbers.values()).most_common(1)[0][0]
    others: dict[str, dict[str, None]] = {}  # the names of those that have a number, each once
    for key, number in numbers.items():
        alike = {other for same, other in numbers.items() if name(same) == name(key)}
        if number != usual:
            others.setdefault(number, {})[name(key) if len(alike) == 1 else str(key)] = None
    apart = (f"{number} for {', '.join(names)}" for number, names in others.items())
    return f"Epochs a task: {'; '.join([usual, *apart])}."


def _epochs(cell: Cell) -> str:
    key, number = cell.key, epochs_in(cell.records[0].settings)
    published = key.dataset in IN_THE_PAPER and key.method in METHODS
    papers = epochs_in(configure(key.dataset, key.scenario, key.method).settings) if published else number
    return f"{number} instead of the paper's {papers}" if number != papers else str(number or "")


_HEADS = ("method", "ours", "paper", "difference", "certified, task by task")


def rich_table(study: str, cells: Mapping[CellKey, Cell]) -> Table:
    """For the terminal: a section a scenario. Red and *: a promise that did not hold with every seed. Yellow and !: far
    apart. Both are explained below it, with the number of epochs."""
    from rich.table import Table

    sections = entries(study, cells)
    out = Table(title=TABLES[study][1], title_justify="left", title_style="bold")
    for head in ("scenario", *_HEADS):
        out.add_column(head, overflow="fold", justify="left" if head in ("scenario", "method") else "right")
    for scenario, row in sections.items():
        for place, entry in enumerate(row):
            difference = difference_text(entry)
            out.add_row(
                "" if place else scenario,
                method_name(entry.key),
                ours_text(entry.ours),
                paper_text(entry.paper),
                f"[yellow]{difference}[/]" if entry.flagged else difference,
                certified_text(entry.ours, broken=FELL_SHORT.format),
                style="dim" if entry.ours is None else None,
            )
        out.add_section()
    marks = f"!: more than {FAR:g} pooled deviations from the paper's. *: {SHORT}."
    out.caption, out.caption_justify = f"{marks}\n{epochs_text(cells.values())}".strip(), "left"
    return out


def markdown(study: str, cells: Mapping[CellKey, Cell]) -> str:
    """For documents: a table a scenario. Bold: a promise that did not hold with every seed."""
    lines = []
    for scenario, row in entries(study, cells).items():
        lines += [f"**Incremental {scenario}**", "", markdown_row(_HEADS), "|---|---:|---:|---:|---:|"]
        for entry in row:
            texts = (
                method_name(entry.key),
                ours_text(entry.ours),
                paper_text(entry.paper),
                difference_text(entry),
                certified_text(entry.ours, broken="**{}**".format),
            )
            lines.append(markdown_row(texts))
        lines.append("")
    return "\n".join(lines)


def markdown_row(texts: tuple[str, ...]) -> str:
    """
    >>> markdown_row(("a", "b"))
    '| a | b |'
    """
    return f"| {' | '.join(texts)} |"
