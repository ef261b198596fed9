"""Layers that move values about, or do nothing when evaluated."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import intercontinet as icn
from intercontinet.bounds import Float32, Real
from intercontinet.bounds.shape import dropout, identity, reshape
from intercontinet.interval import Interval
from tests.strategies import random_box


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.Flatten(), (2, 12)), (nn.Flatten(2), (2, 3, 4)), (nn.Unflatten(1, (1, 3)), (2, 1, 3, 2, 2))],
)
def test_both_edges_are_reshaped_alike(layer: nn.Flatten | nn.Unflatten, shape: tuple[int, ...]) -> None:
    x = random_box((2, 3, 2, 2), torch.Generator().manual_seed(0))
    out = reshape(layer, {}, Interval(x.lower, x.upper, nonnegative=True), Float32())
    assert out.shape == shape and out.nonnegative
    assert torch.equal(out.lower, x.lower.reshape(shape)) and torch.equal(out.upper, x.upper.reshape(shape))


def test_a_reshaped_point_stays_a_point() -> None:
    assert reshape(nn.Flatten(), {}, Interval.point(torch.zeros(2, 3, 2)), Float32()).is_point


def test_identity_gives_its_input_back() -> None:
    x = random_box((2, 3), torch.Generator().manual_seed(0))
    assert identity(nn.Identity(), {}, x, Float32()) is x


def test_bounds_are_those_of_the_evaluated_model_even_while_it_trains() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.9), nn.Linear(8, 2))
    region, x = icn.Region.around(model, 0.1), torch.randn(3, 4)
    training = icn.bounds(model.train(), region, x)
    assert model.training
    evaluated = icn.bounds(model.eval(), region, x)
    assert torch.equal(training.lower, evaluated.lower) and torch.equal(training.upper, evaluated.upper)


def test_one_mask_serves_both_edges_while_training() -> None:
    torch.manual_seed(0)
    low = torch.rand(50, 40) + 1
    out = dropout(nn.Dropout(0.5), {}, Interval(low, low + 1), Real())
    kept = out.upper != 0
    assert torch.equal(kept, out.lower != 0)
    assert 0.4 < kept.float().mean().item() < 0.6
    torch.testing.assert_close(out.lower[kept], 2 * low[kept])
    torch.testing.assert_close(out.upper[kept], 2 * (low + 1)[kept])


def test_dropout_of_negative_values_keeps_the_edges_in_order() -> None:
    torch.manual_seed(0)
    x = random_box((20, 20), torch.Generator().manual_seed(0))
    out = dropout(nn.Dropout(0.3), {}, x, Real())
    assert (out.lower <= out.upper).all() and not torch.equal(out.lower, x.lower)


@pytest.mark.parametrize("layer", [nn.Dropout(0.5).eval(), nn.Dropout(0.0)])
def test_dropout_does_nothing_when_evaluated_or_when_it_drops_nothing(layer: nn.Dropout) -> None:
    x = random_box((2, 3), torch.Generator().manual_seed(0))
    assert dropout(layer, {}, x, Real()) is x
