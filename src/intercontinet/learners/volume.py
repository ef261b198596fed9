r"""A region as large as its promise allows: log-volume rewarded, with a weight that holds the floor at ``keep``.

.. math::
    \min_d \; \ell(d) - \lambda \sum_k b_k \, \mathrm{mean} \log d_k,

where :math:`d_k` are the distances of layer k's edges from their weights, :math:`b_k` is that layer's budget and
:math:`\ell` the worst-case loss. The weight :math:`\lambda` is trained beside them: it rises while more than ``keep``
of a batch's accuracy is certain, and falls while less is. Everything is learned by its logarithm: a distance of 0.001
grows or shrinks as readily as one of 0.1, where the logistic function of the paper hardly moves.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from intercontinet.engine.loop import Batch, Fixed, Objective, Parameters, Statistics
from intercontinet.engine.parametrisation import Exponential

WEIGHT = "weight of the reward"
LEAST = 1e-8  # distance
WEIGHTS = (1e-5, 20.0)  # between which the reward's weight stays
FIRST_WEIGHT = 0.001  # by the time that distances are too large it has grown to about the right size
FIRST_SHARE = 0.003  # of the largest distance: small enough for most examples to be certain, or no gradient says how


def logarithms(largest: Tensor) -> tuple[Exponential, Tensor]:
    """How distances up to the largest, [seeds, entries], and after them the reward's weight, are learned.

    Returns:
        The way from values to them, and the values to start with, [seeds, entries + 1].
    """
    weight = torch.ones_like(largest[:, :1])
    least = torch.cat([torch.full_like(largest, LEAST), WEIGHTS[0] * weight], dim=1)
    most = torch.cat([largest, WEIGHTS[1] * weight], dim=1)
    first = torch.cat([FIRST_SHARE * largest, FIRST_WEIGHT * weight], dim=1)
    return Exponential(least, most), torch.maximum(first, least).log()


def volume_objective(worst: Objective, layers: Mapping[tuple[str, ...], float], keep: float) -> Objective:
    """A worst-case objective, less the reward for room.

    Args:
        worst: Of distances by name; its statistics are worst-case accuracy and accuracy.
        layers: The budget of each layer, given by the names of its distances.
        keep: Share of the accuracy that is to be certain.
    """

    def objective(parameters: Parameters, fixed: Fixed, batch: Batch) -> tuple[Tensor, Statistics]:
        weight = parameters[WEIGHT]
        distances = {name: tensor for name, tensor in parameters.items() if name != WEIGHT}
        loss, statistics = worst(distances, fixed, batch)
        certain, right = shares = statistics()
        spare = torch.sign(certain - keep * right).detach()
        for names, budget in layers.items():
            logs = [distances[name].clamp(min=LEAST).log() for name in names]
            mean = sum(part.sum() for part in logs) / sum(part.numel() for part in logs)
            loss = loss - weight.detach() * budget * mean
        return loss - spare * weight.log(), lambda: shares  # by the logarithm of the weight, the gradient is -spare

    return objective
