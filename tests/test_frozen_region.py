"""Frozen tensors of a region, of which a digest is all that is known."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
import torch
from torch import nn

import intercontinet as icn
from intercontinet.errors import InvalidRegion, RegionMismatch
from intercontinet.record import Frozen
from intercontinet.state import digest, state_of
from tests.test_region import at, box
from tests.tiny import same, snapshot, with_statistics


def frozen_and_not(radius: float = 0.1) -> tuple[nn.Module, icn.Region]:
    """A model with statistics, and a region in which only its last layer may move, as from a file."""
    model = with_statistics()
    return model, icn.Region.around(model, {"3.weight": radius, "3.bias": radius}).without_values()


def test_points_become_digests_and_points_again() -> None:
    model, region = frozen_and_not()
    assert region.lower.keys() == {"3.weight", "3.bias"} and len(region.frozen) == 6
    whole = region.with_values(model)
    assert not whole.frozen and whole.with_values(model) is whole
    assert list(whole.lower) == list(state_of(model)), "in the model's order"
    assert torch.equal(whole.lower["0.weight"], model.get_parameter("0.weight"))
    assert whole.without_values().frozen == region.frozen


def test_a_digest_is_of_the_values_however_they_lie_in_memory() -> None:
    values = torch.arange(6.0).reshape(2, 3)
    plain = hashlib.sha256(values.numpy().tobytes()).hexdigest()
    assert digest(values) == digest(values.t().contiguous().t()) == digest(values.clone().requires_grad_()) == plain
    assert digest(torch.tensor(1.5)) == hashlib.sha256(np.float32(1.5).tobytes()).hexdigest()
    assert digest(torch.zeros(0)) == hashlib.sha256().hexdigest()
    assert digest(values[:, 1]) != digest(values[:, 0])


def test_the_bits_of_a_frozen_tensor_count_down_to_the_sign_of_zero() -> None:
    region = icn.Region.around(at(0.0, -0.0), 0.0)
    assert region.contains(at(-0.0, 0.0)), "as numbers they are equal"
    frozen = region.without_values()
    assert frozen.frozen.keys() == {"w"}
    assert frozen.contains(at(0.0, -0.0)) and not frozen.contains(at(0.0, 0.0))
    assert region.within(frozen) and frozen.within(region)
    assert region.scaled(0.5, at(0.0, -0.0)).within(frozen) and region.scaled(2.0, at(0.0, -0.0)).within(frozen)
    assert box([-1.0, -1.0], [1.0, 1.0]).clamped_into(region).within(frozen)


def test_a_frozen_tensor_that_changed_is_infinitely_far_outside() -> None:
    model, region = frozen_and_not()
    assert region.contains(model) and region.contains(model.state_dict())
    with torch.no_grad():
        model.get_parameter("0.weight")[0, 0] += 1e-7
        model.get_parameter("3.bias")[0] += 0.3
    assert region.excess(model) == {"0.weight": math.inf, "3.bias": pytest.approx(0.2, abs=1e-6)}
    with pytest.raises(icn.Violation, match=r"'0\.weight' is frozen and has changed"):
        region.with_values(model)


def test_clamping_moves_what_may_move_and_refuses_what_it_cannot_put_back() -> None:
    model, region = frozen_and_not()
    with torch.no_grad():
        model.get_parameter("3.bias").add_(5.0)
    region.clamp_(model)
    assert region.contains(model) and torch.equal(model.get_parameter("3.bias"), region.upper["3.bias"])
    with torch.no_grad():
        model.get_parameter("3.bias").add_(5.0)
        model.get_buffer("1.running_var").mul_(2.0)
    before = snapshot(model)
    with pytest.raises(icn.Violation, match=r"'1\.running_var' is frozen.*weights that were certified"):
        region.clamp_(model)
    assert same(before, snapshot(model)), "nothing is moved"


def test_frozen_regions_nest_by_their_digests() -> None:
    model, region = frozen_and_not()
    whole, smaller = region.with_values(model), region.scaled(0.5, model)
    assert region.within(region) and region.within(whole) and whole.within(region)
    assert smaller.within(region) and not region.within(smaller)
    assert smaller.clamped_into(whole).within(region) and whole.clamped_into(smaller).within(smaller)
    assert region.within(icn.Region.everything(model)), "where everything is allowed"
    free = icn.Region.around(model, 0.1)
    assert not free.within(region), "what may move does not lie within a point"
    assert free.clamped_into(region).within(region)
    for question in (region.within, region.clamped_into):
        with pytest.raises(RegionMismatch, match=r"'0\.weight' is frozen in one region and may move.*with_values"):
            question(free)
    other = frozen_and_not()[1].with_values(model)
    lower = {**other.lower, "0.bias": other.lower["0.bias"] + 1}
    elsewhere = icn.Region(lower, {**other.upper, "0.bias": lower["0.bias"]})
    assert not region.within(elsewhere) and region.clamped_into(elsewhere).within(elsewhere)


def test_what_needs_values_says_how_to_get_them() -> None:
    model, region = frozen_and_not()
    with pytest.raises(InvalidRegion, match=r"frozen '0\.weight' only a digest.*region\.with_values\(model\)"):
        region.intervals()
    assert region.with_values(model).intervals()["0.weight"].is_point


def test_frozen_entries_are_counted_as_dead() -> None:
    model, region = frozen_and_not()
    assert region.size() == region.with_values(model).size()
    assert region.size(("0.bias",)).dead == 1.0
    assert repr(region) == "Region(8 tensors, 6 of them frozen, 56 bounded entries, mean radius 0.025)"
    assert region.to("meta").frozen == region.frozen


def test_a_frozen_tensor_needs_the_right_name_and_shape_and_no_edges() -> None:
    model, region = frozen_and_not()
    state = dict(model.state_dict())
    with pytest.raises(RegionMismatch, match=r"'0\.bias' has shape \(1,\) in the model and \(6,\) in the region"):
        region.contains({**state, "0.bias": torch.zeros(1)})
    del state["0.bias"]
    with pytest.raises(RegionMismatch, match=r"bounds '0\.bias', which the model lacks"):
        region.contains(state)
    with pytest.raises(InvalidRegion, match=r"'w' is frozen and has edges too"):
        icn.Region(at(0.0), at(1.0), {"w": Frozen((1,), "")})
