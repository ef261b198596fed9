"""EmbeddingBag: exact over boxes, true of float32, and nothing but plain sums and means."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import intercontinet as icn
from intercontinet.bounds.arithmetic import Float32, Real
from intercontinet.bounds.embedding import embedding_bag
from intercontinet.errors import InvalidData, UnsupportedLayer
from intercontinet.floor import certain_examples
from intercontinet.interval import Interval

ROWS = torch.tensor([[0, 3, 3, 5], [1, 2, 4, 5]])


def box(dtype: torch.dtype = torch.float64) -> Interval:
    generator = torch.Generator().manual_seed(0)
    lower = torch.randn(6, 3, generator=generator, dtype=dtype)
    return Interval(lower, lower + torch.rand(6, 3, generator=generator, dtype=dtype))


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_edges_are_those_of_a_naive_sum_and_are_reached(mode: str) -> None:
    layer, weight = nn.EmbeddingBag(6, 3, mode=mode), box()
    out = embedding_bag(layer, {"weight": weight}, Interval.point(ROWS), Real())
    for edge, values in ((out.lower, weight.lower), (out.upper, weight.upper)):
        naive = torch.stack([values[rows].sum(0) if mode == "sum" else values[rows].mean(0) for rows in ROWS])
        torch.testing.assert_close(edge, naive)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_float32_sums_in_any_order_lie_inside(mode: str) -> None:
    generator = torch.Generator().manual_seed(0)
    layer = nn.EmbeddingBag(64, 1, mode=mode)
    weight = torch.randn(64, 1, generator=generator) * 10 ** torch.randint(-3, 4, (64, 1), generator=generator).float()
    rows = torch.randint(64, (1, 2000), generator=generator)
    out = embedding_bag(layer, {"weight": Interval.point(weight.double())}, Interval.point(rows), Float32())
    for seed in range(50):
        order = torch.randperm(2000, generator=torch.Generator().manual_seed(seed))
        terms = weight[rows[0, order], 0]
        total = torch.tensor(0.0)
        for part in torch.split(terms, 7):
            total = total + part.sum()
        value = total if mode == "sum" else total / 2000
        assert out.lower.item() <= value.item() <= out.upper.item()


def test_certify_counts_what_corners_of_the_box_cannot_change() -> None:
    """With one row of weights a class the worst corner is known: own edge low, all others high."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(6, 3, mode="sum"))
    region = icn.Region.around(model, 0.2)
    lower, upper = region.lower["0.weight"], region.upper["0.weight"]
    rows = torch.randint(6, (200, 4))
    y = model(rows).argmax(1)
    own = nn.functional.embedding_bag(rows, lower, mode="sum")
    others = nn.functional.embedding_bag(rows, upper, mode="sum").scatter(1, y[:, None], -torch.inf)
    certain = int((own.gather(1, y[:, None]).squeeze(1) > others.max(1).values).sum())
    counted = certain_examples(model, region, rows, y, None, quick=True)
    assert 0 < certain < 200 and int(counted.sum()) == certain


@pytest.mark.parametrize(
    "layer",
    [nn.EmbeddingBag(6, 3, mode="max"), nn.EmbeddingBag(6, 3, max_norm=1.0), nn.EmbeddingBag(6, 3, padding_idx=0)],
)
def test_what_is_more_than_a_sum_is_refused(layer: nn.EmbeddingBag) -> None:
    with pytest.raises(UnsupportedLayer, match="must sum or average"):
        embedding_bag(layer, {"weight": box()}, Interval.point(ROWS), Real())


@pytest.mark.parametrize("x", [Interval(ROWS, ROWS + 1), Interval.point(ROWS.float()), Interval.point(ROWS[0])])
def test_rows_must_be_known(x: Interval) -> None:
    with pytest.raises(InvalidData, match="whole numbers"):
        embedding_bag(nn.EmbeddingBag(6, 3), {"weight": box()}, x, Real())


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("arithmetic", [Real(), Float32()])
@pytest.mark.parametrize("weight", [box(), Interval.point(box().lower)])
def test_an_unknown_row_makes_its_example_and_no_other_unknown(
    mode: str, arithmetic: Real | Float32, weight: Interval
) -> None:
    layer, rows = nn.EmbeddingBag(6, 3, mode=mode), torch.tensor([[0, 3, 3, 5], [-1, 2, 4, 5], [-1] * 4, [1, 2, 4, 5]])
    out = embedding_bag(layer, {"weight": weight}, Interval.point(rows), arithmetic)
    known = embedding_bag(layer, {"weight": weight}, Interval.point(ROWS), arithmetic)
    for edge, same in ((out.lower, known.lower), (out.upper, known.upper)):
        assert torch.equal(edge[[0, 3]], same) and bool(edge[1:3].isnan().all())
    assert out.is_point == known.is_point


def test_other_negative_rows_are_mistakes() -> None:
    with pytest.raises((IndexError, RuntimeError)):
        embedding_bag(nn.EmbeddingBag(6, 3), {"weight": box()}, Interval.point(torch.tensor([[-2, 0]])), Real())
