"""The search behind :func:`~intercontinet.protect`: distances as logarithms, and the largest region so far.

Two numbers an entry say how far its weight may fall and how far it may rise. Gradient steps raise the sum of log-widths
(the region's log-volume) against a smooth count of examples that are not certain, whose price is steered so that the
share that is certain stays about where it must. :meth:`Search.fit` multiplies all distances by one factor, the largest
found with which the floor holds on all examples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from intercontinet.bounds import Forward, Real
from intercontinet.errors import NotCertified
from intercontinet.interval import Interval
from intercontinet.question import Passes, Question, Tally
from intercontinet.region import Region

RATE = 0.1  # of a gradient step, in the logarithm of a distance
STEERING = 3.0  # how strongly the price of uncertain examples follows what is missing
PIECE = 256  # examples a step
LEVELLING = 8  # pieces that a first look at every weight's influence takes in
SLIGHTEST = 0.01  # of the mean influence: a weight with less gets no more room for that
FARTHEST = 100.0  # times a tensor's largest weight (at least one): beyond it nothing is gained
LARGEST = 2.0**100  # the farthest at all, well inside float32
LEAST = 1e-30  # a distance below which a weight is as good as frozen
SHRINKING = (1.0, 0.999, 0.99, 0.95, 0.8, 0.5, 0.1, 0.01)  # what bounds over the reals promised may fail by rounding


class Shape:
    """How far each weight may fall and rise, as logarithms; never out of the outer region."""

    def __init__(self, state: Mapping[str, Tensor], names: Sequence[str], outer: Region | None) -> None:
        self.state, self.names, self.outer = state, list(names), outer
        self.room: dict[str, Tensor] = {}  # [2, ...]: how far down and up at most
        self.distances: dict[str, Tensor] = {}  # [2, ...], logarithms: down and up
        for name in self.names:
            weight = state[name]
            most = min(FARTHEST * max(1.0, float(weight.abs().max())), LARGEST) if weight.numel() else 1.0
            far = torch.full((2, *weight.shape), most, device=weight.device)
            if outer is not None:
                far = far.minimum(torch.stack([weight - outer.lower[name], outer.upper[name] - weight]))
            self.room[name] = far
            typical = max(float(weight.square().mean().sqrt()), 1e-3) if weight.numel() else 1.0
            self.distances[name] = torch.full_like(far, math.log(typical)).requires_grad_()
        self.stay_inside()

    @torch.no_grad()
    def imitate(self, region: Region) -> None:
        """Begin with the distances of a region."""
        for name in self.names:
            apart = torch.stack([self.state[name] - region.lower[name], region.upper[name] - self.state[name]])
            self.distances[name].copy_(apart.clamp(min=LEAST).log())
        self.stay_inside()

    @torch.no_grad()
    def scale(self, factor: float) -> None:
        for distance in self.distances.values():
            distance.add_(math.log(factor))
        self.stay_inside()

    @torch.no_grad()
    def stay_inside(self) -> None:
        """No distance beyond the room there is, where it would be out of every gradient's reach."""
        for name, distance in self.distances.items():
            torch.minimum(distance, self.room[name].clamp(min=LEAST).log(), out=distance.detach())
            distance.clamp_(min=math.log(LEAST))

    def edges(self, name: str, factor: float = 1.0) -> tuple[Tensor, Tensor]:
        down, up = torch.minimum(factor * self.distances[name].exp(), self.room[name])
        return self.state[name] - down, self.state[name] + up

    @torch.no_grad()
    def region(self, factor: float = 1.0) -> Region:
        """The region with all distances multiplied by a factor."""
        lower, upper = dict(self.state), dict(self.state)
        for name in self.names:
            lower[name], upper[name] = self.edges(name, factor)
        box = Region(lower, upper)
        return box if self.outer is None else box.clamped_into(self.outer)

    def volume(self, region: Region) -> float:
        """The logarithm of a region's volume, in which an entry that cannot move counts as a tiny width, not as one."""
        widths = (region.upper[name].double() - region.lower[name].double() for name in self.names)
        return sum(float(width.clamp(min=LEAST).log().sum()) for width in widths)


