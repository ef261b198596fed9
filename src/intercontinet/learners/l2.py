"""L2: every weight is pulled towards where it was after each earlier task, all alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from intercontinet.engine.loop import Listener
from intercontinet.learners.anchored import learn_anchored, one_more
from intercontinet.learners.method import Lesson, Memory, Nets, Schedule


@final
@dataclass(frozen=True)
class L2(Schedule):
    r""":math:`\ell(\theta) + \lambda \sum_k \lVert\theta - \theta_k\rVert^2`; in a task's own head only rows it used.

    Attributes:
        strength: :math:`\lambda`.
    """

    strength: float = 0.1

    def learn(
        self, nets: Nets, weights: Tensor, memory: Memory, lesson: Lesson, listen: Listener | None = None
    ) -> tuple[Tensor, Memory]:
        weights = learn_anchored(self, nets, weights, memory, lesson, listen)
        return weights, one_more(memory, self.strength * _used(nets, lesson).to(weights).expand_as(weights), weights)


def _used(nets: Nets, lesson: Lesson) -> Tensor:
    """Ones for the weights that this task can have moved, [entries]: other tasks' rows of the head are not."""
    used = {name: torch.ones(shape, device=lesson.x.device) for name, shape in nets.layout.shapes.items()}
    head = nets.network.head
    if lesson.classes is not None and head is not None:
        for name in head.names.values():
            if name in used:
                used[name].zero_()[list(lesson.classes)] = 1
    return nets.layout.flatten(used)
