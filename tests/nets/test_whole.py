"""WholeNet: whole numbers, the same in any order of summation, against naive loops; sight, as it is shipped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import intercontinet as icn
from intercontinet.bounds.arithmetic import Float32
from intercontinet.errors import CertificateError, InvalidData, InvalidModel, InvalidSetting, UnsupportedLayer
from intercontinet.interval import Interval
from intercontinet.nets import build_exact_net, whole
from intercontinet.nets.numbers import EXACT
from intercontinet.nets.sight import sight
from intercontinet.nets.whole import (
    MOST_HALVINGS,
    WholeConvolution,
    WholeNet,
    adds_bytes,
    whole_convolution,
    whole_net,
)


def filled(layer: WholeConvolution, seed: int) -> WholeConvolution:
    generator = torch.Generator().manual_seed(seed)
    layer.weight.copy_(torch.randint(-127, 128, layer.weight.shape, generator=generator))
    layer.bias.copy_(torch.randint(-9000, 9000, layer.bias.shape, generator=generator))
    layer.halvings.copy_(torch.randint(4, 9, layer.halvings.shape, generator=generator))
    return layer


def small(**options: int) -> WholeNet:
    net = WholeNet((3, 4), (1, 1), **{"heard": 1, **options})
    for seed, part in enumerate(part for part in net.modules() if isinstance(part, WholeConvolution)):
        filled(part, seed)
    return net


def images(count: int, channels: int = 3, side: int = 8) -> Tensor:
    return torch.rand(count, channels, side, side, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("stride", "side"), [(1, 5), (2, 5), (2, 6)])
def test_a_convolution_is_that_of_a_naive_loop(stride: int, side: int) -> None:
    layer = filled(WholeConvolution(2, 3, stride), seed=7)
    x = torch.randint(0, 256, (2, side, side, 2), generator=torch.Generator().manual_seed(0)).float()
    found = layer(x)
    places = range(0, side, stride)
    assert found.shape == (2, len(places), len(places), 3)
    reached = set()
    for image in range(2):
        for f in range(3):
            for row, top in enumerate(places):
                for column, left in enumerate(places):
                    total = int(layer.bias[f])
                    for down in range(-1, 2):
                        for right in range(-1, 2):
                            if 0 <= top + down < side and 0 <= left + right < side:
                                for channel in range(2):
                                    pixel = int(x[image, top + down, left + right, channel])
                                    total += pixel * int(layer.weight[f, channel, down + 1, right + 1])
                    value = min(max(total // 2 ** int(layer.halvings[f]), 0), 255)
                    assert int(found[image, row, column, f]) == value
                    reached.add(0 < value < 255)
    assert reached == {True, False}, "some were cut off, and some were not"


needs_bytes = pytest.mark.skipif(not adds_bytes(), reason="this CPU does not add up products of bytes exactly")


def test_a_cpu_that_adds_bytes_is_known_as_one() -> None:
    about = Path("/proc/cpuinfo")
    if not about.exists() or not {"avx512_vnni", "avx_vnni"} & set(about.read_text().split()):
        pytest.skip("nothing here says that this CPU adds up products of bytes")
    assert adds_bytes()


def test_a_cpu_that_would_lose_some_is_known_too() -> None:
    """Without the instructions for it pairs of products are added in 16 bits, and cut off there."""
    found = subprocess.run(
        [sys.executable, "-c", "from intercontinet.nets.whole import adds_bytes; print(adds_bytes())"],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "False"


@needs_bytes
@pytest.mark.parametrize("weight", [127, -127, -128])
@pytest.mark.parametrize("pixel", [0.0, 255.0])
def test_bytes_hold_the_largest_sums(weight: int, pixel: float) -> None:
    layer = WholeConvolution(50, 17)
    layer.weight.fill_(weight)
    layer.bias.fill_(15_000_000 if weight < 0 else -14_000_000)
    layer.halvings.fill_(MOST_HALVINGS - 4)
    x = torch.full((3, 6, 5, 50), pixel)
    quick = layer(x, in_bytes=True)
    assert torch.equal(quick, layer(x))
    inside = (9 * 50 * int(pixel) * weight + int(layer.bias[0])) // 2 ** (MOST_HALVINGS - 4)
    assert bool((quick[:, 1:-1, 1:-1] == min(max(inside, 0), 255)).all())


@needs_bytes
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), channels=st.integers(1, 40), filters=st.integers(1, 40), stride=st.integers(1, 2))
def test_bytes_give_the_same_bits(seed: int, channels: int, filters: int, stride: int) -> None:
    layer = filled(WholeConvolution(channels, filters, stride), seed)
    x = torch.randint(0, 256, (2, 7, 4, channels), generator=torch.Generator().manual_seed(seed)).float()
    assert torch.equal(layer(x, in_bytes=True), layer(x))


@needs_bytes
def test_sight_sees_the_same_in_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = sight(), images(20, side=32)
    with mock.patch.object(torch, "_int_mm", wraps=torch._int_mm) as used:
        quick = net(x)
        assert used.called
    monkeypatch.setattr(whole, "adds_bytes", lambda: False)
    with mock.patch.object(torch, "_int_mm", side_effect=AssertionError):
        plain = net(x)
    assert torch.equal(quick, plain) and bool((quick.amax(0) > quick.amin(0)).any())


@pytest.mark.parametrize("odd", [-1.0, 1.5, 1e30, float("nan"), float("inf"), float("-inf")])
def test_pixels_that_are_none_count_as_the_nearest(odd: float) -> None:
    x = images(3)
    x[1, 2, 3, 4] = odd
    nearest = x.nan_to_num().clamp(0, 1)
    assert torch.equal(small()(x), small()(nearest))
    with pytest.raises(InvalidData, match="from 0 to 1"):
        whole_net(small(), {}, Interval.point(x), Float32())


def test_no_images_have_no_features_and_gradients_are_zero() -> None:
    assert small()(images(3)[:0]).shape == small()(images(3))[:0].shape
    x = images(3).requires_grad_()
    small()(x).sum().backward()
    assert x.grad is not None and not x.grad.any()


def test_what_goes_round_a_block_is_added_before_cutting_off() -> None:
    layer = WholeConvolution(1, 1)
    layer.bias[0] = -5
    beside = torch.tensor([[[[7.0], [3.0]]]])
    assert layer(torch.zeros(1, 1, 2, 1), beside).flatten().tolist() == [2.0, 0.0]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), size=st.floats(1e-3, 10), given_=st.floats(1e-3, 1), wanted=st.floats(1e-2, 10))
def test_made_whole_it_comes_near_and_never_overflows(seed: int, size: float, given_: float, wanted: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = size * torch.randn(2, 3, 3, 3, generator=generator)
    bias = size * torch.randn(2, generator=generator)
    layer = WholeConvolution(3, 2)
    steps = torch.full((3,), given_), torch.full((2,), wanted)
    try:
        whole_convolution(layer, weight, bias, *steps)
    except InvalidModel:
        assert float(weight.abs().max()) * given_ / wanted > 127.4
        return
    assert layer.largest_sum < EXACT
    x = torch.randint(0, 256, (1, 4, 4, 3), generator=generator).float()
    exact = F.relu(F.conv2d(x.permute(0, 3, 1, 2).double() * given_, weight.double(), bias.double(), padding=1))
    exact = (exact / wanted).clamp(0, 255).permute(0, 2, 3, 1)
    step = torch.exp2(-layer.halvings.double())
    allowed = 0.5 * 27 * 255 * step + 0.5 * step + 0.51  # each weight is off by at most half a step, and the result too
    assert bool(((layer(x) - exact).abs() <= allowed).all())


def test_sums_do_not_depend_on_their_order() -> None:
    net, x = small(), images(20)
    assert bool((net(x) == net.double()(x.double())).all())
    assert bool((small()(x) == torch.cat([small()(one[None]) for one in x])).all())


def test_features_are_sums_over_cells_of_the_stages_that_are_heard() -> None:
    x = images(4)
    last, both, fine = small()(x), small(heard=2)(x), small(pool=4)(x)
    assert last.shape == (4, 16) and both.shape == (4, 28) and fine.shape == (4, 64)
    assert bool((both[:, 12:] == last).all())
    coarse = F.avg_pool2d(fine.view(4, 4, 4, 4), 2, divisor_override=1).flatten(1)
    assert bool((coarse == last).all()) and float(last.max()) > 255


def test_grey_images_are_seen_as_colourless() -> None:
    x = images(3, channels=1)
    assert bool((small()(x) == small()(x.expand(-1, 3, -1, -1))).all())


def test_the_rule_gives_what_the_net_gives_and_refuses_what_might_round() -> None:
    net, x = small(), images(3)
    bounds = whole_net(net, {}, Interval.point(x.double()), Float32())
    assert bounds.is_point and bool((bounds.lower == net(x)).all())
    with pytest.raises(InvalidData, match="pixels from 0 to 1"):
        whole_net(net, {}, Interval.point(2 + x), Float32())
    with pytest.raises(InvalidData, match="known exactly"):
        whole_net(net, {}, Interval(x, x + 0.001), Float32())
    with pytest.raises(InvalidData, match="smaller images"):
        whole_net(net, {}, Interval.point(torch.zeros(1, 3, 300, 300)), Float32())
    first = next(part for part in net.modules() if isinstance(part, WholeConvolution))
    first.bias[0] = EXACT
    with pytest.raises(InvalidModel, match=r"'stages\.0\.0': sums of up to"):
        whole_net(net, {}, Interval.point(x), Float32())


def test_the_rule_refuses_numbers_that_are_not_whole_or_divided_too_often() -> None:
    x = Interval.point(images(1))
    often = small()
    next(part for part in often.modules() if isinstance(part, WholeConvolution)).halvings[0] = 130
    with pytest.raises(InvalidModel, match=r"'stages\.0\.0' divides by more than 2\^20"):
        whole_net(often, {}, x, Float32())
    broken = small()
    state = {name: tensor.float() + 0.5 for name, tensor in broken.state_dict().items() if name.endswith("weight")}
    broken.load_state_dict(state, assign=True, strict=False)
    with pytest.raises(InvalidModel, match=r"weight' is torch\.float32, not torch\.int8"):
        whole_net(broken, {}, x, Float32())


def test_parts_that_compute_otherwise_are_refused() -> None:
    class Louder(WholeConvolution):
        def forward(self, x: Tensor, beside: Tensor | None = None, in_bytes: bool = False) -> Tensor:
            return super().forward(x, beside, in_bytes) + 1

    net, x = small(), images(20)
    stage = net.stages[0]
    assert isinstance(stage, nn.ModuleList)
    stage[0] = filled(Louder(3, 3), 0)
    with pytest.raises(InvalidModel, match=r"'stages\.0\.0' \(Louder\)"):
        whole_net(net, {}, Interval.point(x), Float32())
    whole = build_exact_net("sight-2-10-3", images(20, side=16), outputs=2, slots=1, seed=0)
    first = next(part for part in whole.modules() if isinstance(part, WholeConvolution))
    first.register_forward_hook(lambda module, given, out: out + 1)
    with pytest.raises(UnsupportedLayer, match="forward hooks"):
        icn.certify(whole, icn.Region.around(whole, 0.0), (images(20, side=16), torch.arange(20) % 2))


def test_whole_pixels_may_come_as_whole_numbers() -> None:
    x = (images(2) > 0.5).long()
    assert bool((small()(x) == small()(x.float())).all())


def test_what_it_cannot_see_is_refused() -> None:
    with pytest.raises(InvalidData, match="1 or 3"):
        small()(torch.rand(2, 2, 8, 8))
    with pytest.raises(InvalidData, match="grid of 3 cells"):
        small(pool=3)(images(1))
    with pytest.raises(InvalidSetting, match="as many blocks as widths"):
        WholeNet((3, 4), (1,))


def test_a_certificate_is_for_these_weights_alone() -> None:
    x = images(40, side=16)
    net = build_exact_net("sight-2-20-3", x, outputs=2, slots=1, seed=0)
    learner = icn.ExactInterContiNet(net, keep=0.5, held_out=0.0, unseen=0.0)
    learner.learn((x, torch.arange(40) % 2), task="odd")
    assert icn.verify(net, learner.certificate)
    convolution = next(part for part in net.modules() if isinstance(part, WholeConvolution))
    convolution.weight[0, 0, 0, 0] += 1
    with pytest.raises(CertificateError, match="constants"):
        icn.verify(net, learner.certificate)


def test_sight_is_whole_and_tells_images_apart() -> None:
    net = sight()
    layers = [part for part in net.modules() if isinstance(part, WholeConvolution)]
    assert all(layer.largest_sum < EXACT for layer in layers) and not list(nn.Module.parameters(net))
    assert all(bool(layer.weight.any()) for layer in layers)
    features = net(images(6, side=32))
    assert bool((features == features.round()).all()) and len(torch.unique(features, dim=0)) == 6


def test_certain_examples_are_the_same_whatever_surrounds_the_question() -> None:
    """Autocast would compute sums of whole numbers in half precision, and choose other rows."""
    x, y = images(60, side=16), torch.arange(60) % 2
    for name in ("sight-2-60-4", "dictionary-20-3-10-1-60-4"):
        net = build_exact_net(f"capped-{name}", x, outputs=2, slots=1, seed=0)
        learner = icn.ExactInterContiNet(net, keep=0.8, seed=0)
        with torch.autocast("cpu", torch.bfloat16):
            floor = learner.learn((x, y))
            inside = icn.certify(net, learner.region, (x, y)).certified
        assert floor.certified == inside == icn.certify(net, learner.region, (x, y)).certified
        assert icn.attack(net, learner.region, (x, y)).accuracy >= floor.floor


@pytest.mark.parametrize("name", ["forward", "_features", "_cells"])
def test_methods_put_on_a_net_from_outside_are_refused(name: str) -> None:
    x, y = images(8, side=16), torch.arange(8) % 2
    net = build_exact_net("sight-2-10-3", x, outputs=2, slots=1, seed=0)
    whole = next(part for part in net.modules() if isinstance(part, WholeNet))
    setattr(whole, name, getattr(whole, name))
    with pytest.raises(UnsupportedLayer, match=f"has a {name} of its own put on it"):
        icn.certify(net, icn.Region.around(net, 0.0), (x, y))
    part = next(part for part in whole.modules() if isinstance(part, WholeConvolution))
    delattr(whole, name)
    part.forward = part.forward  # type: ignore[method-assign]
    with pytest.raises(UnsupportedLayer, match=r"stages\.0\.0' .*has a forward of its own"):
        icn.certify(net, icn.Region.around(net, 0.0), (x, y))
