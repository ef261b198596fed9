"""Entry by entry: sums, differences, products, quotients, choices; and activations called as functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intercontinet.bounds.activation import ULPS, monotone, piecewise_monotone, sigmoid
from intercontinet.bounds.arithmetic import LARGEST, NUDGE, Arithmetic
from intercontinet.bounds.functions import boxed, function, moved
from intercontinet.bounds.registry import rule_for
from intercontinet.errors import UnsupportedLayer
from intercontinet.interval import Interval

Value = Interval | Tensor | float


def _both(x: Value, y: Value) -> tuple[Interval, Interval]:
    like = x if isinstance(x, Interval) else y
    assert isinstance(like, Interval)
    return boxed(x, like), boxed(y, like)


@function("add")
def add(arithmetic: Arithmetic, x: Value, other: Value, alpha: float = 1) -> Interval:
    """x + alpha * other; minus infinity, as masks add it to scores, makes minus infinity of any number."""
    a, b = _both(x, other)
    if alpha != 1:
        b = multiply(arithmetic, b, alpha)
    a, b, masked = _unmasked(a, b)
    nonnegative = a.nonnegative and b.nonnegative
    lower = a.lower + b.lower
    if a.is_point and b.is_point:
        out = Interval.point(lower, nonnegative)
    else:
        out = Interval(lower, a.upper + b.upper, nonnegative)
    out = arithmetic.products(out, lambda: a.magnitude + b.magnitude, terms=2)
    if masked is None:
        return out
    return moved(lambda edge: torch.where(masked & ~edge.isnan(), -torch.inf, edge), out)  # type: ignore[no-any-return]


def _unmasked(a: Interval, b: Interval) -> tuple[Interval, Interval, Tensor | None]:
    """Zeros in place of the minus infinities of a mask, and where they were."""
    for mask, swapped in ((b, False), (a, True)):
        if mask.is_point and bool((hidden := mask.lower == -torch.inf).any()):
            rest = Interval.point(mask.lower.masked_fill(hidden, 0.0), mask.nonnegative)
            return (rest, b, hidden) if swapped else (a, rest, hidden)
    return a, b, None


@function("sub")
def subtract(arithmetic: Arithmetic, x: Value, other: Value, alpha: float = 1) -> Interval:
    """x - alpha * other."""
    like = x if isinstance(x, Interval) else other
    assert isinstance(like, Interval)
    return add(arithmetic, x, negate(arithmetic, boxed(other, like)), alpha)


@function("rsub")
def subtract_from(arithmetic: Arithmetic, x: Interval, other: Value, alpha: float = 1) -> Interval:
    """other - alpha * x."""
    return subtract(arithmetic, other, x, alpha)


@function("neg")
def negate(arithmetic: Arithmetic, x: Interval) -> Interval:
    """-x: exact."""
    return Interval.point(-x.lower) if x.is_point else Interval(-x.upper, -x.lower)


@function("mul")
def multiply(arithmetic: Arithmetic, x: Value, other: Value) -> Interval:
    """The smallest and the largest of the four corners."""
    a, b = _both(x, other)
    nonnegative = a.nonnegative and b.nonnegative
    if a.is_point and b.is_point:
        out = Interval.point(a.lower * b.lower, nonnegative)
    else:
        out = corners(lambda p, q: p * q, a, b, nonnegative)
    return arithmetic.products(out, lambda: (a.magnitude + NUDGE) * (b.magnitude + NUDGE), terms=2)


def corners(f: Callable[[Tensor, Tensor], Tensor], a: Interval, b: Interval, nonnegative: bool = False) -> Interval:
    """Bounds of a function that is monotone in each of two arguments: its values at the corners."""
    values = [f(p, q) for p in _edges(a) for q in _edges(b)]
    lower = upper = values[0]
    for value in values[1:]:
        lower, upper = torch.minimum(lower, value), torch.maximum(upper, value)
    return Interval(lower, upper, nonnegative)


def _edges(x: Interval) -> tuple[Tensor, ...]:
    return (x.lower,) if x.is_point else (x.lower, x.upper)


@function("div")
def divide(arithmetic: Arithmetic, x: Value, other: Value, rounding_mode: str | None = None) -> Interval:
    """x / other; nothing is known where the divisor may be zero, or tiny enough to be flushed."""
    if rounding_mode is not None:
        raise UnsupportedLayer("a division that rounds to whole numbers jumps: no bound of use follows")
    a, b = _both(x, other)
    tiny = (b.lower <= 1 / LARGEST) & (b.upper >= -1 / LARGEST)
    b = Interval(b.lower.masked_fill(tiny, torch.nan), b.upper.masked_fill(tiny, torch.nan), b.nonnegative)
    out = corners(lambda p, q: p / q, a, b, a.nonnegative and b.nonnegative)
    least = torch.minimum(b.lower.abs(), b.upper.abs())

    def magnitude() -> Tensor:
        size = (a.magnitude + NUDGE) / least
        return torch.where(b.magnitude <= LARGEST, size, torch.inf)  # else 1 / b, if taken first, may be flushed

    return arithmetic.products(out, magnitude, terms=4)


@function("rdiv", "reciprocal")
def divide_into(arithmetic: Arithmetic, x: Interval, other: Value = 1.0) -> Interval:
    """other / x."""
    return divide(arithmetic, other, x)


@function("pow", "square")
def power(arithmetic: Arithmetic, x: Interval, exponent: object = 2) -> Interval:
    """x to a small whole power, or one of roots and reciprocals."""
    others = {0.5: square_root, -0.5: inverse_root, -1: divide_into}
    if isinstance(exponent, (int, float)) and exponent in others:
        return others[exponent](arithmetic, x)
    if not isinstance(exponent, (int, float)) or exponent not in (1, 2, 3, 4):
        raise UnsupportedLayer(f"a power of {exponent}: rules cover 1, 2, 3, 4, 0.5, -0.5 and -1")
    whole = int(exponent)
    even = whole % 2 == 0
    out = piecewise_monotone(lambda t: t**whole, x, 0.0) if even else monotone(lambda t: t**whole, x, x.nonnegative)
    out = (
        Interval.point(out.lower, even or x.nonnegative)
        if out.is_point
        else Interval(out.lower, out.upper, even or x.nonnegative)
    )
    return arithmetic.products(out, lambda: (x.magnitude + NUDGE) ** whole, terms=whole + 8)


@function("sqrt")
def square_root(arithmetic: Arithmetic, x: Interval) -> Interval:
    """The square root, NaN where the argument may be negative. Near zero a subnormal may be flushed."""
    out = monotone(torch.sqrt, x, nonnegative=True)
    return arithmetic.function(out, x, ULPS, absolute=2.0**-42)


@function("rsqrt")
def inverse_root(arithmetic: Arithmetic, x: Interval) -> Interval:
    """1 / sqrt(x): falling; nothing is known where the argument may be zero, or tiny enough to be flushed."""
    known = x.lower >= 1 / LARGEST

    def f(edge: Tensor) -> Tensor:
        return torch.where(known, edge, torch.nan).rsqrt()

    out = Interval.point(f(x.lower), True) if x.is_point else Interval(f(x.upper), f(x.lower), nonnegative=True)
    return arithmetic.function(out, x, ULPS)


@function("log")
def logarithm(arithmetic: Arithmetic, x: Interval) -> Interval:
    """log(x), rising; nothing is known where the argument may be zero, or tiny enough to be flushed."""
    out = monotone(torch.log, moved(lambda edge: torch.where(x.lower >= 1 / LARGEST, edge, torch.nan), x))
    return arithmetic.function(out, x, ULPS)


@function("sin")
def sine(arithmetic: Arithmetic, x: Interval) -> Interval:
    """sin(x): its slope is never beyond one, nor is its value; exact for points."""
    return _wave(arithmetic, torch.sin, x)


@function("cos")
def cosine(arithmetic: Arithmetic, x: Interval) -> Interval:
    """cos(x), as :func:`sine`."""
    return _wave(arithmetic, torch.cos, x)


def _wave(arithmetic: Arithmetic, f: Callable[[Tensor], Tensor], x: Interval) -> Interval:
    middle, reach = f(x.centre), x.radius
    out = Interval.point(middle)
    if not x.is_point:
        out = Interval((middle - reach).clamp(-1, 1), (middle + reach).clamp(-1, 1))
    return arithmetic.function(out, x, ULPS, absolute=2.0**-10)  # near a root, float32 reduces its argument roughly


@function("exp")
def exponential(arithmetic: Arithmetic, x: Interval) -> Interval:
    """exp(x), rising and never negative."""
    out = monotone(torch.exp, x, nonnegative=True)
    return arithmetic.function(out, x, ULPS)


@function("abs")
def absolute(arithmetic: Arithmetic, x: Interval) -> Interval:
    """|x|: exact."""
    out = piecewise_monotone(torch.abs, x, 0.0)
    out = Interval.point(out.lower, True) if out.is_point else Interval(out.lower, out.upper, nonnegative=True)
    return arithmetic.function(out, out, ulps=0)


@function("clamp")
def clamp(arithmetic: Arithmetic, x: Interval, min: Any = None, max: Any = None) -> Interval:
    """min(max(x, a), b) with numbers a and b, rounded once."""
    if any(edge is not None and not isinstance(edge, (int, float)) for edge in (min, max)):
        raise UnsupportedLayer("clamping to tensors has no rule: use numbers, or torch.minimum and torch.maximum")
    nonnegative = (x.nonnegative or (min is not None and min >= 0)) and (max is None or max >= 0)
    return arithmetic.function(monotone(lambda t: t.clamp(min, max), x, nonnegative), x, ulps=1)


@function("clamp_min")
def clamp_below(arithmetic: Arithmetic, x: Interval, min: Any) -> Interval:
    """max(x, a)."""
    return clamp(arithmetic, x, min=min)


@function("clamp_max")
def clamp_above(arithmetic: Arithmetic, x: Interval, max: Any) -> Interval:
    """min(x, b)."""
    return clamp(arithmetic, x, max=max)


@function("celu")
def celu(arithmetic: Arithmetic, x: Interval, alpha: float = 1.0, inplace: bool = False) -> Interval:
    """x above zero, alpha * (exp(x / alpha) - 1) below, where the subtraction may cancel."""
    if not 1e-3 <= alpha <= 1e3:
        raise UnsupportedLayer(f"celu with alpha = {alpha}: its rule covers 0.001 to 1000")
    return arithmetic.function(monotone(lambda t: F.celu(t, alpha), x, x.nonnegative), x, ULPS, absolute=alpha)


@function("selu")
def selu(arithmetic: Arithmetic, x: Interval, inplace: bool = False) -> Interval:
    """ELU with two fixed factors, whose product is below two."""
    return arithmetic.function(monotone(F.selu, x, x.nonnegative), x, ULPS, absolute=2.0)


@function("hardsigmoid")
def hardsigmoid(arithmetic: Arithmetic, x: Interval, inplace: bool = False) -> Interval:
    """min(max(x + 3, 0), 6) / 6."""
    return arithmetic.function(monotone(F.hardsigmoid, x, nonnegative=True), x, ULPS, absolute=1.0)


@function("prelu")
def prelu(arithmetic: Arithmetic, x: Interval, weight: Interval) -> Interval:
    """x above zero, weight * x below, with a weight for all or one a channel."""
    shape = (1, -1, *[1] * (len(x.shape) - 2)) if len(x.shape) > 1 else (-1,)
    slope: Interval = moved(lambda t: t.reshape(shape), weight)
    below = multiply(arithmetic, slope, minimum(arithmetic, x, 0.0))
    return add(arithmetic, maximum(arithmetic, x, 0.0), below)


@function("glu")
def gated(arithmetic: Arithmetic, x: Interval, dim: int = -1) -> Interval:
    """One half times the sigmoid of the other."""
    one, other = moved(lambda t: t.chunk(2, dim), x)
    return multiply(arithmetic, one, sigmoid(nn.Sigmoid(), {}, other, arithmetic))


@function("minimum", "fmin")
def minimum(arithmetic: Arithmetic, x: Value, other: Value) -> Interval:
    """The smaller of two: monotone in both."""
    a, b = _both(x, other)
    nonnegative = a.nonnegative and b.nonnegative
    out = Interval(torch.minimum(a.lower, b.lower), torch.minimum(a.upper, b.upper), nonnegative)
    return arithmetic.function(out, out, ulps=0)


@function("maximum", "fmax")
def maximum(arithmetic: Arithmetic, x: Value, other: Value) -> Interval:
    """The larger of two: monotone in both."""
    a, b = _both(x, other)
    nonnegative = a.nonnegative or b.nonnegative
    out = Interval(torch.maximum(a.lower, b.lower), torch.maximum(a.upper, b.upper), nonnegative)
    return arithmetic.function(out, out, ulps=0)


@function("where")
def where(arithmetic: Arithmetic, condition: Any, x: Any, other: Value) -> Interval:
    """x where a known condition holds, else other; as a method the condition comes second."""
    if isinstance(x, Tensor) and x.dtype == torch.bool and not _is_mask(condition):
        condition, x = x, condition
    _check_known(condition)
    a, b = _both(x, other)
    lower = torch.where(condition, a.lower, b.lower)
    nonnegative = a.nonnegative and b.nonnegative
    if a.is_point and b.is_point:
        return Interval.point(lower, nonnegative)
    return Interval(lower, torch.where(condition, a.upper, b.upper), nonnegative)


@function("masked_fill")
def masked_fill(arithmetic: Arithmetic, x: Interval, mask: Tensor, value: Value) -> Interval:
    """A value where a known mask says so; minus infinity, as for attention, stays as it is."""
    _check_known(mask)
    return where(arithmetic, mask, value, x)


def _is_mask(value: object) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.bool


def _check_known(mask: object) -> None:
    if not _is_mask(mask):
        raise UnsupportedLayer("a condition must be a tensor of truth values that do not depend on weights")


@function("setitem")
def set_item(arithmetic: Arithmetic, x: Value, index: Any, value: Value) -> Interval:
    """x with some entries replaced."""
    a, b = _both(x, value)
    lower, upper = a.lower.clone(), a.upper.clone()
    lower[index], upper[index] = b.lower, b.upper
    return Interval(lower, upper, a.nonnegative and b.nonnegative)


@function("pad")
def pad(arithmetic: Arithmetic, x: Interval, pad: Any, mode: str = "constant", value: float | None = None) -> Interval:
    """Entries of its own, or a number, round x."""
    edge = boxed(value or 0.0, x)
    fill = edge.lower.item() if mode == "constant" else None
    out: Interval = moved(lambda t: F.pad(t, pad, mode, fill), x)
    nonnegative = x.nonnegative and (edge.nonnegative or mode != "constant")
    return Interval.point(out.lower, nonnegative) if out.is_point else Interval(out.lower, out.upper, nonnegative)


@function("cat")
def concatenate(arithmetic: Arithmetic, tensors: Sequence[Value], dim: int = 0) -> Interval:
    """One after the other."""
    return _joined(torch.cat, tensors, dim)


@function("stack")
def stack(arithmetic: Arithmetic, tensors: Sequence[Value], dim: int = 0) -> Interval:
    """Side by side."""
    return _joined(torch.stack, tensors, dim)


@function("hstack")
def stack_columns(arithmetic: Arithmetic, tensors: Sequence[Value]) -> Interval:
    """Side by side, along the second dimension where there is one."""
    return _joined(lambda parts, _: torch.hstack(parts), tensors, 0)


@function("vstack")
def stack_rows(arithmetic: Arithmetic, tensors: Sequence[Value]) -> Interval:
    """One below the other."""
    return _joined(lambda parts, _: torch.vstack(parts), tensors, 0)


def _joined(join: Callable[..., Tensor], tensors: Sequence[Value], dim: int) -> Interval:
    like = next(t for t in tensors if isinstance(t, Interval))
    boxes = [boxed(t, like) for t in tensors]
    nonnegative = all(box.nonnegative for box in boxes)
    lower = join([box.lower for box in boxes], dim)
    if all(box.is_point for box in boxes):
        return Interval.point(lower, nonnegative)
    return Interval(lower, join([box.upper for box in boxes], dim), nonnegative)


def _as_layer(kind: type[nn.Module]) -> Callable[..., Interval]:
    """The rule of an activation's layer, for its function."""

    def apply(arithmetic: Arithmetic, x: Interval, *args: Any, inplace: bool = False, **kwargs: Any) -> Interval:
        layer = kind(*args, **kwargs)  # whose settings come in the order of the function's
        found = rule_for(layer)
        assert found is not None
        return cast(Interval, found(layer, {}, x, arithmetic))

    return apply


for _name, _kind in {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "hardtanh": nn.Hardtanh,
    "leaky_relu": nn.LeakyReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "elu": nn.ELU,
    "softplus": nn.Softplus,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "hardswish": nn.Hardswish,
}.items():
    function(_name)(_as_layer(_kind))
