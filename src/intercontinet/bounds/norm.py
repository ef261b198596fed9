"""Normalisation. BatchNorm with frozen statistics is one affine map a channel; while training it has no bound, since
every batch moves it. LayerNorm, GroupNorm, InstanceNorm and RMSNorm divide by what they measure on each example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log, prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intercontinet.bounds.arithmetic import LARGEST, NUDGE, SMALLEST, UNIT, Arithmetic, gamma
from intercontinet.bounds.elementwise import add, multiply
from intercontinet.bounds.functions import function, moved
from intercontinet.bounds.registry import rule
from intercontinet.errors import InvalidRegion, TrainingMode, UnsupportedLayer
from intercontinet.interval import Interval


@rule(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def batch_norm(
    layer: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d,
    parameters: Mapping[str, Interval],
    x: Interval,
    arithmetic: Arithmetic,
) -> Interval:
    r"""[batch, channels, ...] -> the same: :math:`(x - m) / \sqrt{v + e} \cdot w + b` with saved mean m and variance v.

    Implementations differ in where they multiply: rounding is counted on :math:`(|x| + |m|) |w| / \sqrt{v + e} + |b|`.
    """
    if layer.training:
        raise TrainingMode(
            "it normalises by the statistics of each batch, about which nothing can be promised: call model.eval()"
        )
    if not layer.track_running_stats:
        raise UnsupportedLayer("it keeps no running statistics: use track_running_stats=True")

    def column(values: Tensor) -> Tensor:
        return values.reshape(1, -1, *[1] * (x.lower.dim() - 2))

    for name in ("running_mean", "running_var"):
        if not parameters[name].is_point:
            raise InvalidRegion(
                f"the region lets '{name}' roam: saved statistics must be points, so give it zero width"
            )
    mean, variance = (column(parameters[name].lower) for name in ("running_mean", "running_var"))
    scale = torch.rsqrt(variance + layer.eps)
    out = Interval((x.lower - mean) * scale, (x.upper - mean) * scale)
    if "weight" in parameters:
        weight, bias = parameters["weight"], parameters["bias"]
        corners = [
            out_edge * column(edge) for out_edge in (out.lower, out.upper) for edge in (weight.lower, weight.upper)
        ]
        lower, upper = corners[0], corners[0]
        for corner in corners[1:]:
            lower, upper = torch.minimum(lower, corner), torch.maximum(upper, corner)
        out = Interval(lower + column(bias.lower), upper + column(bias.upper))

    def magnitude() -> Tensor:
        size = torch.where(variance + layer.eps >= 2 * SMALLEST, x.magnitude + mean.abs(), torch.inf)
        normalised = (size + NUDGE) * scale + NUDGE  # factors may be flushed to zero before or after each product
        if "weight" not in parameters:
            return normalised
        slope, offset = column(parameters["weight"].magnitude), column(parameters["bias"].magnitude)
        safe = torch.maximum(normalised, slope * scale) <= LARGEST  # whichever product comes first
        return torch.where(safe, normalised * (slope + NUDGE) + size * NUDGE + offset, torch.inf)

    return arithmetic.products(out, magnitude, terms=16)  # its few steps and a rough rsqrt, with room to spare


@function("batch_norm")
def batch_norm_function(
    arithmetic: Arithmetic,
    x: Interval,
    running_mean: Interval | None,
    running_var: Interval | None,
    weight: Interval | None = None,
    bias: Interval | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Interval:
    """:func:`batch_norm`, for the function of that name."""
    if training or running_mean is None or running_var is None or (weight is None) != (bias is None):
        raise UnsupportedLayer("its rule covers saved statistics only, with both weight and bias or neither")
    layer = nn.BatchNorm1d(x.shape[1], eps, affine=weight is not None, device="meta").eval()
    given = {"running_mean": running_mean, "running_var": running_var, "weight": weight, "bias": bias}
    return batch_norm(layer, {name: box for name, box in given.items() if box is not None}, x, arithmetic)


@function("layer_norm")
def layer_norm(
    arithmetic: Arithmetic,
    x: Interval,
    normalized_shape: Sequence[int],
    weight: Interval | None = None,
    bias: Interval | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Interval:
    """[..., *normalized_shape] -> the same."""
    ways = len(normalized_shape)
    flat = moved(lambda t: t.flatten(-ways), x)
    out = moved(lambda t: t.reshape(x.shape), standardised(arithmetic, flat, eps))
    return _scaled(arithmetic, out, weight, bias, x, eps)


@function("group_norm")
def group_norm(
    arithmetic: Arithmetic,
    x: Interval,
    num_groups: int,
    weight: Interval | None = None,
    bias: Interval | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Interval:
    """[batch, channels, ...] -> the same, each group of channels by itself."""
    flat = moved(lambda t: t.reshape(len(t), num_groups, -1), x)
    out = moved(lambda t: t.reshape(x.shape), standardised(arithmetic, flat, eps))

    def column(values: Interval | None) -> Interval | None:
        shape = (1, -1, *[1] * (len(x.shape) - 2))
        return None if values is None else moved(lambda t: t.reshape(shape), values)

    return _scaled(arithmetic, out, column(weight), column(bias), x, eps)


@function("instance_norm")
def instance_norm(
    arithmetic: Arithmetic,
    x: Interval,
    running_mean: Interval | None = None,
    running_var: Interval | None = None,
    weight: Interval | None = None,
    bias: Interval | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Interval:
    """[batch, channels, ...] -> the same, each channel by itself."""
    if not use_input_stats or running_mean is not None:
        raise UnsupportedLayer("InstanceNorm with saved statistics has no rule: use track_running_stats=False")
    return group_norm(arithmetic, x, x.shape[1], weight, bias, eps)


@function("rms_norm")
def rms_norm(
    arithmetic: Arithmetic,
    x: Interval,
    normalized_shape: Sequence[int],
    weight: Interval | None = None,
    eps: float | None = None,
) -> Interval:
    r""":math:`x_i / \sqrt{\frac1n \sum_j x_j^2 + e}`: rises in :math:`x_i`, shrinks as any other square grows.

    So each edge is attained at a corner, up to rounding.
    """
    count, ways = prod(normalized_shape), len(normalized_shape)
    small = _float32(torch.finfo(torch.float32).eps if eps is None else eps)
    flat = moved(lambda t: t.flatten(-ways), x)
    low, up = flat.lower, flat.upper
    least_square = torch.where(low * up <= 0, 0, torch.minimum(low.abs(), up.abs())) ** 2
    most_square = flat.magnitude**2

    def edge(own: Tensor, towards_zero: Tensor) -> Tensor:
        """x_i at ``own``, all others as large (or as small) as they get."""
        others = torch.where(towards_zero, _others(most_square), _others(least_square))
        return own * torch.rsqrt((others + own**2) / count + small)

    out = Interval(edge(low, low > 0), edge(up, up < 0), x.nonnegative)
    safe = most_square.amax(-1, keepdim=True) * count <= LARGEST
    safe = safe & (least_square.mean(-1, keepdim=True) + small >= 1024 * SMALLEST)  # else squares may all be flushed
    narrow = (least_square.mean(-1, keepdim=True) + small).sqrt()

    def magnitude() -> Tensor:
        size = out.magnitude * (1 + NUDGE / narrow**2) + NUDGE / narrow  # squares, and factors, may be flushed
        return torch.where(safe, size, torch.inf)

    out = arithmetic.products(out, magnitude, terms=count + 16)
    return _scaled(arithmetic, moved(lambda t: t.reshape(x.shape), out), weight, None, x, small)


def _others(values: Tensor) -> Tensor:
    """[..., n] of numbers that are not negative -> for each the sum of all others, without cancellation."""
    before = F.pad(values.cumsum(-1), (1, 0))[..., :-1]
    after = F.pad(values.flip(-1).cumsum(-1), (1, 0))[..., :-1].flip(-1)
    return before + after


def _float32(eps: float) -> float:
    """A small number as float32 has it: none at all, where it would be flushed."""
    return float(eps) if eps >= 2 * SMALLEST else 0.0


def standardised(arithmetic: Arithmetic, x: Interval, eps: float) -> Interval:
    r"""[..., n] -> :math:`(x_i - m) / \sqrt{v + e}` with the mean m and variance v of the n entries.

    With :math:`c_i = x_i - m`, bounded as one expression, :math:`v = \frac1n \sum_i c_i^2` lies between the sums of the
    least and the largest squares, and the quotient between its corners; nor can it ever exceed
    :math:`\sqrt{n - 1}` in size. Float32 implementations differ: the error of v is counted for the worst of them,
    which subtracts the square of the mean from the mean of the squares.
    """
    count, eps = x.shape[-1], _float32(eps)
    low, up = x.lower, x.upper
    lower = low - (low + up.sum(-1, keepdim=True) - up) / count
    upper = up - (up + low.sum(-1, keepdim=True) - low) / count
    if x.is_point:
        lower = upper = low - low.mean(-1, keepdim=True)
    inner = torch.where(lower * upper <= 0, 0, torch.minimum(lower.abs(), upper.abs()))
    outer = torch.maximum(lower.abs(), upper.abs())
    least, most = (inner**2).mean(-1, keepdim=True), (outer**2).mean(-1, keepdim=True)
    slip, off, room = torch.zeros_like(low), torch.zeros_like(most), 0.0
    if arithmetic.sound:
        room = 16 * UNIT  # of the root and what is done with it
        size = x.magnitude
        steps = count + 4 + 2 * log(count)  # running means round a little more often than sums
        slip = gamma(steps) * (size.mean(-1, keepdim=True) + NUDGE) + 4 * UNIT * size
        off = 4 * gamma(count + 8) * ((size**2).mean(-1, keepdim=True) + NUDGE)
        slip = torch.where(count * size.amax(-1, keepdim=True) ** 2 <= LARGEST, slip, torch.nan)
    narrow = ((least - off).clamp(min=0) + eps).sqrt() * (1 - room)
    wide = (most + off + eps).sqrt() * (1 + room)
    lower, upper = lower - slip, upper + slip
    cap = (count**0.5 + slip / narrow) * (1 - (off / narrow**2).clamp(max=1)).rsqrt() * (1 + 2 * room)
    lower = torch.maximum(lower / torch.where(lower < 0, narrow, wide), -cap)
    upper = torch.minimum(upper / torch.where(upper > 0, narrow, wide), cap)
    out = Interval(lower, upper)
    return arithmetic.products(out, lambda: out.magnitude + NUDGE / narrow, terms=4)


def _scaled(
    arithmetic: Arithmetic, out: Interval, weight: Interval | None, bias: Interval | None, x: Interval, eps: float
) -> Interval:
    r"""Times weight, plus bias. Some implementations multiply weight by :math:`1 / \sqrt{v + e}`, and that by x and by
    the mean, before they subtract: none of it may overflow."""
    if weight is not None:
        reach = x.magnitude.amax(tuple(range(1, len(x.shape))), keepdim=True) + 1
        reach = reach * weight.magnitude * max(eps, 2 * SMALLEST) ** -0.5
        out = multiply(arithmetic, out, weight)
        out = arithmetic.products(out, lambda: torch.where(reach <= LARGEST, 0.0, torch.inf), terms=1)
    return out if bias is None else add(arithmetic, out, bias)
