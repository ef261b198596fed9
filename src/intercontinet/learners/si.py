"""Synaptic intelligence (Zenke et al. 2017)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from intercontinet.engine.loop import Listener
from intercontinet.engine.optimizer import PathIntegral
from intercontinet.errors import InvalidSetting
from intercontinet.learners.anchored import learn_anchored, only_here
from intercontinet.learners.method import Lesson, Memory, Nets, Schedule


@final
@dataclass(frozen=True)
class SI(Schedule):
    r""":math:`\ell(\theta) + \frac\lambda2 \sum_i \Omega_i (\theta_i - \theta^*_i)^2`, around the latest weights.

    After a task that took the weights from :math:`\theta_0` to :math:`\theta_1`, each step's gradient times its
    change is summed up along the way, and

    .. math:: \omega \mathrel{+}= \frac{-\sum g\,\Delta\theta}{(\theta_1 - \theta_0)^2 + \epsilon}, \qquad
        \Omega = \min(\omega, \text{limit}).

    As in the paper's experiments, g is the gradient of all that is minimised, and a limit keeps weights that hardly
    moved from being nailed down.

    Attributes:
        strength: :math:`\lambda`.
        damping: :math:`\epsilon`.
        limit: The largest :math:`\Omega`.
    """

    strength: float = 2048.0
    damping: float = 1e-7
    limit: float = 0.001

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.damping < math.inf:
            raise InvalidSetting(f"damping is {self.damping}; it must be a positive number")
        if not self.limit >= 0:
            raise InvalidSetting(f"limit is {self.limit}; it must be zero or more")

    def learn(
        self, nets: Nets, weights: Tensor, memory: Memory, lesson: Lesson, listen: Listener | None = None
    ) -> tuple[Tensor, Memory]:
        path = torch.zeros_like(weights)
        optimizer = PathIntegral(self.plan().optimizer, path)
        learned = learn_anchored(self, nets, weights, memory, lesson, listen, optimizer)
        credit = -path / ((learned - weights).square() + self.damping)
        if memory:
            credit = memory["credit"] + credit
        strength = self.strength / 2 * credit.clamp(max=self.limit)
        return learned, {**only_here(strength, learned), "credit": credit}
