"""Elementwise functions against dense sampling: nothing outside, and both edges reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from intercontinet.bounds import Arithmetic, Float32, Real
from intercontinet.bounds import activation as rules
from intercontinet.bounds.registry import rule_for
from intercontinet.errors import UnsupportedLayer
from intercontinet.interval import Interval


@dataclass(frozen=True)
class Elementwise:
    """A layer, how close sampling gets to its extremes, and where it turns or jumps."""

    layer: nn.Module
    tolerance: float = 1e-6
    turns: tuple[float, ...] = field(default=(0.0,))

    def __str__(self) -> str:
        return f"{type(self.layer).__name__}({self.layer.extra_repr()})"


LAYERS = (
    Elementwise(nn.ReLU()),
    Elementwise(nn.LeakyReLU()),
    Elementwise(nn.LeakyReLU(0.0)),
    Elementwise(nn.LeakyReLU(2.5)),
    Elementwise(nn.LeakyReLU(-0.3), tolerance=1e-3),
    Elementwise(nn.ReLU6(), turns=(0.0, 6.0)),
    Elementwise(nn.Hardtanh(), turns=(-1.0, 1.0)),
    Elementwise(nn.Hardtanh(0.25, 0.75), turns=(0.25, 0.75)),
    Elementwise(nn.Tanh()),
    Elementwise(nn.Sigmoid()),
    Elementwise(nn.Softplus(), turns=(20.0,)),
    Elementwise(nn.Softplus(beta=0.5), turns=(40.0,)),
    Elementwise(nn.Softplus(beta=2.0, threshold=0.5), tolerance=2e-3, turns=(0.25,)),
    Elementwise(nn.Softplus(beta=1.0, threshold=-1.0), tolerance=2e-3, turns=(-1.0,)),
    Elementwise(nn.Softplus(beta=3.0, threshold=0.0), tolerance=2e-3),
    Elementwise(nn.ELU()),
    Elementwise(nn.ELU(0.0)),
    Elementwise(nn.ELU(-0.7), tolerance=1e-3),
    Elementwise(nn.GELU(), turns=(-0.75,)),
    Elementwise(nn.GELU(approximate="tanh"), turns=(-0.75,)),
    Elementwise(nn.SiLU(), turns=(-1.28,)),
    Elementwise(nn.Hardswish(), turns=(-3.0, -1.5, 3.0)),
)
every_layer = pytest.mark.parametrize("case", LAYERS, ids=str)


def apply(layer: nn.Module, x: Interval, arithmetic: Arithmetic) -> Interval:
    rule = rule_for(layer)
    assert rule is not None
    out: Interval = rule(layer, {}, x, arithmetic)
    return out


def intervals(case: Elementwise) -> Interval:
    """Sixty intervals of many widths: anywhere, and round every turning point."""
    generator = torch.Generator().manual_seed(0)
    centres = [torch.randn(30, generator=generator, dtype=torch.float64) * 3]
    centres += [turn + 0.3 * torch.randn(30, generator=generator, dtype=torch.float64) for turn in case.turns]
    centre = torch.cat(centres)
    below, above = (2 * torch.rand(centre.shape, generator=generator, dtype=torch.float64) ** 3 for _ in range(2))
    return Interval(centre - below, centre + above)


def samples(x: Interval, count: int = 4001) -> Tensor:
    """Points of each interval, edges included: [count, intervals]."""
    share = torch.linspace(0, 1, count, dtype=x.lower.dtype)[:, None]
    return torch.cat([x.lower[None], x.lower + share * (x.upper - x.lower), x.upper[None]]).clamp(x.lower, x.upper)


@every_layer
def test_the_real_bound_holds_all_values_and_is_reached(case: Elementwise) -> None:
    x = intervals(case)
    out = apply(case.layer, x, Real())
    values = case.layer(samples(x))
    assert (values >= out.lower - 1e-12).all() and (values <= out.upper + 1e-12).all()
    assert (values.amin(0) - out.lower).max() <= case.tolerance
    assert (out.upper - values.amax(0)).max() <= case.tolerance


@every_layer
def test_the_float32_bound_holds_all_float32_values(case: Elementwise) -> None:
    x = intervals(case)
    x = Interval(x.lower.float(), x.upper.float())
    values = case.layer(samples(x))
    out = apply(case.layer, Interval(x.lower.double(), x.upper.double()), Float32())
    assert (values >= out.lower).all() and (values <= out.upper).all()


@pytest.mark.parametrize(
    ("layer", "formula"),
    [
        (nn.ELU(), lambda x: torch.where(x > 0, x, x.exp() - 1)),
        (nn.Sigmoid(), lambda x: 1 / (1 + (-x).exp())),
        (nn.SiLU(), lambda x: x * (1 / (1 + (-x).exp()))),
        (nn.Softplus(), lambda x: torch.where(x > 20, x, (1 + x.exp()).log())),
        (nn.GELU(), lambda x: 0.5 * x * (1 + torch.erf(x * 0.5**0.5))),
        (nn.GELU("tanh"), lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))),
        (nn.Hardswish(), lambda x: x * ((x + 3).clamp(0, 6) / 6)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_float32_bound_holds_textbook_formulas_that_cancel(
    layer: nn.Module, formula: Callable[[Tensor], Tensor]
) -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(100_000, generator=generator) * 10 ** (5 * torch.rand(100_000, generator=generator) - 4)
    values = formula(x)
    assert not torch.equal(values, layer(x))  # another implementation indeed
    assert apply(layer, Interval.point(x.double()), Float32()).contains(values)


@every_layer
def test_the_float32_bound_of_a_point_holds_whatever_its_size(case: Elementwise) -> None:
    generator = torch.Generator().manual_seed(1)
    bits = torch.randint(0, 0x7B800000, (100_000,), generator=generator, dtype=torch.int32)  # 0 to about 1e36
    ordinary = torch.randn(100_000, generator=generator) * 10 ** (4 * torch.rand(100_000, generator=generator) - 2)
    x = torch.cat([bits.view(torch.float32), -bits.view(torch.float32), ordinary])
    out = apply(case.layer, Interval.point(x.double()), Float32())
    assert out.lower.isfinite().all() and out.upper.isfinite().all()
    assert out.contains(case.layer(x))


@every_layer
def test_the_float32_bound_is_hardly_wider_than_the_real_one(case: Elementwise) -> None:
    x = intervals(case)
    real, sound = apply(case.layer, x, Real()), apply(case.layer, x, Float32())
    room = 1e-5 * (1 + x.magnitude)
    assert (real.lower - room <= sound.lower).all() and (sound.lower <= real.lower).all()
    assert (real.upper <= sound.upper).all() and (sound.upper <= real.upper + room).all()


@every_layer
@pytest.mark.parametrize("arithmetic", [Real(), Float32()], ids=["Real", "Float32"])
def test_an_output_known_to_be_nonnegative_never_falls_below_zero(case: Elementwise, arithmetic: Arithmetic) -> None:
    x = intervals(case)
    x = Interval(x.lower.relu(), x.upper.relu(), nonnegative=True)
    out = apply(case.layer, x, arithmetic)
    values = case.layer(samples(Interval(x.lower.float(), x.upper.float())))
    if out.nonnegative:
        assert (out.lower >= 0).all() and (values >= 0).all()
    assert not apply(nn.LeakyReLU(-0.3), x, arithmetic).nonnegative
    assert apply(nn.ReLU(), x, arithmetic).nonnegative


@every_layer
def test_nan_survives_so_that_overflow_is_never_forgotten(case: Elementwise) -> None:
    poison = torch.tensor([torch.nan], dtype=torch.float64)
    for x in (Interval(poison, poison.clone()), Interval.point(poison)):
        out = apply(case.layer, x, Float32())
        assert out.lower.isnan().all() and out.upper.isnan().all()


@every_layer
def test_an_argument_near_float32s_largest_number_is_not_promised(case: Elementwise) -> None:
    huge = torch.tensor([3e38], dtype=torch.float64)
    out = apply(case.layer, Interval(-huge, huge), Float32())
    assert out.lower.isnan().all() and out.upper.isnan().all()


@every_layer
def test_a_flushed_subnormal_argument_stays_inside(case: Elementwise) -> None:
    x = torch.tensor([1e-40, -1e-40, 1.1e-38, -1.1e-38] * 16)
    exact = x.double()
    out = apply(case.layer, Interval.point(exact), Float32())
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers to zero")
    try:
        flushed = case.layer(x)
    finally:
        torch.set_flush_denormal(False)
    assert out.contains(flushed)
    assert out.contains(case.layer(x))


@settings(deadline=None, max_examples=200, derandomize=True)
@given(
    case=st.sampled_from(LAYERS),
    edges=st.tuples(st.floats(-100, 100), st.floats(-100, 100)),
    inner=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_a_smaller_interval_has_a_smaller_image(
    case: Elementwise, edges: tuple[float, float], inner: tuple[float, float]
) -> None:
    low, up = (torch.tensor([edge], dtype=torch.float64) for edge in sorted(edges))
    a, b = sorted(inner)
    small = apply(
        case.layer, Interval((low + a * (up - low)).clamp(low, up), (low + b * (up - low)).clamp(low, up)), Real()
    )
    large = apply(case.layer, Interval(low, up), Real())
    assert (large.lower <= small.lower + 1e-12).all() and (small.upper <= large.upper + 1e-12).all()


@pytest.mark.parametrize(
    ("layer", "turn"),
    [
        (nn.GELU(), rules.GELU_MINIMUM),
        (nn.GELU(approximate="tanh"), rules.GELU_TANH_MINIMUM),
        (nn.SiLU(), rules.SILU_MINIMUM),
        (nn.Hardswish(), rules.HARDSWISH_MINIMUM),
    ],
)
def test_the_derivative_changes_sign_at_the_stated_minimum(layer: nn.Module, turn: float) -> None:
    sides = torch.tensor([turn - 1e-13, turn + 1e-13], dtype=torch.float64, requires_grad=True)
    before, after = torch.autograd.grad(layer(sides).sum(), sides)[0].tolist()
    assert before < 0 < after
    far = layer(torch.linspace(-30, 30, 200_001, dtype=torch.float64))
    assert layer(torch.tensor(turn, dtype=torch.float64)) <= far.min() + 1e-15


def test_softplus_jumps_down_at_a_low_threshold_and_both_branches_are_covered_there() -> None:
    layer = nn.Softplus(beta=1.0, threshold=0.0)
    at_jump = torch.zeros(1, dtype=torch.float64)
    out = apply(layer, Interval(at_jump, at_jump.clone()), Real())
    assert out.lower.item() <= 0.0 and out.upper.item() >= F.softplus(at_jump).item()


@pytest.mark.parametrize(
    ("layer", "culprit"),
    [
        (nn.Softplus(beta=0.0), "beta"),
        (nn.Softplus(beta=-1.0), "beta"),
        (nn.Softplus(threshold=100.0), "threshold"),
        (nn.LeakyReLU(1e39), "negative_slope"),
        (nn.LeakyReLU(float("nan")), "negative_slope"),
        (nn.ELU(1e39), "alpha"),
    ],
)
def test_a_setting_that_float32_cannot_carry_is_refused_by_name(layer: nn.Module, culprit: str) -> None:
    with pytest.raises(UnsupportedLayer, match=culprit):
        apply(layer, Interval.point(torch.ones(1, dtype=torch.float64)), Float32())


def test_a_threshold_beyond_float32s_exponent_would_have_overflowed() -> None:
    assert nn.Softplus(threshold=100.0)(torch.tensor([95.0])).isinf().all()
    assert nn.Softplus(threshold=rules.EXPONENT)(torch.tensor([rules.EXPONENT])).isfinite().all()


def test_a_slope_too_small_for_float32_is_covered() -> None:
    x = torch.tensor([-1e30])
    layer = nn.LeakyReLU(1e-46)  # zero in float32, 1e-16 of difference in the result
    out = apply(layer, Interval.point(x.double()), Float32())
    assert out.contains(layer(x))
    assert not apply(layer, Interval.point(x.double()), Real()).contains(layer(x))
