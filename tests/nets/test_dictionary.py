"""PatchDictionary: whole numbers, the same in any order of summation, against naive loops; fitted without labels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import intercontinet as icn
from intercontinet.bounds.arithmetic import Float32
from intercontinet.errors import InvalidData, InvalidModel, InvalidRegion, InvalidSetting
from intercontinet.interval import Interval
from intercontinet.nets.dictionary import PatchDictionary, TriangleDictionary, patch_dictionary
from intercontinet.nets.ferns import feature_ferns


def images(count: int, shape: tuple[int, int, int], seed: int = 0) -> Tensor:
    """Smooth patterns with some noise, pixels from 0 to 1; one is empty."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, shape[0], 3, 3, generator=generator)
    smooth = F.interpolate(coarse, shape[1:], mode="bilinear", align_corners=True)
    x = (smooth + 0.2 * torch.rand(count, *shape, generator=generator)).clamp(0, 1)
    x[0] = 0
    return x


X = images(30, (2, 9, 8))


def small(seed: int = 0, atoms: int = 4) -> PatchDictionary:
    return PatchDictionary.fitted(X, atoms, patch=3, pool=2, active=0.5, patches=500, seed=seed)


def patches_of(layer: PatchDictionary | TriangleDictionary, image: Tensor) -> Iterator[tuple[int, list[float]]]:
    """For every patch of an image of X, by naive loops: its cell, and its cos with each atom."""
    pixels, d = torch.round(255 * image), 18
    filters = [[int(v) for v in row] for row in layer.filters.flatten(1).tolist()]
    for row in range(7):
        for column in range(6):
            patch = [int(v) for v in pixels[:, row : row + 3, column : column + 3].flatten().tolist()]
            contrast = math.sqrt((d * sum(v * v for v in patch) - sum(patch) ** 2 + 100 * d * d) / d)
            products = [sum(a * b for a, b in zip(f, patch, strict=True)) for f in filters]
            sizes = [math.sqrt(sum(v * v for v in f)) for f in filters]
            yield row // 4 * 2 + column // 3, [p / contrast / size for p, size in zip(products, sizes, strict=True)]


def test_features_are_those_of_a_naive_loop_over_patches() -> None:
    layer = small()
    alpha, found = layer.alpha.item(), layer(X[:6])
    assert found.dtype == torch.float32 and found.shape == (6, layer.features) == (6, 2 * 4 * 4)
    for image, features in zip(X[:6], found.tolist(), strict=True):
        expected = [0] * 32
        for cell, cosines in patches_of(layer, image):
            for atom, cos in enumerate(cosines):
                expected[atom * 4 + cell] += math.floor(255 * max(cos - alpha, 0))
                expected[16 + atom * 4 + cell] += math.floor(255 * max(-cos - alpha, 0))
        assert features == expected
    assert int(found.max()) > 255 and float((found[1:] == 0).double().mean()) < 0.5, "there was something to count"


def test_a_triangle_compares_with_the_patchs_own_mean_distance() -> None:
    layer = TriangleDictionary.fitted(X, 4, patch=3, pool=2, patches=500)
    assert layer.state_dict().keys() == {"filters"}
    found = layer(X[:6])
    assert found.dtype == torch.float32 and found.shape == (6, layer.features) == (6, 2 * 4 * 4)
    for image, features in zip(X[:6], found.tolist(), strict=True):
        expected = [0] * 32
        for cell, cosines in patches_of(layer, image):
            both = [*cosines, *(-cos for cos in cosines)]
            distances = [math.floor(255 * math.sqrt(max(2 - 2 * cos, 0))) for cos in both]
            usual = sum(distances) / 8
            for atom, distance in enumerate(distances):
                expected[atom * 4 + cell] += math.floor(max(usual - distance, 0))
        assert features == expected
    assert int(found.max()) > 255 and 0.1 < float((found[1:] == 0).double().mean()) < 0.9, "near and far ones"


def in_float64(layer: PatchDictionary, x: Tensor) -> tuple[Tensor, Tensor]:
    """The same cosines and features by convolutions in double precision."""
    pixels, filters, d = torch.round(255 * x).double(), layer.filters.double(), layer.filters[0].numel()
    ones = torch.ones_like(filters[:1])
    contrast = (d * F.conv2d(pixels**2, ones) - F.conv2d(pixels, ones) ** 2 + 100 * d * d) / d
    cos = F.conv2d(pixels, filters) / contrast.sqrt() / filters.square().sum((1, 2, 3)).sqrt().view(-1, 1, 1)
    parts = [torch.floor(255 * (side * cos - layer.alpha.double()).clamp(min=0)) for side in (1, -1)]
    return cos, F.avg_pool2d(torch.cat(parts, 1), layer.cell, ceil_mode=True, divisor_override=1).flatten(1)


