"""No defence against forgetting: SGD or Adam on each task in turn; and, as a ceiling, on all tasks at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from intercontinet.bounds import Network
from intercontinet.engine.loop import Batch, Fixed, Listener, Objective, Parameters, Statistics
from intercontinet.learners.method import Lesson, Memory, Nets, Schedule, cross_entropy, hits, trained


@final
@dataclass(frozen=True)
class Plain(Schedule):
    """Cross-entropy on the task at hand, whatever it does to the others."""

    def learn(
        self, nets: Nets, weights: Tensor, memory: Memory, lesson: Lesson, listen: Listener | None = None
    ) -> tuple[Tensor, Memory]:
        _, classes = lesson.labels()
        phase = nets.phase("train", cross_entropy(nets.network, classes), self.plan())
        return trained(nets, phase, weights, lesson, listen), memory


@final
@dataclass(frozen=True)
class Offline(Schedule):
    """All tasks as one: what a net could learn if it never had to remember. Its one lesson holds all examples.

    Attributes:
        epochs: Passes over all tasks' data.
        heads: The outputs of each task, where an example's task is known; among them its label picks its own.
    """

    epochs: int = 100
    heads: tuple[tuple[int, ...], ...] = ()

    def learn(
        self, nets: Nets, weights: Tensor, memory: Memory, lesson: Lesson, listen: Listener | None = None
    ) -> tuple[Tensor, Memory]:
        objective = (
            _own_heads(nets.network, self.heads, weights.device) if self.heads else cross_entropy(nets.network, None)
        )
        return trained(nets, nets.phase("train", objective, self.plan()), weights, lesson, listen), memory


def _own_heads(network: Network, heads: tuple[tuple[int, ...], ...], device: torch.device) -> Objective:
    """Cross-entropy of each example among the outputs of its own task."""
    outputs = 1 + max(max(head) for head in heads)
    others = torch.ones(outputs, outputs, dtype=torch.bool)
    for head in heads:
        for label in head:
            others[label, list(head)] = False
    others = others.to(device)

    def objective(weights: Parameters, fixed: Fixed, batch: Batch) -> tuple[Tensor, Statistics]:
        out = network.run(weights, batch["x"], batch.get("noise"))[:, :outputs]  # any further ones are no task's
        out = out.masked_fill(others[batch["y"]], -torch.inf)
        return F.cross_entropy(out, batch["y"]), lambda: hits(out, batch["y"])

    return objective
