"""Memory aware synapses (Aljundi et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from intercontinet.bounds import Network
from intercontinet.engine.loop import Batch, Fixed, Listener, Objective, Parameters
from intercontinet.learners.anchored import learn_anchored, only_here, summed_gradients
from intercontinet.learners.method import Lesson, Memory, Nets, Schedule, hits


@final
@dataclass(frozen=True)
class MAS(Schedule):
    r""":math:`\ell(\theta) + \lambda \sum_i \Omega_i (\theta_i - \theta^*_i)^2`, around the latest weights.

    :math:`\Omega` grows after each task by the absolute gradient of each batch's mean squared output, summed over the
    batches: how much an output would change with the weight, whatever the labels.

    Attributes:
        strength: :math:`\lambda`.
        decay: What the old :math:`\Omega` is multiplied by before the new one is added.
    """

    strength: float = 1.0
    decay: float = 1.0

    def learn(
        self, nets: Nets, weights: Tensor, memory: Memory, lesson: Lesson, listen: Listener | None = None
    ) -> tuple[Tensor, Memory]:
        weights = learn_anchored(self, nets, weights, memory, lesson, listen)
        _, classes = lesson.labels()
        objective = output_size(nets.network, classes)
        strength = self.strength * summed_gradients(nets, weights, lesson, objective, 1, self.batch_size)
        if memory:
            strength = self.decay * memory["curvature"] + strength
        return weights, only_here(strength, weights)


def output_size(network: Network, classes: Tensor | None) -> Objective:
    """Mean squared output."""

    def objective(weights: Parameters, fixed: Fixed, batch: Batch) -> tuple[Tensor, Tensor]:
        out = network.run(weights, batch["x"])
        out = out if classes is None else out[:, classes]
        return out.square().mean(), hits(out, batch["y"])

    return objective
