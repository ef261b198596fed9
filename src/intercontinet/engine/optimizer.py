"""Gradient steps on a stack of parameter vectors, one row a seed: rows that hold still change in nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, final

import torch
from torch import Tensor

State = tuple[Tensor, ...]


class Optimizer(Protocol):
    """What the loop asks of an optimizer."""

    def start(self, values: Tensor) -> State:
        """Its memory before the first step."""
        ...

    def step_(self, values: Tensor, gradient: Tensor, state: State, moving: Tensor | None) -> None:
        """Move ``values`` [seeds, entries] in place; ``moving`` [seeds] says which rows do, None that all do."""
        ...

    def scaled(self, factor: float) -> Optimizer:
        """The same with another learning rate and the same memory."""
        ...


@final
@dataclass(frozen=True)
class SGD:
    """values -= rate * gradient.

    >>> values = torch.ones(1, 2)
    >>> SGD(0.5).step_(values, torch.tensor([[1.0, 0.0]]), (), None)
    >>> values
    tensor([[0.5000, 1.0000]])
    """

    rate: float

    def start(self, values: Tensor) -> State:
        return ()

    def step_(self, values: Tensor, gradient: Tensor, state: State, moving: Tensor | None) -> None:
        if moving is not None:
            gradient = torch.where(moving[:, None], gradient, 0)
        values.sub_(gradient, alpha=self.rate)

    def scaled(self, factor: float) -> SGD:
        return SGD(self.rate * factor)


@final
@dataclass(frozen=True)
class Stride:
    """One step of an optimizer, about to be taken.

    Attributes:
        optimizer: Whose step.
        state: Its memory.
        moving: Which rows move, [seeds]; None for all.
    """

    optimizer: Optimizer
    state: State = ()
    moving: Tensor | None = None

    @property
    def rate(self) -> float | None:
        """The learning rate, where every row's step is just that times its gradient, for which there are shortcuts."""
        return self.optimizer.rate if isinstance(self.optimizer, SGD) and self.moving is None else None

    def step_(self, values: Tensor, gradient: Tensor) -> None:
        """Move ``values`` [seeds, entries] in place."""
        self.optimizer.step_(values, gradient, self.state, self.moving)


@final
@dataclass(frozen=True)
class Adam:
    """Adam with bias correction; each seed counts its own steps."""

    rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def start(self, values: Tensor) -> State:
        return torch.zeros_like(values), torch.zeros_like(values), torch.zeros_like(values[:, :1])

    def step_(self, values: Tensor, gradient: Tensor, state: State, moving: Tensor | None) -> None:
        mean, square, count = state
        if moving is not None:
            still = ~moving[:, None]
            before = [t.clone() for t in (values, mean, square, count)]
        mean.lerp_(gradient, 1 - self.beta1)
        square.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        count.add_(1)
        root = torch.sqrt(1 - self.beta2**count)
        values.sub_(mean * (self.rate * root / (1 - self.beta1**count)) / square.sqrt().add_(self.epsilon * root))
        if moving is not None:
            for tensor, old in zip((values, mean, square, count), before, strict=True):
                tensor.copy_(torch.where(still, old, tensor))

    def scaled(self, factor: float) -> Adam:
        return replace(self, rate=self.rate * factor)


@final
@dataclass(frozen=True)
class PathIntegral:
    r"""Another optimizer, and beside it the sum of :math:`g \cdot \Delta\theta` over its steps, entry by entry.

    Args:
        steps: The optimizer that moves the values.
        total: [seeds, entries]; the sum is added to it in place.

    >>> values, total = torch.ones(1, 2), torch.zeros(1, 2)
    >>> path = PathIntegral(SGD(0.5), total)
    >>> path.step_(values, torch.tensor([[1.0, 2.0]]), path.start(values), None)
    >>> total
    tensor([[-0.5000, -2.0000]])
    """

    steps: Optimizer
    total: Tensor

    def start(self, values: Tensor) -> State:
        return (self.total, *self.steps.start(values))

    def step_(self, values: Tensor, gradient: Tensor, state: State, moving: Tensor | None) -> None:
        before = values.clone()
        self.steps.step_(values, gradient, state[1:], moving)
        state[0].addcmul_(gradient, values - before)

    def scaled(self, factor: float) -> PathIntegral:
        return PathIntegral(self.steps.scaled(factor), self.total)


@final
@dataclass(frozen=True)
class Measure:
    r"""No step at all: :math:`\sum |g|^p` over the batches, entry by entry, for importances.

    Args:
        power: 1 or 2.
        total: [seeds, entries]; the sum is added to it in place.
    """

    power: int
    total: Tensor

    def start(self, values: Tensor) -> State:
        return (self.total,)

    def step_(self, values: Tensor, gradient: Tensor, state: State, moving: Tensor | None) -> None:
        state[0].add_(gradient.abs() if self.power == 1 else gradient.square())

    def scaled(self, factor: float) -> Measure:
        return self
