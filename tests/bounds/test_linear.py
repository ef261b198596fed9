"""Linear: as tight as a bound can be."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from intercontinet.bounds import Float32, Real
from intercontinet.bounds.linear import linear
from intercontinet.interval import Interval
from tests.strategies import corners, random_box


def extremes(weight: Interval, bias: Interval | None, x: Interval) -> Interval:
    """The smallest and largest outputs over every corner of the weights' box, the bias's and the input's."""
    xs = corners(x.lower, x.upper)
    ws = corners(weight.lower, weight.upper)
    outs = torch.stack([F.linear(xs, w) for w in ws])  # [weights, inputs, batch, out]
    lower, upper = outs.amin((0, 1)), outs.amax((0, 1))
    return Interval(lower, upper) if bias is None else Interval(lower + bias.lower, upper + bias.upper)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("wide_input", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_one_layers_bound_is_the_extreme_over_all_corners(with_bias: bool, wide_input: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight, bias = random_box((3, 3), generator), random_box((3,), generator)
    x = random_box((1, 3), generator)
    x = x if wide_input else Interval.point(x.lower)
    parameters = {"weight": weight, "bias": bias} if with_bias else {"weight": weight}
    out = linear(nn.Linear(3, 3), parameters, x, Real(exact=True))
    expected = extremes(weight, bias if with_bias else None, x)
    torch.testing.assert_close(out.lower, expected.lower, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(out.upper, expected.upper, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("exact", [True, False])
def test_the_bound_on_a_point_input_is_exact_in_either_form(exact: bool) -> None:
    generator = torch.Generator().manual_seed(7)
    weight, x = random_box((2, 4), generator), Interval.point(torch.randn(3, 4, generator=generator).double())
    out = linear(nn.Linear(4, 2, bias=False), {"weight": weight}, x, Real(exact=exact))
    expected = extremes(weight, None, x)
    torch.testing.assert_close(out.lower, expected.lower, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(out.upper, expected.upper, rtol=1e-12, atol=1e-12)


def test_a_batch_may_have_further_dimensions() -> None:
    generator = torch.Generator().manual_seed(8)
    weight, x = random_box((2, 4), generator), random_box((3, 5, 4), generator)
    out = linear(nn.Linear(4, 2, bias=False), {"weight": weight}, x, Real(exact=True))
    flat = linear(
        nn.Linear(4, 2, bias=False),
        {"weight": weight},
        Interval(x.lower.flatten(0, 1), x.upper.flatten(0, 1)),
        Real(exact=True),
    )
    assert out.shape == (3, 5, 2)
    torch.testing.assert_close(out.lower.flatten(0, 1), flat.lower)
    torch.testing.assert_close(out.upper.flatten(0, 1), flat.upper)


def test_rounding_widens_the_real_bound_a_little_and_on_both_sides() -> None:
    generator = torch.Generator().manual_seed(9)
    parameters = {"weight": random_box((2, 4), generator), "bias": random_box((2,), generator)}
    x = random_box((3, 4), generator)
    real, sound = (linear(nn.Linear(4, 2), parameters, x, arithmetic) for arithmetic in (Real(exact=True), Float32()))
    assert (sound.lower < real.lower).all() and (real.upper < sound.upper).all()
    assert ((sound.radius - real.radius) < 1e-4 * real.magnitude.max()).all()
