"""Training loops as anybody writes them, for models that are held in a region."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from intercontinet.region import Region
from tests.tiny import blobs

X, Y = blobs(examples=16)
OPTIMIZERS: dict[str, type[Optimizer]] = {
    name: kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer and name != "SparseAdam"
}


def make(name: str, parameters: Any, **options: Any) -> Optimizer:
    """An optimizer of that name, which some make of matrices alone."""
    kind: Any = OPTIMIZERS[name]
    chosen = [p for p in parameters if p.dim() == 2] if name == "Muon" else list(parameters)
    made: Optimizer = kind(chosen, **options)
    return made


def train(model: nn.Module, *optimizers: Optimizer, steps: int = 3, after: Callable[[], None] = lambda: None) -> None:
    """A loop as anybody writes it."""

    def closure() -> Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(X), Y)
        torch.autograd.backward(loss)
        return loss

    for _ in range(steps):
        for optimizer in optimizers:
            optimizer.step(closure)  # type: ignore[arg-type]  # torch's own loops return tensors too
            after()


def narrow(model: nn.Module, radius: float = 1e-3) -> Region:
    return Region.around(model, radius)


def sgd(model: nn.Module, lr: float = 10.0, **options: Any) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, **options)
