"""Attention: sound for all ways to mask and to compute it, a point where its inputs are points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import intercontinet as icn
from intercontinet.bounds import Arithmetic, forward
from intercontinet.bounds.arithmetic import Float32, Real
from intercontinet.bounds.attention import as_hidden, attention, hidden_by
from intercontinet.errors import UnsupportedLayer
from intercontinet.interval import Interval
from tests.strategies import points_inside, random_box, weights_inside

MASKS: dict[str, Tensor | None] = {
    "none": None,
    "truth values": torch.tensor([[True, False, True, True], [True, True, True, False]]),
    "added": torch.tensor([[0.0, -torch.inf, 0.0, 0.0], [0.0, 0.0, -torch.inf, 0.0]]),
}


def attend(arithmetic: Arithmetic, boxes: Sequence[Interval], mask: object = None, is_causal: bool = False) -> Interval:
    query, key, value = boxes
    return attention(arithmetic, query, key, value, mask, is_causal=is_causal)


def points(*values: Tensor) -> list[Interval]:
    return [Interval.point(value.double()) for value in values]


def by_hand(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, where: str) -> Tensor:
    """With the scale on the scores, on the queries, or half of it on either."""
    scale = 1 / math.sqrt(q.shape[-1])
    if where == "scores":
        scores = q @ k.mT * scale
    elif where == "queries":
        scores = (q * scale) @ k.mT
    else:
        scores = (q * scale**0.5) @ (k * scale**0.5).mT
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1) @ v


def blockwise(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Key by key, with a running maximum, as fused kernels do."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    top, total = torch.full_like(scores[..., :1], -torch.inf), torch.zeros_like(scores[..., :1])
    out = torch.zeros(*scores.shape[:-1], v.shape[-1])
    for i in range(k.shape[-2]):
        new = torch.maximum(top, scores[..., i : i + 1])
        old, share = (top - new).exp(), (scores[..., i : i + 1] - new).exp()
        total, out, top = total * old + share, out * old + share * v[..., i : i + 1, :], new
    return out / total


@pytest.mark.parametrize("mask", list(MASKS))
@pytest.mark.parametrize("width", [0.0, 1e-6, 0.2, 3.0])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_every_way_to_attend_in_float32_stays_inside(mask: str, width: float, scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    boxes = []
    for n in (2, 4, 4):
        low = torch.randn(2, n, 3, generator=generator) * scale
        boxes.append((low, low + torch.rand(low.shape, generator=generator) * width * scale))
    given = MASKS[mask]
    as_given = Interval.point(given.double()) if given is not None and given.is_floating_point() else given
    out = attend(Float32(), [Interval(low.double(), up.double()) for low, up in boxes], as_given)
    inside = (points_inside(low, up, 20, generator) for low, up in boxes)
    for q, k, v in zip(*inside, strict=True):
        assert out.contains(F.scaled_dot_product_attention(q, k, v, given))
        for where in ("scores", "queries", "both"):
            assert out.contains(by_hand(q, k, v, given, where))
        if given is None:
            assert out.contains(blockwise(q, k, v))


def test_scores_that_all_but_cancel_are_covered_in_any_order_of_their_terms() -> None:
    """Keys alike, so that shares hang on the last bits of large scores."""
    generator = torch.Generator().manual_seed(3)
    size = 512
    q = torch.randn(1, 1, size, generator=generator) * 40
    k = torch.randn(1, 1, size, generator=generator) * 40 + torch.randn(1, 2, size, generator=generator) * 0.02
    v = torch.tensor([[[1.0], [-1.0]]])
    out = attend(Float32(), points(q, k, v))
    seen = []
    for seed in range(60):
        order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
        terms = torch.split((q * k)[..., order], 1 + seed, dim=-1)
        scores = sum((part.sum(-1) for part in terms), torch.zeros(1, 2)) / math.sqrt(size)
        seen.append((scores.softmax(-1)[:, None] @ v).item())
        assert out.lower.item() <= seen[-1] <= out.upper.item()
    assert max(seen) - min(seen) > 1e-5


def test_points_give_points_but_for_rounding_and_values_bound_the_rest() -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 5, 4, generator=generator) for _ in range(3))
    tight = attend(Float32(), points(q, k, v))
    assert float((tight.upper - tight.lower).max()) < 1e-4
    wide = attention(
        Float32(),
        random_box((1, 5, 4), generator, 9.0),
        random_box((1, 5, 4), generator, 9.0),
        Interval.point(v.double()),
    )
    assert bool((wide.upper <= v.amax(-2) + 1e-4).all() and (wide.lower >= v.amin(-2) - 1e-4).all())
    exact = attend(Real(), points(q, k, v))
    torch.testing.assert_close(exact.upper, F.scaled_dot_product_attention(q.double(), k.double(), v.double()))


def test_causal_is_the_mask_of_what_lies_ahead_whatever_the_lengths() -> None:
    for queries, keys in ((3, 3), (2, 4), (4, 2)):
        generator = torch.Generator().manual_seed(2)
        q, k, v = (torch.randn(1, n, 3, generator=generator) for n in (queries, keys, keys))
        out = attend(Float32(), points(q, k, v), is_causal=True)
        assert out.contains(F.scaled_dot_product_attention(q, k, v, is_causal=True))


def test_a_query_that_sees_nothing_is_not_promised() -> None:
    q = Interval.point(torch.ones(1, 2, 3).double())
    out = attention(Float32(), q, q, q, torch.tensor([[False, False], [True, True]]))
    assert out.lower[0, 0].isnan().all() and out.lower[0, 1].isfinite().all()


def test_masks_are_told_apart() -> None:
    q = Interval.point(torch.ones(1, 2, 3))
    assert hidden_by(None, False, q, q) is None
    hidden = hidden_by(torch.tensor([True, False]), False, q, q)
    assert hidden is not None and hidden.tolist() == [False, True]
    assert as_hidden(Interval.point(torch.tensor([True, False]))).tolist() == [True, False]
    for wrong in (torch.tensor([0.0, -1e9]), Interval(torch.zeros(1), torch.ones(1)), "mask"):
        with pytest.raises(UnsupportedLayer, match="zeros and minus infinities"):
            as_hidden(wrong)


class Multi(nn.Module):
    """torch's own attention, called as its users call it."""

    def __init__(self, call: Callable[[nn.MultiheadAttention, Tensor], Tensor], batch_first: bool = True) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.3, batch_first=batch_first)
        self.call = call
        nn.init.normal_(self.attention.in_proj_bias)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.attention, x)


