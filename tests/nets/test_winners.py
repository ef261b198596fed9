"""KWinners: sums of whole numbers, one order only, and bounds that take the very winners of an evaluation."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import intercontinet as icn
from intercontinet.bounds.arithmetic import Float32
from intercontinet.errors import InvalidData, InvalidSetting
from intercontinet.interval import Interval
from intercontinet.nets.winners import KWinners, k_winners

X = torch.rand(12, 2, 6, 7, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("levels", [1000, 255, 1])
def test_winners_are_those_of_a_naive_count(levels: int) -> None:
    """With black and white pixels most sums are tied, and the lower number must win."""
    layer = KWinners(84, units=50, winners=7, seed=1)
    x = (X * levels).round() / levels
    ties = 0
    for image, found in zip(x.flatten(1).tolist(), layer(x).tolist(), strict=True):
        sums = [
            sum(round(255 * image[i]) for i in plus) - sum(round(255 * image[i]) for i in minus)
            for plus, minus in zip(layer.plus.tolist(), layer.minus.tolist(), strict=True)
        ]
        assert found == sorted(range(50), key=lambda unit: (-sums[unit], unit))[:7]
        ties += 50 - len(set(sums))
    assert (ties > 300) == (levels == 1)


def test_a_unit_adds_and_subtracts_as_many_pixels_none_twice() -> None:
    layer = KWinners(84, units=2000, winners=1)
    places = torch.cat([layer.plus, layer.minus], 1).sort(1).values
    assert places.shape == (2000, 32) and bool((places.diff(dim=1) > 0).all())
    assert int(places.min()) == 0 and int(places.max()) == 83 and layer.bins == 2000
    assert len(torch.unique(layer.plus, dim=0)) == 2000
    assert KWinners(5, units=3, winners=1).plus.shape == (3, 2)


def test_the_order_of_summation_changes_nothing() -> None:
    layer, shuffled = (KWinners(84, units=300, winners=20) for _ in range(2))
    before = layer(X)
    for name in ("plus", "minus"):
        places = shuffled.get_buffer(name)
        places.copy_(places[:, torch.randperm(places.shape[1])])
    torch.set_num_threads(2)
    try:
        assert torch.equal(layer(X), before) and torch.equal(shuffled(X), before)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(torch.cat([layer(x[None]) for x in X]), before), "nor does the batch"
    assert torch.equal(layer(X.double()), before), "nor more precision"


def test_the_seed_fixes_the_units_and_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    one, same, other = (KWinners(84, 30, 3, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before) and not one.state_dict()
    assert torch.equal(one.plus, same.plus) and not torch.equal(one.plus, other.plus)


def test_a_net_of_winners_certifies_attacks_and_verifies() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(KWinners(84, 60, 10), nn.EmbeddingBag(60, 3, mode="sum"))
    data = X, net(X).argmax(1)
    region = icn.Region.around(net, 0.05)
    rows = k_winners(net[0], {}, Interval.point(X.double()), Float32()).lower  # type: ignore[arg-type]
    assert torch.equal(rows, net[0](X)) and icn.bounds(net, region, X).contains(net(X))
    floor = icn.certify(net, region, data)
    assert 0 < floor.certified / 12 <= icn.attack(net, region, data).accuracy
    certificate = icn.Certificate.of(net, region, [floor])
    assert icn.verify(net, certificate)
    net[0].get_buffer("plus")[0, 0] += 1
    with pytest.raises(icn.errors.CertificateError, match="another architecture"):
        icn.verify(net, certificate)


@pytest.mark.parametrize("x", [Interval(X, X + 0.1), Interval.point(X * 1e5)])
def test_pixels_that_make_sums_uncertain_are_refused(x: Interval) -> None:
    with pytest.raises(InvalidData, match="pass"):
        k_winners(KWinners(84, 20, 3), {}, x, Float32())


@pytest.mark.parametrize("wrong", [{"features": 1}, {"winners": 0}, {"winners": 31}])
def test_settings_that_make_no_sense_are_named(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidSetting, match=next(iter(wrong))):
        KWinners(**{"features": 84, "units": 30, "winners": 3, **wrong})
