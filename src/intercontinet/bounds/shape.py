"""Layers that move values about, or do nothing when evaluated."""

from __future__ import annotations

from collections.abc import Mapping

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


@rule(nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d)
def identity(layer: nn.Module, parameters: Parameters, x: Interval, arithmetic: Arithmetic) -> Interval:
    """The input. Dropout does nothing in an evaluated net, and bounds speak of that one, in any mode."""
    return x
