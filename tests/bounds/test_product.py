"""The product of two boxes against four corners, term by term, in plain loops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from intercontinet.bounds import linear
from intercontinet.bounds.linear import MatrixProduct
from intercontinet.bounds.product import multiply
from intercontinet.interval import Interval
from tests.strategies import random_box


def four_corners(x: Interval, w: Interval) -> Interval:
    """``x @ w.T`` by definition: for every term the smallest and the largest of four products."""
    batch, terms = x.shape
    lower, upper = (torch.zeros(batch, w.shape[0], dtype=torch.float64) for _ in range(2))
    for i in range(batch):
        for o in range(w.shape[0]):
            for k in range(terms):
                products = [a[i, k] * b[o, k] for a in (x.lower, x.upper) for b in (w.lower, w.upper)]
                lower[i, o] += min(products)
                upper[i, o] += max(products)
    return Interval(lower, upper)


def shifted(box: Interval, by: float) -> Interval:
    return Interval(box.lower + by, box.upper + by)


def mixed(shape: tuple[int, ...], generator: torch.Generator) -> Interval:
    return random_box(shape, generator, width=2.0)


def positive(shape: tuple[int, ...], generator: torch.Generator) -> Interval:
    return shifted(mixed(shape, generator), 9.0)


def negative(shape: tuple[int, ...], generator: torch.Generator) -> Interval:
    return shifted(mixed(shape, generator), -9.0)


def across_zero(shape: tuple[int, ...], generator: torch.Generator) -> Interval:
    low, up = (torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return Interval(-low, up)


def known_nonnegative(shape: tuple[int, ...], generator: torch.Generator) -> Interval:
    box = mixed(shape, generator)
    return Interval(box.lower.relu(), box.upper.relu(), nonnegative=True)


def point(shape: tuple[int, ...], generator: torch.Generator) -> Interval:
    return Interval.point(mixed(shape, generator).lower)


def touching_zero(shape: tuple[int, ...], generator: torch.Generator) -> Interval:
    low = -torch.rand(shape, generator=generator, dtype=torch.float64)
    return Interval(low, torch.zeros_like(low))


Maker = Callable[[tuple[int, ...], torch.Generator], Interval]
INPUTS: tuple[Maker, ...] = (mixed, positive, negative, across_zero, known_nonnegative, point, touching_zero)
WEIGHTS: tuple[Maker, ...] = (mixed, positive, negative, across_zero, point, touching_zero)


@pytest.mark.parametrize("make_w", WEIGHTS)
@pytest.mark.parametrize("make_x", INPUTS)
def test_the_exact_product_is_the_four_corner_product(make_x: Maker, make_w: Maker) -> None:
    generator = torch.Generator().manual_seed(1)
    x, w = make_x((3, 5), generator), make_w((4, 5), generator)
    out, expected = multiply(MatrixProduct(), x, w, exact=True), four_corners(x, w)
    torch.testing.assert_close(out.lower, expected.lower, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(out.upper, expected.upper, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("make_w", WEIGHTS)
@pytest.mark.parametrize("make_x", INPUTS)
def test_rumps_form_holds_the_exact_product_and_is_at_most_half_as_wide_again(make_x: Maker, make_w: Maker) -> None:
    generator = torch.Generator().manual_seed(2)
    x, w = make_x((3, 5), generator), make_w((4, 5), generator)
    out, expected = multiply(MatrixProduct(), x, w, exact=False), four_corners(x, w)
    assert (out.lower <= expected.lower + 1e-12).all()
    assert (out.upper >= expected.upper - 1e-12).all()
    assert (out.radius <= 1.5 * expected.radius + 1e-12).all()


def test_rumps_form_is_wider_than_exact_where_both_factors_change_sign() -> None:
    x, w = (Interval(torch.tensor([[-1.0]]), torch.tensor([[3.0]])) for _ in range(2))
    exact, fast = (multiply(MatrixProduct(), x, w, exact=e) for e in (True, False))
    assert (exact.lower.item(), exact.upper.item()) == (-3.0, 9.0)
    assert fast.lower.item() < -3.0 and fast.upper.item() >= 9.0


def test_a_product_of_points_is_a_point() -> None:
    x, w = Interval.point(torch.ones(1, 2)), Interval.point(torch.ones(3, 2))
    assert multiply(MatrixProduct(), x, w).is_point


class CountedProduct:
    """A matrix product that counts how often it is used."""

    def __init__(self) -> None:
        self.calls = 0
        self.sums = 0

    def __call__(self, x: Tensor, w: Tensor) -> Tensor:
        self.calls += 1
        return MatrixProduct()(x, w)

    def termwise(self, combine: Callable[..., Tensor], xs: tuple[Tensor, ...], ws: tuple[Tensor, ...]) -> Tensor:
        self.sums += 1
        return MatrixProduct().termwise(combine, xs, ws)


@pytest.mark.parametrize(
    ("make_x", "make_w", "products", "sums"),
    [
        (point, mixed, 2, 0),
        (mixed, point, 2, 0),
        (known_nonnegative, across_zero, 4, 0),
        (positive, across_zero, 8, 0),
        (across_zero, across_zero, 8, 2),
    ],
)
def test_signs_decide_how_many_matrix_products_are_needed(
    make_x: Maker, make_w: Maker, products: int, sums: int
) -> None:
    generator = torch.Generator().manual_seed(3)
    op = CountedProduct()
    multiply(op, make_x((2, 3), generator), make_w((2, 3), generator), exact=True)
    assert (op.calls, op.sums) == (products, sums)


def test_termwise_sums_do_not_depend_on_how_many_rows_are_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(4)
    x, w = across_zero((3, 5), generator), across_zero((7, 5), generator)
    whole = multiply(MatrixProduct(), x, w)
    monkeypatch.setattr(linear, "TERMS_AT_ONCE", 30)
    pieces = multiply(MatrixProduct(), x, w)
    torch.testing.assert_close(whole.lower, pieces.lower)
    torch.testing.assert_close(whole.upper, pieces.upper)
