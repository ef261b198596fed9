"""What a method's memory says of its promises: floors, outputs that were left out, and the room that remains."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from torch import Tensor

from intercontinet.engine.loop import LEARNED, Progress
from intercontinet.floor import TaskFloor
from intercontinet.learners.method import Lesson, Memory, earlier
from intercontinet.region import Region
from intercontinet.study.summary import Line


def floor_record(
    memory: Memory, row: int, lesson: Lesson, keep: float | None, drift: float | None = None
) -> Line | None:
    """What a seed promises of a task, as its line has it, or None where the method promises nothing."""
    if "certified" not in memory:
        return None
    certified, correct = (int(memory[name][row, lesson.index]) for name in ("certified", "correct"))
    unseen = unseen_counts(memory, row, lesson.index)
    floor = TaskFloor(lesson.name, certified, len(lesson.x), correct, lesson.classes, keep, "", *unseen)
    record = {
        "task": floor.task,
        "certified": certified,
        "total": floor.total,
        "correct": correct,
        "accuracy": floor.accuracy,
        "kept": floor.kept and bool(earlier(memory, "enough")[row, lesson.index]),
    }
    if outputs := left_out(memory, row, lesson.index):
        record["left_out"] = outputs
    if drift is not None:
        record["drift"] = drift
    if floor.unseen_floor is not None:
        record |= {"unseen_certified": unseen[0], "unseen_total": unseen[1], "unseen_floor": floor.unseen_floor}
    return record


def unseen_counts(memory: Memory, row: int, index: int) -> tuple[int, int] | tuple[None, None]:
    """Of the task's examples that shaped nothing, how many are certain, and how many there are."""
    if "unseen_total" not in memory or not int(memory["unseen_total"][row, index]):
        return None, None
    return int(memory["unseen_certified"][row, index]), int(memory["unseen_total"][row, index])


def left_out(memory: Memory, row: int, index: int) -> list[int]:
    """Outputs that a seed found no room for in a task."""
    return memory["left_out"][row, index].nonzero().flatten().tolist() if "left_out" in memory else []


def size_record(region: Region | None, names: tuple[str, ...]) -> Line | None:
    """How large a region is in the tensors of these names, as a task's line has it."""
    if region is None:
        return None
    size = region.size(names)
    return {
        "sum_of_radii": size.radii,
        "log_volume": size.log_volume,
        "dead": size.dead,
        "mean_radius": size.mean_radius,
    }


def words_on_left_out(memory: Memory, lesson: Lesson, seeds: Sequence[int]) -> Iterator[str]:
    """Of outputs that were not learned, which a floor of nothing would hide."""
    for row, seed in enumerate(seeds):
        if outputs := left_out(memory, row, lesson.index):
            names = ", ".join(map(str, outputs))
            yield f"too little room was left for output(s) {names} of task {lesson.name}, seed {seed}: not learned"


def words_on_broken(lines: Sequence[Line], seeds: Sequence[int]) -> Iterator[str]:
    """Of a promise that was not kept, which is never passed over."""
    floors = zip(seeds, (line["floor"] for line in lines), strict=True)
    if broken := [seed for seed, floor in floors if floor is not None and not floor["kept"]]:
        yield f"not certified as promised: task {lines[0]['task']}, seed(s) {', '.join(map(str, broken))}"


def progress_of(lines: Sequence[Line], weights: Tensor) -> Progress:
    """What a listener hears once promises were made true: what is certain now, and accuracy, of the training set.

    Args:
        lines: The task's line of every seed.
        weights: [seeds, entries].
    """
    floors = [line["floor"] for line in lines]
    shares = tuple((floor["certified"] / floor["total"], floor["correct"] / floor["total"]) for floor in floors)
    return Progress(LEARNED, 1, 1, (math.nan,) * len(lines), shares, 0.0, weights, lines[0]["task"])
