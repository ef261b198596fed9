"""Float32 hardware rounds, reorders, overflows and flushes: bounds hold all the same. Over the reals they need not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

import intercontinet as icn
from intercontinet.bounds import Float32, Network, Real
from intercontinet.interval import Interval
from intercontinet.region import Region
from tests.strategies import ACTIVATIONS, Layer, case


def row(weight: Tensor, bias: float = 0.0) -> nn.Linear:
    """One output unit with these weights."""
    layer = nn.Linear(len(weight), 1)
    with torch.no_grad():
        layer.weight.copy_(weight[None])
        layer.bias.fill_(bias)
    return layer


def sums(weight: Tensor, x: Tensor, bias: float, generator: torch.Generator) -> Iterator[float]:
    """What float32 makes of the same sum in many orders: permuted, one by one, in blocks, bias first or last."""
    for _ in range(10):
        order = torch.randperm(len(weight), generator=generator)
        w, values = weight[order], x[order]
        with torch.no_grad():
            yield row(w, bias)(values[None]).item()
        terms = (w * values).numpy()
        b = np.float32(bias)
        yield float(np.add.accumulate(terms, dtype=np.float32)[-1] + b)
        yield float(np.add.accumulate(np.concatenate([[b], terms]), dtype=np.float32)[-1])
        for size in (2, 7, 64):
            blocks = [w[i : i + size] @ values[i : i + size] for i in range(0, len(w), size)]
            total = torch.zeros(())
            for block in blocks:
                total = total + block
            yield (total + bias).item()


def zero_width(model: nn.Module, x: Tensor) -> Interval:
    return icn.bounds(model, Region.around(model, 0.0), x)


@contextmanager
def flushing() -> Iterator[None]:
    """Subnormal numbers are flushed to zero inside."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers to zero")
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(terms=st.integers(1, 300), seed=st.integers(0, 2**31), scale=st.sampled_from([1e-18, 1e-6, 1.0, 1e6, 1e15]))
def test_every_order_of_summation_lies_inside_zero_width_bounds(terms: int, seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight, x = (scale * torch.randn(terms, generator=generator) for _ in range(2))
    bias = float(scale * torch.randn((), generator=generator))
    box = zero_width(row(weight, bias), x[None])
    assert box.lower.isfinite().all()
    for value in sums(weight, x, bias, generator):
        assert box.lower.item() <= value <= box.upper.item()


def test_bounds_over_the_reals_make_no_such_claim() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(200, generator=generator) for _ in range(2))
    model = row(weight)
    real = Network(model).propagate(Region.around(model, 0.0).intervals(), Interval.point(x[None]), Real(exact=True))
    values = list(sums(weight, x, 0.0, generator))
    missed = [value for value in values if not real.lower.item() <= value <= real.upper.item()]
    assert missed
    assert all(zero_width(model, x[None]).contains(torch.tensor([[value]])) for value in missed)


def test_cancellation_that_swallows_a_term_is_covered() -> None:
    weight, x = torch.tensor([1e8, -1e8, 1.0]), torch.ones(3)
    box = zero_width(row(weight), x[None])
    kept, swallowed = (weight[0] + weight[1]) + weight[2], (weight[0] + weight[2]) + weight[1]
    assert (kept.item(), swallowed.item()) == (1.0, 0.0)
    assert box.contains(kept[None, None]) and box.contains(swallowed[None, None])


def test_a_sum_of_twenty_thousand_terms_is_covered_where_errors_pile_up() -> None:
    generator = torch.Generator().manual_seed(1)
    weight, x = torch.full((20_000,), 0.1), torch.ones(20_000)
    box = zero_width(row(weight), x[None])
    values = list(sums(weight, x, 0.0, generator))
    assert max(values) - min(values) > 1e-2  # one by one, the error is large
    assert all(box.lower.item() <= value <= box.upper.item() for value in values)
    assert box.radius.item() < 5.0


@pytest.mark.parametrize(
    ("weight", "x"),
    [
        ([1e30, 1e30], [1e30, 1e30]),
        ([1e30, -1e30], [1e30, 1e30]),
        ([3e38, 3e38, -3e38], [1.0, 1.0, 1.0]),
        ([-3e38, 3e38, 3e38], [1.0, 1.0, 1.0]),
    ],
)
def test_overflow_gives_infinite_bounds_never_a_wrong_finite_one(weight: list[float], x: list[float]) -> None:
    box = zero_width(row(torch.tensor(weight)), torch.tensor([x]))
    assert box.lower.item() == -torch.inf and box.upper.item() == torch.inf


def test_large_numbers_far_from_overflow_have_finite_bounds() -> None:
    weight, x = torch.tensor([1e30, -2e30]), torch.tensor([[1e5, 3e4]])
    box = zero_width(row(weight), x)
    assert box.lower.isfinite().all() and box.contains(row(weight)(x).detach())


