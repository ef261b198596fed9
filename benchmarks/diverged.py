"""How many of the paper's five runs would have diverged, to explain a mean that is low and a large deviation.

    python benchmarks/diverged.py

A net whose weights are NaN answers with its first class: on ten classes of one size 10.00 % are right. If k of five
runs ended so and the others at v, which the mean fixes, then their sample deviation is (v - 10) sqrt(k (5 - k) / 20).
For each cell of Table 3, incremental class: the k that comes nearest to the paper's deviation; and in the records, the
same of our own runs.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from intercontinet.report.paper import Published, yardstick
from intercontinet.study.store import Cell, cells, load_records

TABLE3 = Path(__file__).resolve().parents[1] / "results" / "table3"
RUNS, CHANCE = 5, 10.0  # the paper's seeds, and percent of ten classes
NEAR = 0.01  # points between what is told of a cell, to two decimals, and what explains it


class Guess(NamedTuple):
    """So many runs at chance, and all others at one accuracy, in percent."""

    diverged: int
    others: float
    std: float


def guess(cell: Published) -> Guess:
    """The number of diverged runs whose deviation comes nearest to a cell's."""

    def told(diverged: int) -> Guess:
        others = (RUNS * cell.mean - diverged * CHANCE) / (RUNS - diverged)
        return Guess(
            diverged, others, abs(others - CHANCE) * math.sqrt(diverged * (RUNS - diverged) / (RUNS * (RUNS - 1)))
        )

    return min(map(told, range(RUNS)), key=lambda one: abs(one.std - cell.std))


def ours(cell: Cell) -> str:
    """How many of our runs ended at chance, and the mean of the others."""
    accuracies = [100 * accuracy for accuracy in cell.overall]
    fine = [accuracy for accuracy in accuracies if abs(accuracy - CHANCE) > NEAR]
    mean = f", the others at {sum(fine) / len(fine):.2f}" if fine else ""
    return f"ours: {len(accuracies) - len(fine)} of {len(accuracies)}{mean}"


def main() -> None:
    for key, cell in cells(load_records(TABLE3)).items():
        published = yardstick(key.dataset, key.scenario, key.method)
        if key.scenario != "class" or published is None:
            continue
        found = guess(published)
        words = "not explained by runs at chance"
        if found.diverged and abs(found.std - published.std) <= NEAR:
            words = (
                f"{found.diverged} of {RUNS} at chance and the others at {found.others:.2f} would give {found.std:.2f}"
            )
        print(f"{key}: {published.mean:.2f} ± {published.std:.2f}: {words}; {ours(cell)}")


if __name__ == "__main__":
    main()
