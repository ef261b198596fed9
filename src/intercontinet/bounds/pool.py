"""Pooling: a maximum is monotone and exact, an average is a sum of equally weighted terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, prod
from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor, nn

from intercontinet.bounds.activation import monotone
from intercontinet.bounds.arithmetic import NUDGE, Arithmetic
from intercontinet.bounds.functions import function
from intercontinet.bounds.registry import Rule, rule
from intercontinet.errors import UnsupportedLayer
from intercontinet.interval import Interval

Parameters = Mapping[str, Interval]
Pool = Callable[[Tensor], Tensor]


@rule(nn.MaxPool1d, nn.MaxPool2d)
def max_pool(
    layer: nn.MaxPool1d | nn.MaxPool2d, parameters: Parameters, x: Interval, arithmetic: Arithmetic
) -> Interval:
    """The largest entry of each window: no rounding, and the edges of the maximum are the maxima of the edges.

    Hardware may flush a subnormal entry to zero on the way.
    """
    pool: Callable[..., Tensor] = F.max_pool1d if isinstance(layer, nn.MaxPool1d) else F.max_pool2d
    if layer.return_indices:
        raise UnsupportedLayer(f"{layer} returns indices as well: use return_indices=False")

    def f(t: Tensor) -> Tensor:
        return pool(t, layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode)

    out = monotone(f, x, x.nonnegative)
    return arithmetic.function(out, out, ulps=0)


@rule(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d)
def adaptive_max_pool(
    layer: nn.AdaptiveMaxPool1d | nn.AdaptiveMaxPool2d, parameters: Parameters, x: Interval, arithmetic: Arithmetic
) -> Interval:
    """As :func:`max_pool`, with windows that follow from the output's size."""
    if layer.return_indices:
        raise UnsupportedLayer(f"{layer} returns indices as well: use return_indices=False")
    out = monotone(layer.forward, x, x.nonnegative)
    return arithmetic.function(out, out, ulps=0)


@rule(nn.AvgPool1d, nn.AvgPool2d)
def avg_pool(
    layer: nn.AvgPool1d | nn.AvgPool2d, parameters: Parameters, x: Interval, arithmetic: Arithmetic
) -> Interval:
    """The mean of each window; its sum is larger by the window's size, or by ``divisor_override``."""
    kernel = layer.kernel_size
    window = kernel**2 if isinstance(kernel, int) else prod(kernel)
    divisor = getattr(layer, "divisor_override", None) or window
    if divisor < 0:
        raise UnsupportedLayer(f"divisor_override = {divisor} turns averages upside down: use a positive one")
    return _average(layer.forward, x, window, max(window, divisor), arithmetic)


@rule(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)
def adaptive_avg_pool(
    layer: nn.AdaptiveAvgPool1d | nn.AdaptiveAvgPool2d, parameters: Parameters, x: Interval, arithmetic: Arithmetic
) -> Interval:
    """As :func:`avg_pool`; a window spans at most ceil(in / out) + 1 entries each way."""
    size, ways = layer.output_size, 1 if isinstance(layer, nn.AdaptiveAvgPool1d) else 2
    sizes: tuple[int | None, ...] = tuple(size) if isinstance(size, (tuple, list)) else (size,) * ways
    window = 1
    for inner, outer in zip(reversed(x.shape), reversed(sizes), strict=False):
        window *= 1 if outer is None else ceil(inner / outer) + 1
    return _average(layer.forward, x, window, window, arithmetic)


def _average(pool: Pool, x: Interval, window: int, divisor: int, arithmetic: Arithmetic) -> Interval:
    out = monotone(pool, x, x.nonnegative)
    return arithmetic.products(out, lambda: pool(x.magnitude + NUDGE), terms=window + 1, growth=float(divisor))


def _by_layer(kind: Callable[..., nn.Module], found: Rule) -> Callable[..., Interval]:
    """The rule of a layer, for its function; an empty stride is the kernel's size."""

    def apply(arithmetic: Arithmetic, x: Interval, *args: Any, **kwargs: Any) -> Interval:
        given = [None if value == [] else value for value in args]
        options = {key: None if value == [] else value for key, value in kwargs.items()}
        return cast(Interval, found(kind(*given, **options), {}, x, arithmetic))

    return apply


function("max_pool1d")(_by_layer(nn.MaxPool1d, max_pool))
function("max_pool2d")(_by_layer(nn.MaxPool2d, max_pool))
function("avg_pool1d")(_by_layer(nn.AvgPool1d, avg_pool))
function("avg_pool2d")(_by_layer(nn.AvgPool2d, avg_pool))
function("adaptive_max_pool1d")(_by_layer(nn.AdaptiveMaxPool1d, adaptive_max_pool))
function("adaptive_max_pool2d")(_by_layer(nn.AdaptiveMaxPool2d, adaptive_max_pool))
function("adaptive_avg_pool1d")(_by_layer(nn.AdaptiveAvgPool1d, adaptive_avg_pool))
function("adaptive_avg_pool2d")(_by_layer(nn.AdaptiveAvgPool2d, adaptive_avg_pool))
