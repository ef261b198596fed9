"""BatchNorm with frozen statistics: one affine map a channel. While training it has no bound: every batch moves it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from intercontinet.bounds.arithmetic import LARGEST, NUDGE, SMALLEST, Arithmetic
from intercontinet.bounds.registry import rule
from intercontinet.errors import InvalidRegion, TrainingMode, UnsupportedLayer
from intercontinet.interval import Interval


@rule(nn.BatchNorm1d, nn.BatchNorm2d)
def batch_norm(
    layer: nn.BatchNorm1d | nn.BatchNorm2d, parameters: Mapping[str, Interval], x: Interval, arithmetic: Arithmetic
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
    if layer.affine:
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
        if not layer.affine:
            return normalised
        slope, offset = column(parameters["weight"].magnitude), column(parameters["bias"].magnitude)
        safe = torch.maximum(normalised, slope * scale) <= LARGEST  # whichever product comes first
        return torch.where(safe, normalised * (slope + NUDGE) + size * NUDGE + offset, torch.inf)

    return arithmetic.products(out, magnitude, terms=16)  # its few steps and a rough rsqrt, with room to spare
