"""How far floors for unseen examples lie below those for examples that were learned from, from the stored records.

python benchmarks/gaps.py

For each cell of the exact learner, and each task: the share that is certain among the examples that shaped something,
minus that among the unseen, in points; the mean over seeds and the largest. Then the accuracy of each task.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from intercontinet.study.store import cells, load_records


def main() -> None:
    for key, cell in cells(load_records(Path("results/guarantee"))).items():
        if key.method != "exact":
            continue
        texts = []
        for task in zip(*(seed.floors for seed in cell.seeds), strict=True):
            gaps = []
            for floor in task:
                if floor.unseen_total and floor.unseen_certified is not None:
                    seen = (floor.certified - floor.unseen_certified) / (floor.total - floor.unseen_total)
                    gaps.append(100 * (seen - floor.unseen_certified / floor.unseen_total))
            texts.append(f"{statistics.mean(gaps):.1f} (at most {max(gaps):.1f})" if gaps else "none unseen")
        last = zip(*(seed.accuracy_matrix[-1] for seed in cell.seeds), strict=True)
        shares = " ".join(f"{100 * statistics.mean(own):.1f}" for own in last)
        weakest = ""
        if key.scenario == "class":
            rows = [seed.accuracy_matrix[-1] for seed in cell.seeds]
            short = sum(min(row) < statistics.mean(row) / 2 for row in rows)
            weakest = f"; some task below half of the average with {short} of {len(rows)} seeds"
        print(f"{key.dataset}/{key.scenario}: gap {', '.join(texts)}; accuracy {shares}{weakest}")


if __name__ == "__main__":
    main()
