"""Pools against plain loops over windows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import ceil

import pytest
import torch
from torch import Tensor, nn

from intercontinet.bounds import Arithmetic, Float32, Real
from intercontinet.bounds.registry import rule_for
from intercontinet.errors import UnsupportedLayer
from intercontinet.interval import Interval
from tests.strategies import POOLS_1D, POOLS_2D, Layer, points_inside, random_box

every_pool = pytest.mark.parametrize("make", [*POOLS_1D, *POOLS_2D])


def apply(layer: nn.Module, x: Interval, arithmetic: Arithmetic) -> Interval:
    rule = rule_for(layer)
    assert rule is not None
    out: Interval = rule(layer, {}, x, arithmetic)
    return out


def each_way(setting: int | Sequence[int], ways: int) -> tuple[int, ...]:
    return (setting,) * ways if isinstance(setting, int) else tuple(setting) * (ways if len(setting) == 1 else 1)


def in_loops(layer: nn.Module, x: Tensor, positions: torch.Size) -> Tensor:
    """The maximum or mean of every window, entry by entry."""
    ways = x.dim() - 2
    out = torch.zeros(*x.shape[:2], *positions, dtype=x.dtype)
    averages = "Avg" in type(layer).__name__
    for at in product(*map(range, out.shape)):
        image, channel, *place = at
        divisor = 1
        spans: list[list[int]] = []
        for way, (p, size) in enumerate(zip(place, x.shape[2:], strict=True)):
            if "Adaptive" in type(layer).__name__:
                span = list(range(p * size // positions[way], ceil((p + 1) * size / positions[way])))
                divisor *= len(span)
            else:
                kernel, stride, padding, dilation = (
                    each_way(getattr(layer, name, 1), ways)[way]
                    for name in ("kernel_size", "stride", "padding", "dilation")
                )
                start = p * stride - padding
                taps = [start + t * dilation for t in range(kernel)]
                span = [t for t in taps if 0 <= t < size]
                included = [t for t in taps if t < size + padding]
                divisor *= len(included) if getattr(layer, "count_include_pad", True) else len(span)
            spans.append(span)
        window = [x[where] for where in product([image], [channel], *spans)]
        if averages:
            out[at] = sum(window) / (getattr(layer, "divisor_override", None) or divisor)
        else:
            out[at] = max(window)
    return out


def image(layer: nn.Module, seed: int = 0, width: float = 1.0) -> Interval:
    flat = type(layer).__name__.endswith("1d")
    return random_box((2, 2, 7) if flat else (2, 2, 6, 5), torch.Generator().manual_seed(seed), width)


@every_pool
def test_both_edges_are_the_pools_of_the_edges(make: Layer) -> None:
    layer = make()
    x = image(layer)
    out = apply(layer, x, Real())
    positions = layer(x.lower).shape[2:]
    torch.testing.assert_close(out.lower, in_loops(layer, x.lower, positions), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(out.upper, in_loops(layer, x.upper, positions), rtol=1e-12, atol=1e-12)


@every_pool
@pytest.mark.parametrize("width", [0.0, 1e-7, 1.0])
def test_float32_pools_of_anything_inside_lie_inside(make: Layer, width: float) -> None:
    layer = make()
    box = image(layer, seed=1, width=width)
    low = box.lower.float()
    up = torch.maximum(low, box.upper.float())
    out = apply(layer, Interval(low.double(), up.double()), Float32())
    for x in points_inside(low, up, 200, torch.Generator().manual_seed(2)):
        assert out.contains(layer(x))


@every_pool
def test_nan_survives_in_every_window_that_sees_it(make: Layer) -> None:
    layer = make()
    x = image(layer)
    for edge in (x.lower, x.upper):
        edge[0] = torch.nan
    out = apply(layer, x, Float32())
    for edge in (out.lower, out.upper):
        assert edge[0].isnan().all() and edge[1].isfinite().all()


@every_pool
def test_pools_of_nonnegative_values_are_known_to_be_nonnegative(make: Layer) -> None:
    layer = make()
    x = image(layer)
    out = apply(layer, Interval(x.lower.relu(), x.upper.relu(), nonnegative=True), Float32())
    assert out.nonnegative and (out.lower >= 0).all()
    assert not apply(layer, x, Float32()).nonnegative


@every_pool
def test_rounding_widens_a_pool_by_next_to_nothing(make: Layer) -> None:
    layer = make()
    x = image(layer)
    real, sound = apply(layer, x, Real()), apply(layer, x, Float32())
    assert (sound.lower <= real.lower).all() and (real.upper <= sound.upper).all()
    assert (real.lower - sound.lower).max() < 1e-5 and (sound.upper - real.upper).max() < 1e-5


@pytest.mark.parametrize(
    "layer", [nn.AvgPool2d(2), nn.AvgPool2d((1, 2), divisor_override=10**6), nn.AdaptiveAvgPool2d(1)], ids=str
)
def test_a_windows_sum_that_overflows_on_the_way_to_its_average_is_not_promised(layer: nn.Module) -> None:
    x = torch.full((1, 1, 2, 2), 3e38)
    assert layer(x).isinf().any()  # the sum comes first
    out = apply(layer, Interval.point(x.double()), Float32())
    assert out.lower.isnan().all() and out.upper.isnan().all()


def test_the_error_of_adaptive_avg_pool1d_does_not_grow_with_channels() -> None:
    few, many = (
        apply(nn.AdaptiveAvgPool1d(1), Interval.point(torch.ones(1, channels, 4).double()), Float32())
        for channels in (1, 1000)
    )
    assert torch.equal(few.radius[0, 0], many.radius[0, 0])


@pytest.mark.parametrize(
    "layer",
    [
        nn.MaxPool1d(2, return_indices=True),
        nn.MaxPool2d(2, return_indices=True),
        nn.AdaptiveMaxPool1d(2, return_indices=True),
        nn.AdaptiveMaxPool2d(2, return_indices=True),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_pools_that_return_indices_are_refused(layer: nn.Module) -> None:
    with pytest.raises(UnsupportedLayer, match="return_indices=False"):
        apply(layer, image(layer), Real())


def test_a_negative_divisor_is_refused() -> None:
    with pytest.raises(UnsupportedLayer, match="divisor_override = -2"):
        apply(nn.AvgPool2d(2, divisor_override=-2), image(nn.AvgPool2d(2)), Real())
