"""Attention: sound and, since queries, keys and values are bounded as if they had nothing to do with each other, loose.

Where nothing below moves, queries, keys and values are points, and so, but for rounding, is the result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from intercontinet.bounds.arithmetic import LARGEST, NUDGE, Arithmetic
from intercontinet.bounds.elementwise import masked_fill
from intercontinet.bounds.functions import function, moved
from intercontinet.bounds.linear import MatrixProduct, affine
from intercontinet.bounds.product import multiply_loosely
from intercontinet.bounds.reduction import convex_sum, softmax
from intercontinet.bounds.registry import rule
from intercontinet.errors import UnsupportedLayer
from intercontinet.interval import Interval


@function("scaled_dot_product_attention")
def attention(
    arithmetic: Arithmetic,
    query: Interval,
    key: Interval,
    value: Interval,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Interval:
    r""":math:`\mathrm{softmax}(q k^T / \sqrt d)\, v`, [..., queries, d], [..., keys, d], [..., keys, e]."""
    if dropout_p or enable_gqa:
        raise UnsupportedLayer("attention with dropout_p or enable_gqa has no rule: evaluate without them")
    return shares_and_sum(arithmetic, query, key, value, hidden_by(attn_mask, is_causal, query, key), scale)[0]


def shares_and_sum(
    arithmetic: Arithmetic, query: Interval, key: Interval, value: Interval, hidden: Tensor | None, scale: float | None
) -> tuple[Interval, Interval]:
    """What attention gives, and the shares it gives it by."""
    shares = softmax(arithmetic, _scores(arithmetic, query, key, hidden, scale), -1)
    return convex_sum(arithmetic, shares, value), shares


def _scores(
    arithmetic: Arithmetic, query: Interval, key: Interval, hidden: Tensor | None, scale: float | None
) -> Interval:
    """[..., queries, keys]. The scale may come before the product, after it, or half of it on either factor."""
    size = query.shape[-1]
    factor = 1 / math.sqrt(size) if scale is None else float(scale)
    if not 1 / LARGEST <= factor <= LARGEST:
        raise UnsupportedLayer(f"attention with scale = {scale}: its rule covers positive ones that float32 can hold")
    transposed = moved(lambda t: t.transpose(-2, -1), key)
    product = multiply_loosely(torch.matmul, query, transposed)
    out = moved(lambda t: t * factor, product)
    nudge = NUDGE * max(1.0, factor**-0.5)  # what is flushed may be a factor that was scaled

    def magnitude() -> Tensor:
        return torch.matmul(query.magnitude + nudge, transposed.magnitude + nudge) * factor

    scores = arithmetic.products(out, magnitude, terms=size + 8, growth=max(1.0, 1 / factor))
    return scores if hidden is None else masked_fill(arithmetic, scores, hidden, -torch.inf)


def hidden_by(mask: Any, causal: bool, query: Interval, key: Interval) -> Tensor | None:
    """Which keys a query may not see, as truth values; masks that shift scores by other numbers have no rule."""
    if causal:
        shape = query.shape[-2], key.shape[-2]
        return torch.ones(shape, dtype=torch.bool, device=query.lower.device).tril().logical_not()
    if mask is None:
        return None
    if isinstance(mask, Tensor) and mask.dtype == torch.bool:
        return ~mask  # of this function, True means: takes part
    return as_hidden(mask)


def as_hidden(mask: Any) -> Tensor:
    """A mask as truth values, which may be zeros and minus infinities that are added to scores."""
    values = mask.lower if isinstance(mask, Interval) and mask.is_point else mask
    if isinstance(values, Tensor) and values.dtype == torch.bool:
        return values
    if not isinstance(values, Tensor) or not bool(((values == 0) | (values == -torch.inf)).all()):
        raise UnsupportedLayer("an attention mask must hold truth values, or zeros and minus infinities")
    return values == -torch.inf


@rule(nn.MultiheadAttention)
def multi_head_attention(
    layer: nn.MultiheadAttention,
    parameters: Mapping[str, Interval],
    query: Interval,
    arithmetic: Arithmetic,
    key: Interval,
    value: Interval,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Interval, Interval | None]:
    """[batch, n, features] (or [n, batch, features]) -> the same, and the shares: a product before, one after."""
    if layer.bias_k is not None or layer.add_zero_attn or not layer._qkv_same_embed_dim:
        raise UnsupportedLayer("its rule covers neither bias_k, nor add_zero_attn, nor kdim and vdim of their own")
    if query.lower.dim() != 3:
        raise UnsupportedLayer("its rule covers batches only: give [batch, n, features]")
    if need_weights and not average_attn_weights:
        raise UnsupportedLayer("its rule covers average_attn_weights=True only")
    heads, size = layer.num_heads, layer.embed_dim

    def projected(x: Interval, part: int) -> Interval:
        rows = slice(part * size, (part + 1) * size)
        bias = parameters.get("in_proj_bias")
        x = x if layer.batch_first else moved(lambda t: t.transpose(0, 1), x)
        weight = parameters["in_proj_weight"][rows]
        out = affine(MatrixProduct(), x, weight, None if bias is None else bias[rows], size, arithmetic)
        split: Interval = moved(lambda t: t.reshape(*t.shape[:2], heads, -1).transpose(1, 2), out)
        return split

    q, k, v = projected(query, 0), projected(key, 1), projected(value, 2)
    hidden = None
    if attn_mask is not None:
        hidden = as_hidden(attn_mask)
        if is_causal and not torch.equal(hidden, torch.ones_like(hidden).triu(1)):
            raise UnsupportedLayer("is_causal=True, and its mask is not the causal one: one of the two is wrong")
        if hidden.dim() == 3:
            hidden = hidden.reshape(-1, heads, *hidden.shape[1:])
    if key_padding_mask is not None:
        padding = as_hidden(key_padding_mask)[:, None, None, :]
        hidden = padding if hidden is None else hidden | padding
    found, shares = shares_and_sum(arithmetic, q, k, v, hidden, None)
    joined = moved(lambda t: t.transpose(1, 2).flatten(2), found)
    weight, bias = parameters["out_proj.weight"], parameters.get("out_proj.bias")
    out = affine(MatrixProduct(), joined, weight, bias, size, arithmetic)
    out = out if layer.batch_first else moved(lambda t: t.transpose(0, 1), out)
    if not need_weights:
        return out, None
    average = Interval(shares.lower.mean(1), shares.upper.mean(1), nonnegative=True)
    return out, arithmetic.products(average, lambda: shares.upper.mean(1), heads + 1, growth=float(heads))
