"""Boxes of parameters: how they are made, compared, clamped, scaled and measured."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import intercontinet as icn
from intercontinet.errors import InvalidModel, InvalidRegion, RegionMismatch
from intercontinet.state import state_of
from tests.tiny import mlp, same, snapshot, with_statistics

steadily = settings(derandomize=True, deadline=None, max_examples=60)
floats = st.floats(-8, 8, width=32)


def box(lower: list[float], upper: list[float]) -> icn.Region:
    return icn.Region({"w": torch.tensor(lower)}, {"w": torch.tensor(upper)})


def at(*values: float) -> dict[str, Tensor]:
    return {"w": torch.tensor(values)}


@st.composite
def boxes_with_a_point(draw: st.DrawFn) -> tuple[icn.Region, dict[str, Tensor]]:
    """An asymmetric box, some of its edges infinite, and a point inside."""
    sides = draw(st.lists(st.tuples(floats, floats, floats), min_size=1, max_size=5))
    infinite = draw(st.lists(st.sampled_from(["no", "lower", "both"]), min_size=len(sides), max_size=len(sides)))
    values = [sorted(side) for side in sides]
    lower = [-math.inf if kind != "no" else low for (low, _, _), kind in zip(values, infinite, strict=True)]
    upper = [math.inf if kind == "both" else up for (_, _, up), kind in zip(values, infinite, strict=True)]
    return box(lower, upper), at(*(middle for _, middle, _ in values))


def test_one_radius_surrounds_every_parameter() -> None:
    model = mlp()
    region = icn.Region.around(model, 0.25)
    for name, weight in model.named_parameters():
        assert torch.equal(region.lower[name], weight.detach() - 0.25)
        assert torch.equal(region.upper[name], weight.detach() + 0.25)


def test_a_mapping_gives_each_name_a_number_or_a_tensor_and_the_rest_stay_points() -> None:
    model = mlp()
    sizes = torch.rand(8, 2)
    region = icn.Region.around(model, {"0.weight": sizes, "2.bias": 0.5})
    weight, bias = model.get_parameter("0.weight").detach(), model.get_parameter("2.bias").detach()
    assert torch.equal(region.upper["0.weight"], weight + sizes)
    assert torch.equal(region.lower["2.bias"], bias - 0.5)
    assert torch.equal(region.lower["0.bias"], region.upper["0.bias"])


def test_buffers_are_points_and_counters_are_left_out() -> None:
    model = with_statistics()
    region = icn.Region.around(model, 0.1)
    assert torch.equal(region.lower["1.running_mean"], region.upper["1.running_mean"])
    assert "1.num_batches_tracked" not in region.lower


def test_a_buffer_gets_no_room_from_any_side() -> None:
    model = with_statistics()
    with pytest.raises(InvalidRegion, match=r"1\.running_var.*points"):
        icn.Region.around(model, {"1.running_var": 0.1})
    from_state = icn.Region.around(model.state_dict(), 0.1)
    assert torch.equal(from_state.lower["1.running_var"], from_state.upper["1.running_var"])
    lower, upper = dict(from_state.lower), dict(from_state.upper)
    upper["1.running_mean"] = upper["1.running_mean"] + 0.1
    with pytest.raises(InvalidRegion, match=r"running_mean.*points"):
        icn.bounds(model, icn.Region(lower, upper), torch.randn(3, 2))


def test_a_region_does_not_follow_the_tensors_it_was_made_from() -> None:
    model = mlp()
    state = model.state_dict()
    region = icn.Region(state, state)
    with torch.no_grad():
        model.get_parameter("0.weight").add_(5)
    assert not region.contains(model)


def test_an_unknown_name_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(RegionMismatch, match=r"'0\.weigth'.*did you mean '0\.weight'"):
        icn.Region.around(mlp(), {"0.weigth": 0.1})


def test_a_radius_of_another_shape_is_refused() -> None:
    with pytest.raises(RegionMismatch, match=r"'0\.weight' has shape \(3,\), its weights \(8, 2\)"):
        icn.Region.around(mlp(), {"0.weight": torch.ones(3)})


@pytest.mark.parametrize("radius", [-1e-9, math.nan, -math.inf])
def test_a_negative_radius_is_refused(radius: float) -> None:
    with pytest.raises(InvalidRegion, match=r"the radius of '0\.weight' is negative or NaN"):
        icn.Region.around(mlp(), radius)
    with pytest.raises(InvalidRegion, match=r"the radius of '2\.bias' is negative or NaN"):
        icn.Region.around(mlp(), {"2.bias": torch.tensor([0.1, radius])})


@pytest.mark.parametrize(
    ("lower", "upper", "complaint"),
    [
        ({"w": torch.ones(2)}, {"v": torch.ones(2)}, "'v' has only one edge"),
        ({}, {}, "at least one parameter"),
        ({"w": torch.ones(2)}, {"w": torch.ones(3)}, "'w' must be float32 tensors of one shape"),
        ({"w": torch.ones(2).double()}, {"w": torch.ones(2).double()}, "'w' must be float32"),
        ({"w": torch.ones(2)}, {"w": torch.tensor([1.0, 0.5])}, "'w' is NaN or lies above"),
        ({"w": torch.ones(1)}, {"w": torch.tensor([math.nan])}, "'w' is NaN or lies above"),
        ({"w": torch.tensor([math.inf])}, {"w": torch.tensor([math.inf])}, "'w': both are the same infinity"),
    ],
)
def test_edges_that_make_no_box_are_refused(lower: dict[str, Tensor], upper: dict[str, Tensor], complaint: str) -> None:
    with pytest.raises(InvalidRegion, match=complaint):
        icn.Region(lower, upper)


def test_edges_belong_to_the_region_and_the_next_bit_does_not() -> None:
    region = box([-1.0], [1e-45])
    assert region.contains(at(-1.0)) and region.contains(at(1e-45))
    outside = torch.nextafter(torch.tensor([-1.0]), torch.tensor([-2.0]))
    assert not region.contains({"w": outside})
    assert not region.contains(at(3e-45)), "subnormal distances count too"


def test_excess_tells_how_far_each_parameter_is_outside() -> None:
    region = icn.Region.around(mlp(), 0.1)
    model = mlp()
    with torch.no_grad():
        model.get_parameter("2.weight")[1, 3] += 0.35
    excess = region.excess(model)
    assert list(excess) == ["2.weight"]
    assert excess["2.weight"] == pytest.approx(0.25, abs=1e-6)


def test_a_module_and_its_state_dict_are_judged_alike() -> None:
    model = with_statistics()
    region = icn.Region.around(model, 0.1)
    assert region.contains(model) and region.contains(model.state_dict())


def test_within_compares_bit_for_bit() -> None:
    inner = box([0.0, -1.0], [1.0, 1.0])
    above = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0)).item()
    assert inner.within(inner)
    assert not box([0.0, -1.0], [1.0, above]).within(inner)
    assert inner.within(box([-math.inf, -1.0], [math.inf, above]))


def test_regions_of_different_models_are_not_compared() -> None:
    one, other = icn.Region.around(mlp(), 0.1), icn.Region.around(mlp(hidden=5), 0.1)
    for question in (one.within, one.clamped_into):
        with pytest.raises(RegionMismatch, match=r"'0\.weight' has shape \(8, 2\) in one region and \(5, 2\)"):
            question(other)
        with pytest.raises(RegionMismatch, match=r"only one of the two regions bounds '0\.bias'"):
            question(box([0.0], [1.0]))


def test_clamp_moves_to_the_nearest_point_and_buffers_too() -> None:
    model = with_statistics()
    region = icn.Region.around(model, 0.1)
    before = snapshot(model)
    with torch.no_grad():
        model.get_parameter("0.weight").add_(1.0)
        model.get_buffer("1.running_mean").sub_(3.0)
    region.clamp_(model)
    assert region.contains(model)
    assert torch.equal(model.get_parameter("0.weight"), region.upper["0.weight"])
    assert torch.equal(model.get_buffer("1.running_mean"), before["1.running_mean"])
    assert torch.equal(model.get_parameter("3.weight"), before["3.weight"]), "what is inside stays"


def test_clamp_keeps_the_parameters_that_an_optimizer_holds() -> None:
    model = mlp()
    held = list(model.parameters())
    icn.Region.around(mlp(seed=1), 0.01).clamp_(model)
    assert all(a is b for a, b in zip(held, model.parameters(), strict=True))
    assert all(p.requires_grad for p in held)


def test_clamped_into_a_region_far_away_is_a_point_on_its_edge() -> None:
    moved = box([5.0], [6.0]).clamped_into(box([0.0], [1.0]))
    assert moved.lower["w"].item() == moved.upper["w"].item() == 1.0


def test_scaling_moves_edges_from_the_point_and_keeps_infinite_ones() -> None:
    region = box([-1.0, -math.inf], [3.0, 2.0])
    half, triple = region.scaled(0.5, at(1.0, 0.0)), region.scaled(3.0, at(1.0, 0.0))
    assert half.lower["w"].tolist() == [0.0, -math.inf] and half.upper["w"].tolist() == [2.0, 1.0]
    assert triple.lower["w"].tolist() == [-5.0, -math.inf] and triple.upper["w"].tolist() == [7.0, 6.0]


def test_scaling_down_never_leaves_the_region_by_rounding() -> None:
    generator = torch.Generator().manual_seed(0)
    edge = 0.5 + torch.rand(1000, generator=generator) / 2
    region = icn.Region({"w": -edge}, {"w": edge})
    for point in (-0.49 * torch.ones(1000), 0.3 * edge):
        assert region.scaled(1.0, {"w": point}).within(region)
        assert region.scaled(0.99999994, {"w": point}).within(region)


@pytest.mark.parametrize("factor", [-0.5, math.nan, math.inf])
def test_scaling_by_no_sensible_factor_is_refused(factor: float) -> None:
    with pytest.raises(InvalidRegion, match="the factor is"):
        box([0.0], [1.0]).scaled(factor, at(0.5))


def test_size_counts_what_has_finite_edges() -> None:
    size = box([0.0, 1.0, -math.inf], [2.0, 1.0, 0.0]).size()
    assert (size.entries, size.radii, size.dead) == (2, 1.0, 0.5)
    assert size.log_volume == pytest.approx(math.log(2.0) - 149 * math.log(2.0))
    assert size.mean_radius == 0.5
    assert math.isnan(icn.Region.everything(mlp()).size().mean_radius)


@given(st.lists(st.tuples(st.floats(0, 1, width=32), st.floats(0, 1, width=32)), min_size=1, max_size=5), st.data())
def test_a_region_within_another_is_never_larger(edges: list[tuple[float, float]], data: st.DataObject) -> None:
    outer = box([min(pair) for pair in edges], [max(pair) for pair in edges])
    inner = [sorted(data.draw(st.lists(st.floats(*sorted(pair), width=32), min_size=2, max_size=2))) for pair in edges]
    nested = box([low for low, _ in inner], [high for _, high in inner])
    assert nested.within(outer)
    assert nested.size().log_volume <= outer.size().log_volume
    assert nested.size().radii <= outer.size().radii and nested.size().dead >= outer.size().dead


def test_size_of_some_parameters_only() -> None:
    region = icn.Region.around(mlp(), {"2.bias": 0.5})
    assert region.size(("2.bias",)).radii == pytest.approx(1.0)
    assert region.size(("0.bias",)).dead == 1.0


def test_moving_to_a_device_keeps_names_and_edges() -> None:
    region = icn.Region.around(mlp(), 0.1)
    here, nowhere = region.to("cpu"), region.to("meta")
    assert here.within(region) and region.within(here)
    assert list(nowhere.lower) == list(region.lower)
    assert all(edge.device.type == "meta" for edge in (*nowhere.lower.values(), *nowhere.upper.values()))


def test_before_any_promise_every_weight_is_allowed_and_no_other_statistics() -> None:
    model = with_statistics()
    everything = icn.Region.everything(model)
    with torch.no_grad():
        model.get_parameter("0.weight").add_(1e30)
    assert everything.contains(model)
    with torch.no_grad():
        model.get_buffer("1.running_mean").add_(1e-3)
    assert list(everything.excess(model)) == ["1.running_mean"]


def test_a_region_does_not_follow_the_model_it_was_made_from() -> None:
    model = with_statistics()
    regions = [icn.Region.around(model, 0.0), icn.Region.everything(model)]
    mean = model.get_buffer("1.running_mean").clone()
    with torch.no_grad():
        model.get_buffer("1.running_mean").add_(1.0)
        model.get_parameter("0.weight").add_(1.0)
    assert not any(region.contains(model) for region in regions)
    assert all(torch.equal(region.lower["1.running_mean"], mean) for region in regions)


def test_the_repr_is_one_line() -> None:
    assert repr(icn.Region.around(mlp(), 0.5)) == "Region(4 tensors, 42 bounded entries, mean radius 0.5)"


def test_a_model_without_floating_point_parameters_is_refused() -> None:
    with pytest.raises(InvalidModel, match="no floating-point parameter"):
        state_of(nn.ReLU())


@steadily
@given(boxes_with_a_point(), st.floats(0, 1))
def test_a_box_scaled_down_lies_within_and_holds_its_point(
    case: tuple[icn.Region, dict[str, Tensor]], factor: float
) -> None:
    region, point = case
    smaller = region.scaled(factor, point)
    assert smaller.within(region)
    assert smaller.contains(point)
    if bool(region.lower["w"].isfinite().all() and region.upper["w"].isfinite().all()):
        nothing = region.scaled(0.0, point)
        assert torch.equal(nothing.lower["w"], point["w"]) and torch.equal(nothing.upper["w"], point["w"])


@steadily
@given(boxes_with_a_point(), st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_chains_of_smaller_boxes_nest_all_the_way(
    case: tuple[icn.Region, dict[str, Tensor]], factors: list[float]
) -> None:
    region, point = case
    chain = [region]
    for factor in factors:
        chain.append(chain[-1].scaled(factor, point))
    assert all(child.within(parent) for i, parent in enumerate(chain) for child in chain[i:])


@steadily
@given(boxes_with_a_point(), st.floats(0, 1), st.floats(0, 1))
def test_a_smaller_factor_gives_a_smaller_box(
    case: tuple[icn.Region, dict[str, Tensor]], one: float, other: float
) -> None:
    region, point = case
    assert region.scaled(min(one, other), point).within(region.scaled(max(one, other), point))


@steadily
@given(boxes_with_a_point(), boxes_with_a_point())
def test_edges_clamped_into_a_parent_always_nest(
    one: tuple[icn.Region, dict[str, Tensor]], other: tuple[icn.Region, dict[str, Tensor]]
) -> None:
    entries = min(len(one[1]["w"]), len(other[1]["w"]))
    child, parent = (
        icn.Region({"w": r.lower["w"][:entries]}, {"w": r.upper["w"][:entries]}) for r in (one[0], other[0])
    )
    assert child.clamped_into(parent).within(parent)


@steadily
@given(st.floats(0, 4, width=32), st.floats(0, 4, width=32), st.integers(0, 5))
def test_after_clamping_the_region_holds_the_model(radius: float, shift: float, seed: int) -> None:
    model = mlp(seed=seed)
    region = icn.Region.around(mlp(seed=seed + 1), radius)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(shift)
    region.clamp_(model)
    assert region.contains(model)
    clamped = snapshot(model)
    region.clamp_(model)
    assert same(clamped, snapshot(model)), "clamping twice is clamping once"
