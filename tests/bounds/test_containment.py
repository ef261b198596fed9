"""Not one float32 output outside its bounds, whatever the layers, the region, the input, the weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Float64
from torch import Tensor, nn

import intercontinet as icn
from intercontinet.bounds import known_layers
from intercontinet.interval import Interval
from tests.strategies import (
    Case,
    cases,
    fits,
    inputs_inside,
    lopsided_region,
    many_cases,
    output_alone,
    outputs_together,
    shake,
    weights_inside,
)

Step = Callable[[Any, Tensor], Tensor]
# Each takes [batch, 3, 4] to the same; layers of the net it stands in are its own.
STEPS: tuple[Step, ...] = (
    lambda net, x: net.linear(x),
    lambda net, x: x + net.linear(x).tanh(),
    lambda net, x: net.norm(x),
    lambda net, x: net.rms(x) * net.gain,
    lambda net, x: net.group(x),
    lambda net, x: net.attention(x, x, x)[0],
    lambda net, x: net.attention(x, x, x, attn_mask=torch.ones(3, 3, dtype=torch.bool).triu(1), need_weights=False)[0],
    lambda net, x: ((x @ net.linear(x).mT) / 2).softmax(-1) @ x,
    lambda net, x: F.scaled_dot_product_attention(x, net.linear(x), x * net.gain, is_causal=True),
    lambda net, x: torch.einsum("bnf,gf->bng", x, net.linear.weight) + net.positions(torch.arange(3)),
    lambda net, x: torch.cat(net.linear(x).chunk(2, dim=-1)[::-1], -1) - 0.1 * x,
    lambda net, x: x * torch.sigmoid(net.linear(x)),
    lambda net, x: x / (1 + x.square().mean(-1, keepdim=True)).sqrt(),
    lambda net, x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 0.1),
    lambda net, x: x - x.max(dim=1, keepdim=True)[0] + x.amin((1, 2), keepdim=True),
    lambda net, x: torch.where(torch.arange(4) > 1, x, net.linear(x).relu_()),
    lambda net, x: net.conv(x).clamp_(-2, 3).abs(),
    lambda net, x: net.transposed(x)[..., :4] + x.mean(),
    lambda net, x: torch.stack([row.exp().log_softmax(-1) for row in x.clamp(max=1).unbind(1)], 1),
    lambda net, x: F.pad(net.linear(x)[:, 1:], (0, 0, 1, 0), value=0.3).masked_fill(torch.eye(3, 4) == 1, 0.1),
    lambda net, x: F.instance_norm(x, eps=0.1).roll(1, 2) + net.batch(x.unsqueeze(-1).unsqueeze(-1)).flatten(2),
    lambda net, x: (1 - x).div(3).neg_().permute(1, 0, 2).transpose(0, 1).contiguous(),
    lambda net, x: F.gelu(F.avg_pool1d(F.pad(x, (0, 1)), 2, 1)) + F.max_pool1d(x, 3, 1, 1),
    lambda net, x: net.written(x),
)


class Woven(nn.Module):
    """A forward pass of random steps: [batch, 3, 4] -> [batch, 3]."""

    def __init__(self, steps: list[int]) -> None:
        super().__init__()
        self.steps = steps
        self.linear, self.norm, self.rms, self.group = (
            nn.Linear(4, 4),
            nn.LayerNorm(4),
            nn.RMSNorm(4),
            nn.GroupNorm(3, 3),
        )
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.positions, self.gain = nn.Embedding(3, 4), nn.Parameter(torch.ones(4))
        self.conv, self.transposed = nn.Conv1d(3, 3, 3, padding=1), nn.ConvTranspose1d(3, 3, 3)
        self.batch, self.head = nn.BatchNorm3d(3), nn.Linear(4, 3)

    def written(self, x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        out[:, 0] = x[:, 1]
        out[:, 1:] += self.linear(x)[:, :2] * 0.5
        return out

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = STEPS[step](self, x)
        out: Tensor = self.head(x.mean(1))
        return out


def woven(seed: int) -> Case:
    """Two to five steps, smaller weights than in chains, since some steps are loose."""
    generator = torch.Generator().manual_seed(seed)
    count = 2 + int(torch.randint(4, (), generator=generator))
    steps = [seed % len(STEPS), *torch.randint(len(STEPS), (count - 1,), generator=generator).tolist()]
    model = shake(Woven(steps), generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    radius = (0.0, 1e-6, 1e-3, 0.1)[seed % 4]
    x = torch.randn(2, 3, 4, generator=generator)
    box = Interval(x, x + radius * torch.rand(x.shape, generator=generator)) if seed % 3 else Interval.point(x)
    return Case(model, lopsided_region(model, radius, generator), box)


pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")


def check_containment(case: Case, count: int, alone: int, seed: int) -> int:
    """Sample weights and inputs, assert that every output lies inside the bounds, and say how many were looked at."""
    generator = torch.Generator().manual_seed(seed)
    box = icn.bounds(case.model, case.region, case.x)
    weights = weights_inside(case.region, count, generator)
    xs = inputs_inside(case.x, count, generator)
    together = outputs_together(case.model, weights, xs)
    outside = ~((box.lower <= together) & (together <= box.upper)).flatten(1).all(1)
    assert not outside.any(), f"{int(outside.sum())} of {count} outputs left their bounds in {case.model}"
    for index in range(alone):
        assert box.contains(output_alone(case.model, weights, xs, index)), f"a plain forward left in {case.model}"
    return count + alone


@settings(deadline=None, max_examples=400, derandomize=True)
@given(case=cases, seed=st.integers(0, 2**31))
def test_outputs_of_any_weights_in_any_region_lie_inside_the_bounds(case: Case, seed: int) -> None:
    check_containment(case, count=60, alone=2, seed=seed)


@settings(deadline=None, max_examples=30, derandomize=True)
@given(case=cases)
def test_bounds_are_finite_float64_edges_of_the_outputs_shape(case: Case) -> None:
    box = icn.bounds(case.model, case.region, case.x)
    for edge in (box.lower, box.upper):
        assert fits(edge, Float64[Tensor, "batch classes"])
        assert edge.shape == (case.x.shape[0], 3)
        assert edge.isfinite().all()
    assert (box.lower <= box.upper).all()


@pytest.mark.parametrize("seed", range(4 * len(STEPS)))
def test_outputs_of_any_pass_lie_inside_the_bounds(seed: int) -> None:
    check_pass(woven(seed), count=8, seed=seed)


@torch.no_grad()
def check_pass(case: Case, count: int, seed: int) -> int:
    """As :func:`check_containment`, one ordinary forward pass after the other; says how many bounds were finite."""
    generator = torch.Generator().manual_seed(seed)
    box = icn.bounds(case.model, case.region, case.x)
    weights, xs = weights_inside(case.region, count, generator), inputs_inside(case.x, count, generator)
    for index in range(count):
        out = output_alone(case.model, weights, xs, index)
        assert box.contains(out), f"an output left its bounds in steps {case.model.steps}"
    return int(box.lower.isfinite().all())


def test_sampled_weights_are_float32_points_of_the_region_with_whole_corners_among_them() -> None:
    case = next(case for case in many_cases(10) if not case.x.is_point)
    weights = weights_inside(case.region, 30, torch.Generator().manual_seed(0))
    for index in range(30):
        assert case.region.contains({name: stack[index] for name, stack in weights.items()})
    for name, stack in weights.items():
        low, up = case.region.lower[name], case.region.upper[name]
        assert ((stack[0] == low) | (stack[0] == up)).all()  # a corner
    assert any((stack[2] != case.region.lower[name]).any() for name, stack in weights.items())


@pytest.mark.slow
def test_a_million_weight_vectors_stay_inside_their_bounds() -> None:
    visited = 0
    layers: set[str] = set()
    for index, case in enumerate(many_cases(1530)):
        layers |= {type(layer).__name__ for layer in case.model.modules()}
        visited += check_containment(case, count=1000, alone=8, seed=index)
    assert visited >= 1_000_000
    of_exact_inputs = {  # tests/nets
        "EmbeddingBag", "Ferns", "KWinners", "Lesser", "PatchDictionary", "TriangleDictionary", "WholeNet"
    }  # fmt: skip
    elsewhere = {"BatchNorm3d", "MultiheadAttention"}  # below, and tests/bounds/test_norms.py
    assert set(known_layers()) - of_exact_inputs - elsewhere <= layers, "some layer with a rule was never tried"


@pytest.mark.slow
def test_a_hundred_thousand_passes_stay_inside_their_bounds() -> None:
    finite = sum(check_pass(woven(seed), count=50, seed=seed) for seed in range(2000))
    assert finite > 1500
