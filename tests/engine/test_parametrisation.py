"""Hand-written maps and their slopes against plain formulas and autograd, in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from intercontinet.engine.parametrisation import Anchored, Identity, InBox, Parametrisation, Share

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


@pytest.mark.parametrize("name", CASES)
def test_decode_and_pull_agree_with_the_formula_and_autograd(name: str) -> None:
    ours, formula = CASES[name]
    for seed in (10, 11):  # twice, since buffers are used again
        values = random(-3, 3, seed).requires_grad_()
        gradient = random(seed=seed + 10)
        expected = formula(values)
        (slope,) = torch.autograd.grad(expected, values, gradient)
        torch.testing.assert_close(ours.decode(values.detach()), expected.detach(), rtol=1e-12, atol=1e-12)
        sizes = [torch.Size(shape).numel() for shape in SHAPES]
        parts = [p.reshape(SEEDS, *shape) for p, shape in zip(torch.split(gradient, sizes, 1), SHAPES, strict=True)]
        torch.testing.assert_close(ours.pull(parts), slope, rtol=1e-10, atol=1e-12)


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


def test_an_anchor_adds_the_gradient_of_every_penalty_in_its_sum() -> None:
    strengths, places = [random(0, 5, seed=s) for s in (20, 21, 22)], [random(seed=s) for s in (30, 31, 32)]
    curvature, pull = sum(strengths, torch.zeros(())), sum(map(torch.mul, strengths, places), torch.zeros(()))
    ours = Anchored(curvature, pull)
    for seed in (10, 11):  # twice, since the values last decoded count
        values, gradient = random(-3, 3, seed).requires_grad_(), random(seed=seed + 30)
        decoded = values.detach().clone()
        assert ours.decode(decoded) is decoded
        loss = (gradient * values).sum()
        penalty = sum(
            ((c * (values - place) ** 2).sum() for c, place in zip(strengths, places, strict=True)), torch.zeros(())
        )
        (slope,) = torch.autograd.grad(loss + penalty, values)
        sizes = [torch.Size(shape).numel() for shape in SHAPES]
        parts = [p.reshape(SEEDS, *shape) for p, shape in zip(torch.split(gradient, sizes, 1), SHAPES, strict=True)]
        untouched = [part.clone() for part in parts]
        torch.testing.assert_close(ours.pull(parts), slope, rtol=1e-12, atol=1e-12)
        assert all(map(torch.equal, parts, untouched)) and torch.equal(decoded, values.detach())


def test_an_anchor_follows_values_that_are_moved_in_place() -> None:
    values = torch.tensor([[2.0]])
    anchored = Anchored(torch.tensor([[3.0]]), torch.tensor([[3.0]]))
    anchored.decode(values)
    values.fill_(1.0)
    assert float(anchored.pull([torch.zeros(1, 1)])) == 0, "the place of the anchor itself"
