"""Examples in their three forms, and the hash that identifies them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

import intercontinet as icn
from intercontinet.data import collect, fingerprint
from intercontinet.errors import DeviceMismatch, InvalidData
from tests.tiny import blobs, mlp


class Pairs(Dataset[Any]):
    """A map-style data set with plain numbers as labels."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.x[index], int(self.y[index])


def test_tensors_datasets_and_loaders_give_the_same_floor() -> None:
    model, (x, y) = mlp(), blobs(examples=300)
    region = icn.Region.around(model, 0.02)
    expected = icn.certify(model, region, (x, y))
    forms: list[Any] = [
        [x, y],
        TensorDataset(x, y),
        Pairs(x, y),
        DataLoader(TensorDataset(x, y), batch_size=7),
        DataLoader(Pairs(x, y), batch_size=64, shuffle=True, generator=torch.Generator().manual_seed(3)),
    ]
    for data in forms:
        assert icn.certify(model, region, data) == expected
    assert 0 < expected.certified < expected.total, "the case must be able to tell"


def test_a_dataset_is_collected_in_its_order() -> None:
    x, y = blobs(examples=300)
    again, labels = collect(Pairs(x, y))
    assert isinstance(again, torch.Tensor) and torch.equal(again, x) and torch.equal(labels, y)


def test_the_fingerprint_ignores_order_and_nothing_else() -> None:
    x, y = blobs(examples=40)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    original = fingerprint(x, y)
    assert fingerprint(x[order], y[order]) == original
    assert fingerprint(x, y.to(torch.int32)) == original, "a label is a number, whatever holds it"
    nudged = x.clone()
    nudged[5, 1] = torch.nextafter(nudged[5, 1], torch.tensor(10.0))
    others = [
        fingerprint(x[order], y),
        fingerprint(nudged, y),
        fingerprint(x[1:], y[1:]),
        fingerprint(torch.cat([x, x[:1]]), torch.cat([y, y[:1]])),
        fingerprint(x[:, None], y),
        fingerprint(x, 1 - y),
    ]
    assert original not in others and len(set(others)) == len(others)
    assert len(original) == 64


def test_a_swap_of_labels_between_two_examples_is_noticed() -> None:
    x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1])
    assert fingerprint(x, y) != fingerprint(x, y.flip(0))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ((torch.ones(2, 2),), "a pair of tensors"),
        ((torch.ones(2, 2), [0, 1]), "a pair of tensors"),
        (torch.ones(2, 2), "not Tensor"),
        ("digits", "not str"),
        (DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=2), r"must be a pair \(x, y\)"),
        (DataLoader([(torch.ones(2), "cat")], batch_size=1), "pair of tensors, not Tensor and (list|tuple)"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_pair_of_tensors_is_refused(data: Any, complaint: str) -> None:
    with pytest.raises(InvalidData, match=complaint):
        collect(data)


def test_inputs_and_labels_must_be_on_one_device() -> None:
    with pytest.raises(DeviceMismatch, match=r"inputs are on cpu and labels on meta: move one with \.to\('cpu'\)"):
        collect((torch.ones(2, 2), torch.zeros(2, dtype=torch.long, device="meta")))
