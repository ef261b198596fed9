"""Builders shared by the tests: networks of every supported layer, lopsided regions, inputs, points of a box."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, vmap

from intercontinet.interval import Interval
from intercontinet.region import Region

Layer = Callable[[], nn.Module]

ACTIVATIONS: tuple[Layer, ...] = (
    nn.ReLU,
    nn.LeakyReLU,
    lambda: nn.LeakyReLU(-0.3),
    nn.ReLU6,
    lambda: nn.Hardtanh(-0.4, 0.7),
    nn.Tanh,
    nn.Sigmoid,
    nn.Softplus,
    lambda: nn.Softplus(beta=2.0, threshold=0.5),
    nn.ELU,
    lambda: nn.ELU(-0.7),
    nn.GELU,
    lambda: nn.GELU(approximate="tanh"),
    nn.SiLU,
    nn.Hardswish,
    nn.Identity,
    lambda: nn.Dropout(0.5),
)

# Two channels of 6 (or 6 x 6) in; every row leaves at least 3 a side.
CONVOLUTIONS_1D: tuple[Layer, ...] = (
    lambda: nn.Conv1d(2, 3, 3, padding=1),
    lambda: nn.Conv1d(2, 3, 2, stride=2),
    lambda: nn.Conv1d(2, 2, 2, padding="same"),
    lambda: nn.Conv1d(2, 2, 3, padding="same", padding_mode="reflect", dilation=2),
    lambda: nn.Conv1d(2, 4, 3, padding=2, padding_mode="circular", groups=2),
    lambda: nn.Conv1d(2, 2, 3, stride=2, padding=2, padding_mode="replicate", bias=False),
    lambda: nn.Conv1d(2, 2, 2, dilation=3, padding="valid", groups=2, bias=False),
)
CONVOLUTIONS_2D: tuple[Layer, ...] = (
    lambda: nn.Conv2d(2, 3, 3, padding=1),
    lambda: nn.Conv2d(2, 3, (2, 3), stride=(2, 1), padding=(0, 1)),
    lambda: nn.Conv2d(2, 2, 2, padding="same"),
    lambda: nn.Conv2d(2, 2, 3, padding="same", padding_mode="reflect"),
    lambda: nn.Conv2d(2, 4, 3, padding=2, padding_mode="circular", dilation=2, groups=2),
    lambda: nn.Conv2d(2, 2, (1, 3), padding=(0, 2), stride=2, padding_mode="replicate"),
    lambda: nn.Conv2d(2, 4, 2, dilation=(3, 1), groups=2, bias=False),
)
POOLS_1D: tuple[Layer, ...] = (
    lambda: nn.MaxPool1d(2),
    lambda: nn.MaxPool1d(2, stride=1, padding=1, dilation=2),
    lambda: nn.AvgPool1d(2),
    lambda: nn.AvgPool1d(3, stride=2, padding=1, ceil_mode=True, count_include_pad=False),
    lambda: nn.AdaptiveAvgPool1d(2),
    lambda: nn.AdaptiveMaxPool1d(2),
)
POOLS_2D: tuple[Layer, ...] = (
    lambda: nn.MaxPool2d(2),
    lambda: nn.MaxPool2d((2, 3), stride=2, padding=1, ceil_mode=True),
    lambda: nn.AvgPool2d(2, divisor_override=3),
    lambda: nn.AvgPool2d((3, 2), padding=1, count_include_pad=False),
    lambda: nn.AdaptiveAvgPool2d(2),
    lambda: nn.AdaptiveAvgPool2d((None, 1)),
    lambda: nn.AdaptiveMaxPool2d((2, 1)),
)
RADII = (0.0, 1e-7, 1e-3, 0.05, 0.5)


@dataclass(frozen=True)
class Case:
    """A network in evaluation mode, a box round its weights, and inputs: a point or an interval."""

    model: nn.Module
    region: Region
    x: Interval


def mlp(activations: list[nn.Module]) -> nn.Sequential:
    """[batch, 4] -> [batch, 3]."""
    first, second = activations
    return nn.Sequential(
        nn.Linear(4, 6),
        nn.BatchNorm1d(6),
        first,
        nn.Sequential(nn.Dropout(), nn.Linear(6, 5), second),
        nn.Linear(5, 3),
    )


def convolutional(flat: bool, convolution: nn.Module, activations: list[nn.Module], pool: nn.Module) -> nn.Sequential:
    """[batch, 2, 6(, 6)] -> [batch, 3]."""
    channels = convolution.out_channels
    assert isinstance(channels, int)
    norm = nn.BatchNorm1d(channels) if flat else nn.BatchNorm2d(channels)
    drop = nn.Dropout1d() if flat else nn.Dropout2d()
    body = nn.Sequential(convolution, norm, activations[0], drop, nn.Sequential(pool, activations[1]), nn.Flatten())
    sample = torch.zeros((1, 2, 6) if flat else (1, 2, 6, 6))
    with torch.no_grad():
        features = body.eval()(sample).shape[1]
    return nn.Sequential(*body, nn.Unflatten(1, (1, features)), nn.Flatten(), nn.Linear(features, 3))


def shake(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """Weights of either sign that make every activation visit all its branches; plausible running statistics."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator))
            elif name.endswith("running_var"):
                buffer.copy_(torch.rand(buffer.shape, generator=generator) * 3 + 0.01)
    return model.eval()


