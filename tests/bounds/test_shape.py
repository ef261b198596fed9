"""Layers that move values about, or do nothing when evaluated."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import intercontinet as icn
from intercontinet.bounds import Float32, Real
from intercontinet.bounds.shape import identity, reshape
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


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.Dropout(0.5).eval(), nn.Dropout1d(), nn.Dropout2d()])
def test_dropout_does_nothing_in_any_mode(layer: nn.Module) -> None:
    x = random_box((2, 3), torch.Generator().manual_seed(0))
    assert identity(layer, {}, x, Real()) is x
