"""Sums, softmax and convex sums: in any order, at corners, and as float32 rounds."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import intercontinet as icn
from intercontinet.bounds import Float32, Real
from intercontinet.bounds.elementwise import add
from intercontinet.bounds.reduction import convex_sum, softmax
from intercontinet.interval import Interval
from intercontinet.region import Region
from tests.bounds.calls import NOTHING, Binary, Of, box_of
from tests.strategies import corners as corners_of
from tests.strategies import points_inside, random_box


@pytest.mark.parametrize("name", ["sum", "mean", "matmul", "einsum", "linear", "sum of squares", "conv1d"])
def test_sums_in_any_order_lie_inside(name: str) -> None:
    """Naive float32 sums of shuffled, blocked terms, of sizes far apart so that they cancel."""
    generator = torch.Generator().manual_seed(0)
    n = 600
    x = torch.randn(n, generator=generator) * 10 ** torch.randint(-4, 5, (n,), generator=generator).float()
    w = torch.randn(n, generator=generator)
    fs: dict[str, tuple[Binary, Tensor]] = {
        "sum": (lambda p, q: p.sum(), x),
        "mean": (lambda p, q: p.mean(), x / n),
        "matmul": (lambda p, q: p @ q, x * w),
        "einsum": (lambda p, q: torch.einsum("i,i->", p, q), x * w),
        "linear": (lambda p, q: F.linear(p[None], q[None]), x * w),
        "sum of squares": (lambda p, q: p.square().sum(), x * x),
        "conv1d": (lambda p, q: F.conv1d(p[None, None], q[None, None]), x * w),
    }
    f, terms = fs[name]
    region = Region.around(Of(f, x, w), 0.0)
    out = box_of(f, region) if name != "sum" else icn.bounds(Of(f, x, w), region, NOTHING)
    for seed in range(60):
        order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
        total = torch.zeros(())
        for part in torch.split(terms[order], 1 + seed):
            total = total + part.sum()
        assert bool((out.lower <= total).all() and (total <= out.upper).all())


@settings(deadline=None, max_examples=150, derandomize=True)
@given(
    st.lists(st.floats(-80, 80, width=32), min_size=1, max_size=6),
    st.floats(0, 2),
    st.integers(0, 2**31),
)
def test_softmax_edges_are_reached_at_corners_and_hold_in_float32(xs: list[float], width: float, seed: int) -> None:
    x = torch.tensor(xs)
    generator = torch.Generator().manual_seed(seed)
    up = x + torch.rand(len(xs), generator=generator) * width
    out = softmax(Float32(), Interval(x.double(), up.double()), -1)
    exact = softmax(Real(), Interval(x.double(), up.double()), -1)
    naive = torch.stack([corner.double().softmax(-1) for corner in corners_of(x, up)])
    torch.testing.assert_close(exact.lower, naive.amin(0))
    torch.testing.assert_close(exact.upper, naive.amax(0))
    for point in points_inside(x, up, 30, generator):
        assert out.contains(point.softmax(-1))
        powers = torch.exp2((point - point.max()) * 1.4426950408889634)  # as some kernels have it
        assert out.contains(powers / powers.sum())


def test_shares_far_below_the_largest_are_covered_however_exponents_round() -> None:
    generator = torch.Generator().manual_seed(0)
    far = torch.rand(20000, generator=generator)
    x = torch.stack([-60 - 5 * far, 3 * torch.rand(20000, generator=generator)], 1)
    out = softmax(Float32(), Interval.point(x.double()), 1)
    powers = torch.exp2((x - x.amax(1, keepdim=True)) * 1.4426950408889634)
    assert out.contains(powers / powers.sum(1, keepdim=True)) and out.contains(x.softmax(1))


def test_a_softmax_of_hidden_keys_alone_is_not_promised() -> None:
    x = Interval.point(torch.tensor([[-torch.inf, -torch.inf], [0.0, -torch.inf]]).double())
    out = softmax(Float32(), x, -1)
    assert out.lower[0].isnan().all() and out.contains(torch.tensor([1.0, 0.0])) is False
    assert out.upper[1, 1] <= 1e-35 and abs(out.lower[1, 0] - 1) < 1e-5


def test_a_far_entry_does_not_loosen_the_others() -> None:
    """Masks of -1e9 are common; what they round must not count on entries that take part."""
    out = softmax(Float32(), Interval.point(torch.tensor([0.3, -0.2, -1e9, -3e38]).double()), 0)
    assert float((out.upper - out.lower).max()) < 1e-4


def test_convex_sums_never_leave_their_values() -> None:
    generator = torch.Generator().manual_seed(0)
    shares = softmax(Float32(), random_box((3, 5), generator, width=8.0), -1)
    for values in (
        random_box((5, 2), generator),
        Interval(torch.zeros(5, 2).double(), torch.ones(5, 2).double(), True),
    ):
        out = convex_sum(Float32(), shares, values)
        assert bool(
            (out.lower >= values.lower.amin(0) - 1e-4).all() and (out.upper <= values.upper.amax(0) + 1e-4).all()
        )
        assert not out.nonnegative or bool((out.lower >= 0).all())


def test_a_minus_infinity_hides_finite_scores_and_no_unknown_ones() -> None:
    x = Interval(torch.tensor([1.0, torch.nan]).double(), torch.tensor([2.0, torch.nan]).double())
    mask = Interval.point(torch.full((2,), -torch.inf).double())
    for out in (add(Float32(), x, mask), add(Float32(), mask, x)):
        assert out.lower[0] == out.upper[0] == -torch.inf and out.lower[1].isnan()