@pytest.mark.parametrize(("shape", "patch", "pool"), [((3, 32, 32), 6, 3), ((1, 28, 28), 5, 4), ((3, 16, 20), 9, 1)])
def test_float32_features_equal_those_in_float64_to_the_bit(shape: tuple[int, int, int], patch: int, pool: int) -> None:
    x = images(12, shape)
    x[1] = x[1].round()  # as large as sums can get
    layer = PatchDictionary.fitted(x, 10, patch, pool, patches=300)
    cos, features = in_float64(layer, x)
    assert torch.equal(layer(x).double(), features) and int(features.max()) > 0
    assert torch.equal(layer.likenesses(torch.round(255 * x)), cos)


@pytest.mark.parametrize("kind", [PatchDictionary, TriangleDictionary])
def test_no_order_of_summation_changes_anything(kind: type[PatchDictionary | TriangleDictionary]) -> None:
    x = images(260, (3, 12, 12))
    layer = kind.fitted(x, 8, patch=5, pool=2, patches=500)
    before = layer(x)
    assert torch.equal(torch.cat([layer(part) for part in torch.split(x, 49)]), before), "chunks change nothing"
    torch.set_num_threads(2)
    try:
        assert torch.equal(layer(x[:100]), before[:100])
    finally:
        torch.set_num_threads(1)
    order = [2, 0, 1]
    layer.filters.copy_(layer.filters[:, order])
    assert torch.equal(layer(x[:, order]), before)


def test_filters_are_whole_add_up_to_zero_and_are_all_different() -> None:
    filters = PatchDictionary.fitted(X, 40, patch=5, pool=1, patches=400).filters
    assert torch.equal(filters, filters.round()) and bool((filters.abs().amax((1, 2, 3)) == 127).all())
    assert bool((filters.sum((1, 2, 3)) == 0).all()) and len(torch.unique(filters, dim=0)) == 40


def test_the_asked_share_of_likenesses_is_above_the_threshold() -> None:
    x = images(200, (1, 12, 12))[1:]
    for active in (0.1, 0.5):
        layer = PatchDictionary.fitted(x, 20, patch=4, active=active, patches=3000)
        share = float((layer.likenesses(torch.round(255 * x)).abs() > layer.alpha).double().mean())
        assert abs(share - active) < 0.03


