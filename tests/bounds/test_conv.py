"""Convolutions against plain loops over windows, for every setting, and against all corners."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from intercontinet.bounds import Real
from intercontinet.bounds.conv import convolution
from intercontinet.bounds.linear import linear
from intercontinet.interval import Interval
from tests.strategies import CONVOLUTIONS_1D, CONVOLUTIONS_2D, Layer, corners, random_box

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")

Conv = nn.Conv1d | nn.Conv2d


def source(position: int, size: int, mode: str) -> int | None:
    """Where a padded position takes its value from; None for a zero."""
    if 0 <= position < size:
        return position
    if mode == "zeros":
        return None
    if mode == "circular":
        return position % size
    if mode == "replicate":
        return min(max(position, 0), size - 1)
    return -position if position < 0 else 2 * (size - 1) - position  # reflect


def paddings(layer: Conv) -> list[int]:
    """How much is added before the first position, each way."""
    if layer.padding == "same":
        return [d * (k - 1) // 2 for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
    return [0] * len(layer.kernel_size) if isinstance(layer.padding, str) else list(layer.padding)


def in_loops(layer: Conv, weight: Interval, bias: Interval | None, x: Interval, positions: torch.Size) -> Interval:
    """Every output as a sum of terms, each the smallest and largest of four products."""
    before = paddings(layer)
    lower, upper = (torch.zeros(x.shape[0], layer.out_channels, *positions, dtype=torch.float64) for _ in range(2))
    per_group = layer.in_channels // layer.groups
    for at in product(*map(range, lower.shape)):
        b, o, *place = at
        group = o // (layer.out_channels // layer.groups)
        for c, *tap in product(range(per_group), *map(range, layer.kernel_size)):
            where = [
                source(p * s - pad + t * d, size, layer.padding_mode)
                for p, s, pad, t, d, size in zip(
                    place, layer.stride, before, tap, layer.dilation, x.shape[2:], strict=True
                )
            ]
            if None in where:
                continue
            i, j = (b, group * per_group + c, *where), (o, c, *tap)
            products = [p[i] * q[j] for p in (x.lower, x.upper) for q in (weight.lower, weight.upper)]
            lower[at] += min(products)
            upper[at] += max(products)
        if bias is not None:
            lower[at] += bias.lower[o]
            upper[at] += bias.upper[o]
    return Interval(lower, upper)


def boxes(layer: Conv, generator: torch.Generator) -> dict[str, Interval]:
    return {name: random_box(tuple(p.shape), generator) for name, p in layer.named_parameters()}


@pytest.mark.parametrize("wide_input", [True, False])
@pytest.mark.parametrize("make", [*CONVOLUTIONS_1D, *CONVOLUTIONS_2D])
def test_every_setting_matches_plain_loops_over_four_corners(make: Layer, wide_input: bool) -> None:
    layer = make()
    assert isinstance(layer, (nn.Conv1d, nn.Conv2d))
    generator = torch.Generator().manual_seed(0)
    parameters = boxes(layer, generator)
    x = random_box((1, 2, 6) if isinstance(layer, nn.Conv1d) else (1, 2, 6, 6), generator)
    x = x if wide_input else Interval.point(x.upper)
    out = convolution(layer, parameters, x, Real(exact=True))
    expected = in_loops(layer, parameters["weight"], parameters.get("bias"), x, out.shape[2:])
    torch.testing.assert_close(out.lower, expected.lower, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(out.upper, expected.upper, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv1d(1, 2, 2, stride=2, padding=1),
        nn.Conv1d(2, 2, 3, groups=2, dilation=2, padding=2),
        nn.Conv2d(1, 1, (2, 3), padding=1, bias=False),
        nn.Conv2d(2, 2, (1, 2), groups=2, padding="same"),
        nn.Conv2d(2, 2, (2, 1), groups=2, stride=2, padding=1, padding_mode="circular"),
    ],
    ids=str,
)
@pytest.mark.parametrize("wide_input", [True, False])
def test_one_layers_bound_is_the_extreme_over_all_corners(layer: Conv, wide_input: bool) -> None:
    layer = layer.double()
    generator = torch.Generator().manual_seed(1)
    parameters = boxes(layer, generator)
    shape = (1, layer.in_channels, 4) if isinstance(layer, nn.Conv1d) else (1, layer.in_channels, 3, 2)
    x = random_box(shape, generator)
    if wide_input:  # a few entries roam, so that all corners can be visited
        roams = (torch.arange(x.lower.numel()) % 3 == 0).reshape(shape)
        x = Interval(x.lower, torch.where(roams, x.upper, x.lower))
    else:
        x = Interval.point(x.lower)
    xs = corners(x.lower, x.upper).flatten(0, 1)  # as one batch
    sizes = {name: box.lower.numel() for name, box in parameters.items()}
    flat = [torch.cat([getattr(box, side).flatten() for box in parameters.values()]) for side in ("lower", "upper")]

    def output(vector: Tensor) -> Tensor:
        parts = torch.split(vector, list(sizes.values()))
        state = {n: part.reshape(parameters[n].shape) for n, part in zip(sizes, parts, strict=True)}
        result: Tensor = functional_call(layer, state, (xs,))
        return result

    with torch.no_grad():
        outs = vmap(output, chunk_size=256)(corners(*flat))
    out = convolution(layer, parameters, x, Real(exact=True))
    torch.testing.assert_close(out.lower[0], outs.amin((0, 1)), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(out.upper[0], outs.amax((0, 1)), rtol=1e-12, atol=1e-12)


def test_a_conv1d_as_wide_as_its_input_is_a_linear_layer() -> None:
    generator = torch.Generator().manual_seed(2)
    weight, x = random_box((3, 2, 4), generator), random_box((5, 2, 4), generator)
    out = convolution(nn.Conv1d(2, 3, 4, bias=False), {"weight": weight}, x, Real(exact=True))
    flat = linear(
        nn.Linear(8, 3, bias=False),
        {"weight": Interval(weight.lower.flatten(1), weight.upper.flatten(1))},
        Interval(x.lower.flatten(1), x.upper.flatten(1)),
        Real(exact=True),
    )
    torch.testing.assert_close(out.lower.flatten(1), flat.lower)
    torch.testing.assert_close(out.upper.flatten(1), flat.upper)
