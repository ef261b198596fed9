"""Interval: two forms of one box."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from intercontinet.interval import Interval

numbers = st.floats(-1e6, 1e6, width=32)


@settings(deadline=None, max_examples=50, derandomize=True)
@given(centre=numbers, radius=st.floats(0, 1e6, width=32))
def test_edges_and_centre_with_radius_are_two_forms_of_one_box(centre: float, radius: float) -> None:
    c, r = torch.tensor(centre, dtype=torch.float64), torch.tensor(radius, dtype=torch.float64)
    by_radius = Interval.around(c, r)
    by_edges = Interval(c - r, c + r)
    torch.testing.assert_close(by_radius.lower, by_edges.lower, rtol=0, atol=0)
    torch.testing.assert_close(by_radius.upper, by_edges.upper, rtol=0, atol=0)
    torch.testing.assert_close(by_edges.centre, c, rtol=1e-12, atol=1e-9)
    torch.testing.assert_close(by_edges.radius, r, rtol=1e-12, atol=1e-9)


@settings(deadline=None, max_examples=50, derandomize=True)
@given(edges=st.tuples(numbers, numbers), share=st.floats(0, 1))
def test_magnitude_is_the_largest_absolute_value_inside(edges: tuple[float, float], share: float) -> None:
    low, up = sorted(edges)
    box = Interval(torch.tensor(low), torch.tensor(up))
    assert box.magnitude.item() == max(abs(low), abs(up))
    assert abs(low + share * (up - low)) <= box.magnitude.item() * (1 + 1e-6)


def test_a_point_is_known_by_identity_not_by_value() -> None:
    value = torch.tensor([1.0, -2.0])
    assert Interval.point(value).is_point
    assert not Interval(value, value.clone()).is_point
    assert not Interval.around(value, torch.zeros(2)).is_point


def test_a_point_is_its_own_centre_with_no_radius() -> None:
    value = torch.tensor([1.0, -2.0])
    box = Interval.point(value)
    assert box.centre is value
    assert box.radius.tolist() == [0.0, 0.0]
    assert box.magnitude.tolist() == [1.0, 2.0]


def test_contains_both_edges_and_nothing_beyond() -> None:
    box = Interval(torch.tensor([0.0, -1.0]), torch.tensor([1.0, 1.0]))
    assert box.contains(box.lower) and box.contains(box.upper)
    assert not box.contains(torch.tensor([0.5, 1.0000001]))
    assert not box.contains(torch.tensor([-1e-38, 0.0]))


def test_nan_is_never_contained_and_a_nan_edge_contains_nothing() -> None:
    everywhere = Interval(torch.tensor([-torch.inf]), torch.tensor([torch.inf]))
    assert everywhere.contains(torch.tensor([torch.inf]))
    assert not everywhere.contains(torch.tensor([torch.nan]))
    assert not Interval(torch.tensor([torch.nan]), torch.tensor([1.0])).contains(torch.tensor([0.0]))


def test_a_float32_value_is_compared_exactly_with_float64_edges() -> None:
    tenth = torch.tensor([0.1])  # a little above a tenth
    assert not Interval.point(torch.tensor([0.1], dtype=torch.float64)).contains(tenth)
    assert Interval.point(tenth.double()).contains(tenth)


def test_an_index_takes_the_same_rows_of_both_edges() -> None:
    low = torch.arange(6.0).reshape(3, 2)
    box = Interval(low, low + 1, nonnegative=True)
    rows = box[torch.tensor([2, 0])]
    assert rows.lower.tolist() == [[4, 5], [0, 1]]
    assert rows.upper.tolist() == [[5, 6], [1, 2]]
    assert rows.nonnegative and not rows.is_point
    assert box[1:].shape == (2, 2)


def test_an_index_of_a_point_is_a_point() -> None:
    assert Interval.point(torch.arange(3.0))[1].is_point


def test_shape_and_repr_show_what_it_holds() -> None:
    box = Interval.around(torch.zeros(2, 3), torch.ones(2, 3))
    assert box.shape == (2, 3)
    assert repr(Interval.point(torch.ones(1))) == "Interval(lower=tensor([1.]), upper=tensor([1.]))"
