"""Hand-written maps and the steps along them against plain formulas and autograd, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from intercontinet.engine import parametrisation
from intercontinet.engine.optimizer import SGD, Adam, Optimizer, Stride
from intercontinet.engine.parametrisation import (
    Anchored,
    Clamped,
    Exponential,
    Identity,
    InBox,
    Parametrisation,
    Share,
)

SEEDS, SHAPES = 3, [(2, 3), (4,), ()]
ENTRIES = sum(torch.Size(shape).numel() for shape in SHAPES)


def random(low: float = -1.0, high: float = 1.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return low + (high - low) * torch.rand(SEEDS, ENTRIES, generator=generator, dtype=torch.float64)


START, REACH = random(seed=1), random(0.01, 2.0, seed=2)
FREE = (random(seed=3) > 0).double()

CASES: dict[str, tuple[Parametrisation, Callable[[Tensor], Tensor]]] = {
    "identity": (Identity(), lambda v: v * 1),
    "in box": (InBox(START, REACH), lambda v: START + REACH * torch.tanh(v / REACH)),
    "in box, plain": (InBox(START, REACH, 1.0), lambda v: START + REACH * torch.tanh(v)),
    "in box, plain, other scale": (InBox(START, REACH, 0.5), lambda v: START + REACH * torch.tanh(v / 0.5)),
    "in box, some free": (
        InBox(START, REACH * (1 - FREE), None, FREE),
        lambda v: torch.where(FREE > 0, START + v, START + REACH * torch.tanh(v / REACH)),
    ),
    "in box, plain, some free": (
        InBox(START, REACH * (1 - FREE), 1.0, FREE),
        lambda v: torch.where(FREE > 0, START + v, START + REACH * torch.tanh(v)),
    ),
    "share": (Share(REACH), lambda v: torch.sigmoid(v) * REACH),
}
OPTIMIZERS: dict[str, tuple[Optimizer, Callable[[list[Tensor]], torch.optim.Optimizer]]] = {
    "sgd": (SGD(0.3), lambda values: torch.optim.SGD(values, lr=0.3)),
    "adam": (Adam(0.1), lambda values: torch.optim.Adam(values, lr=0.1)),
}


def parts_of(gradient: Tensor) -> list[Tensor]:
    sizes = [torch.Size(shape).numel() for shape in SHAPES]
    return [part.reshape(SEEDS, *shape) for part, shape in zip(torch.split(gradient, sizes, 1), SHAPES, strict=True)]


@pytest.mark.parametrize("run", [5, parametrisation.RUN], ids=["in runs", "at once"])
@pytest.mark.parametrize("moving", [None, torch.tensor([True, False, True])], ids=["all", "all but one"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", CASES)
def test_steps_lead_where_those_along_the_formula_do(
    name: str, optimizer: str, moving: Tensor | None, run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From v = 0 on, which all of them store as zeros; gradients along the formula are autograd's, steps torch's."""
    monkeypatch.setattr(parametrisation, "RUN", run)
    (ours, formula), (stepping, theirs) = CASES[name], OPTIMIZERS[optimizer]
    v = torch.zeros_like(START, requires_grad=True)
    values = v.detach().clone()
    state, reference = stepping.start(values), theirs([v])
    found = ours.decode(values)
    for seed in (10, 11, 12, 13):  # more than once, since buffers are used again
        gradient = random(-3, 3, seed)
        ours.move_(values, parts_of(gradient), Stride(stepping, state, moving))
        reference.zero_grad()
        torch.autograd.backward(formula(v), gradient)
        reference.step()
    still = torch.zeros(SEEDS, dtype=torch.bool) if moving is None else ~moving
    expected = torch.where(still[:, None], formula(torch.zeros_like(v)), formula(v)).detach()
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert torch.equal(ours.decode(values), found), "a step decodes as decoding does"
    assert not values[still].any(), "to the bit"
    assert float((expected - formula(torch.zeros_like(START))).abs().mean()) > 0.01, "the case must move"


