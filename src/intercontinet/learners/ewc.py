"""Elastic weight consolidation (Kirkpatrick et al. 2017), and its online form (Schwarz et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch.nn.functional as F
from torch import Tensor

from intercontinet.engine.loop import Listener
from intercontinet.learners.anchored import check_decay, importance, kept, learn_anchored
from intercontinet.learners.method import Lesson, Memory, Nets, Schedule


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
        augmented: Whether importances are counted on examples as training sees them, flipped and cropped at random, as
            in the paper's code.
    """

    strength: float = 2048.0
    online: bool = False
    decay: float = 1.0
    augmented: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay(self.online, self.decay)

    def learn(
        self, nets: Nets, weights: Tensor, memory: Memory, lesson: Lesson, listen: Listener | None = None
    ) -> tuple[Tensor, Memory]:
        weights = learn_anchored(self, nets, weights, memory, lesson, listen)
        found = importance(nets, weights, lesson, surprise, 2, self.batch_size, self.augmented)
        return weights, kept(memory, self.strength * found, weights, self.online, self.decay)


def surprise(out: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy with the net's own predictions as labels."""
    return F.cross_entropy(out, out.detach().argmax(1))