@pytest.mark.parametrize(("a", "b"), [(1e-30, 1e-30), (1e-20, 1e-20), (1e-38, 1.0), (1e-45, 1e10), (1e10, 1e-40)])
def test_underflow_is_covered_flushed_or_not(a: float, b: float) -> None:
    weight, x = torch.full((40,), a), torch.full((1, 40), b)
    model = row(weight, bias=1e-40)
    box = zero_width(model, x)
    truth = 40 * weight[0].double() * x[0, 0].double()
    assert box.contains(truth[None, None]) and box.contains(model(x).detach())
    with flushing():
        flushed = model(x).detach()
    assert box.contains(flushed)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(kind=st.integers(0, 2), picks=st.lists(st.integers(0, 1000), min_size=4, max_size=4), seed=st.integers(0, 2**31))
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_tiny_networks_stay_inside_flushed_or_not(kind: int, picks: list[int], seed: int) -> None:
    small = case(kind, picks, radius=0.0, wide_input=False, seed=seed)
    with torch.no_grad():
        for name, parameter in small.model.named_parameters():
            if not name.startswith("1."):  # all but the norm
                parameter.mul_(1e-19)
    x = small.x.lower * 1e-19
    box = zero_width(small.model, x)
    with torch.no_grad():
        assert box.contains(small.model(x))
        with flushing():
            flushed = small.model(x)
    assert box.contains(flushed)


OVERFLOWING = [
    *ACTIVATIONS,
    lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4)), nn.MaxPool1d(2, 1, padding=1), nn.AdaptiveMaxPool1d(4), nn.Flatten()
    ),
    lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.AvgPool1d(2), nn.AdaptiveAvgPool1d(4), nn.Flatten()),
    lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 1, 1), nn.Flatten()),
    lambda: nn.BatchNorm1d(4).eval(),
]


@pytest.mark.parametrize("make", OVERFLOWING)
@pytest.mark.parametrize("joint", [True, False])
def test_an_example_that_may_overflow_on_the_way_is_never_certain(make: Layer, joint: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 4), make(), nn.Linear(4, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        last = model[2]
        assert isinstance(last, nn.Linear)
        last.bias.copy_(torch.tensor([1.0, 0.0]))  # always class 0, by a wide margin
        model[0].weight.fill_(1e30)  # type: ignore[operator]
    region = Region.around(model, 0.0)
    x, y = torch.tensor([[1e30, 1e30], [0.0, 0.0]]), torch.tensor([0, 0])
    assert icn.certify(model, region, (x, y), margins="joint" if joint else "separate").certified == 1
    box = icn.bounds(model, region, x)
    assert box.lower[0].isinf().all() and box.upper[0].isinf().all()
    assert box.lower[1].isfinite().all() and box.upper[1].isfinite().all()


def test_more_terms_than_gamma_can_bound_promise_nothing() -> None:
    one = torch.ones(1, dtype=torch.float64)
    out = Float32().products(Interval.point(one), lambda: one, terms=2**23)
    assert out.lower.isnan().all() and out.upper.isnan().all()


def test_widening_keeps_what_is_known_to_be_nonnegative() -> None:
    zero = torch.zeros(1, dtype=torch.float64)
    for nonnegative in (True, False):
        out = Float32().products(Interval(zero, zero + 1, nonnegative), lambda: zero + 1, terms=3)
        assert (out.lower.item() < 0) is (not nonnegative)
        assert out.nonnegative is nonnegative and out.upper.item() > 1


def test_real_arithmetic_changes_nothing() -> None:
    box = Interval(torch.zeros(1), torch.ones(1))
    assert Real().products(box, lambda: torch.ones(1), terms=9) is box
    assert Real().function(box, box, ulps=9) is box
    assert not Real().sound and Float32().sound and Float32().exact


@pytest.mark.parametrize("seed", range(5))
def test_a_deep_network_at_its_own_weights_lies_inside_in_any_order_of_its_hidden_units(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4))
    state = {n: torch.randn(p.shape, generator=generator) for n, p in model.named_parameters()}
    model.load_state_dict(state)
    x = torch.randn(8, 64, generator=generator)
    box = zero_width(model, x)
    for _ in range(20):
        inputs, first, second = (torch.randperm(64, generator=generator) for _ in range(3))
        shuffled = {
            "0.weight": state["0.weight"][first][:, inputs],
            "0.bias": state["0.bias"][first],
            "2.weight": state["2.weight"][second][:, first],
            "2.bias": state["2.bias"][second],
            "4.weight": state["4.weight"][:, second],
            "4.bias": state["4.bias"],
        }
        with torch.no_grad():
            assert box.contains(functional_call(model, shuffled, (x[:, inputs],)))