def causal() -> Tensor:
    return torch.ones(3, 3, dtype=torch.bool).triu(1)


def padding() -> Tensor:
    return torch.as_tensor([[False, False, True], [False, True, False]])


CALLS: dict[str, Callable[[nn.MultiheadAttention, Tensor], Tensor]] = {
    "itself": lambda layer, x: layer(x, x, x)[0],
    "without weights": lambda layer, x: layer(x, x, x, need_weights=False)[0],
    "shares": lambda layer, x: layer(x, x, x)[1],
    "keywords": lambda layer, x: layer(query=x, key=x + 1, value=x * 2)[0],
    "padding": lambda layer, x: layer(x, x, x, key_padding_mask=padding())[0],
    "padding, by place": lambda layer, x: layer(x, x, x, padding())[0],
    "causal": lambda layer, x: layer(x, x, x, attn_mask=causal(), is_causal=True, need_weights=False)[0],
    "added": lambda layer, x: layer(x, x, x, attn_mask=torch.zeros(3, 3).masked_fill(causal(), -torch.inf))[0],
    "both": lambda layer, x: layer(x, x, x, key_padding_mask=padding(), attn_mask=causal())[0],
    "for each head": lambda layer, x: layer(x, x, x, attn_mask=causal().expand(4, 3, 3))[0],
    "other keys": lambda layer, x: layer(x[:, :1], x, x)[0],
}


