"""Small models and data that tests share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import intercontinet as icn
from intercontinet.noise import mixed, orders

Pair = tuple[Tensor, Tensor]

QUICK: dict[str, Any] = {
    "optimizer": "adam",
    "rate": 0.02,
    "radii_rate": 0.3,
    "centre_epochs": 12,
    "radii_epochs": 4,
    "batch_size": 16,
}


def mlp(inputs: int = 2, hidden: int = 8, outputs: int = 2, seed: int = 0) -> nn.Sequential:
    """One hidden layer of ReLUs."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def with_statistics(seed: int = 0) -> nn.Sequential:
    """An evaluated network with a BatchNorm layer whose statistics are not the initial ones."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    model(torch.randn(32, 2))
    return model.eval()


def fitted(data: Pair, model: nn.Sequential | None = None, steps: int = 60) -> nn.Sequential:
    """A model trained by plain PyTorch."""
    model = mlp() if model is None else model
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.autograd.backward(torch.nn.functional.cross_entropy(model(data[0]), data[1]))
        optimizer.step()
    optimizer.zero_grad()
    return model


def blobs(
    labels: tuple[int, ...] = (0, 1), examples: int = 48, seed: int = 0, inputs: int = 2, spread: float = 0.3
) -> Pair:
    """One cloud a label, well separated unless spread wide, at places that depend on the seed."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.tensor(labels).repeat(examples)[:examples]
    places = 2 * torch.nn.functional.normalize(torch.randn(max(labels) + 1, inputs, generator=generator), dim=1)
    first, second = labels[0], labels[-1]
    places[second] = -places[first]
    return places[y] + spread * torch.randn(examples, inputs, generator=generator), y


def order(key: int, epoch: int, examples: int) -> Tensor:
    """How a seed with this key sees the examples in an epoch, counted from 1."""
    return orders(mixed(torch.tensor([key]) + epoch), examples)[0]


def batches(key: int, epochs: int, examples: int, size: int) -> Iterator[Tensor]:
    """The rows of every batch in turn; an epoch's last incomplete one is dropped."""
    for epoch in range(1, epochs + 1):
        yield from torch.split(order(key, epoch, examples)[: examples // size * size], size)


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """A copy of everything in the model's state dict."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two state dicts agree to the bit (NaN equals NaN)."""

    def bits(tensor: Tensor) -> Tensor:
        return tensor.detach().reshape(-1).view(torch.uint8)

    return one.keys() == other.keys() and all(torch.equal(bits(one[name]), bits(other[name])) for name in one)


def without_bound(floor: icn.TaskFloor) -> icn.TaskFloor:
    """Without a word of the unseen, as after going on from a certificate, which does not say what tasks had before."""
    return replace(floor, unseen_certified=None, unseen_total=None)
