"""Elementwise functions: monotone ones map edge to edge, the others also visit their turning points."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intercontinet.bounds.arithmetic import LARGEST, NUDGE, SMALLEST, Arithmetic
from intercontinet.bounds.registry import rule
from intercontinet.errors import UnsupportedLayer
from intercontinet.interval import Interval

Function = Callable[[Tensor], Tensor]
Parameters = Mapping[str, Interval]

ULPS = 8.0  # at most: what common float32 implementations of these functions are off by, with room to spare
EXPONENT = 80.0  # exp of it is far from float32's largest number

# Where GELU, its tanh approximation, SiLU and Hardswish stop falling and rise: the only roots of their derivatives.
GELU_MINIMUM = -0.751791524693564457457904947
GELU_TANH_MINIMUM = -0.752461422071016247
SILU_MINIMUM = -1.278464542761073795109358739
HARDSWISH_MINIMUM = -1.5


def monotone(f: Function, x: Interval, nonnegative: bool = False) -> Interval:
    """Bounds of a non-decreasing function: its values at the edges."""
    if x.is_point:
        return Interval.point(f(x.lower), nonnegative)
    return Interval(f(x.lower), f(x.upper), nonnegative)


def piecewise_monotone(f: Function, x: Interval, turn: float) -> Interval:
    """Bounds of a function that is monotone on either side of one turning point.

    >>> x = Interval(torch.tensor([-1.0, 1.0]), torch.tensor([2.0, 2.0]))
    >>> square = piecewise_monotone(torch.square, x, turn=0.0)
    >>> square.lower, square.upper
    (tensor([0., 1.]), tensor([4., 4.]))
    """
    if x.is_point:
        return Interval.point(f(x.lower))
    left, right = f(x.lower), f(x.upper)
    middle = f(torch.full_like(x.lower, turn))
    inside = (x.lower < turn) & (turn < x.upper)
    lower, upper = torch.minimum(left, right), torch.maximum(left, right)
    return Interval(
        torch.where(inside, torch.minimum(lower, middle), lower),
        torch.where(inside, torch.maximum(upper, middle), upper),
    )


@rule(nn.ReLU)
def relu(layer: nn.ReLU, parameters: Parameters, x: Interval, arithmetic: Arithmetic) -> Interval:
    """max(x, 0): exact, but that hardware may flush a subnormal argument to zero."""
    return arithmetic.function(monotone(F.relu, x, nonnegative=True), x, ulps=0)


@rule(nn.ReLU6, nn.Hardtanh)
def hardtanh(layer: nn.Hardtanh, parameters: Parameters, x: Interval, arithmetic: Arithmetic) -> Interval:
    """min(max(x, a), b); a and b are rounded once."""
    out = monotone(lambda t: t.clamp(layer.min_val, layer.max_val), x, nonnegative=layer.min_val >= 0)
    return arithmetic.function(out, x, ulps=1)


@rule(nn.LeakyReLU)
def leaky_relu(layer: nn.LeakyReLU, parameters: Parameters, x: Interval, arithmetic: Arithmetic) -> Interval:
    """x above zero, slope * x below; a negative slope makes zero a turning point. Float32 may flush a tiny slope."""
    slope = _in_range("negative_slope", layer.negative_slope)

    def f(t: Tensor) -> Tensor:
        return F.leaky_relu(t, slope)

    out = monotone(f, x, x.nonnegative) if slope >= 0 else piecewise_monotone(f, x, 0.0)
    return arithmetic.function(out, x, ulps=2, absolute=NUDGE * x.magnitude)


@rule(nn.Tanh)
def tanh(layer: nn.Tanh, parameters: Parameters, x: Interval, arithmetic: Arithmetic) -> Interval:
    """tanh(x), non-decreasing."""
    return arithmetic.function(monotone(torch.tanh, x, x.nonnegative), x, ULPS)


@rule(nn.Sigmoid)
def sigmoid(layer: nn.Sigmoid, parameters: Parameters, x: Interval, arithmetic: Arithmetic) -> Interval:
    """1 / (1 + exp(-x)), non-decreasing and never negative."""
    return arithmetic.function(monotone(torch.sigmoid, x, nonnegative=True), x, ULPS)


@rule(nn.ELU)
def elu(layer: nn.ELU, parameters: Parameters, x: Interval, arithmetic: Arithmetic) -> Interval:
    """x above zero, alpha * (exp(x) - 1) below, where the subtraction may cancel."""
    alpha = _in_range("alpha", layer.alpha)

    def f(t: Tensor) -> Tensor:
        return F.elu(t, alpha)

    out = monotone(f, x, x.nonnegative) if alpha >= 0 else piecewise_monotone(f, x, 0.0)
    return arithmetic.function(out, x, ULPS, absolute=abs(alpha))


@rule(nn.Softplus)
def softplus(layer: nn.Softplus, parameters: Parameters, x: Interval, arithmetic: Arithmetic) -> Interval:
    """log(1 + exp(beta x)) / beta up to the threshold, where it jumps down to x.

    Around the threshold float32 may take either branch, so that both are covered there; for the usual threshold
    of 20 the jump is far below rounding.
    """
    beta = _in_range("beta", layer.beta)
    if beta <= 1 / LARGEST:
        raise UnsupportedLayer(f"Softplus with beta = {beta}: its rule covers beta > 0 only")
    if layer.threshold > EXPONENT:
        raise UnsupportedLayer(f"with threshold = {layer.threshold}, exp overflows float32: use {EXPONENT} or less")
    jump = float(layer.threshold) / beta
    slack = abs(jump) * 1e-5 + SMALLEST / min(beta, 1.0)

    def curve(t: Tensor) -> Tensor:
        return F.softplus(beta * t, 1.0, 40.0) / beta  # beyond 40 the curve is the identity even in float64's eyes

    low, up = curve(x.lower), curve(x.upper)
    floor = jump - slack if jump < 0 else max(jump - slack, 0.0)  # lowest value of the branch y = x
    landing = torch.maximum(x.lower, torch.full_like(x.lower, floor))
    takeoff = torch.maximum(curve(torch.full_like(x.upper, jump + slack)), x.upper)
    lower = torch.where(x.upper < jump - slack, low, torch.minimum(low, landing))
    upper = torch.where(x.lower > jump + slack, x.upper, torch.minimum(up, takeoff))
    out = Interval(lower, upper, nonnegative=jump >= 0)
    return arithmetic.function(out, x, ULPS, absolute=x.magnitude + 1 / beta)


@rule(nn.GELU)
def gelu(layer: nn.GELU, parameters: Parameters, x: Interval, arithmetic: Arithmetic) -> Interval:
    """x * Phi(x): falls to its minimum near -0.75, then rises. 1 + erf cancels for negative x."""
    turn = GELU_MINIMUM if layer.approximate == "none" else GELU_TANH_MINIMUM
    out = piecewise_monotone(lambda t: F.gelu(t, approximate=layer.approximate), x, turn)
    return arithmetic.function(_signed(out, x), x, ULPS, absolute=x.magnitude)


@rule(nn.SiLU)
def silu(layer: nn.SiLU, parameters: Parameters, x: Interval, arithmetic: Arithmetic) -> Interval:
    """x * sigmoid(x): falls to its minimum near -1.28, then rises."""
    return arithmetic.function(_signed(piecewise_monotone(F.silu, x, SILU_MINIMUM), x), x, ULPS)


@rule(nn.Hardswish)
def hardswish(layer: nn.Hardswish, parameters: Parameters, x: Interval, arithmetic: Arithmetic) -> Interval:
    """x * min(max(x + 3, 0), 6) / 6: zero up to -3, minimum at -1.5, then rising."""
    out = piecewise_monotone(F.hardswish, x, HARDSWISH_MINIMUM)
    return arithmetic.function(_signed(out, x), x, ULPS, absolute=x.magnitude)


def _in_range(name: str, setting: float) -> float:
    """A layer's setting, refused where float32 would turn it into infinity."""
    if not abs(setting) <= LARGEST:
        raise UnsupportedLayer(f"with {name} = {setting}, float32 overflows: use at most {LARGEST:.2g}")
    return float(setting)


def _signed(out: Interval, x: Interval) -> Interval:
    """Functions that keep the sign of a non-negative argument."""
    return Interval(out.lower, out.upper, x.nonnegative)
