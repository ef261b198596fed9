"""How far floors for unseen examples lie below those for examples that were learned from, from the stored records.

    python benchmarks/gaps.py

For each cell whose floors speak of unseen examples, and each task: the share that is certain among the examples that
shaped something, minus that among the unseen, in points; the mean over seeds and the largest. Where the region was
drawn in after the unseen were counted, a gap is the most that it can be. Then how far the bound at 95 % confidence
lies below the floor on training data, on average over seeds, in the task where that is most; and the accuracy of each
task.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from intercontinet.study.store import Cell, cells, load_records

GUARANTEE = Path(__file__).resolve().parents[1] / "results" / "guarantee"


def line(cell: Cell) -> str | None:
    """What there is to say of a cell; None where no floor speaks of unseen examples."""
    texts, below = [], []
    for task in zip(*(seed.floors for seed in cell.seeds), strict=True):
        gaps = []
        for floor in task:
            if floor.unseen_total and floor.unseen_certified is not None:
                seen = (floor.certified - floor.unseen_certified) / (floor.total - floor.unseen_total)
                gaps.append(100 * (min(seen, 1.0) - floor.unseen_certified / floor.unseen_total))
        texts.append(f"{statistics.mean(gaps):.1f} (at most {max(gaps):.1f})" if gaps else "none unseen")
        bounds = [100 * (floor.share - floor.unseen_floor) for floor in task if floor.unseen_floor is not None]
        below += [statistics.mean(bounds)] if bounds else []
    rows = [seed.accuracy_matrix[-1] for seed in cell.seeds]
    shares = " ".join(f"{100 * statistics.mean(own):.1f}" for own in zip(*rows, strict=True))
    weakest = ""
    if cell.key.scenario == "class":
        short = sum(min(row) < statistics.mean(row) / 2 for row in rows)
        weakest = f"; some task below half of the average with {short} of {len(rows)} seeds"
    if not below:
        return None
    told = f"gap {', '.join(texts)}; bounds up to {max(below):.1f} below floors; accuracy {shares}{weakest}"
    return f"{cell.key.dataset}/{cell.key}: {told}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=GUARANTEE, help="a study's folder; the repository's by default")
    given = parser.parse_args()
    lines = [found for cell in cells(load_records(given.results)).values() if (found := line(cell))]
    if not lines:
        raise SystemExit(f"no record in {given.results} has a floor for unseen examples")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