def test_atoms_are_found_in_images_made_of_them() -> None:
    """Patches are edges, steep either way, or flat: two atoms must be the two directions."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(200, 1, 1, 1, generator=generator).expand(200, 1, 4, 4).clone()
    x[:80, :, :2] = 1 - x[:80, :, :2]
    x[80:160, :, :, :2] = 1 - x[80:160, :, :, :2]
    layer = PatchDictionary.fitted(x, 2, patch=4, pool=1, patches=1000)
    up = torch.ones(4, 4)
    up[2:] = -1
    edges = F.normalize(torch.stack([up, up.T]).flatten(1))
    match = (F.normalize(layer.filters.flatten(1)) @ edges.T).abs()
    assert bool((match.amax(0) > 0.95).all() and (match.amin(0) < 0.3).all()), match


def test_fitting_depends_on_images_and_seed_alone() -> None:
    before = torch.get_rng_state()
    one, same, other = (small(seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before), "the global generator is left alone"
    assert torch.equal(one.filters, same.filters) and torch.equal(one.alpha, same.alpha)
    assert not torch.equal(one.filters, other.filters)
    assert one.state_dict().keys() == {"filters", "alpha"} and one.alpha.shape == ()


def test_a_saved_dictionary_gives_the_same_features() -> None:
    layer, empty = small(), PatchDictionary((2, 9, 8), atoms=4, patch=3, pool=2)
    assert not empty(X).any(), "an empty dictionary finds nothing"
    empty.load_state_dict(layer.state_dict())
    assert torch.equal(empty(X), layer(X))


@pytest.mark.parametrize("value", [0.0, 0.7])
def test_images_without_any_contrast_can_be_fitted(value: float) -> None:
    flat = torch.full((5, 1, 8, 8), value)
    layer = PatchDictionary.fitted(flat, 3, patch=4, pool=1, patches=20)
    assert bool(layer.filters.isfinite().all()) and not layer(flat).any()


@pytest.mark.parametrize("kind", [PatchDictionary, TriangleDictionary])
def test_a_net_above_a_dictionary_certifies_and_verifies(kind: type[PatchDictionary | TriangleDictionary]) -> None:
    torch.manual_seed(0)
    layer = kind.fitted(X, 4, patch=3, pool=2, patches=500)
    encoder = feature_ferns(layer(X), groups=20, tests=3)
    net = nn.Sequential(layer, encoder, nn.EmbeddingBag(encoder.bins, 3, mode="sum"))
    data = X, net(X).argmax(1)
    region = icn.Region.around(net, {"2.weight": 0.05})
    assert icn.bounds(net, region, X).contains(net(X))
    floor = icn.certify(net, region, data)
    assert 0 < floor.certified / 30 <= icn.attack(net, region, data).accuracy
    certificate = icn.Certificate.of(net, region, [floor])
    assert icn.verify(net, certificate)
    layer.filters[0, 0, 0, 0] += 1
    with pytest.raises(icn.Violation, match="filters"):
        icn.verify(net, certificate)


@pytest.mark.parametrize("kind", [PatchDictionary, TriangleDictionary])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bounds_are_the_features_in_the_precision_of_the_input(
    dtype: torch.dtype, kind: type[PatchDictionary | TriangleDictionary]
) -> None:
    layer = kind.fitted(X, 4, patch=3, pool=2, patches=500)
    out = patch_dictionary(layer, {}, Interval.point(X.to(dtype)), Float32())
    assert out.is_point and out.nonnegative and out.lower.dtype == dtype
    assert torch.equal(out.lower.float(), layer(X))


def test_bounds_go_by_the_dictionary_of_the_region() -> None:
    layer, other = small(0), small(1)
    boxes = {name: Interval.point(tensor.double()) for name, tensor in other.named_buffers()}
    out = patch_dictionary(layer, boxes, Interval.point(X.double()), Float32())
    assert torch.equal(out.lower.float(), other(X)) and not torch.equal(other(X), layer(X))


def test_what_would_round_or_is_not_known_has_no_bounds() -> None:
    layer, x = small(), Interval.point(X)
    with pytest.raises(InvalidData, match="known exactly"):
        patch_dictionary(layer, {}, Interval(X, X.clone()), Float32())
    with pytest.raises(InvalidData, match="0 to 1"):
        patch_dictionary(layer, {}, Interval.point(255 * X), Float32())
    with pytest.raises(InvalidRegion, match="'alpha' roam"):
        patch_dictionary(layer, {"alpha": Interval(layer.alpha, layer.alpha + 1)}, x, Float32())
    half, heavy = layer.filters.clone(), layer.filters.clone()
    half[0] *= 0.5
    heavy[0, 0, 0, 0] += 1
    for wrong in ({"filters": half}, {"filters": heavy}, {"filters": 2 * layer.filters}, {"alpha": -layer.alpha}):
        with pytest.raises(InvalidModel, match="whole numbers"):
            patch_dictionary(layer, {name: Interval.point(t) for name, t in wrong.items()}, x, Float32())


@pytest.mark.parametrize(
    ("wrong", "culprit"),
    [
        ({"atoms": 0}, "atoms"),
        ({"patch": 33}, "patch"),
        ({"patch": 10}, "patch is 10: sums"),
        ({"pool": 0}, "pool"),
        ({"patch": 3, "pool": 22}, "pool"),
        ({"shape": (3, 300, 300), "pool": 1}, "pool is 1: sums"),
    ],
)
def test_settings_that_make_no_sense_are_named(wrong: dict[str, object], culprit: str) -> None:
    with pytest.raises(InvalidSetting, match=culprit):
        PatchDictionary(**{"shape": (3, 32, 32), "atoms": 4, **wrong})  # type: ignore[arg-type]


class NoReciprocals(TorchFunctionMode):
    """Refuses to divide by a Python number, of which a GPU takes the reciprocal, but for powers of two."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "div" in getattr(func, "__name__", ""):
            for number in args[1:]:
                if isinstance(number, (int, float)):
                    assert math.frexp(number)[0] == 0.5, f"{func.__name__} by {number}"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [PatchDictionary, TriangleDictionary])
def test_nothing_is_divided_by_a_number_whose_reciprocal_rounds(
    kind: type[PatchDictionary | TriangleDictionary],
) -> None:
    layer = kind.fitted(X, 7, patch=3, pool=2, patches=500)
    with NoReciprocals():
        layer(X)
        with pytest.raises(AssertionError, match="div by 18"):
            X / 18


@pytest.mark.parametrize("wrong", [{"active": 0.0}, {"active": 1.0}, {"patches": 3}])
def test_ways_of_fitting_that_make_no_sense_are_named(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidSetting, match=next(iter(wrong))):
        PatchDictionary.fitted(X, 4, patch=3, pool=2, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [255 * X, X[0], X[:0], torch.full_like(X, torch.nan)])
def test_images_that_cannot_be_used_are_refused(wrong: Tensor) -> None:
    with pytest.raises(InvalidData, match="from 0 to 1"):
        PatchDictionary.fitted(wrong, 4, patch=3, pool=2)
