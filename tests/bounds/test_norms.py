"""LayerNorm, GroupNorm, InstanceNorm and RMSNorm: sound for every float32 way to compute them, RMSNorm exact."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import intercontinet as icn
from intercontinet.bounds.arithmetic import Float32, Real
from intercontinet.bounds.norm import batch_norm_function, group_norm, layer_norm, rms_norm, standardised
from intercontinet.errors import UnsupportedLayer
from intercontinet.interval import Interval
from tests.strategies import points_inside, random_box, shake, weights_inside


def two_pass(x: Tensor, eps: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()


def squares(x: Tensor, eps: float) -> Tensor:
    """The mean of squares less the square of the mean, as fast kernels have it, in another order, and scaled first."""
    order = torch.randperm(x.shape[-1], generator=torch.Generator().manual_seed(0))
    x2 = x[..., order]
    mean = x2.sum(-1, keepdim=True) / x.shape[-1]
    variance = (x2 * x2).sum(-1, keepdim=True) / x.shape[-1] - mean * mean
    scale = (variance.clamp(min=0) + eps).rsqrt()
    return x * scale - mean * scale


def welford(x: Tensor, eps: float) -> Tensor:
    mean, total = torch.zeros_like(x[..., 0]), torch.zeros_like(x[..., 0])
    for count, value in enumerate(x.unbind(-1), 1):
        before = value - mean
        mean = mean + before / count
        total = total + before * (value - mean)
    return (x - mean[..., None]) * (total[..., None] / x.shape[-1] + eps).rsqrt()


WAYS: list[Callable[[Tensor, float], Tensor]] = [
    two_pass,
    squares,
    welford,
    lambda x, eps: F.layer_norm(x, x.shape[-1:], eps=eps),
]


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    count=st.integers(1, 9),
    offset=st.sampled_from([0.0, 1.0, -30.0, 1e4]),
    scale=st.sampled_from([1e-20, 1e-3, 1.0, 1e3, 1e15]),
    width=st.sampled_from([0.0, 1e-6, 0.1, 3.0]),
    eps=st.sampled_from([1e-5, 1e-12, 0.5, 1e-37, 1e-50]),
    seed=st.integers(0, 2**31),
)
def test_every_way_to_standardise_in_float32_stays_inside(
    count: int, offset: float, scale: float, width: float, eps: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    low = (torch.randn(3, count, generator=generator) + offset) * scale
    up = low + torch.rand(3, count, generator=generator) * width * scale
    out = standardised(Float32(), Interval(low.double(), up.double()), eps)
    box = Interval(out.lower.nan_to_num(-torch.inf), out.upper.nan_to_num(torch.inf))
    assert bool((box.lower <= box.upper).all())
    for x in points_inside(low, up, 12, generator):
        for way in WAYS:
            value = way(x, eps)
            unknown = (value.isnan() & box.lower.isinf() & box.upper.isinf()).double()
            assert box.contains(torch.where(unknown == 1, 0.0, value))


@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_long_sums_are_covered_in_any_order(offset: float) -> None:
    x = torch.randn(2, 700, generator=torch.Generator().manual_seed(0)) + offset
    out = standardised(Float32(), Interval.point(x.double()), 1e-5)
    for seed in range(8):
        order = torch.randperm(700, generator=torch.Generator().manual_seed(seed))
        for way in WAYS:
            assert Interval(out.lower[:, order], out.upper[:, order]).contains(way(x[:, order], 1e-5))
        mean = torch.zeros(2)
        for value in x[:, order].unbind(1):
            mean = mean + value
        centred = x - (mean / 700)[:, None]
        assert out.contains(centred * (centred.square().mean(1, keepdim=True) + 1e-5).rsqrt())


@settings(deadline=None, max_examples=40, derandomize=True)
@given(count=st.integers(2, 6), width=st.sampled_from([0.0, 0.05, 1.0, 20.0]), seed=st.integers(0, 2**31))
def test_standardised_bounds_hold_over_the_reals_and_are_capped(count: int, width: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = random_box((2, count), generator, width)
    out = standardised(Real(), x, 1e-5)
    for point in points_inside(x.lower, x.upper, 60, generator):
        value = two_pass(point, 1e-5)
        assert bool((out.lower - 1e-9 <= value).all() and (value <= out.upper + 1e-9).all())
    assert float(out.magnitude.max()) <= count**0.5 + 1e-5
    assert float(standardised(Float32(), x, 0.1).magnitude.max()) <= 1.2 * count**0.5


def test_a_point_stays_one_but_for_rounding() -> None:
    x = torch.randn(4, 32)
    out = standardised(Float32(), Interval.point(x.double()), 1e-5)
    assert float((out.upper - out.lower).max()) < 2e-4
    assert out.contains(F.layer_norm(x, (32,)))


@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    shape=st.sampled_from([(1,), (3,), (2, 2)]),
    width=st.sampled_from([0.0, 0.3, 4.0]),
    eps=st.sampled_from([None, 1e-5, 0.3, 0.0]),
    seed=st.integers(0, 2**31),
)
def test_rms_edges_are_the_extremes_over_all_corners(
    shape: tuple[int, ...], width: float, eps: float | None, seed: int
) -> None:
    """And over the point of each interval that is nearest to zero, where squares are least."""
    generator = torch.Generator().manual_seed(seed)
    x = random_box((1, *shape), generator, width)
    out = rms_norm(Real(), x, shape, None, eps)
    nearest = torch.zeros_like(x.lower).clamp(x.lower, x.upper)
    visited = [x.lower, x.upper, nearest]
    grid = torch.cartesian_prod(*torch.stack([edge.flatten() for edge in visited]).T).reshape(-1, *shape)
    small = torch.finfo(torch.float32).eps if eps is None else eps
    naive = F.rms_norm(grid, shape, eps=small)
    keep = ~naive.isnan()
    lower = torch.where(keep, naive, torch.inf).amin(0)
    upper = torch.where(keep, naive, -torch.inf).amax(0)
    torch.testing.assert_close(out.lower[0].nan_to_num(0.0), lower.nan_to_num(0.0), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(out.upper[0].nan_to_num(0.0), upper.nan_to_num(0.0), rtol=1e-9, atol=1e-9)


def test_others_far_smaller_than_an_entry_are_not_lost() -> None:
    """A sum of squares less one of them would cancel to nothing."""
    low, up = torch.tensor([[[1e-3, 0.03]], [[1e10, 0.03]]], dtype=torch.float64)
    x = Interval(low, up)
    out = rms_norm(Real(), x, (2,), None, 1e-12)
    true = 1e-3 / ((1e-6 + 9e-4) / 2 + 1e-12) ** 0.5
    assert out.lower[0, 0].item() == pytest.approx(true, rel=1e-9)


@pytest.mark.parametrize("eps", [None, 0.0, 1e-50, 1e-37, 0.1])
@pytest.mark.parametrize("scale", [1e-25, 1e-19, 1.0, 1e18])
@torch.no_grad()
def test_rms_of_float32_stays_inside(eps: float | None, scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    layer = nn.RMSNorm(5, eps=eps)
    shake(layer, generator)
    x = torch.randn(4, 5, generator=generator) * scale
    region = icn.Region.around(layer, 0.2)
    box = icn.bounds(layer, region, Interval(x, x + scale * 0.1))
    weights = weights_inside(region, 20, generator)
    for index, point in enumerate(points_inside(x, x + scale * 0.1, 20, generator)):
        weight = weights["weight"][index]
        small = torch.finfo(torch.float32).eps if eps is None else eps
        assert box.contains(F.rms_norm(point, (5,), weight, eps))
        by_hand = point * torch.rsqrt(point.flip(-1).square().mean(-1, keepdim=True) + small) * weight
        assert box.contains(by_hand) or not by_hand.isfinite().all()


LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "layer": (nn.LayerNorm(6), (3, 6)),
    "layer, several dimensions": (nn.LayerNorm((2, 3)), (4, 2, 3)),
    "layer, without bias": (nn.LayerNorm(4, bias=False), (2, 3, 4)),
    "layer, plain": (nn.LayerNorm(4, elementwise_affine=False), (2, 4)),
    "group": (nn.GroupNorm(2, 4), (2, 4, 3)),
    "group, two sides": (nn.GroupNorm(4, 4), (2, 4, 2, 2)),
    "instance": (nn.InstanceNorm1d(3, affine=True), (2, 3, 5)),
    "instance, plain": (nn.InstanceNorm2d(2), (2, 2, 3, 3)),
    "rms": (nn.RMSNorm((2, 3)), (2, 2, 3)),
    "batch": (nn.BatchNorm3d(2), (2, 2, 2, 2, 2)),
}


@pytest.mark.parametrize("which", list(LAYERS))
@pytest.mark.parametrize("width", [0.0, 0.3])
@torch.no_grad()
def test_layers_stay_inside_for_weights_and_inputs_of_their_boxes(which: str, width: float) -> None:
    generator = torch.Generator().manual_seed(0)
    layer, shape = LAYERS[which]
    model = shake(nn.Sequential(nn.Identity(), layer, nn.Sequential(nn.ReLU())), generator)
    if not list(model.parameters()):
        model.add_module("scale", nn.Linear(shape[-1], 2))
    region = icn.Region.around(model, width)
    x = torch.randn(shape, generator=generator) * 3 + 1
    box = icn.bounds(model, region, Interval(x, x + width))
    weights = weights_inside(region, 25, generator)
    for index, point in enumerate(points_inside(x, x + width, 25, generator)):
        out = torch.func.functional_call(model, {name: stack[index] for name, stack in weights.items()}, (point,))
        assert box.contains(out)


def test_functions_agree_with_layers_over_points() -> None:
    x = torch.randn(2, 4, 3).double()
    box = Interval.point(x)
    torch.testing.assert_close(group_norm(Real(), box, 2).upper, F.group_norm(x, 2))
    torch.testing.assert_close(layer_norm(Real(), box, (4, 3)).lower, F.layer_norm(x, (4, 3)))
    mean, variance = torch.randn(4).double(), torch.rand(4).double()
    saved = Interval.point(mean), Interval.point(variance)
    torch.testing.assert_close(batch_norm_function(Real(), box, *saved).lower, F.batch_norm(x, mean, variance))


@pytest.mark.parametrize(
    "layer", [nn.InstanceNorm1d(3, track_running_stats=True), nn.BatchNorm1d(3, track_running_stats=False)]
)
def test_statistics_of_other_examples_are_refused(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Conv1d(3, 3, 1), layer).eval()
    with pytest.raises(UnsupportedLayer, match=r"track_running_stats=(True|False)"):
        icn.bounds(model, icn.Region.around(model, 0.1), torch.zeros(2, 3, 4))


@pytest.mark.parametrize(
    "norm", [lambda x: standardised(Float32(), x, 0.0), lambda x: rms_norm(Float32(), x, (3,), None, 0.0)]
)
def test_a_variance_that_may_vanish_and_sums_that_may_overflow_leave_nothing_known(
    norm: Callable[[Interval], Interval],
) -> None:
    for values in (torch.zeros(1, 3), torch.full((1, 3), 1e19)):
        out = norm(Interval(values.double() - 1e-3, values.double() + 1e-3))
        assert out.lower.isnan().all() or bool((out.lower < -1e3).any() or out.upper.isinf().any())
