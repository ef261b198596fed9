r"""The mathematics of Hyperrectangle Training, as pure functions of one seed's parameter vector and a batch.

Inside a parent box around the last weights :math:`W^*`:

.. math::
    \varepsilon^* = \min(W^* - \underline W^*,\; \overline W^* - W^*), \qquad
    W = W^* + \varepsilon^* \tanh(\mu / \varepsilon^*), \qquad
    \varepsilon = \sigma(\nu) \min(\overline W^* - W,\; W - \underline W^*).

No :math:`\mu` or :math:`\nu` leads out of the parent. Where the parent is infinite (before the first task, and in the
head of a task not yet learned) :math:`W = W^* + \mu`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from intercontinet.bounds import Network, Real, certain, worst_margins
from intercontinet.engine.loop import Batch, Fixed, Objective, Parameters
from intercontinet.engine.parametrisation import Identity, InBox, Parametrisation
from intercontinet.interval import Interval

Shift = Literal["scaled", "plain"]


def room(weights: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Largest radius that fits round each weight inside its parent.

    >>> room(torch.tensor([0.0, 1.0]), torch.tensor([-1.0, 0.0]), torch.tensor([3.0, 1.0]))
    tensor([1., 0.])
    """
    return torch.minimum(upper - weights, weights - lower).clamp(min=0)


def centres_inside(weights: Tensor, lower: Tensor, upper: Tensor, shift: Shift) -> tuple[Parametrisation, Tensor]:
    """How centres move inside their parent, [seeds, entries], and the value of mu that stands for ``weights``.

    "scaled" is tanh(mu / eps*), "plain" the tanh(mu) of the paper's text.

    >>> box, mu = centres_inside(torch.zeros(1, 2), torch.full((1, 2), -0.5), torch.full((1, 2), 0.5), "scaled")
    >>> box.decode(mu + 100)
    tensor([[0.5000, 0.5000]])
    """
    reach = room(weights, lower, upper)
    free = reach.isinf()
    if bool(free.all()):
        return Identity(), weights
    reach = torch.where(free, 0, reach)
    mask = free.to(weights.dtype) if bool(free.any()) else None
    return InBox(weights, reach, None if shift == "scaled" else 1.0, mask), torch.zeros_like(weights)


def radii_objective(
    network: Network, points: Mapping[str, Interval], frozen: Collection[str], classes: Tensor | None, joint: bool
) -> Objective:
    """Worst-case cross-entropy over the box that the fixed centres and the radii span.

    Its statistics are worst-case accuracy and accuracy on the batch.

    Args:
        network: The model's steps.
        points: Intervals of what does not train: buffers, parameters that never move.
        frozen: Names among the trained parameters whose radii are zero: the head of a task.
        classes: Outputs that take part.
        joint: The form of the margins.
    """
    arithmetic = Real()

    def objective(radii: Parameters, fixed: Fixed, batch: Batch) -> tuple[Tensor, Tensor]:
        boxes = {name: Interval.around(fixed[name], radius) for name, radius in radii.items()}
        boxes |= {name: Interval.point(fixed[name]) for name in frozen} | dict(points)
        margins = worst_margins(network, boxes, Interval.point(batch["x"]), batch["y"], arithmetic, classes, joint)
        hits = certain(margins.detach(), batch["y"]).to(margins.dtype).mean()
        return F.cross_entropy(margins, batch["y"]), torch.stack([hits, batch["right"].to(margins.dtype).mean()])

    return objective
