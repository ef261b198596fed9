"""Records of runs that never happened, small and complete."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from intercontinet.report.metrics import average_accuracy, backward_transfer, forgetting, forward_transfer
from intercontinet.report.record import Record, read_record
from intercontinet.study.store import save_record

TASKS = ("0/1", "2/3")
PROMISING = ("intercontinet", "intercontinet-published")


def seed_record(
    seed: int = 0,
    final: float = 0.9,
    certified: Sequence[int] | None = None,
    kept: Sequence[bool] | None = None,
    tasks: Sequence[str] = TASKS,
    rows: int | None = None,
    curve: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """A seed whose accuracy is ``final`` on every task in the end and a little more before; 100 examples a task."""
    count = len(tasks)
    rows = count if rows is None else rows
    matrix = [
        [min(final + 0.01 * (rows - 1 - i), 1.0) if j <= i or rows == 1 else 0.5 for j in range(count)]
        for i in range(rows)
    ]
    initial = [0.5] * count
    found: dict[str, Any] = {
        "seed": seed,
        "seconds": 2.0,
        "initial_accuracy": initial,
        "accuracy_matrix": matrix,
        "average_accuracy": average_accuracy(matrix),
        "forgetting": forgetting(matrix),
        "backward_transfer": backward_transfer(matrix),
        "forward_transfer": forward_transfer(matrix, initial),
        "negative_flips": [0.0] * rows,
        "train_accuracy": [0.95] * count,
        "floors": [
            {
                "task": task,
                "certified": 0 if certified is None else certified[i],
                "total": 100,
                "accuracy": 0.95,
                "kept": None if certified is None else kept is None or kept[i],
            }
            for i, task in enumerate(tasks)
        ],
        "region": [],
    }
    return found if curve is None else {**found, "curve": curve}


def record(seeds: Sequence[Mapping[str, Any]] | None = None, **changes: Any) -> dict[str, Any]:
    """A complete record of EWC on MNIST, with any field changed."""
    method = changes.get("method", "ewc")
    promises = method in PROMISING
    if seeds is None:
        rows = 1 if method == "offline" else None
        seeds = [seed_record(seed, certified=(90, 80) if promises else None, rows=rows) for seed in range(2)]
    return copy.deepcopy(
        {
            "format": "intercontinet run",
            "version": 1,
            "complete": True,
            "dataset": "mnist",
            "scenario": "task",
            "method": method,
            "keep": 0.9 if promises else None,
            "net": "mlp-400-400",
            "tasks": list(TASKS),
            "test_examples": [100 for _ in TASKS],
            "settings": {"epochs": 30, "rate": 0.001},
            "commit": "0123456789abcdef",
            "started": "2026-11-16T10:00:00+00:00",
            "seconds": 4.0,
            "versions": {"intercontinet": "0.2", "python": "3.12.1", "torch": "2.6.0", "numpy": "2.1.0"},
            "hardware": {"device": "cpu", "name": "Some CPU", "cores": 4, "threads": 2, "memory_gib": 16.0},
            **changes,
            "seeds": [dict(seed) for seed in seeds],
        }
    )


def finals(*values: float, **kinds: Any) -> list[dict[str, Any]]:
    """Seeds 0, 1, ... that end at these accuracies."""
    return [seed_record(seed, final, **kinds) for seed, final in enumerate(values)]


def parsed(folder: Path, *contents: Mapping[str, Any]) -> list[Record]:
    """Records as the store reads them back, by way of files in ``folder``."""
    return [read_record(save_record(folder, content)) for content in contents]


def write(path: Path, content: object) -> Path:
    """Any JSON, unchecked."""
    path.write_text(json.dumps(content), encoding="utf-8")
    return path
