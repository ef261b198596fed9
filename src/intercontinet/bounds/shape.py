"""Layers that move values about, or do nothing when evaluated."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from intercontinet.bounds.activation import monotone
from intercontinet.bounds.arithmetic import Arithmetic
from intercontinet.bounds.registry import rule
from intercontinet.interval import Interval

Parameters = Mapping[str, Interval]


@rule(nn.Flatten, nn.Unflatten)
def reshape(layer: nn.Flatten | nn.Unflatten, parameters: Parameters, x: Interval, arithmetic: Arithmetic) -> Interval:
    """Both edges, reshaped."""
    return monotone(layer.forward, x, x.nonnegative)


@rule(nn.Identity)
def identity(layer: nn.Identity, parameters: Parameters, x: Interval, arithmetic: Arithmetic) -> Interval:
    """The input."""
    return x


@rule(nn.Dropout, nn.Dropout1d, nn.Dropout2d)
def dropout(
    layer: nn.Dropout | nn.Dropout1d | nn.Dropout2d, parameters: Parameters, x: Interval, arithmetic: Arithmetic
) -> Interval:
    """Nothing when evaluated; while training, one mask, scaled by 1 / (1 - p), for both edges."""
    if arithmetic.sound or not layer.training or layer.p == 0:
        return x
    mask = layer(torch.ones_like(x.lower))
    return monotone(lambda t: t * mask, x, x.nonnegative)
