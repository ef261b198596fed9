"""Other implementations of the same layers: float32 sums in many orders, norms, softmax and attention in many forms.

Arrays are float32 from beginning to end, as numpy computes them: another implementation than torch's, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from intercontinet.interval import Interval

Array = NDArray[np.float32]
Sum = Callable[[Array], Array]
SMALLEST = np.float32(2.0**-126)


def single(value: Any) -> Array:
    """The array itself, which must have stayed in float32."""
    assert value.dtype == np.float32
    found: Array = value
    return found


def inside(box: Interval, out: Tensor | Array) -> bool:
    """Whether every output lies inside; where the bounds say that anything may come, NaN too."""
    value = torch.from_numpy(np.ascontiguousarray(out)) if isinstance(out, np.ndarray) else out.detach()
    unknown = (box.lower == -torch.inf) & (box.upper == torch.inf)
    return bool((((box.lower <= value) & (value <= box.upper)) | unknown).all())


def array(tensor: Tensor) -> Array:
    return single(tensor.detach().numpy())


def random_linear(inputs: int, outputs: int, seed: int, spread: int = 0) -> nn.Linear:
    """Weights whose exponents (of ten) differ by up to ``spread`` either way."""
    generator = torch.Generator().manual_seed(seed)
    layer = nn.Linear(inputs, outputs)
    for parameter in layer.parameters():
        exponent = (2 * torch.rand(parameter.shape, generator=generator) - 1) * spread
        parameter.data = (torch.randn(parameter.shape, generator=generator) * 10.0**exponent).float()
    return layer


def forwards(terms: Array) -> Array:
    """[..., n] -> [...], one after the other."""
    return single(np.add.accumulate(terms, axis=-1, dtype=np.float32)[..., -1])


def backwards(terms: Array) -> Array:
    return forwards(terms[..., ::-1])


def shuffled(terms: Array) -> Array:
    return forwards(terms[..., np.random.default_rng(0).permutation(terms.shape[-1])])


def by_size(terms: Array) -> Array:
    """From the smallest to the largest."""
    return forwards(np.take_along_axis(terms, np.argsort(np.abs(terms), axis=-1), -1))


def by_value(terms: Array) -> Array:
    """All negative terms first: the partial sums get as large as they can."""
    return forwards(np.sort(terms, axis=-1))


def pairwise(terms: Array) -> Array:
    """Halves, quarters and so on."""
    while terms.shape[-1] > 1:
        odd = terms[..., -1:] if terms.shape[-1] % 2 else terms[..., :0]
        terms = np.concatenate([terms[..., :-1:2] + terms[..., 1::2], odd], -1)
    return terms[..., 0]


def _folded(terms: Array, width: int) -> Array:
    """[..., n] -> [..., rows, width], filled up with zeros."""
    missing = -terms.shape[-1] % width
    filled = np.concatenate([terms, np.zeros((*terms.shape[:-1], missing), np.float32)], -1)
    return filled.reshape(*terms.shape[:-1], -1, width)


def lanes(terms: Array) -> Array:
    """Eight sums side by side, as vector units have them."""
    return pairwise(forwards(np.swapaxes(_folded(terms, 8), -1, -2)))


def blocks(terms: Array) -> Array:
    """Blocks of 48, as matrix products are cut."""
    return backwards(forwards(_folded(terms, 48)))


ORDERS: dict[str, Sum] = {
    f.__name__: f for f in (forwards, backwards, shuffled, by_size, by_value, pairwise, lanes, blocks)
}


def dense(x: Array, weight: Array, bias: Array, add: Sum, bias_first: bool = False) -> Array:
    """[batch, in] -> [batch, out]: products first, then their sum."""
    terms = x[:, None] * weight
    if bias_first:
        column = np.broadcast_to(bias[None, :, None], (*terms.shape[:2], 1))
        return add(np.concatenate([column, terms], -1))
    return add(terms) + bias


def fused(x: Array, weight: Array, bias: Array) -> Array:
    """With fused multiply-adds: each step rounds once (float64 holds the product exactly)."""
    total = np.broadcast_to(bias, (len(x), len(weight))).astype(np.float32)
    for i in range(x.shape[1]):
        total = (total + x[:, i, None].astype(np.float64) * weight[:, i]).astype(np.float32)
    return total


def flushed(x: Array, weight: Array, bias: Array) -> Array:
    """On hardware that takes subnormal numbers for zero, wherever they occur."""

    def flush(value: Array) -> Array:
        return np.where(np.abs(value) < SMALLEST, np.float32(0), value)

    x, weight, total = flush(x), flush(weight), flush(np.broadcast_to(bias, (len(x), len(weight))))
    for i in range(x.shape[1]):
        total = flush(total + flush(x[:, i, None] * weight[:, i]))
    return total


# --- Moments of the last dimension: [..., n] -> mean and variance, [..., 1]

Moments = Callable[[Array, Sum], tuple[Array, Array]]


def two_pass(x: Array, add: Sum) -> tuple[Array, Array]:
    n = np.float32(x.shape[-1])
    mean = (add(x) / n)[..., None]
    return mean, (add((x - mean) ** 2) / n)[..., None]


def of_squares(x: Array, add: Sum) -> tuple[Array, Array]:
    """The mean of the squares less the square of the mean, which may cancel down to nothing."""
    n = np.float32(x.shape[-1])
    mean = (add(x) / n)[..., None]
    return mean, np.maximum((add(x * x) / n)[..., None] - mean * mean, np.float32(0))


def shares_first(x: Array, add: Sum) -> tuple[Array, Array]:
    """Multiplied by 1 / n before anything is added up."""
    share = np.float32(1) / np.float32(x.shape[-1])
    mean = add(x * share)[..., None]
    return mean, add((x - mean) ** 2 * share)[..., None]


def welford(x: Array, add: Sum) -> tuple[Array, Array]:
    """One pass, by running means."""
    mean, squares = np.zeros_like(x[..., 0]), np.zeros_like(x[..., 0])
    for i in range(x.shape[-1]):
        step = x[..., i] - mean
        mean = mean + step / np.float32(i + 1)
        squares = squares + step * (x[..., i] - mean)
    return mean[..., None], (squares / np.float32(x.shape[-1]))[..., None]


MOMENTS: dict[str, Moments] = {f.__name__: f for f in (two_pass, of_squares, shares_first, welford)}


def divided(x: Array, mean: Array, variance: Array, eps: float, weight: Array, bias: Array) -> Array:
    return single((x - mean) / np.sqrt(variance + np.float32(eps)) * weight + bias)


def shifted(x: Array, mean: Array, variance: Array, eps: float, weight: Array, bias: Array) -> Array:
    """As torch has it: the mean is subtracted after scaling."""
    rate = np.float32(1) / np.sqrt(variance + np.float32(eps))
    return single((x * rate + -mean * rate) * weight + bias)


def merged(x: Array, mean: Array, variance: Array, eps: float, weight: Array, bias: Array) -> Array:
    """One slope and one offset an entry."""
    slope = weight / np.sqrt(variance + np.float32(eps))
    return single(slope * x + (bias - slope * mean))


FORMS = {f.__name__: f for f in (divided, shifted, merged)}


# --- Softmax over the last dimension, and attention


def stable_softmax(x: Array, add: Sum) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return single(powers / add(powers)[..., None])


def plain_softmax(x: Array, add: Sum) -> Array:
    """Nothing is subtracted first, which overflows beyond 88."""
    powers = np.exp(x)
    return single(powers * (np.float32(1) / add(powers)[..., None]))


def log_softmax(x: Array, add: Sum) -> Array:
    """By way of the logarithm of the sum."""
    top = x.max(-1, keepdims=True)
    return single(np.exp(x - (top + np.log(add(np.exp(x - top))[..., None]))))


SOFTMAXES = {f.__name__: f for f in (stable_softmax, plain_softmax, log_softmax)}


def products(a: Array, b: Array, add: Sum) -> Array:
    """[..., n, k] @ [..., k, m]."""
    return add(a[..., :, None, :] * np.swapaxes(b, -1, -2)[..., None, :, :])


def attention_after(q: Array, k: Array, v: Array, add: Sum) -> Array:
    """Scores are scaled once they are there."""
    scores = products(q, np.swapaxes(k, -1, -2), add) / np.sqrt(np.float32(q.shape[-1]))
    return products(stable_softmax(scores, add), v, add)


def attention_before(q: Array, k: Array, v: Array, add: Sum) -> Array:
    """Queries and keys are scaled by half each, as torch may do."""
    half = np.sqrt(np.sqrt(np.float32(1) / np.float32(q.shape[-1])))
    scores = products(q * half, np.swapaxes(k * half, -1, -2), add)
    return products(stable_softmax(scores, add), v, add)


def attention_in_passing(q: Array, k: Array, v: Array, add: Sum) -> Array:
    """Two keys at a time, as flash attention does: running maximum, sum and values, rescaled whenever it rises."""
    scores = products(q, np.swapaxes(k, -1, -2), add) * (np.float32(1) / np.sqrt(np.float32(q.shape[-1])))
    top = np.full_like(scores[..., :1], -np.inf)
    whole, out = np.zeros_like(top), np.zeros((*q.shape[:-1], v.shape[-1]), np.float32)
    for start in range(0, k.shape[-2], 2):
        part, values = scores[..., start : start + 2], v[..., start : start + 2, :]
        higher = np.maximum(top, part.max(-1, keepdims=True))
        powers, fade = np.exp(part - higher), np.exp(top - higher)
        whole, out = whole * fade + add(powers)[..., None], out * fade + products(powers, values, add)
        top = higher
    return single(out / whole)


ATTENTIONS = {f.__name__: f for f in (attention_after, attention_before, attention_in_passing)}