@pytest.mark.parametrize("which", list(CALLS))
@pytest.mark.parametrize("radius", [0.0, 1e-3, 0.2])
@torch.no_grad()
def test_multi_head_attention_stays_inside(which: str, radius: float) -> None:
    torch.manual_seed(0)
    model, x = Multi(CALLS[which]), torch.randn(2, 3, 4)
    region = icn.Region.around(model, radius)
    box = icn.bounds(model, region, x)
    weights = weights_inside(region, 20, torch.Generator().manual_seed(0))
    for index in range(20):
        out = functional_call(model, {name: stack[index] for name, stack in weights.items()}, (x,))
        assert box.contains(out) or (which == "both" and bool(out.isnan().any()))
    if radius == 0 and which != "both":
        assert float((box.upper - box.lower).max()) < 1e-3


@torch.no_grad()
def test_the_batch_may_come_second() -> None:
    torch.manual_seed(0)
    model, x = Multi(CALLS["itself"], batch_first=False), torch.randn(3, 2, 4)
    box = icn.bounds(model, icn.Region.around(model, 0.01), x)
    assert box.contains(model(x)) and box.shape == (3, 2, 4)


@pytest.mark.parametrize(
    ("layer", "call", "complaint"),
    [
        (nn.MultiheadAttention(4, 2, add_bias_kv=True, batch_first=True), CALLS["itself"], "bias_k"),
        (nn.MultiheadAttention(4, 2, kdim=4, vdim=3, batch_first=True), lambda a, x: a(x, x, x[..., :3])[0], "kdim"),
        (None, lambda a, x: a(x[0], x[0], x[0])[0], "batches only"),
        (None, lambda a, x: a(x, x, x, average_attn_weights=False)[0], "average_attn_weights"),
        (None, lambda a, x: a(x, x, x, attn_mask=~causal(), is_causal=True, need_weights=False)[0], "causal"),
        (None, lambda a, x: a(x, x, x, attn_mask=torch.eye(3))[0], "zeros and minus infinities"),
    ],
)
def test_what_its_rule_does_not_cover_is_refused_by_its_path(
    layer: nn.MultiheadAttention | None, call: Callable[[nn.MultiheadAttention, Tensor], Tensor], complaint: str
) -> None:
    model = Multi(call)
    if layer is not None:
        model.attention = layer.eval()
    with pytest.raises(UnsupportedLayer, match=rf"layer 'attention' \(MultiheadAttention\).*{complaint}"):
        icn.bounds(model, icn.Region.around(model, 0.1), torch.randn(2, 3, 4))


class Encoder(nn.Module):
    def __init__(self, nested: bool, padded: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)
        self.head, self.padded = nn.Linear(4, 2), padded
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        words = self.encoder(x, src_key_padding_mask=padding() if self.padded else None)
        out: Tensor = self.head(words.mean(1))
        return out


@torch.no_grad()
def test_an_encoder_that_puts_zeros_for_padding_only_where_it_is_fast_is_refused() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4)
    model = Encoder(nested=True, padded=True)
    with pytest.raises(UnsupportedLayer, match=r"layer 'encoder'.*enable_nested_tensor=False"):
        icn.bounds(model, icn.Region.around(model, 0.0), x)
    for nested, padded in ((True, False), (False, True)):
        model = Encoder(nested, padded)
        assert icn.bounds(model, icn.Region.around(model, 0.0), x).contains(model(x))


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_frozen_encoder_is_taken_as_it_runs_when_nobody_looks() -> None:
    """Its fast path rounds otherwise than its slow one, which torch takes when functions are watched."""
    torch.manual_seed(0)
    model, x = Encoder(nested=True, padded=True), torch.randn(2, 3, 4)
    names = ["head.weight", "head.bias"]
    region = icn.Region.around(model, dict.fromkeys(names, 0.0))
    batch = forward(model, region.lower, [Interval.point(x.double())], names, 0.0)
    hidden, _, _ = batch.head(region.intervals(torch.float64), Float32())
    assert torch.equal(hidden.lower.float(), model.encoder(x, src_key_padding_mask=padding()).mean(1))
