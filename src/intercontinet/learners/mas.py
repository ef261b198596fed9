"""Memory aware synapses (Aljundi et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from intercontinet.engine.loop import Listener
from intercontinet.learners.anchored import check_decay, importance, kept, learn_anchored
from intercontinet.learners.method import Lesson, Memory, Nets, Schedule


@final
@dataclass(frozen=True)
class MAS(Schedule):
    r""":math:`\ell(\theta) + \lambda \sum_i \Omega_i (\theta_i - \theta^*_i)^2`, around the latest weights.

    Or a sum of such penalties, one a task, each around the weights that its task ended with.

    :math:`\Omega` grows after each task by the absolute gradient of each batch's mean squared output, summed over the
    batches: how much an output would change with the weight, whatever the labels.

    Attributes:
        strength: :math:`\lambda`.
        online: One penalty for all tasks, instead of one a task.
        decay: What the old :math:`\Omega` is multiplied by before the new one is added, online.
        augmented: Whether importances are counted on examples as training sees them, flipped and cropped at random, as
            in the paper's code.
    """

    strength: float = 1.0
    online: bool = True
    decay: float = 1.0
    augmented: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay(self.online, self.decay)

    def learn(
        self, nets: Nets, weights: Tensor, memory: Memory, lesson: Lesson, listen: Listener | None = None
    ) -> tuple[Tensor, Memory]:
        weights = learn_anchored(self, nets, weights, memory, lesson, listen)
        found = importance(nets, weights, lesson, output_size, 1, self.batch_size, self.augmented)
        return weights, kept(memory, self.strength * found, weights, self.online, self.decay)


def output_size(out: Tensor, labels: Tensor) -> Tensor:
    """Mean squared output, whatever the labels."""
    return out.square().mean()
