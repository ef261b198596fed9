"""Find a large region round a trained model in which a share of what it gets right is certain.

The search keeps two numbers an entry, how far its weight may fall and how far it may rise, as logarithms. Gradient
steps raise the sum of log-widths (the region's log-volume) against a smooth count of examples that are not certain,
whose price is steered so that the share that is certain stays about where it must. Every so often all distances are
multiplied by one factor, the largest found with which the floor holds on all examples, and the largest region so far is
kept. So there is a valid region from the beginning, and more steps can only make it larger.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from intercontinet.attack import worst_found
from intercontinet.bounds import Real
from intercontinet.certificate import Certificate, check_inside
from intercontinet.criterion import Criterion
from intercontinet.data import Data, collect, rows
from intercontinet.errors import InvalidSetting, NotCertified
from intercontinet.floor import count, floor_of
from intercontinet.interval import Interval
from intercontinet.plastic import Plastic, chosen
from intercontinet.question import Passes, Question, Tally
from intercontinet.region import Region, state_of

RATE = 0.1  # of a gradient step, in the logarithm of a distance
STEERING = 3.0  # how strongly the price of uncertain examples follows what is missing
PIECE = 256  # examples a step
EVERY = 10  # steps after which the region is measured on all examples; later on, a tenth of the steps so far
FARTHEST = 100.0  # times a tensor's largest weight (at least one): beyond it nothing is gained
LARGEST = 2.0**100  # the farthest at all, well inside float32
LEAST = 1e-30  # a distance below which a weight is as good as frozen
SHRINKING = (1.0, 0.999, 0.99, 0.95, 0.8, 0.5, 0.1, 0.01)  # what bounds over the reals promised may fail by rounding


@dataclass(frozen=True)
class Protecting:
    """How far a search has come.

    Attributes:
        step: Steps taken.
        steps: Steps in all.
        seconds: Since the beginning.
        log_volume: Of the largest region found so far: the sum of the natural logarithms of all widths.
        mean_radius: Of that region, over the parameters that may move.
        certain: Share of examples that are certain in it.
        certificate: A valid certificate, better than any before; None between improvements.
    """

    step: int
    steps: int
    seconds: float
    log_volume: float
    mean_radius: float
    certain: float
    certificate: Certificate | None


@torch.no_grad()
def protect(
    model: nn.Module,
    data: Data,
    keep: float = 0.95,
    *,
    plastic: Plastic = "all",
    within: Certificate | str | Path | None = None,
    task: str = "",
    classes: Sequence[int] | None = None,
    criterion: Criterion | None = None,
    drift: float | None = None,
    unseen: Data | None = None,
    challenge: bool = False,
    steps: int = 100,
    seconds: float | None = None,
    start: Certificate | str | Path | None = None,
    seed: int = 0,
    listen: Callable[[Protecting], None] | None = None,
) -> Certificate:
    """A certificate with a large region round a trained model in which ``keep`` of what it gets right is certain.

    Args:
        model: Any module that maps a batch to one tensor; unchanged.
        data: Examples it should go on getting right.
        keep: Share of the examples that are right today which must be certain.
        plastic: Which parameters may move: "all", "head" (the last linear layer), a pattern such as "layer4.*", several
            patterns, or a function from a name to whether it may. Everything else, and every buffer, is frozen.
        within: An earlier certificate: the new region lies inside its own, and its floors are carried on.
        task: A name for the floor.
        classes: The outputs that take part, where each task has a head of its own.
        criterion: What counts as right, where it is not a class.
        drift: See :func:`~intercontinet.certify`.
        unseen: Examples that shaped neither model nor region: they get a floor of their own, from which a bound for
            unseen examples follows.
        challenge: Whether to attack the region and record the worst that was found.
        steps: Gradient steps of the search; zero for an evenly scaled region.
        seconds: A time after which to take no more steps.
        start: A certificate of this model to start from, as an interrupted search left it.
        seed: Makes the result reproducible.
        listen: Is told of progress; what it gets may hold a certificate to save.

    Raises:
        NotCertified: Rounding alone leaves too little certain.
        Violation: The model lies outside ``within``.

    >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> x = torch.randn(64, 2)
    >>> certificate = protect(model, (x, model(x).argmax(1)), keep=0.9, steps=10)
    >>> certificate.tasks[0].kept
    True
    """
    _check(keep, steps, seconds, drift)
    began = time.monotonic()
    parent = _loaded(within)
    if parent is not None:
        check_inside(model, parent)
    state = {name: tensor.clone() for name, tensor in state_of(model).items()}
    device = next(iter(state.values())).device
    x, y = collect(data)
    question = Question.of(model, (x, y), device, classes, criterion)
    point = Region(state, state)
    outer = None if parent is None else parent.region.to(device).with_values(model)
    names = chosen(model, plastic, lambda: _head(model, point, question))
    generator = torch.Generator().manual_seed(seed)
    search = _Search(model, question, _Shape(state, names, outer), keep, drift, generator)
    if (first := _loaded(start)) is not None:
        check_inside(model, first)
        search.resume(first.region.to(device).with_values(model))
    blank = replace(floor_of((x, y), 0, search.correct, task, classes, keep), drift=drift)
    if criterion is not None:
        blank = replace(blank, criterion=criterion.name)

    def certified() -> Certificate:
        floor = replace(blank, certified=search.tally.certain, stable=search.tally.stable)
        if parent is None:
            return Certificate.of(model, search.best, [floor], "protect")
        return parent.extended(search.best, floor)

    def tell(step: int, found: bool) -> None:
        if listen is not None:
            share = search.tally.certain / question.examples
            certificate = certified() if found else None
            passed = time.monotonic() - began
            listen(Protecting(step, steps, passed, search.size.log_volume, search.size.mean_radius, share, certificate))

    search.fit()
    tell(0, found=True)
    due = EVERY
    for step in range(1, steps + 1):
        if seconds is not None and time.monotonic() - began > seconds:
            break
        search.step(generator)
        found = step in (due, steps) and search.fit()
        due += max(EVERY, step // EVERY) if step == due else 0
        tell(step, found)
    return _finished(certified(), model, search, unseen, task, classes, criterion, drift, challenge, seed)


def _finished(
    certificate: Certificate,
    model: nn.Module,
    search: _Search,
    unseen: Data | None,
    task: str,
    classes: Sequence[int] | None,
    criterion: Criterion | None,
    drift: float | None,
    challenge: bool,
    seed: int,
) -> Certificate:
    """The certificate with what was asked for beside it: an attack, and a floor for unseen examples."""
    floors = list(certificate.tasks)
    region, device = search.best, search.question.y.device
    if challenge:
        worst = worst_found(model, region, region.check_fits(model), search.question, seed)
        floors[-1] = replace(floors[-1], attacked=round(worst.accuracy * search.question.examples))
    if unseen is not None:
        others = collect(unseen)
        question = Question.of(model, others, device, classes, criterion)
        floor = count(model, region, question, others, f"{task or 'data'} (unseen)", classes, None, drift)
        floors.append(replace(floor, unseen_certified=floor.certified, unseen_total=floor.total))
    return replace(certificate, tasks=tuple(floors))


def _check(keep: float, steps: int, seconds: float | None, drift: float | None) -> None:
    if not 0 < keep <= 1:
        raise InvalidSetting(f"keep is {keep}: a share above 0 and up to 1 is needed")
    if steps < 0 or (seconds is not None and not seconds >= 0):
        raise InvalidSetting(f"steps ({steps}) and seconds ({seconds}) must not be negative")
    if drift is not None and not 0 <= drift < 1:
        raise InvalidSetting(f"drift is {drift}: a share of an example's largest entry is needed, such as 1e-5")


def _loaded(certificate: Certificate | str | Path | None) -> Certificate | None:
    return Certificate.load(certificate) if isinstance(certificate, (str, Path)) else certificate


def _head(model: nn.Module, point: Region, question: Question) -> tuple[str, ...]:
    """The names of the last linear layer's parameters."""
    passes = Passes(rows(question.x, slice(1)), model, point, (), None, quick=True)
    return next(iter(passes))[1].head_names


class _Shape:
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


class _Search:
    """The largest region found so far, and how to find a larger one."""

    def __init__(
        self,
        model: nn.Module,
        question: Question,
        shape: _Shape,
        keep: float,
        drift: float | None,
        generator: torch.Generator,
    ) -> None:
        self.question, self.shape, self.names = question, shape, shape.names
        point = Region(shape.state, shape.state)
        self.sound = Passes(question.x, model, point, self.names, drift, quick=False).keep()
        self.right, self.predicted = question.today(model)
        self.correct = int(self.right.sum())
        self.wanted = keep * self.correct
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
        where, batch = self.quick.one(generator)
        asked = self.mixed.some(where)
        distances = list(self.shape.distances.values())
        with torch.enable_grad():
            boxes = self.boxes | {name: Interval(*self.shape.edges(name)) for name in self.names}
            slack = asked.slack(batch, boxes, Real())
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
        for margin in SHRINKING:
            region = self.shape.region(good * margin)
            if self.shape.volume(region) <= self.volume:
                return False
            if self._consider(region):
                self.shape.scale(good * margin)
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
