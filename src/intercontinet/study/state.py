"""Where a run stands: what is left in its folder after every task, and taken up again."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone

import torch
from torch import Tensor

from intercontinet.learners.method import Memory
from intercontinet.study.summary import Line


@dataclass
class State:
    """Where a run stands after some tasks: all that is needed to go on from there, on the CPU.

    Attributes:
        weights: [seeds, entries].
        memory: What the method carries, [seeds, ...] each.
        initial: Accuracy on every task before any learning, for each seed.
        lines: What happened, for each seed, as in metrics.jsonl.
        done: Tasks learned.
        seconds: Spent learning.
        started: When.
        data: Hashes of the training sets of the tasks learned, where they were asked for.
        tests: Hashes of the test sets of all tasks, where they were asked for.
        origins: Versions, hardware and commit of every process that worked on it, oldest first.
        encoders: Hashes of the seeds' encoders, where they have any.
        digests: Of every training example of the tasks learned, where some are to stay unseen: none may come again.
    """

    weights: Tensor
    memory: Memory
    initial: list[list[float]]
    lines: list[list[Line]]
    done: int = 0
    seconds: float = 0.0
    started: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))
    data: list[str] = field(default_factory=list)
    tests: list[str] = field(default_factory=list)
    origins: list[Line] = field(default_factory=list)
    encoders: list[str] = field(default_factory=list)
    digests: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))

    def tasks(self, seed: int) -> list[Line]:
        """What one seed, by its row, had come to after each task."""
        return [line for line in self.lines[seed] if line["event"] == "task"]
