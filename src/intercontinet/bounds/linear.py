"""Linear: the exact product of the input's and the weight's boxes, plus the bias."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intercontinet.bounds.arithmetic import NUDGE, Arithmetic
from intercontinet.bounds.product import Bilinear, multiply
from intercontinet.bounds.registry import rule
from intercontinet.interval import Interval

TERMS_AT_ONCE = 1 << 22  # how many terms of a termwise sum are held in memory


class MatrixProduct:
    """``x @ w.T``: x [..., in], w [out, in] -> [..., out]."""

    def __call__(self, x: Tensor, w: Tensor) -> Tensor:
        return F.linear(x, w)

    def termwise(self, combine: Callable[..., Tensor], xs: tuple[Tensor, ...], ws: tuple[Tensor, ...]) -> Tensor:
        flat = [x.reshape(-1, x.shape[-1]) for x in xs]
        nonzero = torch.stack([w != 0 for w in ws]).all(0).nonzero()  # [pairs, (out, in)]: all other terms are zero
        out = flat[0].new_zeros(len(flat[0]), len(ws[0]))
        for pairs in torch.split(nonzero, max(1, TERMS_AT_ONCE // max(1, len(flat[0])))):
            rows, columns = pairs.T
            out = out.index_add(1, rows, combine(*(x[:, columns] for x in flat), *(w[rows, columns] for w in ws)))
        return out.reshape(*xs[0].shape[:-1], -1)


def affine(
    op: Bilinear, x: Interval, weight: Interval, bias: Interval | None, terms: int, arithmetic: Arithmetic
) -> Interval:
    """Bounds of ``op(x, weight) + bias``; the bias must broadcast against the product."""
    out = multiply(op, x, weight, arithmetic.exact)
    if bias is not None:
        out = Interval(out.lower + bias.lower, out.upper + bias.upper)

    def magnitude() -> Tensor:
        size = op(x.magnitude + NUDGE, weight.magnitude + NUDGE)
        return size if bias is None else size + bias.magnitude

    return arithmetic.products(out, magnitude, terms + 1)


@rule(nn.Linear)
def linear(layer: nn.Linear, parameters: Mapping[str, Interval], x: Interval, arithmetic: Arithmetic) -> Interval:
    r"""[..., in] -> [..., out].

    >>> from intercontinet.bounds.arithmetic import Real
    >>> box = {"weight": Interval(torch.tensor([[1.0, -2.0]]), torch.tensor([[2.0, 1.0]]))}
    >>> x = Interval(torch.tensor([-1.0, 3.0]), torch.tensor([1.0, 4.0]))
    >>> out = linear(nn.Linear(2, 1, bias=False), box, x, Real(exact=True))
    >>> out.lower, out.upper  # [1, 2] * [-1, 1] + [-2, 1] * [3, 4] = [-2, 2] + [-8, 4]
    (tensor([-10.]), tensor([6.]))
    """
    return affine(MatrixProduct(), x, parameters["weight"], parameters.get("bias"), x.shape[-1], arithmetic)


def bounded_linear(arithmetic: Arithmetic, x: Interval, weight: Interval, bias: Interval | None = None) -> Interval:
    """:func:`linear`, for the function of that name."""
    parameters = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    return linear(nn.Linear(weight.shape[1], weight.shape[0], device="meta"), parameters, x, arithmetic)
