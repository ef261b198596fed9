"""Records of runs that never were, as `intercontinet run` would write them."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

Record = dict[str, Any]
PAIRS = ["0/1", "2/3", "4/5", "6/7", "8/9"]


def record(method: str = "intercontinet", seeds: tuple[int, ...] = (0, 1), **changes: Any) -> Record:
    """A whole record of five tasks. Methods other than InterContiNet promise nothing."""
    tasks = changes.get("tasks", PAIRS)
    keep = 0.9 if method.startswith("intercontinet") else None
    return {
        "format": "intercontinet run",
        "version": 1,
        "complete": True,
        "dataset": "mnist",
        "scenario": "task",
        "method": method,
        "keep": keep,
        "net": "mlp-400-400",
        "tasks": tasks,
        "test_examples": [100 for _ in tasks],
        "settings": {"epochs": 20, "rate": 0.1, "head": "per-task"},
        "commit": "f34dd4f",
        "started": "2026-11-16T10:00:00+00:00",
        "seconds": 75.2,
        "versions": {"intercontinet": "0.2.0", "python": "3.12.1", "torch": "2.9.0", "numpy": "2.2.0"},
        "hardware": {"device": "cuda", "name": "NVIDIA H200", "cores": 16, "threads": 8, "memory_gib": 128.0},
        "seeds": [_seed(seed, method, tasks, keep) for seed in seeds],
        **changes,
    }


def _seed(seed: int, method: str, names: list[str], keep: float | None) -> Record:
    rng, tasks = random.Random(seed), len(names)
    rows = 1 if method == "offline" else tasks
    matrix = [[_accuracy(i, j, rows, rng) for j in range(tasks)] for i in range(rows)]
    floor = {"total": 12000, "accuracy": 0.99, "kept": None if keep is None else True}
    return {
        "seed": seed,
        "seconds": 37.6,
        "initial_accuracy": [0.5] * tasks,
        "accuracy_matrix": matrix,
        "average_accuracy": sum(matrix[-1]) / tasks,
        "forgetting": None if rows == 1 else 0.012 + 0.002 * seed,
        "backward_transfer": None if rows == 1 else -0.012,
        "forward_transfer": None if rows == 1 else 0.004,
        "negative_flips": [0.0] + [0.003] * (rows - 1),
        "train_accuracy": [0.99] * tasks,
        "floors": [
            {"task": names[j], "certified": 0 if keep is None else 11000 - 37 * j, **floor} for j in range(tasks)
        ],
        "region": []
        if keep is None
        else [
            {
                "sum_of_radii": 5e4 * math.exp(-1.7 * i) * (1 + seed),
                "log_volume": -5.0,
                "dead": i / 9,
                "mean_radius": 0.1,
            }
            for i in range(tasks)
        ],
    }


def _accuracy(i: int, j: int, rows: int, rng: random.Random) -> float:
    if rows > 1 and j > i:
        return 0.45 + 0.1 * rng.random()
    return 0.995 - 0.02 * (max(i - j, 0)) * rng.random()


def metrics(tasks: int = 5, epochs: int = 8, certifies: bool = True) -> list[Record]:
    """The lines of metrics.jsonl."""
    out: list[Record] = []
    for index in range(tasks):
        for phase in ("centres", "radii") if certifies else ("train",):
            for epoch in range(1, epochs + 1):
                part = epoch / epochs
                line = {"event": "epoch", "task": PAIRS[index], "index": index, "phase": phase, "epoch": epoch}
                line |= {"epochs": epochs, "loss": 0.7 * math.exp(-3 * part) + 0.02, "accuracy": 0.6 + 0.39 * part}
                out.append(line | ({"certified": 0.9 * part} if phase == "radii" else {}))
        out.append({"event": "task", "task": PAIRS[index], "index": index, "accuracy": [0.9], "seconds": 1.2})
    return out


def write_run(folder: Path, content: Record, lines: list[Record] | None = None) -> Path:
    """A run folder; with lines, metrics for every seed."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(content))
    (folder / "config.json").write_text("{}")
    for seed in content["seeds"] if lines else ():
        (folder / f"seed-{seed['seed']}").mkdir()
        text = "".join(json.dumps(line) + "\n" for line in lines or ())
        (folder / f"seed-{seed['seed']}" / "metrics.jsonl").write_text(text)
    return folder
