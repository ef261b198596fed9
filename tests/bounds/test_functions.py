"""Every torch function with a rule: over all corners of a box, and for float32 as it rounds."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import intercontinet as icn
from intercontinet.bounds import Float32, Real
from intercontinet.bounds.elementwise import corners, multiply
from intercontinet.bounds.forward import Pass, forward
from intercontinet.bounds.functions import MOVING, boxed, known_functions, moved, plain_name, written
from intercontinet.bounds.recording import record
from intercontinet.errors import UnsupportedLayer
from intercontinet.interval import Interval
from intercontinet.region import Region
from tests.bounds.calls import ALL, EXACT, MOVES, NOTHING, Binary, Of, _with, box_of, mask, region_of, rows
from tests.strategies import corners as corners_of
from tests.strategies import points_inside


@pytest.mark.parametrize("name", list(MOVES))
def test_what_only_moves_entries_moves_both_edges(name: str) -> None:
    f, low = MOVES[name], torch.randn(2, 2, 3)
    model = Of(f, *low)
    region = Region.around(model, 0.5)
    edges = [(region.lower, region.upper)] * 2
    low_p, up_p, low_q, up_q = (edge[part] for (a, b), part in zip(edges, "pq", strict=True) for edge in (a, b))
    out = icn.bounds(model, region, NOTHING)
    lower, upper = f(low_p, low_q), f(up_p, up_q)
    if name == "neg":
        lower, upper = upper, lower
    assert torch.equal(out.lower, lower.double()) and torch.equal(out.upper, upper.double())


@pytest.mark.parametrize("name", list(EXACT))
@torch.no_grad()
def test_exact_bounds_are_the_extremes_over_all_corners(name: str) -> None:
    f = EXACT[name]
    region = region_of(torch.randn(2, 3), torch.randn(2, 3), 0.6)
    out = box_of(f, region)
    low, up = (torch.stack([edges["p"], edges["q"]]).double() for edges in (region.lower, region.upper))
    values = torch.stack([_double(f, *corner) for corner in corners_of(low, up)])
    turning = "pow, even", "square", "abs", "mul, itself", "mul_, itself"
    least = values.amin(0)
    if name in turning:  # they turn at zero, inside the box
        least = torch.where((low[0] < 0) & (up[0] > 0), 0.0, least)
    slack = 2e-6 * (1 + float(torch.maximum(low.abs(), up.abs()).max())) ** 4
    torch.testing.assert_close(out.lower, least, rtol=2e-5, atol=slack)
    torch.testing.assert_close(out.upper, values.amax(0), rtol=2e-5, atol=slack)


def _double(f: Binary, p: Tensor, q: Tensor) -> Tensor:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return f(p, q)
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("name", list(ALL))
@torch.no_grad()
def test_float32_values_of_points_inside_lie_inside(name: str) -> None:
    f = ALL[name]
    for scale, width in ((1e-42, 0.7), (1e-20, 0.0), (1.0, 0.0), (1.0, 0.7), (300.0, 1e-6), (1e18, 0.7)):
        p = torch.randn(2, 3) * scale
        region = region_of(p, torch.randn(2, 3), width)
        out = box_of(f, region)
        generator = torch.Generator().manual_seed(0)
        ps, qs = (points_inside(region.lower[n], region.upper[n], 9, generator) for n in "pq")
        for a, b in zip(ps, qs, strict=True):
            value = f(a, b)
            assert out.contains(value) or (value.isnan() & out.lower.isinf()).any()
        if width == 0 and scale == 1 and "sin" not in name:
            assert bool((out.upper - out.lower < 1e-3 * (1 + out.upper.abs())).all() or out.upper.isinf().any())


def test_every_function_with_a_rule_is_tried_here() -> None:
    tried = set()
    for f in ALL.values():
        model = Of(f, torch.randn(2, 3), torch.randn(2, 3))
        tape = record(model, [NOTHING], list(Region.around(model, 0.1).lower))
        tried |= {note.place.split("'")[1] for note in tape.notes}
    unreachable = {"cuda", "alias", "native_dropout", "rmatmul", "dropout1d"}
    assert not set(known_functions()) - unreachable - tried
    assert set(known_functions()) >= MOVING


@pytest.mark.parametrize("name", list(ALL))
def test_what_is_not_known_stays_unknown(name: str) -> None:
    """Where float32 might have overflowed, bounds are NaN inside, and infinite at the end: never a number again."""
    if name in ("embedding", "where", "masked_fill", "setitem", "tril", "triu", "softmax, masked", "mul, mask"):
        pytest.skip("leaves entries out")
    p = torch.full((2, 3), 3e38)
    f = ALL[name]
    model = Of(lambda p, q: f(p * 1e3, (p * 1e3)), p, p.clone())  # infinite in float32
    out = icn.bounds(model, Region.around(model, 0.0), NOTHING)
    unknown = out.lower.isinf() & out.upper.isinf() & (out.lower < 0) & (out.upper > 0)
    if name in ("diagonal", "softmax, an additive mask", "pad", "linear"):
        assert unknown.any()
    elif not name.startswith(("conv", "matmul, a", "einsum, a", "batch")):
        assert unknown.all(), out


@pytest.mark.parametrize("seed", range(2))
def test_nonnegative_is_true_where_it_is_said(seed: int) -> None:
    """The flag halves the products of the next layer: it must never be wrong."""
    generator = torch.Generator().manual_seed(seed)
    for f in ALL.values():
        model = Of(lambda p, q, f=f: f(p.abs() + 1, q.abs()), *torch.randn(2, 2, 3, generator=generator))  # type: ignore[misc]
        region = Region.around(model, 0.3)
        passed = forward(model, region.lower, [Interval.point(NOTHING.double())])
        assert isinstance(passed, Pass)
        out = passed.outputs(region.intervals(torch.float64), Float32())
        assert not out.nonnegative or bool((out.lower >= 0).all())


@pytest.mark.parametrize(
    ("f", "complaint"),
    [
        (lambda p, q: torch.div(p, q, rounding_mode="floor"), "jumps"),
        (lambda p, q: p.pow(1.5), r"a power of 1\.5"),
        (lambda p, q: p.clamp(min=q), "clamping to tensors"),
        (lambda p, q: torch.einsum("ij,jk,kl->il", p, q.T, p), "two factors"),
        (lambda p, q: torch.einsum("...i,...i", p, q), "two factors"),
        (
            lambda p, q: F.instance_norm(p[None], torch.zeros(2), torch.ones(2), use_input_stats=False),
            "saved statistics",
        ),
        (lambda p, q: F.scaled_dot_product_attention(p, q, p, scale=-1.0), "positive"),
        (
            lambda p, q: F.scaled_dot_product_attention(p, q, p, attn_mask=torch.ones(2, 2)),
            "zeros and minus infinities",
        ),
        (lambda p, q: torch.add(p, q, out=torch.zeros(2, 3)), "does not cover"),
        (lambda p, q: torch.reshape(input=p, shape=(6,)), "does not cover"),
        (lambda p, q: p > q, "'gt'.*another branch could be taken"),
        (lambda p, q: p.argmax(1), "'argmax'.*another branch could be taken"),
        (lambda p, q: p.double(), "'double'.*has no rule"),
        (lambda p, q: p.to(torch.float64), "gives float64"),
        (lambda p, q: p.max(1)[1].float(), "indices that depend on weights"),
        (lambda p, q: p[q.max(1)[1]], "indices that depend on weights"),
        (lambda p, q: torch.where(p)[0].float(), "indices that depend on weights"),
        (lambda p, q: p.copy_(q), "parameter or buffer"),
        (lambda p, q: torch.tensor([p[0, 0], q[0, 0]]), "copies values"),
        (lambda p, q: torch.full((2,), (p * 1)[0, 0]), "copies values"),
        (lambda p, q: p.new_full((2,), (q * 1)[0, 0]), "copies values"),
        (lambda p, q: p + torch.linspace(0, 1, 3), "may round"),
        (lambda p, q: p + torch.arange(0, 0.3, 0.1), "rounds"),
        (lambda p, q: p + rows() / 3, "may round"),
        (lambda p, q: p + torch.empty(2, 3, dtype=torch.int64), "leaves numbers to chance"),
    ],
)
def test_calls_that_no_rule_covers_are_refused(f: Binary, complaint: str) -> None:
    model = Of(f, torch.randn(2, 3), torch.randn(2, 3))
    with pytest.raises(UnsupportedLayer, match=complaint):
        icn.bounds(model, Region.around(model, 0.1), NOTHING)
    assert "forward" not in vars(model)


def test_memory_that_was_never_written_is_never_certain() -> None:
    model = Of(lambda p, q: _with(p.new_empty(2, 3), 0, p[0]), torch.ones(2, 3), torch.ones(2, 3))
    out = icn.bounds(model, Region.around(model, 0.1), NOTHING)
    assert out.lower[0].isfinite().all() and out.lower[1].isinf().all() and out.upper[1].isinf().all()


@pytest.mark.parametrize("number", [0.1, 1e-50, 16777217, 1 / 3, -2.5e-39])
def test_numbers_are_rounded_as_the_model_rounds_them(number: float) -> None:
    fs: list[Binary] = [
        lambda p, q: torch.where(mask(), p, number),
        lambda p, q: p.masked_fill(mask(), number),
        lambda p, q: _with(p.clone(), 0, number),
        lambda p, q: F.pad(p, (1, 0), value=number),
        lambda p, q: p + number,
        lambda p, q: p * number,
        lambda p, q: p.clamp(min=number),
        lambda p, q: p - torch.full((2, 3), number),
    ]
    for f in fs:
        p, q = torch.randn(2, 2, 3)
        model = Of(f, p, q)
        with torch.no_grad():
            assert icn.bounds(model, Region.around(model, 0.0), NOTHING).contains(model(NOTHING))


def test_whole_numbers_beyond_float32_are_rounded_likewise() -> None:
    model = Of(lambda p, q: p * (torch.arange(3) + 2**24 + 1), torch.ones(2, 3), torch.ones(2, 3))
    with torch.no_grad():
        assert icn.bounds(model, Region.around(model, 0.0), NOTHING).contains(model(NOTHING))


def test_a_divisor_that_may_vanish_leaves_nothing_known() -> None:
    for divisor in (0.0, 1e-38, -1e-38, 1e-45):
        model = Of(lambda p, q, d=divisor: p / (q * 0 + d), torch.ones(2, 3), torch.ones(2, 3))  # type: ignore[misc]
        assert icn.bounds(model, Region.around(model, 0.1), NOTHING).lower.isinf().all()


def test_scalars_and_points_keep_to_their_shapes() -> None:
    like = Interval.point(torch.zeros(2).double())
    assert boxed(-1, like).nonnegative is False and boxed(True, like).lower.item() == 1.0
    both = multiply(Real(), like, 3.0)
    assert both.is_point and corners(torch.mul, like, like).is_point
    parts = moved(lambda t: t.chunk(2), Interval(torch.zeros(2), torch.ones(2)))
    assert len(parts) == 2 and not parts[0].is_point


def test_plain_names_tell_getters_from_setters_and_calls_that_write() -> None:
    assert plain_name(torch.Tensor.data.__set__) == "set_data"  # type: ignore[attr-defined]
    assert plain_name(torch.Tensor.__float__) == "float_" and plain_name(torch.Tensor.float) == "float"
    assert plain_name(torch.Tensor.__rsub__) == "rsub" and plain_name(torch.Tensor.__setitem__) == "setitem"
    for func, rest in (
        (torch.Tensor.__iadd__, ()),
        (F.relu, (True,)),
        (torch.Tensor.__setitem__, ()),
        (torch.relu_, ()),
    ):
        assert written(func, (5, *rest), {}) == ((5,), None)
    reading: list[Callable[..., object]] = [
        torch.Tensor.__index__,
        F.relu,
        torch.Tensor.__add__,
        torch.Tensor.__invert__,
    ]
    for reader in reading:
        assert written(reader, (5,), {}) == ((), None)


def test_near_ties_are_settled_by_rounding_alone() -> None:
    """Two sums of the same terms in another order: their difference is nothing, but not in float32."""
    torch.manual_seed(3)
    x = torch.randn(1, 400) * 1e3
    model = Of(lambda p, q: p.sum(-1) - p.flip(-1).sum(-1), x, x)
    out = icn.bounds(model, Region.around(model, 0.0), NOTHING)
    assert out.lower.item() < 0 < out.upper.item() < 400 * 400 * 1e3 * 2**-22
    for first, second in pairwise(torch.randperm(400, generator=torch.Generator().manual_seed(i)) for i in range(20)):
        total = float(x[0, first].sum() - x[0, second].sum())
        assert out.lower.item() <= total <= out.upper.item()
