"""Find a large region round a trained model in which a share of what it gets right is certain.

There is a valid region from the beginning, an evenly scaled one; every so often the search measures what it has on all
examples, every rounding counted, and the largest region so far is kept. So it may end at any moment, and as it goes
on, what it holds only grows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from intercontinet.attack import worst_found
from intercontinet.certificate import Certificate, check_inside
from intercontinet.criterion import Criterion
from intercontinet.data import Data, Inputs, check_apart, collect, fingerprint, rows
from intercontinet.errors import InvalidSetting
from intercontinet.floor import count, floor_of
from intercontinet.plastic import Plastic, chosen
from intercontinet.question import Passes, Question, movable_in
from intercontinet.region import Region
from intercontinet.search import Search, Shape
from intercontinet.state import state_of

STEPS = 100  # of a search whose length is not said
EVERY = 10  # steps after which the region is measured on all examples; later on, a tenth of the steps so far


@dataclass(frozen=True)
class Protecting:
    """How far a search has come.

    Attributes:
        step: Steps taken.
        steps: Steps in all, or None where only time limits them.
        seconds: Since the beginning.
        log_volume: Of the largest region found so far: the sum of the natural logarithms of all widths.
        mean_radius: Of that region, over the parameters that may move.
        certain: Share of examples that are certain in it.
        certificate: A valid certificate, better than any before; None between improvements.
    """

    step: int
    steps: int | None
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
    steps: int | None = None,
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
        unseen: Examples that shaped neither model nor region, none of which is in ``data``: they get a floor of their
            own, from which a bound for unseen examples follows.
        challenge: Whether to attack the region and record the worst that was found.
        steps: Gradient steps of the search: 100 by default, or as many as there is time for where ``seconds`` is given;
            zero for an evenly scaled region. With the same seed, more steps go on where fewer end.
        seconds: A time after which to take no more steps.
        start: A certificate of this model to start from, as an interrupted search left it; for the same data, classes,
            criterion and drift.
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
    limit = STEPS if steps is None and seconds is None else steps
    parent, first = _loaded(within), _loaded(start)
    for earlier in (parent, first):
        if earlier is not None:
            check_inside(model, earlier)
    state = {name: tensor.clone() for name, tensor in state_of(model).items()}
    device = next(iter(state.values())).device
    x, y = collect(data)
    question = Question.of(model, (x, y), device, classes, criterion)
    others = None if unseen is None else collect(unseen)
    if others is not None:
        check_apart(x, others[0])
    if first is not None:
        _check_same(first, fingerprint(x, y), classes, criterion, drift)
    point = Region(state, state)
    outer = None
    if parent is not None:
        outer = parent.region.to(device).with_values(model)
        parent = replace(parent, region=outer)
    names = chosen(model, plastic, lambda: _head(model, point, question))
    if outer is not None:  # what has no room there is as good as frozen, and taken as that
        roomy = set(movable_in(outer))
        names = [name for name in names if name in roomy] or names
    generator = torch.Generator().manual_seed(seed)
    search = Search(model, question, Shape(state, names, outer), keep, drift, generator)
    if first is not None:
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
            listen(Protecting(step, limit, passed, search.size.log_volume, search.size.mean_radius, share, certificate))

    def late() -> bool:
        return seconds is not None and time.monotonic() - began >= seconds

    search.fit()
    tell(0, found=True)
    if first is None and limit != 0 and not late():
        search.level(generator)
        tell(0, search.fit())
    due = EVERY
    step, over = 0, limit == 0 or late()
    while not over:
        search.step(generator)
        step += 1
        over = step == limit or late()
        found = (over or step == due) and search.fit()
        due += max(EVERY, step // EVERY) if step == due else 0
        tell(step, found)
    return _finished(certified(), model, search, others, task, classes, criterion, drift, challenge, seed)


def _finished(
    certificate: Certificate,
    model: nn.Module,
    search: Search,
    unseen: tuple[Inputs, Tensor] | None,
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
        question = Question.of(model, unseen, device, classes, criterion)
        floor = count(model, region, question, unseen, f"{task or 'data'} (unseen)", classes, None, drift)
        floors.append(replace(floor, unseen_certified=floor.certified, unseen_total=floor.total))
    return replace(certificate, tasks=tuple(floors))


def _check(keep: float, steps: int | None, seconds: float | None, drift: float | None) -> None:
    if torch.is_inference_mode_enabled():
        raise InvalidSetting("the search follows gradients, which torch.inference_mode() forbids: call it outside")
    if not 0 < keep <= 1:
        raise InvalidSetting(f"keep is {keep}: a share above 0 and up to 1 is needed")
    if (steps is not None and steps < 0) or (seconds is not None and not seconds >= 0):
        raise InvalidSetting(f"steps ({steps}) and seconds ({seconds}) must not be negative")
    if drift is not None and not 0 <= drift < 1:
        raise InvalidSetting(f"drift is {drift}: a share of an example's largest entry is needed, such as 1e-5")


def _check_same(
    start: Certificate, data: str, classes: Sequence[int] | None, criterion: Criterion | None, drift: float | None
) -> None:
    """Refuse to go on from a certificate that promises something else than what is asked for."""
    floors = [floor for floor in start.tasks if floor.unseen_total != floor.total]
    if not floors:
        raise InvalidSetting("the certificate to start from holds no floor: start without it")
    floor = floors[-1]
    asked = {
        "data": (floor.data, data),
        "classes": (floor.classes, None if classes is None else tuple(int(c) for c in classes)),
        "criterion": (floor.criterion, "classification" if criterion is None else criterion.name),
        "drift": (floor.drift, drift),
    }
    others = [
        f"other {what}" if what == "data" else f"{what} {before} (not {now})"
        for what, (before, now) in asked.items()
        if before != now
    ]
    if others:
        raise InvalidSetting(
            f"the certificate to start from is for {', '.join(others)}: ask for the same, or start without it and "
            "keep both"
        )


def _loaded(certificate: Certificate | str | Path | None) -> Certificate | None:
    return Certificate.load(certificate) if isinstance(certificate, (str, Path)) else certificate


def _head(model: nn.Module, point: Region, question: Question) -> tuple[str, ...]:
    """The names of the last linear layer's parameters."""
    passes = Passes(rows(question.x, slice(1)), model, point, (), None, quick=True)
    return next(iter(passes))[1].head_names
