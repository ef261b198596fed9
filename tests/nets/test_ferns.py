"""Ferns: tests drawn once, one bin a group, and bounds that are exact above them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import intercontinet as icn
from intercontinet.bounds.arithmetic import Float32
from intercontinet.errors import InvalidData, InvalidSetting
from intercontinet.interval import Interval
from intercontinet.nets.ferns import STEP, Ferns, Kind, fern_net, ferns
from tests.strategies import lopsided_region, output_alone, weights_inside

X = torch.rand(5, 2, 6, 7, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", ["threshold", "pair"])
def test_bins_are_the_outcomes_of_the_tests_read_as_binary_numbers(kind: Kind) -> None:
    layer = Ferns((2, 6, 7), groups=4, tests=3, window=5, kind=kind, seed=1)
    bins = layer(X)
    for example, image in enumerate(X.flatten(1)):
        for group in range(4):
            number = 0
            for test in range(3):
                pixel = image[layer.first[group, test]]
                other = layer.level[group, test] if kind == "threshold" else image[layer.second[group, test]] + STEP
                number += int(pixel > other) << test
            assert bins[example, group] == 8 * group + number


def test_all_tests_of_a_group_lie_in_one_window() -> None:
    layer = Ferns((3, 9, 11), groups=50, tests=8, window=4)
    for pixels in (layer.first, layer.second):
        row, column = pixels // 11 % 9, pixels % 11
        assert bool((row.amax(1) - row.amin(1) < 4).all() and (column.amax(1) - column.amin(1) < 4).all())
        assert int(pixels.max()) < 3 * 9 * 11


def test_the_seed_fixes_the_tests_and_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    one, same, other = (Ferns((1, 6, 7), 9, 4, 5, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.first, same.first) and not torch.equal(one.first, other.first)


def test_bounds_take_the_very_bins_of_a_float32_evaluation() -> None:
    """Where a pixel is at its threshold to the bit, a comparison in float64 of a rounded sum would go the other way."""
    layer = Ferns((1, 1, 2), groups=1, tests=1, window=1, kind="pair")
    layer.first.fill_(0)
    layer.second.fill_(1)
    for value in torch.rand(200, generator=torch.Generator().manual_seed(0)):
        edge = value + torch.tensor(STEP)
        for pixel in (edge, torch.nextafter(edge, torch.tensor(2.0))):
            x = torch.stack([pixel, value]).view(1, 1, 1, 2)
            assert torch.equal(ferns(layer, {}, Interval.point(x.double()), Float32()).lower, layer(x))


def test_a_net_of_ferns_certifies_attacks_and_verifies() -> None:
    net = fern_net((2, 6, 7), outputs=3, groups=30, tests=4, window=5)
    nn.init.normal_(net.get_parameter("1.weight"), generator=torch.Generator().manual_seed(0))
    data = X, net(X).argmax(1)
    region = icn.Region.around(net, {"1.weight": 0.1})
    floor = icn.certify(net, region, data, task="five")
    assert floor.certified / 5 <= icn.attack(net, region, data).accuracy
    certificate = icn.Certificate.of(net, region, [floor])
    assert icn.verify(net, certificate)
    net.get_buffer("0.first")[0, 0] += 1
    with pytest.raises(icn.errors.CertificateError, match="another architecture"):
        icn.verify(net, certificate)


@pytest.mark.parametrize("kind", ["threshold", "pair"])
def test_outputs_of_any_weights_in_the_region_lie_inside_the_bounds_and_reach_them(kind: Kind) -> None:
    generator = torch.Generator().manual_seed(0)
    for seed in range(20):
        net = fern_net((2, 6, 7), outputs=3, groups=40, tests=4, window=5, kind=kind, seed=seed)
        nn.init.normal_(net.get_parameter("1.weight"), std=10.0 ** (seed % 5 - 2), generator=generator)
        region = lopsided_region(net, 10.0 ** (seed % 4 - 3), generator)
        box = icn.bounds(net, region, X)
        weights = weights_inside(region, 100, generator)
        for index in range(100):
            assert box.contains(output_alone(net, weights, X.expand(100, *X.shape), index))
        lower = region.lower["1.weight"].double()
        lowest, size = (nn.functional.embedding_bag(net[0](X), values, mode="sum") for values in (lower, lower.abs()))
        assert bool((lowest - box.lower < 1e-5 * (1 + size)).all()), "nothing but rounding is lost"


def test_an_interval_of_pixels_has_no_bin() -> None:
    net = fern_net((2, 6, 7), 3, groups=2, window=5)
    with pytest.raises(InvalidData, match="known exactly"):
        icn.bounds(net, icn.Region.around(net, 0.0), Interval(X, X + 0.1))


@pytest.mark.parametrize("wrong", [{"groups": 0}, {"tests": 21}, {"window": 7}, {"kind": "odd"}])
def test_settings_that_make_no_sense_are_named(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidSetting):
        Ferns((2, 6, 7), **{"groups": 2, "tests": 3, "window": 4, **wrong})  # type: ignore[arg-type]
