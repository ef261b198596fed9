"""Not one float32 output outside its bounds, whatever the layers, the region, the input, the weights."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Float64
from torch import Tensor

import intercontinet as icn
from intercontinet.bounds import known_layers
from tests.strategies import (
    Case,
    cases,
    fits,
    inputs_inside,
    many_cases,
    output_alone,
    outputs_together,
    weights_inside,
)

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")


def check_containment(case: Case, count: int, alone: int, seed: int) -> int:
    """Sample weights and inputs, assert that every output lies inside the bounds, and say how many were looked at."""
    generator = torch.Generator().manual_seed(seed)
    box = icn.bounds(case.model, case.region, case.x)
    weights = weights_inside(case.region, count, generator)
    xs = inputs_inside(case.x, count, generator)
    together = outputs_together(case.model, weights, xs)
    outside = ~((box.lower <= together) & (together <= box.upper)).flatten(1).all(1)
    assert not outside.any(), f"{int(outside.sum())} of {count} outputs left their bounds in {case.model}"
    for index in range(alone):
        assert box.contains(output_alone(case.model, weights, xs, index)), f"a plain forward left in {case.model}"
    return count + alone


@settings(deadline=None, max_examples=400, derandomize=True)
@given(case=cases, seed=st.integers(0, 2**31))
def test_outputs_of_any_weights_in_any_region_lie_inside_the_bounds(case: Case, seed: int) -> None:
    check_containment(case, count=60, alone=2, seed=seed)


@settings(deadline=None, max_examples=30, derandomize=True)
@given(case=cases)
def test_bounds_are_finite_float64_edges_of_the_outputs_shape(case: Case) -> None:
    box = icn.bounds(case.model, case.region, case.x)
    for edge in (box.lower, box.upper):
        assert fits(edge, Float64[Tensor, "batch classes"])
        assert edge.shape == (case.x.shape[0], 3)
        assert edge.isfinite().all()
    assert (box.lower <= box.upper).all()


def test_sampled_weights_are_float32_points_of_the_region_with_whole_corners_among_them() -> None:
    case = next(case for case in many_cases(10) if not case.x.is_point)
    weights = weights_inside(case.region, 30, torch.Generator().manual_seed(0))
    for index in range(30):
        assert case.region.contains({name: stack[index] for name, stack in weights.items()})
    for name, stack in weights.items():
        low, up = case.region.lower[name], case.region.upper[name]
        assert ((stack[0] == low) | (stack[0] == up)).all()  # a corner
    assert any((stack[2] != case.region.lower[name]).any() for name, stack in weights.items())


@pytest.mark.slow
def test_a_million_weight_vectors_stay_inside_their_bounds() -> None:
    visited = 0
    layers: set[str] = set()
    for index, case in enumerate(many_cases(1530)):
        layers |= {type(layer).__name__ for layer in case.model.modules()}
        visited += check_containment(case, count=1000, alone=8, seed=index)
    assert visited >= 1_000_000
    of_exact_inputs = {"EmbeddingBag", "Ferns", "KWinners", "PatchDictionary"}  # tests/nets
    assert set(known_layers()) - of_exact_inputs <= layers, "some layer with a rule was never tried"
