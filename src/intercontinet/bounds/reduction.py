"""Sums, means and maxima over dimensions; matrix products of two intervals; softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from intercontinet.bounds.activation import ULPS, monotone
from intercontinet.bounds.arithmetic import NUDGE, UNIT, Arithmetic
from intercontinet.bounds.elementwise import Value, maximum, minimum, negate
from intercontinet.bounds.functions import boxed, function
from intercontinet.bounds.product import multiply_loosely
from intercontinet.errors import UnsupportedLayer
from intercontinet.interval import Interval

Dims = int | tuple[int, ...] | list[int] | None


def _count(x: Interval, dim: Dims) -> int:
    dims = (dim,) if isinstance(dim, int) else dim
    return math.prod(x.shape[which] for which in dims) if dims else x.shape.numel()  # an empty list stands for all


@function("sum")
def total(arithmetic: Arithmetic, x: Interval, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Interval:
    """The sum over some dimensions, in any order."""

    def add_up(t: Tensor) -> Tensor:
        return t.sum(dim, keepdim)

    out = monotone(add_up, x, x.nonnegative)
    return arithmetic.products(out, lambda: add_up(x.magnitude), _count(x, dim))


@function("mean")
def mean(arithmetic: Arithmetic, x: Interval, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Interval:
    """The mean over some dimensions: a sum, and a division that may come first or last."""

    def average(t: Tensor) -> Tensor:
        return t.mean(dim, keepdim)

    count = _count(x, dim)
    out = monotone(average, x, x.nonnegative)
    return arithmetic.products(out, lambda: average(x.magnitude + NUDGE), count + 1, growth=float(count))


def _extreme(pick: Callable[..., Tensor]) -> Callable[..., Interval]:
    def apply(arithmetic: Arithmetic, x: Interval, dim: Dims = (), keepdim: bool = False) -> Interval:
        out = monotone(lambda t: pick(t, () if dim is None else dim, keepdim), x, x.nonnegative)
        return arithmetic.function(out, out, ulps=0)

    return apply


largest, smallest = _extreme(torch.amax), _extreme(torch.amin)
function("amax")(largest)
function("amin")(smallest)


def _extreme_of_any(
    over: Callable[..., Interval], between: Callable[..., Interval]
) -> Callable[..., Interval | tuple[Interval, None]]:
    def apply(
        arithmetic: Arithmetic, x: Interval, dim: Any = None, keepdim: bool = False, other: Any = None
    ) -> Interval | tuple[Interval, None]:
        """Of all entries; over a dimension, with indices of which nothing is said; or of two tensors."""
        if other is not None or isinstance(dim, (Interval, Tensor)):
            return between(arithmetic, x, dim if other is None else other)
        return over(arithmetic, x) if dim is None else (over(arithmetic, x, dim, keepdim), None)

    return apply


function("max")(_extreme_of_any(largest, maximum))
function("min")(_extreme_of_any(smallest, minimum))


@function("matmul")
def matrix_product(arithmetic: Arithmetic, x: Interval | Tensor, other: Interval | Tensor) -> Interval:
    """[..., n, k] @ [..., k, m]: by centre and radius, at most 1.5 times as wide as need be."""
    like = x if isinstance(x, Interval) else other
    assert isinstance(like, Interval)
    a, b = boxed(x, like), boxed(other, like)
    terms = a.shape[-1]
    out = multiply_loosely(torch.matmul, a, b)
    return arithmetic.products(out, lambda: torch.matmul(a.magnitude + NUDGE, b.magnitude + NUDGE), terms)


@function("rmatmul")
def matrix_product_from(arithmetic: Arithmetic, x: Interval, other: Interval | Tensor) -> Interval:
    """other @ x."""
    return matrix_product(arithmetic, other, x)


@function("addmm")
def add_product(
    arithmetic: Arithmetic, x: Value, one: Value, other: Value, *, beta: float = 1, alpha: float = 1
) -> Interval:
    """x + one @ other, of which x may be the first term that is added up, or the last."""
    if beta != 1 or alpha != 1:
        raise UnsupportedLayer("its rule covers beta = alpha = 1 only")
    like = next(value for value in (x, one, other) if isinstance(value, Interval))
    c, a, b = (boxed(value, like) for value in (x, one, other))
    product = multiply_loosely(torch.matmul, a, b)
    out = Interval(product.lower + c.lower, product.upper + c.upper)

    def magnitude() -> Tensor:
        return torch.matmul(a.magnitude + NUDGE, b.magnitude + NUDGE) + c.magnitude

    return arithmetic.products(out, magnitude, a.shape[-1] + 1)


@function("einsum")
def einsum(arithmetic: Arithmetic, equation: str, *operands: Any) -> Interval:
    """A product of two tensors, summed over the letters that the result lacks."""
    factors = operands[0] if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
    if len(factors) != 2 or "->" not in equation or "." in equation:
        raise UnsupportedLayer(f"einsum '{equation}': the rule covers two factors and a result after '->'")
    like = next(f for f in factors if isinstance(f, Interval))
    a, b = (boxed(f, like) for f in factors)
    inputs, result = equation.replace(" ", "").split("->")
    left, right = inputs.split(",")
    sizes = dict(zip(left + right, (*a.shape, *b.shape), strict=True))
    terms = 1
    for letter, size in sizes.items():
        terms *= 1 if letter in result else size

    def op(p: Tensor, q: Tensor) -> Tensor:
        return torch.einsum(equation, p, q)

    return arithmetic.products(multiply_loosely(op, a, b), lambda: op(a.magnitude + NUDGE, b.magnitude + NUDGE), terms)


@function("softmax")
def softmax(arithmetic: Arithmetic, x: Interval, dim: int, *args: Any, **kwargs: Any) -> Interval:
    r""":math:`e^{x_i} / \sum_j e^{x_j}`: rises in :math:`x_i` and falls in every other, so each edge is one corner.

    Float32 subtracts the largest entry m first, so that exponents are off by a few :math:`u (m - x_i)`, the sum, whose
    terms' exponents are small where they count, by little more than its length, and both are counted on the logarithm.
    """
    logs = _log_shares(x, dim)
    if not arithmetic.sound:
        return monotone(torch.exp, logs, nonnegative=True)
    slip = _log_slip(x, dim)
    gone = (x.lower == -torch.inf) & (x.upper == -torch.inf) & ~logs.upper.isnan()  # what a mask hides

    def share(log: Tensor) -> Tensor:
        return torch.where(gone, 0.0, log.exp())

    out = Interval(share(logs.lower - slip), share(logs.upper + slip), nonnegative=True)
    return arithmetic.function(out, out, ulps=2)


@function("softmin")
def softmin(arithmetic: Arithmetic, x: Interval, dim: int, *args: Any, **kwargs: Any) -> Interval:
    """:func:`softmax` of -x."""
    return softmax(arithmetic, negate(arithmetic, x), dim)


@function("log_softmax")
def log_softmax(arithmetic: Arithmetic, x: Interval, dim: int, *args: Any, **kwargs: Any) -> Interval:
    """The logarithm of :func:`softmax`, bounded at the same corners."""
    logs = _log_shares(x, dim)
    slip = _log_slip(x, dim) if arithmetic.sound else 0.0
    out = Interval(logs.lower - slip, logs.upper + slip)
    return arithmetic.function(out, x, ULPS)


def _log_shares(x: Interval, dim: int) -> Interval:
    if x.is_point:
        return Interval.point(torch.log_softmax(x.lower, dim))
    return Interval(_log_share(x.lower, x.upper, dim), _log_share(x.upper, x.lower, dim))


def _log_share(own: Tensor, others: Tensor, dim: int) -> Tensor:
    r"""``own[i] - log(exp(own[i]) + sum over j != i of exp(others[j]))``, without cancellation.

    The sum without one entry is built from sums of those before and those after it.
    """
    before = torch.logcumsumexp(others, dim)
    after = torch.logcumsumexp(others.flip(dim), dim).flip(dim)
    size = others.shape[dim]
    edge = torch.full_like(others.narrow(dim, 0, 1), -torch.inf)
    left = torch.cat([edge, before.narrow(dim, 0, size - 1)], dim)
    right = torch.cat([after.narrow(dim, 1, size - 1), edge], dim)
    return own - torch.logaddexp(torch.logaddexp(left, right), own)


def _log_slip(x: Interval, dim: int) -> Tensor:
    """By how much the logarithm of a float32 share is off: its own exponent's error, and that of the sum."""
    count = x.shape[dim]
    below = x.upper.amax(dim, keepdim=True) - x.lower  # how far under the largest
    return UNIT * (8 * below + 2 * count + 16 * math.log(max(count, 1)) + 8 * ULPS)


def convex_sum(arithmetic: Arithmetic, shares: Interval, values: Interval) -> Interval:
    """``shares @ values`` where shares [..., n, k] are a softmax over k: never beyond the values' own extremes.

    Computed shares add up to one but for rounding, which is counted on the largest value.
    """
    loose = matrix_product(arithmetic, shares, values)
    size = values.magnitude.amax(-2, keepdim=True)
    slack = 2 * UNIT * (3 * shares.shape[-1] + 64) * (size + NUDGE) if arithmetic.sound else 0 * size
    least, most = values.lower.amin(-2, keepdim=True) - slack, values.upper.amax(-2, keepdim=True) + slack
    lower = torch.maximum(loose.lower, least)
    lower = lower.clamp(min=0) if values.nonnegative else lower
    return Interval(lower, torch.minimum(loose.upper, most), values.nonnegative)
