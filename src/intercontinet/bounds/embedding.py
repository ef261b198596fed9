"""Embedding and EmbeddingBag: chosen rows, or sums of them; exact, since every entry has a factor of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intercontinet.bounds.arithmetic import Arithmetic
from intercontinet.bounds.functions import function, moved
from intercontinet.bounds.registry import rule
from intercontinet.errors import InvalidData, UnsupportedLayer
from intercontinet.interval import Interval


@rule(nn.EmbeddingBag)
def embedding_bag(
    layer: nn.EmbeddingBag, parameters: Mapping[str, Interval], x: Interval, arithmetic: Arithmetic
) -> Interval:
    r"""[batch, bag] of row numbers -> [batch, features]: :math:`\sum_b W_{x_b}`, or the mean.

    A row number of -1 stands for a row that is not known: NaN, so that the example is never certain.

    >>> from intercontinet.bounds.arithmetic import Real
    >>> weight = Interval(torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([[0.5], [1.0], [4.0]]))
    >>> rows = Interval.point(torch.tensor([[0, 2]]))
    >>> out = embedding_bag(nn.EmbeddingBag(3, 1, mode="sum"), {"weight": weight}, rows, Real())
    >>> out.lower, out.upper
    (tensor([[2.]]), tensor([[4.5000]]))
    """
    if layer.mode not in ("sum", "mean") or layer.max_norm is not None or layer.padding_idx is not None:
        raise UnsupportedLayer("an EmbeddingBag must sum or average, without max_norm and padding_idx")
    rows = x.lower
    if not x.is_point or rows.is_floating_point() or rows.dim() != 2:
        raise InvalidData("an EmbeddingBag takes whole numbers, [batch, bag], known exactly")
    weight = parameters["weight"]
    unknown = rows == -1
    rows = rows.masked_fill(unknown, 0)
    whose = unknown.any(1, keepdim=True)

    def bag(values: Tensor) -> Tensor:
        return F.embedding_bag(rows, values, mode=layer.mode)

    out = Interval.point(bag(weight.lower)) if weight.is_point else Interval(bag(weight.lower), bag(weight.upper))
    terms = rows.shape[1] + 2  # the mean's division is two more
    out = arithmetic.products(out, lambda: bag(weight.magnitude), terms)
    lower = out.lower.masked_fill(whose, torch.nan)
    return Interval.point(lower) if out.is_point else Interval(lower, out.upper.masked_fill(whose, torch.nan))


@function("embedding")
def embedding(
    arithmetic: Arithmetic,
    rows: Tensor,
    weight: Interval,
    padding_idx: Any = None,
    max_norm: Any = None,
    *_: Any,
    **options: Any,
) -> Interval:
    """[...] of row numbers -> [..., features]: rows are copied, nothing rounds. ``padding_idx`` concerns training."""
    if max_norm is not None:
        raise UnsupportedLayer("an Embedding with max_norm changes its weight while it runs: use max_norm=None")
    if not isinstance(rows, Tensor):
        raise UnsupportedLayer("an Embedding takes whole numbers that do not depend on weights")
    out: Interval = moved(lambda t: F.embedding(rows, t), weight)
    return out
