"""BatchNorm with frozen statistics."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import nn

import intercontinet as icn
from intercontinet.bounds import Real
from intercontinet.bounds.norm import batch_norm
from intercontinet.errors import InvalidRegion, TrainingMode, UnsupportedLayer
from intercontinet.interval import Interval
from tests.strategies import points_inside, random_box, shake, weights_inside

Norm = nn.BatchNorm1d | nn.BatchNorm2d
SHAPES: list[tuple[Norm, tuple[int, ...]]] = [
    (nn.BatchNorm1d(3), (4, 3)),
    (nn.BatchNorm1d(3), (2, 3, 4)),
    (nn.BatchNorm2d(3), (2, 3, 2, 2)),
    (nn.BatchNorm1d(3, affine=False), (4, 3)),
]


@pytest.mark.parametrize(("layer", "shape"), SHAPES)
@pytest.mark.parametrize("wide_input", [True, False])
def test_the_bound_is_the_extreme_over_all_corners(layer: Norm, shape: tuple[int, ...], wide_input: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    shake(layer, generator)
    x = random_box(shape, generator)
    x = x if wide_input else Interval.point(x.lower)
    weight, bias = random_box((3,), generator), random_box((3,), generator)
    assert layer.running_mean is not None and layer.running_var is not None
    mean, variance = layer.running_mean.double(), layer.running_var.double()
    parameters = {"running_mean": Interval.point(mean), "running_var": Interval.point(variance)}
    if layer.affine:
        parameters |= {"weight": weight, "bias": bias}
    out = batch_norm(layer, parameters, x, Real())
    lower, upper = torch.full(shape, torch.inf, dtype=torch.float64), torch.full(shape, -torch.inf, dtype=torch.float64)
    for value, w, b in product((x.lower, x.upper), (weight.lower, weight.upper), (bias.lower, bias.upper)):
        corner = nn.functional.batch_norm(
            value, mean, variance, w if layer.affine else None, b if layer.affine else None, eps=layer.eps
        )
        lower, upper = torch.minimum(lower, corner), torch.maximum(upper, corner)
    torch.testing.assert_close(out.lower, lower)
    torch.testing.assert_close(out.upper, upper)


@pytest.mark.parametrize(("layer", "shape"), SHAPES[:3])
@pytest.mark.parametrize("radius", [0.0, 1e-7, 0.3])
def test_float32_outputs_of_weights_inside_lie_inside(layer: Norm, shape: tuple[int, ...], radius: float) -> None:
    generator = torch.Generator().manual_seed(1)
    shake(layer, generator)
    region = icn.Region.around(layer, radius)
    x = torch.randn(shape, generator=generator)
    box = icn.bounds(layer, region, x)
    weights = weights_inside(region, 50, generator)
    for index in range(50):
        assert box.contains(torch.func.functional_call(layer, {n: w[index] for n, w in weights.items()}, (x,)))


def test_training_mode_is_refused_and_the_layer_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.BatchNorm1d(2)))
    region = icn.Region.around(model, 0.1)
    with pytest.raises(TrainingMode, match=r"layer '1\.0' \(BatchNorm1d\).*call model\.eval\(\)"):
        icn.bounds(model, region, torch.zeros(1, 2))
    assert icn.bounds(model.eval(), region, torch.zeros(1, 2)).lower.isfinite().all()


def test_a_norm_without_running_statistics_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False)).eval()
    with pytest.raises(UnsupportedLayer, match=r"layer '1'.*track_running_stats=True"):
        icn.bounds(model, icn.Region.around(model, 0.1), torch.zeros(1, 2))


@pytest.mark.parametrize("name", ["running_mean", "running_var"])
def test_statistics_that_roam_are_refused_rather_than_taken_at_their_centre(name: str) -> None:
    model = nn.Sequential(nn.BatchNorm1d(2)).eval()
    point = icn.Region.around(model, 0.0)
    upper = {n: t + 0.1 if n.endswith(name) else t for n, t in point.upper.items()}
    with pytest.raises(InvalidRegion, match=f"'{name}' roam"):
        icn.bounds(model, icn.Region(point.lower, upper), torch.zeros(1, 2))


def test_a_subnormal_input_that_is_flushed_before_a_steep_slope_stays_inside() -> None:
    layer = nn.BatchNorm1d(1).eval()
    with torch.no_grad():
        assert layer.running_var is not None
        layer.weight.fill_(1e4)
        layer.running_var.fill_(0.0)
    x = torch.full((1, 1), 9e-39)
    box = icn.bounds(layer, icn.Region.around(layer, 0.0), x)
    assert box.contains(layer(x).detach())
    assert box.contains(torch.zeros(1, 1))  # what flushing hardware makes of it
    assert (layer(x) > 1e-33).all()


@pytest.mark.parametrize(("weight", "x"), [(2e38, 1e-10), (1e-5, 2e37)])
def test_an_overflow_in_either_order_of_the_products_is_not_promised(weight: float, x: float) -> None:
    layer = nn.BatchNorm1d(1).eval()
    with torch.no_grad():
        assert layer.running_var is not None
        layer.weight.fill_(weight)
        layer.running_var.fill_(0.0)
    box = icn.bounds(layer, icn.Region.around(layer, 0.0), torch.full((1, 1), x))
    assert box.lower.isinf().all() and box.upper.isinf().all()


def test_an_interval_of_inputs_is_covered() -> None:
    generator = torch.Generator().manual_seed(2)
    layer = nn.BatchNorm2d(2)
    shake(layer, generator)
    low = torch.randn(1, 2, 2, 2, generator=generator)
    up = low + torch.rand(low.shape, generator=generator)
    box = icn.bounds(layer, icn.Region.around(layer, 0.0), Interval(low, up))
    for x in points_inside(low, up, 60, generator):
        assert box.contains(layer(x).detach())
