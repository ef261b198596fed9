"""The lesser of each pair: against plain Python, and bounds that are reached."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import intercontinet as icn
from intercontinet.bounds import Float32, Network
from intercontinet.errors import InvalidData
from intercontinet.interval import Interval
from intercontinet.nets import Lesser, with_table
from tests.strategies import weights_inside


def test_each_pair_gives_the_lesser() -> None:
    x = torch.randn(7, 6, generator=torch.Generator().manual_seed(0))
    expected = [[min(row[i], row[i + 1]) for i in (0, 2, 4)] for row in x.tolist()]
    assert Lesser()(x).tolist() == expected
    with pytest.raises(InvalidData, match="even number of columns"):
        Lesser()(x[:, :5])


@pytest.mark.parametrize("slots", [1, 2])
def test_bounds_hold_for_all_weights_and_are_reached_at_the_edges(slots: int) -> None:
    model = with_table(nn.Sequential(), 5, outputs=2, slots=slots, capped=True)
    assert [type(layer).__name__ for layer in model] == ["EmbeddingBag", "Lesser", "MaxPool1d"][: 1 + slots]
    generator = torch.Generator().manual_seed(1)
    lower = torch.randn(5, 4 * slots, generator=generator)
    region = icn.Region({"0.weight": lower}, {"0.weight": lower + torch.rand(lower.shape, generator=generator)})
    rows = torch.randint(5, (9, 3), generator=generator)
    found = Network(model).propagate(region.intervals(torch.float64), Interval.point(rows), Float32())
    for weight in weights_inside(region, 30, generator)["0.weight"]:
        z = torch.func.functional_call(model, {"0.weight": weight}, (rows,))
        assert bool((found.lower <= z).all() and (z <= found.upper).all())
    for edge, bound in ((region.lower, found.lower), (region.upper, found.upper)):
        reached = torch.func.functional_call(model, dict(edge), (rows,))
        assert float((reached - bound).abs().max()) < 1e-4
