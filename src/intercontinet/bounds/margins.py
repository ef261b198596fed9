r"""Worst-case margins: how far another class can get above the right one, over all weights of a box.

``margins[i, j]`` bounds :math:`z_j - z_y` from above for example i with label y; entry y itself is zero. Example i is
certain when all others are negative. Since cross-entropy depends on differences alone, ``cross_entropy(margins, y)``
is the worst-case loss.

Two forms. *Separate*, the paper's definition: :math:`\bar z_j - \underline z_y`. *Joint*: through a last linear layer,
:math:`z_j - z_y = (W_j - W_y) h + b_j - b_y` is one expression in the same h, bounded as one. h cannot be high for j
and low for y at once, so the joint form is never looser.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from intercontinet.bounds.arithmetic import NUDGE, Arithmetic
from intercontinet.bounds.forward import Chain, Forward
from intercontinet.bounds.linear import MatrixProduct
from intercontinet.bounds.network import Network
from intercontinet.bounds.product import multiply
from intercontinet.interval import Interval

Boxes = Mapping[str, Interval]


def worst_margins(
    network: Network,
    boxes: Boxes,
    x: Interval,
    labels: Tensor,
    arithmetic: Arithmetic,
    classes: Tensor | None = None,
    joint: bool = True,
) -> Tensor:
    """:func:`leads` of a batch [batch, ...] through a chain of layers."""
    return leads(Chain(network, x), boxes, labels, arithmetic, classes, joint)


def leads(
    batch: Forward,
    boxes: Boxes,
    labels: Tensor,
    arithmetic: Arithmetic,
    classes: Tensor | None = None,
    joint: bool = True,
) -> Tensor:
    """Upper bounds of every class's lead over the right one.

    Args:
        batch: Examples on their way through a model.
        boxes: Parameter intervals by name.
        labels: Right classes, [batch], as positions in ``classes``.
        arithmetic: How to round.
        classes: Outputs that take part, [classes]; all of them by default.
        joint: Whether to bound the difference as one expression, where the last layer is linear.

    Returns:
        [batch, classes].
    """
    if joint and batch.ends_linear:
        hidden, weight, bias = batch.head(boxes, arithmetic)
        if classes is not None:
            weight, bias = weight[classes], None if bias is None else bias[classes]
        return joint_margins(hidden, weight, bias, labels, arithmetic)
    logits = batch.outputs(boxes, arithmetic)
    lower, upper = (
        (logits.lower, logits.upper) if classes is None else (logits.lower[:, classes], logits.upper[:, classes])
    )
    return _without_own(upper - lower.gather(1, labels[:, None]), labels)


def joint_margins(
    hidden: Interval, weight: Interval, bias: Interval | None, labels: Tensor, arithmetic: Arithmetic
) -> Tensor:
    """[batch, features] through one linear layer -> [batch, classes].

    When rounding counts, examples are grouped by label, so that each is multiplied by one class's differences only; in
    training all pairs of classes are multiplied at once, which needs no look at the labels' values.
    """
    classes = weight.shape[0]
    if not arithmetic.sound:
        pairs = _lead(hidden, weight, bias, torch.arange(classes, device=labels.device), arithmetic)
        own = pairs.gather(1, labels[:, None, None].expand(-1, 1, classes))
        return _without_own(own.squeeze(1), labels)
    out = torch.full((len(labels), classes), torch.nan, dtype=weight.lower.dtype, device=labels.device)
    for label in torch.unique(labels):
        rows = (labels == label).nonzero().squeeze(1)
        out[rows] = _lead(hidden[rows], weight, bias, label[None], arithmetic).squeeze(1)
    return _without_own(out, labels)


def _lead(hidden: Interval, weight: Interval, bias: Interval | None, right: Tensor, arithmetic: Arithmetic) -> Tensor:
    """Upper bound of z_j - z_y for each y in ``right`` and every class j: [batch, right, classes]."""
    classes, features = weight.shape
    above = (weight.upper[None] - weight.lower[right][:, None]).reshape(-1, features)
    if weight.is_point or hidden.nonnegative:  # for h >= 0 the upper edge of D h depends on the upper edge of D alone
        difference = Interval.point(above)
    else:
        below = (weight.lower[None] - weight.upper[right][:, None]).reshape(-1, features)
        difference = Interval(below, above)
    lead = multiply(MatrixProduct(), hidden, difference, arithmetic.exact).upper.reshape(-1, len(right), classes)
    if bias is not None:
        lead = lead + (bias.upper[None] - bias.lower[right][:, None])

    def magnitude() -> Tensor:
        size = MatrixProduct()(hidden.magnitude + NUDGE, weight.magnitude + NUDGE)
        size = size if bias is None else size + bias.magnitude
        return size[:, None] + size[:, right][..., None]  # each logit rounds on its own

    bound = arithmetic.products(Interval.point(lead), magnitude, terms=features + 1)
    return bound.upper


def _without_own(margins: Tensor, labels: Tensor) -> Tensor:
    return margins.scatter(1, labels[:, None], 0.0)


def certain(margins: Tensor, labels: Tensor) -> Tensor:
    """Which examples no weight of the box can get wrong, [batch]. A tie is wrong, and so is NaN."""
    others = margins.scatter(1, labels[:, None], -torch.inf)
    return (others < 0).all(dim=1)
