"""Norms, softmax and attention as others write them, in float32: every form must stay inside ``icn.bounds``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import intercontinet as icn
from tests.orders import (
    ATTENTIONS,
    FORMS,
    MOMENTS,
    ORDERS,
    SOFTMAXES,
    Array,
    Sum,
    array,
    dense,
    forwards,
    inside,
    products,
    random_linear,
    single,
)
from tests.strategies import lopsided_region, weights_inside


@pytest.fixture(autouse=True)
def _quiet_numpy() -> Iterator[None]:
    with np.errstate(all="ignore"):  # overflow is among what is tried
        yield


class Normed(nn.Module):
    """A layer, what it puts out normalised, and what a residual connection adds."""

    def __init__(self, width: int, kind: str, seed: int) -> None:
        super().__init__()
        self.first = random_linear(4, width, seed)
        self.norm = nn.LayerNorm(width) if kind == "layer" else nn.GroupNorm(1, width)
        self.norm.weight.data = random_linear(width, 1, seed + 1).weight.data[0]
        self.norm.bias.data = random_linear(width, 1, seed + 2).weight.data[0]

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        result: Tensor = hidden + self.norm(hidden)
        return result

    def by_numpy(self, x: Array, moments: str, form: str, add: Sum) -> Array:
        hidden = dense(x, array(self.first.weight), array(self.first.bias), add)
        mean, variance = MOMENTS[moments](hidden, add)
        normed = FORMS[form](hidden, mean, variance, self.norm.eps, array(self.norm.weight), array(self.norm.bias))
        return single(hidden + normed)


def check_norm(kind: str, width: int, offset: float, scale: float, radius: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    model = Normed(width, kind, seed)
    model.first.weight.data *= scale
    model.first.bias.data += offset  # a common offset, which the mean must take back
    x = torch.randn(3, 4, generator=generator)
    region = lopsided_region(model, radius, generator)
    box = icn.bounds(model, region, x)
    points = weights_inside(region, 2, generator)
    for index in range(2):
        model.load_state_dict({name: stack[index] for name, stack in points.items()})
        assert inside(box, model(x))
        for moments in MOMENTS:
            for form in FORMS:
                for order, add in ORDERS.items():
                    assert inside(box, model.by_numpy(array(x), moments, form, add)), (moments, form, order)


@settings(deadline=None, max_examples=30, derandomize=True)
@given(
    kind=st.sampled_from(["layer", "group"]),
    width=st.integers(2, 60),
    offset=st.sampled_from([0.0, 1.0, -100.0, 1e4, 1e8]),
    scale=st.sampled_from([1e-30, 1e-20, 1e-3, 1.0, 1e8]),
    radius=st.sampled_from([0.0, 1e-4, 0.1]),
    seed=st.integers(0, 2**31),
)
def test_norms_in_every_form_stay_inside(
    kind: str, width: int, offset: float, scale: float, radius: float, seed: int
) -> None:
    check_norm(kind, width, offset, scale, radius, seed)


class Attentive(nn.Module):
    """Self-attention with one head."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (random_linear(width, width, seed + i) for i in range(3))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = nn.functional.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))
        return result

    def by_numpy(self, x: Array, form: str, add: Sum) -> Array:
        flat = x.reshape(-1, x.shape[-1])
        q, k, v = (
            dense(flat, array(part.weight), array(part.bias), add).reshape(x.shape)
            for part in (self.query, self.key, self.value)
        )
        return ATTENTIONS[form](q, k, v, add)


def check_attention(keys: int, width: int, scale: float, radius: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    model = Attentive(width, seed)
    x = scale * torch.randn(2, keys, width, generator=generator)
    region = lopsided_region(model, radius, generator)
    box = icn.bounds(model, region, x)
    points = weights_inside(region, 2, generator)
    for index in range(2):
        model.load_state_dict({name: stack[index] for name, stack in points.items()})
        assert inside(box, model(x))
        for form in ATTENTIONS:
            for order, add in ORDERS.items():
                assert inside(box, model.by_numpy(array(x), form, add)), (form, order)


@settings(deadline=None, max_examples=25, derandomize=True)
@given(
    keys=st.integers(1, 20),
    width=st.integers(1, 9),
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 3.0]),
    radius=st.sampled_from([0.0, 1e-4, 0.1]),
    seed=st.integers(0, 2**31),
)
def test_attention_in_every_form_stays_inside(keys: int, width: int, scale: float, radius: float, seed: int) -> None:
    check_attention(keys, width, scale, radius, seed)


