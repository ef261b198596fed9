"""Ferns: tests drawn once, one bin a group, and bounds that are exact above them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import intercontinet as icn
from intercontinet.bounds.arithmetic import Float32, Real
from intercontinet.errors import InvalidData, InvalidSetting
from intercontinet.interval import Interval
from intercontinet.nets import fern_net
from intercontinet.nets.ferns import STEP, Ferns, Kind, feature_ferns, ferns
from tests.strategies import lopsided_region, output_alone, weights_inside

X = torch.rand(5, 2, 6, 7, generator=torch.Generator().manual_seed(0))
FEATURES = torch.randn(60, 9, generator=torch.Generator().manual_seed(1))


def edges_of(kind: Kind, widths: float, seed: int) -> tuple[Ferns, Interval]:
    """Ferns of features, and intervals of which some straddle a level or overlap with their rival's."""
    generator = torch.Generator().manual_seed(seed)
    radius = widths * torch.rand(FEATURES.shape, generator=generator)
    return feature_ferns(FEATURES, 4, 3, kind, seed), Interval(FEATURES - radius, FEATURES + radius)


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


@pytest.mark.parametrize("kind", ["threshold", "pair"])
def test_bins_of_features_are_the_outcomes_of_tests_of_features_anywhere(kind: Kind) -> None:
    layer = Ferns((9,), groups=40, tests=3, kind=kind, seed=1)
    assert set(layer.first.flatten().tolist()) == set(range(9)) and layer.bins == 320 and not layer.state_dict()
    for bins, values in zip(layer(FEATURES), FEATURES, strict=True):
        for group in range(40):
            number = 0
            for test in range(3):
                other = layer.level[group, test] if kind == "threshold" else values[layer.second[group, test]] + STEP
                number += int(values[layer.first[group, test]] > other) << test
            assert bins[group] == 8 * group + number


def test_fitted_levels_are_quantiles_between_values_that_occur() -> None:
    layer = feature_ferns(FEATURES, groups=30, tests=5)
    ranks = []
    for place, level in zip(layer.first.flatten().tolist(), layer.level.flatten().tolist(), strict=True):
        ordered = sorted(FEATURES[:, place].tolist())
        ranks.append(sum(value <= level for value in ordered))
        assert level == pytest.approx(sum(ordered[ranks[-1] - 1 : ranks[-1] + 1]) / 2, abs=1e-6)
    assert min(ranks) >= 6 and max(ranks) <= 54 and len(set(ranks)) > 30


def test_no_level_is_a_value_that_occurs_even_where_most_examples_share_one() -> None:
    features = torch.stack([FEATURES[:, 0].relu(), -FEATURES[:, 1].relu(), torch.full((60,), 3.0)], 1)
    layer = feature_ferns(features, groups=50, tests=2)
    assert not bool((features[:, layer.first] == layer.level).any())
    passed = features[:, layer.first] > layer.level
    useful = passed.any(0) & ~passed.all(0)
    assert torch.equal(useful, layer.first != 2), "all but a constant feature tell examples apart"


