"""The hunt for the worst weights: honest, repeatable, and strong enough to catch a region that promises too much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call

import intercontinet as icn
from intercontinet.attack import _Box
from intercontinet.errors import InvalidSetting
from tests.tiny import Pair, blobs, mlp, same, snapshot, with_statistics

Case = tuple[nn.Module, icn.Certificate, Pair]


def learned(seed: int) -> Case:
    """A model whose region is as large as ``keep`` allows: no radii phase, the bisection alone."""
    model, data = mlp(seed=seed), blobs(seed=seed, examples=64, spread=0.8)
    learner = icn.InterContiNet(
        model, keep=0.9, seed=seed, optimizer="adam", rate=0.02, centre_epochs=15, radii_epochs=0, batch_size=16
    )
    learner.learn(data, task="blobs")
    return model, learner.certificate, data


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return [learned(seed) for seed in range(3)]


def accuracy(model: nn.Module, weights: dict[str, Any], data: Pair) -> float:
    return int((functional_call(model, weights, (data[0],)).argmax(1) == data[1]).sum()) / len(data[1])


def test_the_floor_lies_below_the_attack_and_the_attack_below_the_accuracy(cases: list[Case]) -> None:
    for model, certificate, data in cases:
        (floor,) = certificate.tasks
        found = icn.attack(model, certificate.region, data)
        assert floor.floor <= found.accuracy <= floor.accuracy
        assert floor.accuracy > 0.9 and floor.kept, "the case must be worth attacking"


def test_the_weights_lie_inside_and_are_as_bad_as_said(cases: list[Case]) -> None:
    for model, certificate, data in cases:
        region = certificate.region.scaled(2.0, model)
        found = icn.attack(model, region, data)
        assert region.contains(found.weights)
        assert accuracy(model, found.weights, data) == found.accuracy


def test_the_same_seed_finds_the_same_weights(cases: list[Case]) -> None:
    model, certificate, data = cases[0]
    region = certificate.region.scaled(2.0, model)
    torch.manual_seed(1)
    one = icn.attack(model, region, data, seed=5, batch_size=16)
    torch.manual_seed(2)
    other = icn.attack(model, region, data, seed=5, batch_size=16)
    third = icn.attack(model, region, data, seed=6, batch_size=16)
    assert one.accuracy == other.accuracy and same(one.weights, other.weights)
    assert not same(one.weights, third.weights)


def test_the_model_is_unchanged() -> None:
    model = with_statistics()
    model[2].train()
    before, modes = snapshot(model), [module.training for module in model.modules()]
    icn.attack(model, icn.Region.around(model, 0.5), blobs())
    assert same(before, snapshot(model))
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_weights_load_into_the_model_whole() -> None:
    model, data = with_statistics(), blobs()
    found = icn.attack(model, icn.Region.around(model, 0.5), data)
    assert found.weights.keys() == model.state_dict().keys()
    model.load_state_dict(found.weights)
    assert accuracy(model, {}, data) == found.accuracy


def test_a_single_point_leaves_nothing_to_find() -> None:
    model, data = mlp(), blobs()
    found = icn.attack(model, icn.Region.around(model, 0.0), data)
    assert found.accuracy == accuracy(model, {}, data)
    assert same(found.weights, snapshot(model))


def test_entries_without_bounds_stay_where_they_are() -> None:
    model, data = mlp(), blobs()
    region = icn.Region.around(model, {"0.weight": 0.5, "2.weight": torch.inf})
    found = icn.attack(model, region, data)
    assert torch.equal(found.weights["2.weight"], model.get_parameter("2.weight"))
    assert not torch.equal(found.weights["0.weight"], model.get_parameter("0.weight"))


def test_even_where_outputs_overflow_the_weights_stay_inside() -> None:
    x, _ = blobs()
    model, ones = mlp(), torch.ones(len(x), dtype=torch.long)
    region = icn.Region.around(model, 1e30)
    assert region.contains(icn.attack(model, region, (x, ones)).weights)
    state = snapshot(model)
    nowhere = {name: torch.full_like(weight, torch.nan) for name, weight in state.items()}
    assert same(_Box(region, state).step(state, nowhere, 0.5), state), "a gradient that is NaN points nowhere"


def test_it_finds_worse_weights_than_chance_does(cases: list[Case]) -> None:
    for model, certificate, data in cases:
        region = certificate.region.scaled(1.5, model)
        generator = torch.Generator().manual_seed(0)
        corners = [
            {n: torch.where(torch.rand(lo.shape, generator=generator) < 0.5, lo, region.upper[n])
             for n, lo in region.lower.items()} for _ in range(50)
        ]  # fmt: skip
        chance = sum(accuracy(model, corner, data) for corner in corners) / len(corners)
        assert icn.attack(model, region, data).accuracy < chance


def test_a_region_three_times_too_wide_is_caught(cases: list[Case]) -> None:
    for model, certificate, data in cases:
        (promised,) = certificate.tasks
        too_wide = certificate.region.scaled(3.0, model)
        assert icn.certify(model, too_wide, data).certified < promised.certified
        assert icn.attack(model, too_wide, data).accuracy < promised.floor, "and weights prove it"


@pytest.mark.parametrize("setting", [{"starts": 0}, {"steps": -1}, {"batch_size": 0}])
def test_settings_that_leave_nothing_to_do_are_refused(setting: dict[str, Any]) -> None:
    model = mlp()
    with pytest.raises(InvalidSetting, match="starts and batch_size must be at least 1"):
        icn.attack(model, icn.Region.around(model, 0.1), blobs(), **setting)


def test_an_attack_is_printed_without_its_weights() -> None:
    model = mlp()
    assert repr(icn.attack(model, icn.Region.around(model, 0.0), blobs(), starts=1, steps=0)).startswith(
        "Attack(accuracy="
    )
    assert "tensor" not in repr(icn.attack(model, icn.Region.around(model, 0.0), blobs(), starts=1, steps=0))


def held_far_below(columns: list[float], free: list[int], *above: nn.Module) -> tuple[nn.Module, icn.Region, Pair]:
    """Sums of 40 equal weights; the free columns lie at -50 and may rise to 0.1, all else is fixed. Labels are 0."""
    layer = nn.Linear(40, len(columns), bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(columns)[:, None].expand(-1, 40))
        layer.weight[free] = -50.0
    model = nn.Sequential(layer, *above)
    upper = layer.weight.detach().clone()
    upper[free] = 0.1
    region = icn.Region({"0.weight": layer.weight.detach().clone()}, {"0.weight": upper})
    return model, region, (torch.ones(8, 40), torch.zeros(8, dtype=torch.int64))


def test_an_output_far_below_the_others_is_found_and_raised() -> None:
    model, region, data = held_far_below([0.05, 0.0, 0.0], [2])
    assert icn.attack(model, region, data).accuracy == 0.0


def test_a_column_hidden_by_a_maximum_is_found_and_raised() -> None:
    model, region, data = held_far_below([0.05, 0.0, 0.0, 0.0], [1, 3], nn.MaxPool1d(2))
    assert icn.attack(model, region, data).accuracy == 0.0


def test_a_start_that_leads_nowhere_ends() -> None:
    model, region, data = held_far_below([0.05, 0.0, 0.0], [2])
    runs: list[int] = []
    model.register_forward_hook(lambda *_: runs.append(1))
    icn.attack(model, region, data)
    assert len(runs) < 30, "four starts of twenty steps"
    runs.clear()
    icn.attack(model, icn.Region.around(model, 0.0), data)
    assert len(runs) == 3, "one point: its outputs, one look and one count"


def test_numbers_are_pushed_out_of_their_tolerance() -> None:
    model, x = mlp(outputs=1), torch.randn(40, 2)
    data = x, model(x).detach()
    criterion = icn.regression(0.1)
    tight, wide = (icn.Region.around(model, radius) for radius in (1e-4, 0.2))
    assert icn.attack(model, tight, data, criterion=criterion).accuracy == 1.0
    found = icn.attack(model, wide, data, criterion=criterion)
    floor = icn.certify(model, wide, data, criterion=criterion)
    assert floor.floor <= found.accuracy < 0.3 and wide.contains(found.weights)
    off = (functional_call(model, found.weights, (x,)).double() - data[1].double()).abs().squeeze(1)
    assert int((off <= 0.1).sum()) / 40 == found.accuracy


def test_labels_are_turned_over() -> None:
    model, x = mlp(outputs=3), torch.randn(40, 2)
    y = (model(x) > 0).long()
    region = icn.Region.around(model, 0.1)
    found = icn.attack(model, region, (x, y), criterion=icn.multi_label())
    assert icn.certify(model, region, (x, y), criterion=icn.multi_label()).floor <= found.accuracy < 0.8
    right = ((functional_call(model, found.weights, (x,)) > 0) == (y > 0)).all(1)
    assert int(right.sum()) / 40 == found.accuracy


def test_a_criterion_that_only_says_yes_or_no_leaves_corners_to_try() -> None:
    model, x = mlp(outputs=1), torch.randn(40, 2)
    data = x, model(x).detach()
    exact = icn.regression(0.1)
    blunt = icn.Criterion("blunt", lambda out, y: torch.where(exact.slack(out, y) >= 0, 1.0, -1.0))
    region = icn.Region.around(model, 0.3)
    found = icn.attack(model, region, data, criterion=blunt)
    assert icn.certify(model, region, data, criterion=blunt).floor <= found.accuracy < 1.0


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(2, 2), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.one(x) + self.two(z)
        return out


def test_a_region_from_a_file_and_several_inputs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Sum(), (torch.randn(40, 2), torch.randn(40, 3))
    y = model(*x).argmax(1)
    region = icn.Region.around(model, {"two.weight": 0.3})
    icn.Certificate.of(model, region, [icn.certify(model, region, (x, y))]).save(tmp_path / "sum.icn")
    loaded = icn.Certificate.load(tmp_path / "sum.icn").region
    assert loaded.frozen.keys() == {"one.weight", "one.bias", "two.bias"}
    found, known = (icn.attack(model, box, (x, y), batch_size=16) for box in (loaded, region))
    assert found.accuracy == known.accuracy < 1.0 and same(found.weights, known.weights)
    assert torch.equal(found.weights["one.weight"], model.one.weight)