def lopsided_region(model: nn.Module, radius: float, generator: torch.Generator) -> Region:
    """A box that reaches a different way from every weight to either side; some weights cannot move at all."""
    lower, upper = {}, {}
    movable = {name for name, _ in model.named_parameters()}
    around = Region.around(model, 0.0)
    for name, weight in around.lower.items():
        below, above, free = (torch.rand(weight.shape, generator=generator) for _ in range(3))
        reach = radius * (free < 0.9) if name in movable else torch.zeros_like(weight)
        lower[name], upper[name] = weight - below * reach, weight + above * reach
    return Region(lower, upper)


def case(kind: int, picks: list[int], radius: float, wide_input: bool, seed: int) -> Case:
    """The case these choices name: kind 0 is an MLP, 1 a Conv1d network, 2 a Conv2d network."""
    generator = torch.Generator().manual_seed(seed)

    def pick(layers: tuple[Layer, ...], which: int) -> nn.Module:
        return layers[picks[which] % len(layers)]()

    activations = [pick(ACTIVATIONS, 0), pick(ACTIVATIONS, 1)]
    model: nn.Module
    shape: tuple[int, ...]
    if kind == 0:
        model, shape = mlp(activations), (3, 4)
    elif kind == 1:
        model = convolutional(True, pick(CONVOLUTIONS_1D, 2), activations, pick(POOLS_1D, 3))
        shape = (2, 2, 6)
    else:
        model = convolutional(False, pick(CONVOLUTIONS_2D, 2), activations, pick(POOLS_2D, 3))
        shape = (2, 2, 6, 6)
    shake(model, generator)
    scale = 10.0 ** (2 * torch.rand((), generator=generator) - 1)
    x = torch.randn(shape, generator=generator) * scale
    if torch.rand((), generator=generator) < 0.3:
        x = x.abs()
    reach = torch.rand(shape, generator=generator) * radius
    box = Interval(x - reach, x + reach) if wide_input else Interval.point(x)
    return Case(model, lopsided_region(model, radius, generator), box)


cases = st.builds(
    case,
    kind=st.integers(0, 2),
    picks=st.lists(st.integers(0, 1000), min_size=4, max_size=4),
    radius=st.sampled_from(RADII),
    wide_input=st.booleans(),
    seed=st.integers(0, 2**31),
)


def many_cases(count: int) -> Iterator[Case]:
    """A fixed walk through all layers, sizes of region and kinds of input."""
    for i in range(count):
        yield case(i % 3, [i, i // 3 + 5, i // 3, i // 3], RADII[i % len(RADII)], (i // 3) % 2 == 1, seed=i)


def points_inside(lower: Tensor, upper: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Float32 points of a box, [count, ...]: a third each of corners, of points on many faces, and of inner points."""
    where = torch.rand((count, *lower.shape), generator=generator)
    share = torch.arange(count).reshape(-1, *[1] * lower.dim()) % 3
    where = torch.where(share == 0, where.round(), torch.where(share == 1, (2 * where - 0.5).clamp(0, 1), where))
    return (lower + where * (upper - lower)).clamp(lower, upper).where(where < 1, upper)


def weights_inside(region: Region, count: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Weight vectors of a region, stacked along a new first dimension."""
    return {n: points_inside(low, region.upper[n], count, generator) for n, low in region.lower.items()}


def inputs_inside(x: Interval, count: int, generator: torch.Generator) -> Tensor:
    """Inputs of an interval, stacked."""
    return points_inside(x.lower, x.upper, count, generator)


@torch.no_grad()
def outputs_together(model: nn.Module, weights: dict[str, Tensor], xs: Tensor) -> Tensor:
    """Float32 outputs of many weight vectors, each on its own input, in one go: [count, batch, outputs]."""

    def output(state: dict[str, Tensor], x: Tensor) -> Tensor:
        result: Tensor = functional_call(model, state, (x,))
        return result

    result: Tensor = vmap(output)(weights, xs)
    return result


@torch.no_grad()
def output_alone(model: nn.Module, weights: dict[str, Tensor], xs: Tensor, index: int) -> Tensor:
    """The output of one of many weight vectors, by an ordinary forward pass."""
    result: Tensor = functional_call(model, {n: w[index] for n, w in weights.items()}, (xs[index],))
    return result


def corners(lower: Tensor, upper: Tensor) -> Tensor:
    """Every corner of a box, [2 ** free entries, ...]."""
    free = (lower != upper).flatten().nonzero().flatten().tolist()
    assert len(free) <= 16, "too many corners to visit"
    picks = torch.tensor(list(product((False, True), repeat=len(free))), dtype=torch.bool).reshape(
        2 ** len(free), len(free)
    )
    choice = torch.zeros(2 ** len(free), lower.numel(), dtype=torch.bool)
    choice[:, free] = picks
    return torch.where(choice.reshape(-1, *lower.shape), upper, lower)


def fits(value: Tensor, shape: Any) -> bool:
    """Whether a tensor is of a jaxtyping type, such as ``Float[Tensor, "batch classes"]``."""
    return isinstance(value, shape)


def random_box(shape: tuple[int, ...], generator: torch.Generator, width: float = 1.0) -> Interval:
    """A float64 interval of either sign."""
    centre = torch.randn(shape, generator=generator, dtype=torch.float64)
    below, above = (torch.rand(shape, generator=generator, dtype=torch.float64) * width for _ in range(2))
    return Interval(centre - below, centre + above)
