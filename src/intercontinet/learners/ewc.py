"""Elastic weight consolidation (Kirkpatrick et al. 2017), and its online form (Schwarz et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch.nn.functional as F
from torch import Tensor

from intercontinet.bounds import Network
from intercontinet.engine.loop import Batch, Fixed, Listener, Objective, Parameters
from intercontinet.learners.anchored import learn_anchored, one_more, only_here, summed_gradients
from intercontinet.learners.method import Lesson, Memory, Nets, Schedule, hits


@final
@dataclass(frozen=True)
class EWC(Schedule):
    r""":math:`\ell(\theta) + \lambda \sum_k \sum_i F_{k,i} (\theta_i - \theta_{k,i})^2`.

    F is the empirical Fisher information as the paper's experiments count it: after a task, the squared gradient of
    each batch's cross-entropy with the net's own predictions as labels, summed over the batches.

    Attributes:
        strength: :math:`\lambda`.
        online: One penalty around the latest weights, its F the sum of all, instead of one penalty a task.
        decay: What the old F is multiplied by before the new one is added, online.
    """

    strength: float = 2048.0
    online: bool = False
    decay: float = 1.0

    def learn(
        self, nets: Nets, weights: Tensor, memory: Memory, lesson: Lesson, listen: Listener | None = None
    ) -> tuple[Tensor, Memory]:
        weights = learn_anchored(self, nets, weights, memory, lesson, listen)
        _, classes = lesson.labels()
        objective = surprise(nets.network, classes)
        strength = self.strength * summed_gradients(nets, weights, lesson, objective, 2, self.batch_size)
        if not self.online:
            return weights, one_more(memory, strength, weights)
        if memory:
            strength = self.decay * memory["curvature"] + strength
        return weights, only_here(strength, weights)


def surprise(network: Network, classes: Tensor | None) -> Objective:
    """Cross-entropy with the net's own predictions as labels."""

    def objective(weights: Parameters, fixed: Fixed, batch: Batch) -> tuple[Tensor, Tensor]:
        out = network.run(weights, batch["x"])
        out = out if classes is None else out[:, classes]
        return F.cross_entropy(out, out.detach().argmax(1)), hits(out, batch["y"])

    return objective
