"""What a run found, in the form that tables and plots are made from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from intercontinet.engine.loop import Progress
from intercontinet.region import RegionSize
from intercontinet.report.record import METHODS
from intercontinet.tasks import Scenario


@dataclass(frozen=True)
class TaskResult:
    """What became of one task. Accuracies and floors are shares of its training set, unless they say test.

    Attributes:
        task: Its name.
        after: Accuracy just after learning it.
        now: Accuracy after the last task.
        test: Accuracy on its test set, after the last task.
        floor: What every weight in its region gets right at least.
        attacked: Accuracy of the worst weights that an attack found in that region.
        certified: Number of certain examples.
        total: Number of examples.
        kept: Whether the floor is as high as was promised.
        radii: Mean radius of each layer's weights after the task.
        region: Size of the whole region after the task.
    """

    task: str
    after: float
    now: float
    test: float
    floor: float
    attacked: float
    certified: int
    total: int
    kept: bool
    radii: dict[str, float]
    region: RegionSize


@dataclass(frozen=True)
class ScenarioResult:
    """All tasks of a scenario, in order, as one method learned them.

    Attributes:
        scenario: Which.
        method: Its key in :data:`~intercontinet.report.record.METHODS`.
        keep: Share of each task's accuracy that was promised.
        tasks: What became of each.
    """

    scenario: Scenario
    method: str
    keep: float
    tasks: list[TaskResult]

    @property
    def name(self) -> str:
        """What people call the method."""
        return METHODS[self.method]

    @property
    def average_test(self) -> float:
        """Mean test accuracy over all tasks, after the last one."""
        return self.average(lambda task: task.test)

    def average(self, figure: Callable[[TaskResult], float]) -> float:
        """Mean of a figure over all tasks."""
        return sum(map(figure, self.tasks)) / len(self.tasks)


def epoch_record(progress: Progress, row: int) -> dict[str, object]:
    """One line of metrics.jsonl: what one seed, by its row in the stack, has come to after an epoch."""
    figures = progress.statistics[row]
    record: dict[str, object] = {
        "event": "epoch",
        "task": progress.task,
        "phase": progress.phase,
        "epoch": progress.epoch,
        "epochs": progress.epochs,
        "loss": progress.loss[row] if math.isfinite(progress.loss[row]) else None,
        "accuracy": figures[-1],
    }
    return {**record, "certified": figures[0]} if progress.phase == "radii" else record
