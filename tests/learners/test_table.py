"""Tables: which nets are one, and what their outputs are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from intercontinet.errors import InvalidModel
from intercontinet.learners.table import Table
from tests.learners.tables import SIZE, examples, scores, table


@pytest.mark.parametrize(
    "net",
    [
        nn.EmbeddingBag(4, 4, mode="sum"),
        nn.Sequential(nn.EmbeddingBag(4, 4, mode="mean")),
        nn.Sequential(nn.EmbeddingBag(4, 4, mode="sum"), nn.MaxPool1d(2), nn.ReLU()),
        nn.Sequential(nn.EmbeddingBag(4, 4, mode="sum"), nn.ReLU()),
        nn.Sequential(nn.EmbeddingBag(4, 4, mode="sum"), nn.MaxPool1d(3)),
        nn.Sequential(nn.EmbeddingBag(4, 4, mode="sum"), nn.MaxPool1d(2, stride=1)),
        nn.Sequential(nn.EmbeddingBag(4, 4, mode="sum"), nn.MaxPool1d(2, padding=1)),
    ],
)
def test_nets_that_are_no_table_are_refused(net: nn.Module) -> None:
    with pytest.raises(InvalidModel, match=r"EmbeddingBag|maximum over each output's columns"):
        Table.of(net)


def test_outputs_are_the_largest_of_their_columns() -> None:
    of = table(3, slots=2)
    assert (of.slots, of.columns, of.free_columns(torch.ones(6), 2)) == (2, 6, [4, 5])
    sums = torch.tensor([[1.0, 2.0, 5.0, 4.0, 0.0, -1.0]])
    assert of.outputs(sums).tolist() == [[2.0, 5.0, 0.0]]
    weight = torch.rand(SIZE, 6)
    rows = examples((0,), 5).x
    found = torch.func.functional_call(of.net, {"0.weight": weight}, (rows,))
    assert found.double().numpy() == pytest.approx(scores(weight, rows, 2), rel=1e-5)
