"""From what was noted of a seed, task by task, to its part of the record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from intercontinet.report import metrics

Line = dict[str, Any]
# Where examples were held back, where the floor holds for frozen layers that compute nearly the same, where outputs
# found no room, and where it was argued with.
_WHERE_THERE = ("unseen_certified", "unseen_total", "unseen_floor", "drift", "left_out", "argued")


def seed_record(seed: int, initial: Sequence[float], lines: Sequence[Line], curves: bool) -> Line:
    """One seed of a record.

    Args:
        seed: Its number.
        initial: Accuracy on every task before any learning.
        lines: All that was noted of it, as in metrics.jsonl.
        curves: Whether to keep what was measured after every epoch.
    """
    tasks = [line for line in lines if line["event"] == "task"]
    matrix = [line["accuracy"] for line in tasks]
    record: Line = {
        "seed": seed,
        "seconds": sum(line["seconds"] for line in tasks),
        "initial_accuracy": list(initial),
        "accuracy_matrix": matrix,
        "average_accuracy": metrics.average_accuracy(matrix) if matrix else None,
        "forgetting": metrics.forgetting(matrix) if matrix else None,
        "backward_transfer": metrics.backward_transfer(matrix) if matrix else None,
        "forward_transfer": metrics.forward_transfer(matrix, initial) if matrix else None,
        "negative_flips": [line["negative_flips"] for line in tasks],
        "train_accuracy": [line["train_accuracy"] for line in tasks],
        "floors": [floor for line in tasks for floor in _floors(line)],
        "region": [line["region"] for line in tasks if line["region"] is not None],
    }
    if astray := [line["task"] for line in tasks if line.get("diverged")]:
        record["diverged"] = astray[0]
    if curves:
        record["curve"] = [_curve_point(line) for line in lines if "current" in line]
    return record


def _floors(line: Line) -> list[Line]:
    """One a task learned: what was certain of it then; nothing, for methods that promise nothing."""
    promised = line["floor"] or {"certified": 0, "kept": None}
    return [
        {
            "task": learned["task"],
            "certified": promised["certified"],
            "total": learned["total"],
            "accuracy": learned["accuracy"],
            "kept": promised["kept"],
            **{name: promised[name] for name in _WHERE_THERE if promised.get(name) is not None},
        }
        for learned in line["learned"]
    ]


def _curve_point(line: Line) -> Line:
    names = ("phase", "epoch", "current", "first", "sum_of_radii")
    return {"task": line["index"], **{name: line[name] for name in names}}
