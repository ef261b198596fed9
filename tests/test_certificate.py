"""Floors, certificates, and holding weights against them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import intercontinet as icn
from intercontinet.errors import CertificateError, InvalidModel, InvalidRegion, RegionMismatch
from intercontinet.floor import floor_of
from intercontinet.statistics import lowest_share
from tests.tiny import blobs, fitted, mlp, snapshot, with_statistics


def certified(model: nn.Module, radius: float = 0.05) -> icn.Certificate:
    region = icn.Region.around(model, radius)
    floor = icn.certify(model, region, blobs(), task="blobs")
    return icn.Certificate.of(model, region, [floor], method="by hand")


def moved(model: nn.Module, **by: float) -> nn.Module:
    """The model with some parameters (dots as underscores) moved in their first entry."""
    with torch.no_grad():
        for name, distance in by.items():
            model.state_dict()[name.replace("_", ".", 1).lstrip("p")].view(-1)[0] += distance
    return model


# Floors.


def test_a_floor_tells_shares_and_whether_it_is_as_high_as_asked() -> None:
    floor = icn.TaskFloor("0/1", certified=45, total=100, correct=50, keep=0.9)
    assert (floor.floor, floor.accuracy, floor.kept) == (0.45, 0.5, True)
    assert str(floor) == "0/1: 45 of 100 certain (45.0%), accuracy 50.0%"
    short = icn.TaskFloor("0/1", certified=44, total=100, correct=50, keep=0.9)
    assert not short.kept
    assert str(short).endswith("NOT the 90% of its accuracy that was asked for")
    assert icn.TaskFloor("0/1", certified=0, total=100, correct=50).kept, "nothing was asked for"


def test_a_floor_for_unseen_data_comes_from_what_was_held_back() -> None:
    floor = icn.TaskFloor("0/1", 880, 1000, 960, keep=0.9, unseen_certified=85, unseen_total=100)
    assert floor.unseen_floor == lowest_share(85, 100, 0.95) == pytest.approx(0.7785, abs=1e-4)
    words = "; of unseen examples at least 77.8% (95% confidence)"
    assert str(floor) == f"0/1: 880 of 1000 certain (88.0%), accuracy 96.0%{words}", "rounded down"
    assert str(replace(floor, certified=800)).endswith(f"NOT the 90% of its accuracy that was asked for{words}")
    assert replace(floor, unseen_certified=0).unseen_floor == 0.0
    assert icn.TaskFloor("0/1", 880, 1000, 960).unseen_floor is None


def test_what_was_held_back_is_recorded_with_a_count() -> None:
    data = blobs()
    floor = floor_of(data, 40, 45, "blobs", None, 0.9, unseen_certified=8, unseen_total=10)
    assert (floor.unseen_certified, floor.unseen_total) == (8, 10)
    assert replace(floor, unseen_certified=None, unseen_total=None) == floor_of(data, 40, 45, "blobs", None, 0.9)


def test_at_a_single_point_certain_is_what_is_right() -> None:
    model, (x, y) = mlp(), blobs()
    floor = icn.certify(model, icn.Region.around(model, 0.0), (x, y))
    right = int((model(x).argmax(1) == y).sum())
    assert floor.certified == floor.correct == right
    assert 0 < right < 48


@pytest.mark.parametrize("joint", [True, False])
def test_no_weights_of_the_region_get_a_certain_example_wrong(joint: bool) -> None:
    x, y = blobs(spread=1.2)
    model = fitted((x, y))
    region = icn.Region.around(model, 0.1)
    floor = icn.certify(model, region, (x, y), margins="joint" if joint else "separate")
    assert 0 < floor.certified < floor.correct
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        corner = {n: torch.where(torch.rand(lo.shape, generator=generator) < 0.5, lo, region.upper[n])
                  for n, lo in region.lower.items()}  # fmt: skip
        assert int((functional_call(model, corner, (x,)).argmax(1) == y).sum()) >= floor.certified


def test_margins_as_one_expression_certify_more() -> None:
    data = blobs(spread=0.8)
    model = fitted(data)
    with torch.no_grad():
        model.get_parameter("2.weight").add_(2.0)  # moves both logits alike, and no margin
    region = icn.Region.around(model, {"0.weight": 0.2, "0.bias": 0.2})
    joint = icn.certify(model, region, data, margins="joint").certified
    separate = icn.certify(model, region, data, margins="separate").certified
    assert joint > separate


def test_only_the_outputs_that_take_part_compete() -> None:
    model = mlp(outputs=4)
    x, y = blobs(labels=(1, 3))
    with torch.no_grad():
        model.get_parameter("2.bias")[0] = 100.0
    region = icn.Region.around(model, 0.0)
    everyone, own = icn.certify(model, region, (x, y)), icn.certify(model, region, (x, y), classes=[3, 1])
    assert everyone.certified == 0
    assert own.certified == int((model(x)[:, [1, 3]].argmax(1) == y // 2).sum()) > 0
    assert own.classes == (3, 1)


def test_a_tie_is_not_certain() -> None:
    model = nn.Linear(2, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    floor = icn.certify(model, icn.Region.around(model, 0.0), (torch.ones(4, 2), torch.zeros(4, dtype=torch.long)))
    assert (floor.certified, floor.correct) == (0, 4)


def test_nothing_is_certain_where_nothing_is_bounded() -> None:
    model = mlp()
    assert icn.certify(model, icn.Region.everything(model), blobs(), classes=(0, 1)).certified == 0
    with pytest.raises(InvalidRegion, match=r"infinite edges.*classes="):
        icn.certify(model, icn.Region.everything(model), blobs())
    assert icn.certify(model, icn.Region.around(model, 1e30), blobs()).certified == 0


def test_certifying_changes_neither_modes_nor_weights() -> None:
    model = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2))
    before = snapshot(model)
    one, other = (icn.certify(model, icn.Region.around(model, 0.01), blobs()) for _ in range(2))
    assert one == other, "Dropout takes no part"
    assert all(module.training for module in model.modules())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


# Certificates.


def test_a_certificate_grows_inwards_only() -> None:
    model = mlp()
    certificate = certified(model)
    floor = icn.certify(model, certificate.region, blobs(seed=1), task="next")
    longer = certificate.extended(certificate.region.scaled(0.5, model), floor)
    assert [f.task for f in longer.tasks] == ["blobs", "next"] and len(certificate.tasks) == 1
    with pytest.raises(InvalidRegion, match="must nest"):
        certificate.extended(certificate.region.scaled(1.5, model), floor)


def test_a_chain_goes_on_from_a_file(tmp_path: Path) -> None:
    model = with_statistics()
    region = icn.Region.around(model, {"3.weight": 0.1, "3.bias": 0.1})
    floor = icn.certify(model, region, blobs(), task="blobs")
    icn.Certificate.of(model, region, [floor]).save(tmp_path / "model.icn")
    read = icn.Certificate.load(tmp_path / "model.icn")
    smaller = read.region.with_values(model).scaled(0.5, model)
    assert [f.task for f in read.extended(smaller, floor).tasks] == ["blobs", "blobs"]
    assert read.extended(read.region.scaled(0.5, model), floor)
    other = icn.Region.around(with_statistics(seed=1), 0.0)
    with pytest.raises(InvalidRegion, match="must nest"):
        read.extended(other, floor)


# Verification.


def test_weights_inside_give_a_true_verdict_that_lists_the_floors() -> None:
    model = mlp()
    certificate = certified(model)
    verdict = icn.verify(moved(model, p0_weight=0.049), certificate)
    assert verdict and verdict.floors == certificate.tasks
    assert str(verdict).splitlines() == ["every floor holds:", f"  {certificate.tasks[0]}"]


def test_a_state_dict_is_enough_also_from_a_file(tmp_path: Path) -> None:
    model = with_statistics()
    certified(model).save(tmp_path / "model.icn")
    certificate = icn.Certificate.load(tmp_path / "model.icn")
    assert icn.verify(model.state_dict(), certificate)
    with pytest.raises(icn.Violation, match=r"'3\.weight' lies 0\.15"):
        icn.verify(moved(model, p3_weight=-0.2).state_dict(), certificate)


def test_a_violation_names_the_worst_parameter_and_by_how_much() -> None:
    certificate = certified(mlp())
    with pytest.raises(icn.Violation, match=r"'2\.weight' lies 0\.95.*so does '0\.bias' \(0\.15\).*clamp_") as caught:
        icn.verify(moved(mlp(), p2_weight=-1.0, p0_bias=0.2), certificate)
    assert caught.value.parameter == "2.weight"
    assert caught.value.excess == pytest.approx(0.95, abs=1e-6)
    assert caught.value.others == ("0.bias",)
    assert caught.value.outside == pytest.approx({"2.weight": 0.95, "0.bias": 0.15}, abs=1e-6)


def test_a_violation_lists_five_and_counts_the_rest() -> None:
    text = str(icn.Violation({f"p{i}": float(i) for i in range(1, 9)}))
    assert text.startswith(
        "'p8' lies 8 outside the certified region; so do 'p7' (7), 'p6' (6), 'p5' (5), 'p4' (4) and 3 more."
    )
    assert "p3" not in text
    assert "'b' (3)" in (text := str(icn.Violation({"b": 3.0, "a": math.inf})))
    assert text.startswith("'a' is frozen and has changed; outside the certified region lie also 'b' (3). No floor")
    assert "frozen tensors come back from the weights that were certified" in text


def test_frozen_tensors_that_changed_are_named_before_all_others(tmp_path: Path) -> None:
    model = with_statistics()
    certified(model).save(tmp_path / "model.icn")
    certificate = icn.Certificate.load(tmp_path / "model.icn")
    assert icn.verify(model, certificate)
    moved(model, p3_weight=-0.2).get_buffer("1.running_mean").add_(1e-6)
    with pytest.raises(
        icn.Violation, match=r"'1\.running_mean' is frozen and has changed; .*'3\.weight' \(0\.15"
    ) as caught:
        icn.verify(model, certificate)
    assert caught.value.excess == math.inf


def test_the_second_name_of_a_tied_parameter_must_have_its_shape() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    model[2].weight = model[0].weight
    certificate = certified(model)
    state: dict[str, Tensor] = model.state_dict()
    assert icn.verify(state, certificate)
    with pytest.raises(RegionMismatch, match=r"'2\.weight' and '0\.weight' are one parameter"):
        icn.verify({**state, "2.weight": torch.zeros(3)}, certificate)
    with pytest.raises(InvalidModel, match=r"'2\.weight' holds NaN"):
        icn.verify({**state, "2.weight": state["0.weight"] * math.nan}, certificate)


def test_the_last_bit_counts() -> None:
    model = mlp()
    certificate = certified(model)
    weight = model.get_parameter("0.weight")
    with torch.no_grad():
        weight.copy_(certificate.region.upper["0.weight"])
        assert icn.verify(model, certificate)
        weight[7, 1] = torch.nextafter(weight[7, 1], torch.tensor(math.inf))
    with pytest.raises(icn.Violation, match=r"'0\.weight'"):
        icn.verify(model, certificate)


def test_changed_statistics_are_a_violation() -> None:
    model = with_statistics()
    certificate = certified(model)
    model.train()(torch.randn(8, 2))
    with pytest.raises(icn.Violation, match=r"'1\.running_mean'"):
        icn.verify(model.eval(), certificate)


@pytest.mark.parametrize(
    ("other", "error", "complaint"),
    [
        (nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)), CertificateError, "another architecture"),
        (nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(), nn.Linear(8, 2)), CertificateError, "another architecture"),
        (nn.Sequential(nn.Linear(2, 8), nn.Linear(8, 2)), RegionMismatch, r"'2\.weight', which the model lacks"),
        (mlp(hidden=9), RegionMismatch, r"'0\.weight' has shape \(9, 2\) in the model and \(8, 2\) in the region"),
    ],
    ids=["tanh", "leaky", "names", "shapes"],
)
def test_another_architecture_is_refused(other: nn.Module, error: type[Exception], complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        icn.verify(other, certified(mlp()))


def test_a_state_dict_of_another_model_is_refused() -> None:
    certificate = certified(mlp())
    state: dict[str, Tensor] = mlp().state_dict()
    with pytest.raises(RegionMismatch, match=r"the model's '3\.bias' has no edges"):
        icn.verify({**state, "3.bias": torch.zeros(2)}, certificate)
    with pytest.raises(RegionMismatch, match=r"bounds '2\.bias', which the model lacks"):
        icn.verify({name: tensor for name, tensor in state.items() if name != "2.bias"}, certificate)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_never_pass(value: float) -> None:
    model = mlp()
    floor = icn.TaskFloor("any", 0, 1, 0)
    certificate = icn.Certificate.of(model, icn.Region.everything(model), [floor])
    with pytest.raises(InvalidModel, match=r"'0\.weight' holds NaN or infinite"):
        icn.verify(moved(model, p0_weight=value), certificate)


def test_a_model_without_values_never_passes() -> None:
    with pytest.raises(InvalidModel, match="meta device"):
        icn.verify(mlp().to("meta"), certified(mlp()))
