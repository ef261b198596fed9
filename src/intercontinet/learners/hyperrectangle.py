r"""The mathematics of Hyperrectangle Training, as pure functions of one seed's parameter vector and a batch.

Inside a parent box around the last weights :math:`W^*`:

.. math::
    \varepsilon^* = \min(W^* - \underline W^*,\; \overline W^* - W^*), \qquad
    W = W^* + \varepsilon^* \tanh(\mu / \varepsilon^*), \qquad
    \varepsilon = \sigma(\nu) \min(\overline W^* - W,\; W - \underline W^*).

No :math:`\mu` or :math:`\nu` leads out of the parent. Where the parent is infinite (before the first task, and in the
head of a task not yet learned) :math:`W = W^* + \mu`.

Edges need not lie symmetrically: a box may then reach further above its weight than below, and centres that are clamped
into their parent, instead of held within :math:`\varepsilon^*` of :math:`W^*`, can use all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from intercontinet.bounds import Network, Real, certain, worst_margins
from intercontinet.engine.loop import Batch, Fixed, Objective, Parameters, Statistics
from intercontinet.engine.parametrisation import Clamped, Identity, InBox, Parametrisation
from intercontinet.interval import Interval

Shift = Literal["scaled", "plain", "clamped"]
Loss = Callable[[Tensor, Tensor], Tensor]
BELOW, ABOVE = "below ", "above "  # before the names of asymmetric distances
SLOPE = 0.3  # of the soft count, per unit of margin


def room(weights: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Largest radius that fits round each weight inside its parent.

    >>> room(torch.tensor([0.0, 1.0]), torch.tensor([-1.0, 0.0]), torch.tensor([3.0, 1.0]))
    tensor([1., 0.])
    """
    return torch.minimum(upper - weights, weights - lower).clamp(min=0)


def centres_inside(weights: Tensor, lower: Tensor, upper: Tensor, shift: Shift) -> tuple[Parametrisation, Tensor]:
    """How centres move inside their parent, [seeds, entries], and the values that stand for ``weights``.

    "scaled" is tanh(mu / eps*), "plain" the tanh(mu) of the paper's text, "clamped" mu itself, clamped into the parent.

    >>> box, mu = centres_inside(torch.zeros(1, 2), torch.full((1, 2), -0.5), torch.full((1, 2), 0.5), "scaled")
    >>> box.decode(mu + 100)
    tensor([[0.5000, 0.5000]])
    """
    reach = room(weights, lower, upper)
    free = reach.isinf()
    if bool(free.all()):
        return Identity(), weights
    if shift == "clamped":
        return Clamped(lower, upper), weights
    reach = torch.where(free, 0, reach)
    mask = free.to(weights.dtype) if bool(free.any()) else None
    return InBox(weights, reach, None if shift == "scaled" else 1.0, mask), torch.zeros_like(weights)


def lost(margins: Tensor, labels: Tensor) -> Tensor:
    """A soft count of the examples that are not certain, as a share: unlike cross-entropy, bounded for each of them.

    Of what cannot be kept anyway it asks nothing, so that a region which needs to keep only some has more room.

    >>> lost(torch.tensor([[0.0, -100.0], [0.0, 100.0]]), torch.tensor([0, 0]))
    tensor(0.5000)
    """
    worst = margins.scatter(1, labels[:, None], -torch.inf).amax(1)
    return torch.sigmoid(SLOPE * worst).mean()


def radii_objective(
    network: Network,
    points: Mapping[str, Interval],
    frozen: Collection[str],
    classes: Tensor | None,
    joint: bool,
    loss: Loss = F.cross_entropy,
) -> Objective:
    """Worst-case loss over the box that the fixed centres and the trained distances of its edges span.

    A parameter's distances go by its name, or, where they differ, by that name after ``BELOW`` and ``ABOVE``. The
    statistics are worst-case accuracy and accuracy on the batch.

    Args:
        network: The model's steps.
        points: Intervals of what does not train: buffers, parameters that never move.
        frozen: Names among the trained parameters whose radii are zero: the head of a task.
        classes: Outputs that take part.
        joint: The form of the margins.
        loss: Of worst-case margins [batch, classes] and labels [batch].
    """
    arithmetic = Real()

    def objective(distances: Parameters, fixed: Fixed, batch: Batch) -> tuple[Tensor, Statistics]:
        boxes = {name: _box(centre, distances, name) for name, centre in fixed.items() if name not in frozen}
        boxes |= {name: Interval.point(fixed[name]) for name in frozen} | dict(points)
        margins = worst_margins(network, boxes, Interval.point(batch["x"]), batch["y"], arithmetic, classes, joint)

        def statistics() -> Tensor:
            hits = certain(margins.detach(), batch["y"]).to(margins.dtype).mean()
            return torch.stack([hits, batch["right"].to(margins.dtype).mean()])

        return loss(margins, batch["y"]), statistics

    return objective


def _box(centre: Tensor, distances: Parameters, name: str) -> Interval:
    if name in distances:
        return Interval.around(centre, distances[name])
    return Interval(centre - distances[BELOW + name], centre + distances[ABOVE + name])