def test_no_value_leads_further_than_the_reach_allows() -> None:
    start, reach = START.float(), REACH.float()
    for value in (1e4, -1e4, 1e30):
        out = InBox(start, reach).decode(torch.full_like(start, value))
        torch.testing.assert_close(out, start + reach * (1 if value > 0 else -1))
    assert bool((Share(reach).decode(torch.full_like(start, 1e4)) <= reach).all())
    assert bool((Share(reach).decode(torch.full_like(start, -1e4)) == 0).all())


@pytest.mark.parametrize("scale", [None, 1.0])
def test_an_entry_without_room_stays_where_it_is(scale: float | None) -> None:
    start = torch.tensor([[0.5, -2.0]])
    still = InBox(start, torch.zeros(1, 2), scale)
    for value in (0.0, 0.3, -50.0, 1e6):
        assert torch.equal(still.decode(torch.full((1, 2), value)), start)


def test_where_nothing_moved_a_box_gives_the_start_up_to_rounding() -> None:
    start, reach = START.float(), REACH.float()
    torch.testing.assert_close(InBox(start, reach).decode(torch.zeros_like(start)), start, rtol=0, atol=2.5e-7)


def test_clamped_values_come_back_to_the_box_and_step_by_whole_gradients() -> None:
    lower, upper = START - REACH, START + REACH
    inside, values = Clamped(lower, upper), START.clone()
    for seed in (10, 11):
        gradient = random(-3, 3, seed)
        at = torch.clamp(values, lower, upper)
        assert torch.equal(inside.decode(values), at) and torch.equal(values, at)
        inside.move_(values, parts_of(gradient), Stride(SGD(0.5)))
        assert torch.equal(values, torch.clamp(at - 0.5 * gradient, lower, upper))
    assert not torch.equal(values, at - 0.5 * gradient), "the case must lead out of the box"


def test_exponentials_stay_between_their_bounds_and_step_by_logarithms() -> None:
    least, most = torch.full((2, 3), 0.01), torch.tensor([[1.0, 0.5, 0.0], [2.0, 0.001, 3.0]])
    way = Exponential(least, most)
    values = torch.tensor([[5.0, -0.9, 1.0], [-99.0, 0.0, 0.5]])
    expected = torch.tensor([[1.0, math.exp(-0.9), 0.0], [0.01, 0.01, math.exp(0.5)]])
    torch.testing.assert_close(way.decode(values), expected)
    torch.testing.assert_close(values.exp()[0, :2], expected[0, :2])  # the values themselves were brought back
    before = values.clone()
    way.move_(values, [torch.ones(2, 1), 2 * torch.ones(2, 2)], Stride(SGD(0.1)))
    stepped = before - 0.1 * expected * torch.tensor([1, 2, 2])
    torch.testing.assert_close(values, torch.clamp(stepped, least.log(), torch.maximum(least, most).log()))


def test_an_anchor_adds_the_gradient_of_every_penalty_in_its_sum() -> None:
    strengths, places = [random(0, 5, seed=s) for s in (20, 21, 22)], [random(seed=s) for s in (30, 31, 32)]
    curvature, pull = sum(strengths, torch.zeros(())), sum(map(torch.mul, strengths, places), torch.zeros(()))
    ours = Anchored(curvature, pull)
    for seed in (10, 11):  # twice, since buffers are used again
        values, gradient = random(-3, 3, seed).requires_grad_(), random(seed=seed + 30)
        decoded = values.detach().clone()
        assert ours.decode(decoded) is decoded
        loss = (gradient * values).sum()
        penalty = sum(
            ((c * (values - place) ** 2).sum() for c, place in zip(strengths, places, strict=True)), torch.zeros(())
        )
        (slope,) = torch.autograd.grad(loss + penalty, values)
        parts = parts_of(gradient)
        untouched = [part.clone() for part in parts]
        ours.move_(decoded, parts, Stride(SGD(0.5)))
        torch.testing.assert_close(decoded, values.detach() - 0.5 * slope, rtol=1e-12, atol=1e-12)
        assert all(map(torch.equal, parts, untouched))


def test_an_anchor_holds_nothing_in_its_own_place() -> None:
    values = torch.tensor([[1.0]])
    anchored = Anchored(torch.tensor([[3.0]]), torch.tensor([[3.0]]))
    anchored.move_(anchored.decode(values), [torch.zeros(1, 1)], Stride(SGD(0.5)))
    assert float(values) == 1
