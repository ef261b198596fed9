"""Argue with the certificates of a finished run: verify, count again, and attack.

    intercontinet run --dataset mnist --scenario class --method exact --out runs/exact
    python benchmarks/argue.py runs/exact

For every seed and task: what the certificate says; what certifying afresh, on the whole model, with the loaded file
and the final region, counts now (never less, since later regions lie inside earlier ones); what the worst weights that
an attack finds get right; and what the model itself gets right. Exits 1 when any of these is out of order.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import intercontinet as icn
from intercontinet.study.folder import resume, stored_config
from intercontinet.study.run import Run


def argue(folder: Path, examples: int) -> bool:
    """Print a line a task; whether everything is in order."""
    run = Run(stored_config(folder), "cpu", print)
    state = resume(folder, run)
    if state is None:
        raise SystemExit(f"{folder} has not finished its first task")
    sound = True
    for row, seed in enumerate(run.config.seeds):
        model, certificate = run.model(state, row), icn.Certificate.load(folder / f"seed-{seed}" / "model.icn")
        assert icn.verify(model, certificate)
        print(f"seed {seed}: every parameter lies in its region")
        for task, floor in zip(run.stream.tasks, certificate.tasks, strict=False):
            now = icn.certify(model, certificate.region, task.train, classes=floor.classes)
            few = tuple(part[:examples] for part in task.train)
            worst = icn.attack(model, certificate.region, (few[0], few[1]), classes=floor.classes, seed=seed)
            some = icn.certify(model, certificate.region, (few[0], few[1]), classes=floor.classes)
            ordered = floor.certified <= now.certified <= now.correct and some.floor <= worst.accuracy <= some.accuracy
            sound = sound and ordered
            print(
                f"  {floor.task}: floor {floor.floor:.4f}, certain {now.floor:.4f}, right {now.accuracy:.4f} now; of "
                f"{len(few[0])}: certain {some.floor:.4f}, under attack {worst.accuracy:.4f}, right {some.accuracy:.4f}"
                f"{'' if ordered else '  OUT OF ORDER'}",
                flush=True,
            )
    return sound


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--examples", type=int, default=500, help="How many of a task to attack.")
    given = parser.parse_args()
    sys.exit(0 if argue(given.folder, given.examples) else 1)


if __name__ == "__main__":
    main()