class Search:
    """The largest region found so far, and how to find a larger one."""

    def __init__(
        self,
        model: nn.Module,
        question: Question,
        shape: Shape,
        keep: float,
        drift: float | None,
        generator: torch.Generator,
    ) -> None:
        self.question, self.shape, self.names = question, shape, shape.names
        point = Region(shape.state, shape.state)
        self.sound = Passes(question.x, model, point, self.names, drift, quick=False)
        self.right, self.predicted = question.today(model)
        self.correct = int(self.right.sum())
        self.wanted = keep * self.correct
        self._check_hope(point, keep)
        self.sound.keep()
        self._take(point, self._counted(point))
        if self.tally.certain < self.wanted or not self.correct:
            raise _not_certified(self.correct, self.tally.certain, keep)
        order = torch.randperm(question.examples, generator=generator).to(question.y.device)
        self.mixed = question.some(order)  # data is often sorted by class, and a piece should hold some of each
        size = PIECE if question.y.device.type == "cpu" else None
        self.quick = Passes(self.mixed.x, model, point, self.names, drift, quick=True, size=size).keep()
        self.boxes = self.quick.boxes(point)
        self.spread = self._spread(generator)
        self.optimizer = torch.optim.Adam(list(shape.distances.values()), RATE)
        self.price = 1.0

    def _check_hope(self, point: Region, keep: float) -> None:
        """Look at piece after piece while nothing at all is certain: a large model should not take hours to say so."""
        boxes, lost = self.sound.boxes(point), 0
        for where, batch in self.sound:
            asked = self.question.some(where)
            if bool(asked.certain(batch, boxes, self.sound.arithmetic).any()):
                return
            lost += int(self.right[where].sum())
            if lost > self.correct - self.wanted:
                raise _not_certified(lost, 0, keep)

    def _counted(self, region: Region) -> Tally:
        return self.sound.tally(region, self.question, self.right, self.predicted)

    def _take(self, region: Region, tally: Tally) -> None:
        self.best, self.tally = region, tally
        self.volume, self.size = self.shape.volume(region), region.size(tuple(self.names))

    @torch.no_grad()
    def _spread(self, generator: torch.Generator) -> float:
        """How far a typical example is from being wrong today."""
        where, batch = self.quick.one(generator)
        slack = self.mixed.some(where).slack(batch, self.boxes, Real())
        known = slack[slack.isfinite()]
        return float(known.abs().median().clamp(min=1e-6)) if len(known) else 1.0

    def resume(self, region: Region) -> None:
        """Go on from a region that was found before: what is still valid of it is not lost."""
        self.shape.imitate(region)
        whole = dict(self.shape.state)
        box = Region(
            {name: region.lower[name] if name in self.names else point for name, point in whole.items()},
            {name: region.upper[name] if name in self.names else point for name, point in whole.items()},
        )
        self._consider(box if self.shape.outer is None else box.clamped_into(self.shape.outer))

    def _consider(self, region: Region) -> bool:
        """Take a region if the floor holds in it, every rounding counted."""
        tally = self._counted(region)
        if tally.certain < self.wanted:
            return False
        self._take(region, tally)
        return True

    def step(self, generator: torch.Generator) -> None:
        """One gradient step on one piece of the examples."""
        distances = list(self.shape.distances.values())
        with torch.enable_grad():
            slack = self._slack(*self.quick.one(generator))
            known = slack.isfinite()
            uncertain = torch.sigmoid(-slack[known] / self.spread).sum() / len(slack)
            entries = sum(distance.numel() for distance in distances) / 2
            log_width = sum(distance.logsumexp(0).sum() for distance in distances) / entries
            grads = torch.autograd.grad(self.price * uncertain - log_width, distances)
        for distance, grad in zip(distances, grads, strict=True):
            distance.grad = grad.nan_to_num(0.0, 0.0, 0.0)  # of bounds that overflow
        self.optimizer.step()
        self.shape.stay_inside()
        share = float((slack.detach() > 0).double().mean())
        missing = self.wanted / self.question.examples - share
        self.price = min(max(self.price * math.exp(STEERING * missing), 1e-6), 1e6)

    def level(self, generator: torch.Generator) -> None:
        """Give every distance about the same part in what examples lose, which is best as long as bounds are linear.

        Weights that hardly matter get room at once, for which gradient steps would take long.
        """
        distances = list(self.shape.distances.values())
        parts = [torch.zeros_like(distance) for distance in distances]
        for _ in range(LEVELLING):
            where, batch = self.quick.one(generator)
            with torch.enable_grad():
                lost = -self._slack(where, batch)
                if not lost.requires_grad:  # a criterion that only says yes or no
                    return
                grads = torch.autograd.grad(lost[lost.isfinite()].sum(), distances, allow_unused=True)
            for part, grad in zip(parts, grads, strict=True):
                if grad is not None:  # else of a parameter that the outputs do not depend on
                    part += grad.nan_to_num(0.0, 0.0, 0.0).clamp(min=0)
        mean = sum(float(part.sum()) for part in parts) / sum(part.numel() for part in parts)
        if 0 < mean < math.inf:
            for distance, part in zip(distances, parts, strict=True):
                distance -= (part / mean + SLIGHTEST).log()
            self.shape.stay_inside()

    def _slack(self, where: slice, batch: Forward) -> Tensor:
        boxes = self.boxes | {name: Interval(*self.shape.edges(name)) for name in self.names}
        return self.mixed.some(where).slack(batch, boxes, Real())

    def _enough(self, factor: float) -> bool:
        """Whether the floor holds with all distances multiplied by a factor, by quick bounds."""
        boxes = self.quick.boxes(self.shape.region(factor))
        allowed = self.question.examples - self.wanted
        for where, batch in self.quick:
            allowed -= int((~self.mixed.some(where).certain(batch, boxes, self.quick.arithmetic)).sum())
            if allowed < 0:
                return False
        return True

    @torch.no_grad()
    def fit(self) -> bool:
        """Scale the shape to the largest factor with which the floor holds. Whether that made a larger region."""
        stride = 1.3 if self.size.dead < 1 else 4.0  # later on, 1 is nearly right
        good, bad = 1.0, stride
        if self._enough(good):
            while bad < 2**20 and self._enough(bad):
                good, bad = bad, stride * bad
        else:
            while good > 2**-40 and not self._enough(good):
                good, bad = good / stride, good
        while bad / good > 1.01:
            middle = math.sqrt(good * bad)
            good, bad = (middle, bad) if self._enough(middle) else (good, middle)
        self.shape.scale(good)
        for margin in SHRINKING:
            region = self.shape.region(margin)
            if self.shape.volume(region) <= self.volume:
                return False
            if self._consider(region):
                return True
        return False


def _not_certified(correct: int, certain: int, keep: float) -> NotCertified:
    if not correct:
        return NotCertified("the model gets no example right, so there is nothing to keep: check labels and weights")
    return NotCertified(
        f"of {correct} examples that the model gets right, {certain} are certain even where no weight moves: rounding "
        f"in float32, bounded for any summation order, blurs the rest, and {keep:.0%} were asked for. Freeze the lower "
        "layers (plastic='head') and give drift=1e-5, which takes their outputs as computed here; or ask for less"
    )
