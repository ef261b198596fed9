"""Hunt for the worst weights inside a region. What it finds is real, so a floor above it would be proven wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intercontinet.criterion import Criterion
from intercontinet.data import Data, collect
from intercontinet.errors import InvalidSetting
from intercontinet.inference import evaluated, logits, outputs
from intercontinet.interval import Interval
from intercontinet.question import Question
from intercontinet.region import Region
from intercontinet.state import second_names

WIDEST = 20.0  # between an example's outputs; exp(-20) is still far from underflow


@final
@dataclass(frozen=True)
class Attack:
    """The worst weights that were found inside a region.

    Attributes:
        accuracy: Accuracy of those weights on the data, as float32 inference computes it.
        weights: The weights, as a state dict for ``model.load_state_dict``.
    """

    accuracy: float
    weights: dict[str, Tensor] = field(repr=False)


def attack(
    model: nn.Module,
    region: Region,
    data: Data,
    seed: int = 0,
    *,
    classes: Sequence[int] | None = None,
    starts: int = 4,
    steps: int = 20,
    batch_size: int = 2048,
    criterion: Criterion | None = None,
) -> Attack:
    """Projected gradient ascent over the weights, from several starts.

    The first start is the model itself (moved into the region), the second the corner that a first-order look calls the
    worst, the fourth the corner of all upper edges, the others random corners. Steps follow the gradient's sign, scaled
    by each weight's room, and shrink; a start ends early where they lead nowhere. Odd starts raise the cross-entropy,
    even ones a smooth count of errors, which does not waste its pull on examples already lost. The whole data is
    counted whenever a batch fares worse than any before, and at the end of a start.

    Args:
        model: The module; unchanged.
        region: Where the weights may roam. Entries with infinite edges stay where they are.
        data: Examples.
        seed: Makes the result reproducible.
        classes: The outputs that take part, as in :func:`~intercontinet.certify`.
        starts: Number of starts.
        steps: Steps from each.
        batch_size: Examples per step, drawn anew each time where there are more.
        criterion: What counts as right, where it is not a class, as in :func:`~intercontinet.certify`.
    """
    if torch.is_inference_mode_enabled():
        raise InvalidSetting("an attack follows gradients, which torch.inference_mode() forbids: call it outside")
    if starts < 1 or steps < 0 or batch_size < 1:
        raise InvalidSetting("starts and batch_size must be at least 1, and steps not negative")
    region = region.with_values(model)
    state = region.check_fits(model)
    question = Question.of(model, collect(data), next(iter(state.values())).device, classes, criterion)
    return worst_found(model, region, state, question, seed, starts, steps, batch_size)


def worst_found(
    model: nn.Module,
    region: Region,
    state: dict[str, Tensor],
    question: Question,
    seed: int = 0,
    starts: int = 4,
    steps: int = 20,
    batch_size: int = 2048,
) -> Attack:
    """:func:`attack` without its checks."""
    examples = question.examples
    generator = torch.Generator().manual_seed(seed)
    box = _Box(region, state)
    if not box.has_room:
        starts, steps = 1, 0  # every start is the same point

    def look(weights: dict[str, Tensor], soft_count: bool) -> tuple[dict[str, Tensor], float]:
        """The gradient of the loss on a batch, and how much of the batch is right."""
        some = question.some(torch.randperm(examples, generator=generator)[:batch_size].to(question.y.device))
        free = {name: weights[name].clone().requires_grad_() for name in box.movable}
        with evaluated(model), torch.enable_grad():
            loss, share = _loss(model, {**weights, **free}, some, soft_count)
            grads: Sequence[Tensor | None] = [None] * len(free)  # where a criterion only says yes or no
            if loss.requires_grad:
                grads = torch.autograd.grad(loss, list(free.values()), allow_unused=True)
        pairs = zip(free, grads, strict=True)
        direction = {name: torch.zeros_like(free[name]) if grad is None else grad for name, grad in pairs}
        return direction, share

    worst, least = None, 1.1
    uncounted = {name: t.clone() for name, t in model.state_dict().items() if not t.is_floating_point()}
    twins = second_names(model)
    for start in range(starts):
        soft_count = start % 2 == 0
        weights = box.nearest(state)
        if start == 1:
            weights = box.step(weights, look(weights, soft_count)[0], 2.0)
        elif start == 3:
            weights = box.top()
        elif start > 1:
            weights = box.corner(generator)
        for step in range(steps + 1):
            direction, seen = look(weights, soft_count)
            promising = seen < least or step == steps  # else the whole data is not worth a look
            least = min(least, seen)
            found = int(question.right(model, weights).sum()) / examples if promising else 1.0
            if worst is None or found < worst.accuracy:
                worst = Attack(found, _whole(weights, twins) | uncounted)
            if step < steps:
                before, weights = weights, box.step(weights, direction, 0.5 * (1 - step / steps))
                if examples <= batch_size and all(torch.equal(before[name], weights[name]) for name in box.movable):
                    break  # the whole data was seen, and pulls no further: so it would go on
    assert worst is not None
    return worst


def _whole(weights: dict[str, Tensor], twins: dict[str, str]) -> dict[str, Tensor]:
    copy = {name: tensor.clone() for name, tensor in weights.items()}
    return copy | {second: copy[first] for second, first in twins.items() if first in copy}


def _loss(model: nn.Module, weights: dict[str, Tensor], question: Question, soft_count: bool) -> tuple[Tensor, float]:
    """What an attack raises on a batch, and how much of the batch is right."""
    if question.criterion is not None:
        slack = question.criterion.slack(Interval.point(outputs(model, weights, question.x)), question.y)
        scale = slack.detach().abs().median().clamp(min=1e-6)
        return torch.sigmoid(-slack / scale).mean(), float((slack.detach() >= 0).double().mean())
    out = logits(model, weights, question.x, question.classes)
    loss = (_soft_errors if soft_count else _cross_entropy)(out, question.y)
    return loss, float((out.detach().argmax(1) == question.y).double().mean())


def _cross_entropy(out: Tensor, labels: Tensor) -> Tensor:
    """Outputs far apart are brought nearer: an output whose share underflows to zero would never be pulled up."""
    spread = (out.detach().amax(1) - out.detach().amin(1)).median()
    return F.cross_entropy(out / (spread / WIDEST).clamp(min=1), labels)


def _soft_errors(out: Tensor, labels: Tensor) -> Tensor:
    own = out.gather(1, labels[:, None])
    rival = out.scatter(1, labels[:, None], -torch.inf).amax(1, keepdim=True)
    lead = rival - own
    return torch.sigmoid(lead / lead.detach().abs().median().clamp(min=1e-6)).mean()


class _Box:
    """The part of a region that can move, and how to move in it."""

    def __init__(self, region: Region, state: dict[str, Tensor]) -> None:
        self.lower, self.upper, self.state = region.lower, region.upper, state
        width = {name: region.upper[name] - region.lower[name] for name in state}
        self.width = {name: torch.where(w.isfinite(), w, 0) for name, w in width.items()}
        roomy = [name for name, w in self.width.items() if bool((w > 0).any())]
        self.has_room, self.movable = bool(roomy), roomy or list(state)[:1]

    def nearest(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: torch.clamp(w, self.lower[name], self.upper[name]) for name, w in weights.items()}

    def step(self, weights: dict[str, Tensor], direction: dict[str, Tensor], size: float) -> dict[str, Tensor]:
        moved = {name: weights[name] + size * self.width[name] * direction[name].sign() for name in direction}
        return self.nearest({**weights, **moved})

    def top(self) -> dict[str, Tensor]:
        """All upper edges: where outputs that the model holds far below the others stand as high as they can."""
        return self._at({name: self.upper[name] for name in self.movable})

    def corner(self, generator: torch.Generator) -> dict[str, Tensor]:
        """A random one."""
        edges = {}
        for name in self.movable:
            up = torch.rand(self.width[name].shape, generator=generator).to(self.width[name].device) < 0.5
            edges[name] = torch.where(up, self.upper[name], self.lower[name])
        return self._at(edges)

    def _at(self, edges: dict[str, Tensor]) -> dict[str, Tensor]:
        """These edges where they are finite, and elsewhere the model's weights."""
        out = self.nearest(self.state)
        return out | {name: torch.where(edge.isfinite(), edge, out[name]) for name, edge in edges.items()}