class Shares(nn.Module):
    """Softmax of a linear layer."""

    def __init__(self, outputs: int, seed: int) -> None:
        super().__init__()
        self.first = random_linear(4, outputs, seed)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.first(x), -1)


@settings(deadline=None, max_examples=30, derandomize=True)
@given(
    outputs=st.integers(1, 200),
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 8.0]),
    radius=st.sampled_from([0.0, 1e-4, 0.1]),
    seed=st.integers(0, 2**31),
)
def test_softmax_in_every_form_stays_inside(outputs: int, scale: float, radius: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    model, x = Shares(outputs, seed), scale * torch.randn(3, 4, generator=generator)
    region = lopsided_region(model, radius, generator)
    box = icn.bounds(model, region, x)
    points = weights_inside(region, 2, generator)
    for index in range(2):
        model.load_state_dict({name: stack[index] for name, stack in points.items()})
        assert inside(box, model(x))
        for order, add in ORDERS.items():
            scores = dense(array(x), array(model.first.weight), array(model.first.bias), add)
            for form, softmax in SOFTMAXES.items():
                if form != "plain_softmax" or np.abs(scores).max() < 80:
                    assert inside(box, softmax(scores, add)), (form, order)


class Scores(nn.Module):
    """Queries against keys, scaled: two terms, which may cancel."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.keys = nn.Parameter(random_linear(3, 2, seed).weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.keys * 2**-0.5


def test_queries_that_nearly_cancel_with_their_keys() -> None:
    """Scaling before the product rounds each of its terms, which weighs most where they cancel."""
    generator = torch.Generator().manual_seed(0)
    for seed in range(200):
        model = Scores(seed)
        x = torch.randn(4, 2, generator=generator)
        box = icn.bounds(model, icn.Region.around(model, 0.0), x)
        half = np.sqrt(np.sqrt(np.float32(1) / np.float32(2)))
        keys = array(model.keys)
        assert inside(box, products(array(x) * half, keys * half, forwards))
        assert inside(box, products(array(x), keys, forwards) / np.sqrt(np.float32(2)))


def test_a_norm_whose_slope_overflows_promises_nothing() -> None:
    """Torch multiplies GroupNorm's weight by the rate, and that by the mean, before anything is subtracted."""
    for weight, value in ((5e36, 0.0), (1e30, 1e7)):
        norm = nn.GroupNorm(1, 4)
        norm.weight.data.fill_(weight)
        x = torch.full((1, 4), value)
        box = icn.bounds(norm, icn.Region.around(norm, 0.0), x)
        assert not norm(x).isfinite().all() and inside(box, norm(x))


def test_shares_of_tiny_values_may_be_flushed() -> None:
    class Average(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = nn.Parameter(torch.zeros(1, 4, 2))

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.scaled_dot_product_attention(self.query, self.query, x)

    model, x = Average(), torch.full((1, 4, 2), 2.0**-125)
    box = icn.bounds(model, icn.Region.around(model, 0.0), x)
    assert inside(box, model(x))
    assert inside(box, torch.zeros_like(x))  # a quarter of each value is subnormal


@pytest.mark.slow
def test_many_more_norms_and_attentions() -> None:
    for seed in range(150):
        check_norm(("layer", "group")[seed % 2], 2 + seed % 90, (0.0, 3.0, -1e3, 1e6)[seed % 4], 1.0, 0.0, seed)
        check_attention(1 + seed % 40, 1 + seed % 16, (0.3, 1.0, 4.0)[seed % 3], (0.0, 1e-3)[seed % 2], seed)