def test_fitted_ferns_are_fixed_by_their_seed_and_saved() -> None:
    one, same, other = (feature_ferns(FEATURES, 5, 3, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(one.level, same.level) and torch.equal(one.first, same.first)
    assert not torch.equal(one.first, other.first) and not torch.equal(one.level, other.level)
    loaded = Ferns((9,), 5, 3, seed=3, levels=torch.zeros(5, 3))
    assert not torch.equal(loaded(FEATURES), one(FEATURES))
    loaded.load_state_dict(one.state_dict())
    assert torch.equal(loaded(FEATURES), one(FEATURES))


@pytest.mark.parametrize("kind", ["threshold", "pair"])
@pytest.mark.parametrize("widths", [0.0, 1e-7, 0.02, 0.2])
def test_examples_of_an_interval_have_the_one_bin_of_all_its_points_or_none(kind: Kind, widths: float) -> None:
    layer, x = edges_of(kind, widths, seed=0)
    for arithmetic in (Float32(), Real()):
        bins = ferns(layer, {}, Interval(x.lower.double(), x.upper.double()), arithmetic).lower
        unknown = (bins == -1).any(1)
        assert bins.dtype == torch.int64 and torch.equal(unknown, (bins == -1).all(1))
        assert bool((~unknown).any()) and bool(unknown.any()) == (widths > 1e-6)
        generator = torch.Generator().manual_seed(1)
        for _ in range(50):
            where = torch.rand(FEATURES.shape, generator=generator).mul(3).sub(1).clamp(0, 1)
            inside = torch.lerp(x.lower, x.upper, where).clamp(x.lower, x.upper)
            assert torch.equal(layer(inside)[~unknown], bins[~unknown])
    lower, upper = x.lower.double(), x.upper.double()  # an example is given up only where some test may go either way
    rivals = [layer.level.expand(60, 4, 3)] * 2
    if kind == "pair":
        rivals = [edge.float()[:, layer.second] + STEP for edge in (lower, upper)]
    either = (lower[:, layer.first] <= rivals[1]) & (upper[:, layer.first] > rivals[0])
    assert torch.equal(unknown, either.flatten(1).any(1))


def test_an_edge_at_the_level_decides_as_a_comparison_does_and_nan_never() -> None:
    layer = Ferns((1,), 1, 1, levels=torch.tensor([[0.5]]))
    above, half = torch.nextafter(torch.tensor(0.5), torch.tensor(1.0)).item(), 0.5
    lower = torch.tensor([[0.4], [half], [above], [float("nan")], [0.1]])
    upper = torch.tensor([[half], [above], [0.6], [0.2], [float("nan")]])
    assert ferns(layer, {}, Interval(lower, upper), Real()).lower.flatten().tolist() == [0, -1, 1, -1, -1]
    wide = {"level": Interval(torch.tensor([[0.3]]), torch.tensor([[0.5]]))}
    x = Interval.point(torch.tensor([[0.3], [0.4], [0.6]]))
    assert ferns(layer, wide, x, Float32()).lower.flatten().tolist() == [0, -1, 1], "levels may roam as well"


def test_bounds_take_the_levels_of_the_region_not_those_of_the_model() -> None:
    layer = Ferns((1,), 1, 1, levels=torch.tensor([[0.5]]))
    moved = {"level": Interval.point(torch.tensor([[0.1]]))}
    assert ferns(layer, moved, Interval.point(torch.tensor([[0.3]])), Float32()).lower.item() == 1


def test_ferns_above_a_frozen_network_certify_only_what_rounding_cannot_change() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(6, 9)
    inputs = torch.randn(60, 6)
    features = linear(inputs).detach()
    encoder = feature_ferns(features, groups=20, tests=3)
    net = nn.Sequential(linear, encoder, nn.EmbeddingBag(encoder.bins, 3, mode="sum"))
    data = inputs, net(inputs).argmax(1)
    region = icn.Region.around(net, {"2.weight": 1e-4})
    assert icn.certify(net, region, data).certified > 55
    encoder.level[0, 0] = features[7, encoder.first[0, 0]]  # rounding may put example 7 on either side of this level
    region = icn.Region.around(net, {"2.weight": 0.0})
    box = icn.bounds(net, region, inputs)
    assert bool(box.lower[7].isneginf().all() and box.upper[7].isposinf().all())
    assert int(box.lower.isinf().any(1).sum()) < 5 and box.contains(net(inputs))
    alone = inputs[7:8], net(inputs[7:8]).argmax(1)
    floor = icn.certify(net, region, alone)
    assert (floor.certified, floor.correct) == (0, 1)
    wide = icn.Region.around(net, {"0.weight": 100.0})
    assert icn.certify(net, wide, data).certified == 0, "weights below the ferns may roam, too"


@pytest.mark.parametrize(
    "wrong",
    [
        {"window": 3},
        {"shape": (0,)},
        {"shape": (3, 3)},
        {"levels": torch.zeros(3, 2)},
        {"levels": torch.zeros(2, 3), "kind": "pair"},
        {"shape": (1, 4, 4)},
    ],
)
def test_settings_for_features_that_make_no_sense_are_named(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidSetting):
        Ferns(**{"shape": (9,), "groups": 2, "tests": 3, **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize("features", [torch.zeros(3), torch.zeros(0, 3), torch.tensor([[torch.nan]])])
def test_features_that_have_no_quantiles_are_refused(features: Tensor) -> None:
    with pytest.raises(InvalidData, match="finite"):
        feature_ferns(features, 1, 1)
