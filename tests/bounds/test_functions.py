"""Every torch function with a rule: over all corners of a box, and for float32 as it rounds."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import intercontinet as icn
from intercontinet.bounds import Float32, Real
from intercontinet.bounds.elementwise import add, corners, multiply
from intercontinet.bounds.forward import Pass, forward
from intercontinet.bounds.functions import MOVING, boxed, known_functions, moved, plain_name, written
from intercontinet.bounds.recording import record
from intercontinet.bounds.reduction import convex_sum, softmax
from intercontinet.errors import UnsupportedLayer
from intercontinet.interval import Interval
from intercontinet.region import Region
from tests.strategies import corners as corners_of
from tests.strategies import points_inside, random_box

NOTHING = torch.zeros(1, 1)  # an input that no function looks at
Binary = Callable[[Tensor, Tensor], Tensor]


class Of(nn.Module):
    """A function of two parameters."""

    def __init__(self, f: Binary, p: Tensor, q: Tensor) -> None:
        super().__init__()
        self.f, self.p, self.q = f, nn.Parameter(p), nn.Parameter(q)

    def forward(self, x: Tensor) -> Tensor:
        return self.f(self.p, self.q)


def mask() -> Tensor:
    return torch.as_tensor([[True, False, True], [False, False, True]])


def rows() -> Tensor:
    return torch.as_tensor([[0, 1, 0], [2, 2, 1]])


# Each moves the entries of p [2, 3] (or of a view of it) about.
MOVES: dict[str, Binary] = {
    "reshape": lambda p, q: p.reshape(3, -1),
    "view": lambda p, q: p.view(6),
    "permute": lambda p, q: p.permute(1, 0),
    "transpose": lambda p, q: p.transpose(-1, 0),
    "swapaxes": lambda p, q: p.swapaxes(0, 1),
    "swapdims": lambda p, q: p.swapdims(0, 1),
    "movedim": lambda p, q: p.movedim(0, 1),
    "moveaxis": lambda p, q: p.moveaxis(0, 1),
    "flatten": lambda p, q: torch.flatten(p),
    "unflatten": lambda p, q: p.unflatten(1, (3, 1)),  # type: ignore[no-untyped-call]
    "ravel": lambda p, q: p.ravel(),
    "squeeze": lambda p, q: p[:1].squeeze(0),
    "unsqueeze": lambda p, q: p.unsqueeze(-1),
    "expand": lambda p, q: p.expand(2, -1, -1),
    "expand_as": lambda p, q: p[:1].expand_as(q),
    "view_as": lambda p, q: p.view_as(q),
    "reshape_as": lambda p, q: p.reshape_as(q),
    "broadcast_to": lambda p, q: p.broadcast_to(2, 2, 3),
    "repeat": lambda p, q: p.repeat(2, 1),
    "tile": lambda p, q: p.tile(2),
    "repeat_interleave": lambda p, q: p.repeat_interleave(2, dim=1),
    "roll": lambda p, q: p.roll(1, 1),
    "flip": lambda p, q: p.flip(-1),
    "fliplr": lambda p, q: p.fliplr(),
    "flipud": lambda p, q: p.flipud(),
    "rot90": lambda p, q: p.rot90(),
    "chunk": lambda p, q: p.chunk(2)[1],
    "split": lambda p, q: p.split([1, 2], dim=1)[1],  # type: ignore[no-untyped-call]
    "tensor_split": lambda p, q: p.tensor_split(2, 1)[0],
    "unbind": lambda p, q: [*p][1],
    "getitem": lambda p, q: p[..., None, 1:],
    "select": lambda p, q: p.select(1, -1),
    "narrow": lambda p, q: p.narrow(1, 1, 2),
    "index_select": lambda p, q: p.index_select(1, rows()[0]),
    "gather": lambda p, q: p.gather(1, rows()),
    "take_along_dim": lambda p, q: p.take_along_dim(rows(), 1),
    "contiguous": lambda p, q: p.T.contiguous(),
    "clone": lambda p, q: p.clone(),
    "detach": lambda p, q: p.detach(),
    "T": lambda p, q: p.T,
    "mT": lambda p, q: p.mT,
    "t": lambda p, q: p.t(),
    "H": lambda p, q: p.H,
    "mH": lambda p, q: p.mH,
    "data": lambda p, q: p.data,
    "unfold": lambda p, q: p.unfold(1, 2, 1),
    "pixel_shuffle": lambda p, q: F.pixel_shuffle(p[:, :2].reshape(1, 4, 1, 1), 2),
    "pixel_unshuffle": lambda p, q: F.pixel_unshuffle(p[:, :2].reshape(1, 1, 2, 2), 2),
    "channel_shuffle": lambda p, q: F.channel_shuffle(p[None], 2),
    "diagonal": lambda p, q: p.diagonal(),
    "tril": lambda p, q: p.tril(),
    "triu": lambda p, q: p.triu(1),
    "positive": lambda p, q: +p,
    "to": lambda p, q: p.to(torch.float32),
    "float": lambda p, q: p.float(),
    "type": lambda p, q: p.type(torch.float32),
    "type_as": lambda p, q: p.type_as(q),
    "cpu": lambda p, q: p.cpu(),
    "dropout": lambda p, q: F.dropout(p, 0.5, False),
    "dropout1d": lambda p, q: F.dropout1d(p[None], training=False),
    "dropout2d": lambda p, q: F.dropout2d(p[None, None], training=False),
    "dropout3d": lambda p, q: F.dropout3d(p[None, None, None], training=False),
    "alpha_dropout": lambda p, q: F.alpha_dropout(p, training=False),
    "feature_dropout": lambda p, q: torch.feature_dropout(p, 0.5, False),
    "feature_alpha_dropout": lambda p, q: F.feature_alpha_dropout(p, training=False),
    "cat": lambda p, q: torch.cat([p, q], -1),
    "stack": lambda p, q: torch.stack([p, q], 1),
    "hstack": lambda p, q: torch.hstack([p, q]),
    "hstack, flat": lambda p, q: torch.hstack([p[0], q[0]]),
    "vstack": lambda p, q: torch.vstack([p, q[0]]),
    "where": lambda p, q: torch.where(mask(), p, q),
    "masked_fill": lambda p, q: p.masked_fill(mask(), 0.5),
    "setitem": lambda p, q: _with(p.clone(), (slice(None), 1), q[:, 0]),
    "pad": lambda p, q: F.pad(p, (1, 2), value=-0.5),
    "embedding": lambda p, q: F.embedding(rows()[:1] % 2, p),
    "neg": lambda p, q: -p,
}


def _squared(t: Tensor) -> Tensor:
    t *= t
    return t


def _with(t: Tensor, index: object, value: Tensor | float) -> Tensor:
    t[index] = value  # type: ignore[index]
    return t


# Functions of p [2, 3] and q [2, 3] whose bounds are exact over the reals: the extremes over all corners.
EXACT: dict[str, Binary] = {
    "add": lambda p, q: p + q,
    "add, alpha": lambda p, q: torch.add(p, q, alpha=-2),
    "add, number": lambda p, q: 0.1 + p,
    "add, in place": lambda p, q: p.clone().add_(q),
    "add, whole numbers": lambda p, q: p + rows(),
    "add, alpha of whole numbers": lambda p, q: torch.add(p, rows(), alpha=3),
    "sub": lambda p, q: p - q,
    "sub, alpha": lambda p, q: torch.sub(p, q, alpha=0.3),
    "sub, numbers": lambda p, q: p - 0.7,
    "rsub": lambda p, q: 1.3 - p,
    "rsub, alpha": lambda p, q: torch.rsub(p, q, alpha=2),
    "mul": lambda p, q: p * q,
    "mul, broadcast": lambda p, q: p * q[:1, :1],
    "mul, number": lambda p, q: -0.3 * p,
    "mul, mask": lambda p, q: p * mask(),
    "mul, itself": lambda p, q: p * p,
    "div": lambda p, q: p / (q + 4),
    "div, number": lambda p, q: p / 3,
    "div, negative": lambda p, q: p / (q - 4),
    "rdiv": lambda p, q: 2 / (q + 4),
    "reciprocal": lambda p, q: (q + 4).reciprocal(),
    "pow": lambda p, q: p**3,
    "pow, even": lambda p, q: p.pow(4),
    "pow, one": lambda p, q: p**1,
    "pow, root": lambda p, q: (p + 4) ** 0.5,
    "pow, inverse root": lambda p, q: (p + 4) ** -0.5,
    "pow, inverse": lambda p, q: (p + 4) ** -1,
    "square": lambda p, q: p.square(),
    "sqrt": lambda p, q: (p + 4).sqrt(),
    "rsqrt": lambda p, q: (p + 4).rsqrt(),
    "log": lambda p, q: (p + 4).log(),
    "exp": lambda p, q: p.exp(),
    "abs": lambda p, q: p.abs(),
    "clamp": lambda p, q: p.clamp(-0.3, 0.9),
    "clamp, above": lambda p, q: p.clamp(max=0.1),
    "clamp_min": lambda p, q: p.clamp_min(-0.2),
    "clamp_max": lambda p, q: torch.clamp_max(p, 0.3),
    "minimum": lambda p, q: torch.minimum(p, q),
    "maximum": lambda p, q: torch.maximum(p, q),
    "fmin": lambda p, q: torch.fmin(p, q),
    "fmax": lambda p, q: torch.fmax(p, q),
    "sum": lambda p, q: p.sum(),
    "sum, dim": lambda p, q: p.sum(-1),
    "sum, no dims": lambda p, q: p.sum(dim=[]),
    "mul_, itself": lambda p, q: _squared(p.clone()),
    "sum, dims": lambda p, q: p.sum((0, 1), keepdim=True),
    "mean": lambda p, q: p.mean(),
    "mean, dim": lambda p, q: p.mean(dim=0, keepdim=True),
    "amax": lambda p, q: p.amax(1),
    "amin": lambda p, q: p.amin((0, -1)),
    "max": lambda p, q: p.max(),
    "max, dim": lambda p, q: p.max(dim=1, keepdim=True).values,
    "max, two": lambda p, q: torch.max(p, q),
    "min": lambda p, q: p.min(0)[0],
    "min, two": lambda p, q: torch.min(p, other=q),
    "softmax": lambda p, q: p.softmax(-1),
    "softmax, first dim": lambda p, q: F.softmax(p, dim=0),
    "log_softmax": lambda p, q: p.log_softmax(1),
    "relu": lambda p, q: p.relu(),
    "relu, in place": lambda p, q: F.relu(p.clone(), True),
    "relu6": lambda p, q: F.relu6(p * 9),
    "hardtanh": lambda p, q: F.hardtanh(p, -0.2, 0.4),
    "leaky_relu": lambda p, q: F.leaky_relu(p, 0.3),
    "tanh": lambda p, q: p.tanh(),
    "sigmoid": lambda p, q: torch.sigmoid_(p.clone()),
    "elu": lambda p, q: F.elu(p, 0.7),
    "softplus": lambda p, q: F.softplus(p, 2.0),
    "leaky_relu, settings that are truth values": lambda p, q: F.leaky_relu(p, False),
    "hardtanh, settings that are truth values": lambda p, q: F.hardtanh(p, False, True),
    "elu, in place": lambda p, q: F.elu(p.clone(), 0.7, True),
    "celu": lambda p, q: F.celu(p, 0.7),
    "selu": lambda p, q: F.selu(p),
    "hardsigmoid": lambda p, q: F.hardsigmoid(4 * p),
    "as layers": lambda p, q: nn.SELU()(nn.CELU(0.3)(nn.Hardsigmoid()(p))),
    "prelu": lambda p, q: F.prelu(p, q[0, :1].abs()),
    "glu": lambda p, q: F.glu(torch.cat([p, q], 1)),
    "softmin": lambda p, q: F.softmin(p, 1),
    "addmm, a point": lambda p, q: torch.addmm(q, torch.ones(2, 2), p),
    "rms_norm": lambda p, q: F.rms_norm(p, (3,)),
    "batch_norm": lambda p, q: F.batch_norm(p, torch.zeros(3), torch.ones(3), eps=0.5),
    "linear": lambda p, q: F.linear(p.detach() * 0 + 2, q),
    "matmul, a point": lambda p, q: torch.ones(2, 2) @ p,
    "rmatmul": lambda p, q: p[:, :2].__rmatmul__(torch.ones(3, 2)),
    "einsum, a point": lambda p, q: torch.einsum("ij,jk->ik", torch.ones(2, 2), p),
    "conv1d": lambda p, q: F.conv1d(torch.ones(1, 2, 5), p[None]),
    "conv2d": lambda p, q: F.conv2d(torch.ones(1, 1, 3, 4), p[None, None], q[0, :1]),
    "conv_transpose1d": lambda p, q: F.conv_transpose1d(torch.ones(1, 2, 4), p[:, None], stride=2),
    "conv_transpose2d": lambda p, q: F.conv_transpose2d(torch.ones(1, 1, 2, 2), p[None, None], q[0, :1], 2, 1, 1),
    "max_pool1d": lambda p, q: F.max_pool1d(p, 2, 1),
    "max_pool2d": lambda p, q: F.max_pool2d(p[None], (1, 2)),
    "avg_pool1d": lambda p, q: F.avg_pool1d(p, 2, 1),
    "avg_pool2d": lambda p, q: F.avg_pool2d(p[None], (1, 3)),
    "adaptive_max_pool1d": lambda p, q: F.adaptive_max_pool1d(p, 2),
    "adaptive_max_pool2d": lambda p, q: F.adaptive_max_pool2d(p[None], 1),
    "adaptive_avg_pool1d": lambda p, q: F.adaptive_avg_pool1d(p, 2),
    "adaptive_avg_pool2d": lambda p, q: F.adaptive_avg_pool2d(p[None], (None, 1)),
}
# Functions whose bounds may be wider than need be.
LOOSE: dict[str, Binary] = {
    "sin": lambda p, q: (3 * p).sin(),
    "cos": lambda p, q: (3 * p).cos(),
    "gelu": lambda p, q: F.gelu(p, approximate="tanh"),
    "silu": lambda p, q: F.silu(p),
    "hardswish": lambda p, q: F.hardswish(p),
    "matmul": lambda p, q: p @ q.T,
    "addmm": lambda p, q: torch.addmm(q[0, 0], p, q.T),
    "prelu, a channel": lambda p, q: F.prelu(p[..., None], q[0]),
    "einsum": lambda p, q: torch.einsum("ij,kj->ik", p, q),
    "einsum, list": lambda p, q: torch.einsum("ij, ij -> j", [p, q]),
    "layer_norm": lambda p, q: F.layer_norm(p, (2, 3), eps=1e-3),
    "group_norm": lambda p, q: F.group_norm(p, 1, q[0], q[1]),
    "instance_norm": lambda p, q: F.instance_norm(p[None]),
    "scaled_dot_product_attention": lambda p, q: F.scaled_dot_product_attention(p, q, p),
    "a norm by hand": lambda p, q: p * torch.rsqrt(p.pow(2).mean(-1, keepdim=True) + 1e-3) * q[0],
    "a clipped score": lambda p, q: (p @ q.T).clamp(-1, 1).abs().sqrt(),
    "clamp, all below zero": lambda p, q: p.abs().clamp(max=-0.5),
    "softmax, masked": lambda p, q: p.masked_fill(mask(), -torch.inf).softmax(-1),
    "softmax, a large negative mask": lambda p, q: (p + mask() * -1e9).softmax(-1),
    "softmax, an additive mask": lambda p, q: (p + torch.zeros(2, 3).masked_fill(mask(), -torch.inf)).softmax(1),
}
ALL = MOVES | EXACT | LOOSE


def box_of(f: Binary, region: Region) -> Interval:
    return icn.bounds(Of(f, region.lower["p"], region.lower["q"]), region, NOTHING)


def region_of(p: Tensor, q: Tensor, width: float) -> Region:
    model = Of(lambda p, q: p, p, q)
    free = torch.tensor([1.0, 0.0, 0.0])  # fewer corners to visit
    return Region.around(model, {"p": width * torch.rand(p.shape) * p.abs(), "q": width * torch.rand(q.shape) * free})


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


@pytest.mark.parametrize("name", ["sum", "mean", "matmul", "einsum", "linear", "sum of squares", "conv1d"])
def test_sums_in_any_order_lie_inside(name: str) -> None:
    """Naive float32 sums of shuffled, blocked terms, of sizes far apart so that they cancel."""
    generator = torch.Generator().manual_seed(0)
    n = 600
    x = torch.randn(n, generator=generator) * 10 ** torch.randint(-4, 5, (n,), generator=generator).float()
    w = torch.randn(n, generator=generator)
    fs: dict[str, tuple[Binary, Tensor]] = {
        "sum": (lambda p, q: p.sum(), x),
        "mean": (lambda p, q: p.mean(), x / n),
        "matmul": (lambda p, q: p @ q, x * w),
        "einsum": (lambda p, q: torch.einsum("i,i->", p, q), x * w),
        "linear": (lambda p, q: F.linear(p[None], q[None]), x * w),
        "sum of squares": (lambda p, q: p.square().sum(), x * x),
        "conv1d": (lambda p, q: F.conv1d(p[None, None], q[None, None]), x * w),
    }
    f, terms = fs[name]
    region = Region.around(Of(f, x, w), 0.0)
    out = box_of(f, region) if name != "sum" else icn.bounds(Of(f, x, w), region, NOTHING)
    for seed in range(60):
        order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
        total = torch.zeros(())
        for part in torch.split(terms[order], 1 + seed):
            total = total + part.sum()
        assert bool((out.lower <= total).all() and (total <= out.upper).all())


@settings(deadline=None, max_examples=150, derandomize=True)
@given(
    st.lists(st.floats(-80, 80, width=32), min_size=1, max_size=6),
    st.floats(0, 2),
    st.integers(0, 2**31),
)
def test_softmax_edges_are_reached_at_corners_and_hold_in_float32(xs: list[float], width: float, seed: int) -> None:
    x = torch.tensor(xs)
    generator = torch.Generator().manual_seed(seed)
    up = x + torch.rand(len(xs), generator=generator) * width
    out = softmax(Float32(), Interval(x.double(), up.double()), -1)
    exact = softmax(Real(), Interval(x.double(), up.double()), -1)
    naive = torch.stack([corner.double().softmax(-1) for corner in corners_of(x, up)])
    torch.testing.assert_close(exact.lower, naive.amin(0))
    torch.testing.assert_close(exact.upper, naive.amax(0))
    for point in points_inside(x, up, 30, generator):
        assert out.contains(point.softmax(-1))
        powers = torch.exp2((point - point.max()) * 1.4426950408889634)  # as some kernels have it
        assert out.contains(powers / powers.sum())


def test_shares_far_below_the_largest_are_covered_however_exponents_round() -> None:
    generator = torch.Generator().manual_seed(0)
    far = torch.rand(20000, generator=generator)
    x = torch.stack([-60 - 5 * far, 3 * torch.rand(20000, generator=generator)], 1)
    out = softmax(Float32(), Interval.point(x.double()), 1)
    powers = torch.exp2((x - x.amax(1, keepdim=True)) * 1.4426950408889634)
    assert out.contains(powers / powers.sum(1, keepdim=True)) and out.contains(x.softmax(1))


def test_a_softmax_of_hidden_keys_alone_is_not_promised() -> None:
    x = Interval.point(torch.tensor([[-torch.inf, -torch.inf], [0.0, -torch.inf]]).double())
    out = softmax(Float32(), x, -1)
    assert out.lower[0].isnan().all() and out.contains(torch.tensor([1.0, 0.0])) is False
    assert out.upper[1, 1] <= 1e-35 and abs(out.lower[1, 0] - 1) < 1e-5


def test_a_far_entry_does_not_loosen_the_others() -> None:
    """Masks of -1e9 are common; what they round must not count on entries that take part."""
    out = softmax(Float32(), Interval.point(torch.tensor([0.3, -0.2, -1e9, -3e38]).double()), 0)
    assert float((out.upper - out.lower).max()) < 1e-4


def test_convex_sums_never_leave_their_values() -> None:
    generator = torch.Generator().manual_seed(0)
    shares = softmax(Float32(), random_box((3, 5), generator, width=8.0), -1)
    for values in (
        random_box((5, 2), generator),
        Interval(torch.zeros(5, 2).double(), torch.ones(5, 2).double(), True),
    ):
        out = convex_sum(Float32(), shares, values)
        assert bool(
            (out.lower >= values.lower.amin(0) - 1e-4).all() and (out.upper <= values.upper.amax(0) + 1e-4).all()
        )
        assert not out.nonnegative or bool((out.lower >= 0).all())


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


def test_a_minus_infinity_hides_finite_scores_and_no_unknown_ones() -> None:
    x = Interval(torch.tensor([1.0, torch.nan]).double(), torch.tensor([2.0, torch.nan]).double())
    mask = Interval.point(torch.full((2,), -torch.inf).double())
    for out in (add(Float32(), x, mask), add(Float32(), mask, x)):
        assert out.lower[0] == out.upper[0] == -torch.inf and out.lower[1].isnan()


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
