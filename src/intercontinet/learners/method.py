"""What every continual-learning method is: a few functions of a stack of weight vectors, one row a seed, and a task.

A method carries nothing but its settings. What it must remember from one task to the next it returns as tensors, so
that a run can stop after any task, be written to a file, and go on as if nothing had happened.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intercontinet.bounds import Network
from intercontinet.engine.layout import Layout
from intercontinet.engine.loop import (
    Augment,
    Batch,
    Fixed,
    Listener,
    Objective,
    Parameters,
    Phase,
    Progress,
    Statistics,
    train,
)
from intercontinet.engine.optimizer import SGD, Adam, Optimizer
from intercontinet.engine.parametrisation import Identity, Parametrisation
from intercontinet.errors import InvalidModel, InvalidRegion, InvalidSetting
from intercontinet.inference import positions
from intercontinet.noise import key_of

Memory = Mapping[str, Tensor]  # [seeds, ...] each
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@final
class Nets:
    """One architecture and the seeds that train it side by side.

    Args:
        model: The architecture. Weights that move are never read from it; those that do not (buffers, parameters with
            requires_grad=False) are.
        seeds: One a net: it fixes the order of examples, dropout and augmentation.
        augment: What to do to training images, if anything.
    """

    def __init__(self, model: nn.Module, seeds: Sequence[int], augment: Augment | None = None) -> None:
        movable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not movable:
            raise InvalidModel("every parameter has requires_grad=False: there is nothing to learn")
        self.model, self.seeds, self.augment = model, tuple(seeds), augment
        self.network, self.layout = Network(model), Layout.of(movable)

    @property
    def stacked(self) -> bool:
        """Whether seeds go through vmap: not where there are convolutions, which are faster one after the other."""
        return not any(isinstance(module, CONVOLUTIONS) for module in self.model.modules())

    def phase(
        self, name: str, objective: Objective, plan: Plan, *, way: Parametrisation | None = None, **changes: object
    ) -> Phase:
        """A stretch of training of these nets' weights, with dropout and augmentation where they have them."""
        phase = Phase(
            name,
            objective,
            self.layout,
            way or Identity(),
            plan.optimizer,
            plan.epochs,
            plan.batch_size,
            milestones=plan.milestones,
            noise=self.network.drops,
            augment=self.augment,
            stacked=self.stacked,
        )
        return replace(phase, **changes)  # type: ignore[arg-type]

    def keys(self, *place: int) -> list[int]:
        """One key a seed for a place in a run, such as (task, phase)."""
        return [key_of(seed, *place) for seed in self.seeds]

    def rows(self, seeds: slice) -> Nets:
        """Some of the seeds."""
        return Nets(self.model, self.seeds[seeds], self.augment)


@dataclass(frozen=True)
class Lesson:
    """One task, as methods see it.

    Attributes:
        name: For people.
        index: Its place among the tasks of the stream, from 0.
        x: Examples.
        y: Their labels, which name outputs.
        classes: The outputs among which to choose, where the task is known; None for all.
        mirrored: The same examples seen in a mirror, where a method trains on them too.
        strangers: Examples of no task, without labels, where a method is given any: the same in all lessons.
        known: Examples that occur elsewhere too, in this task or an earlier one: no bound stands on them, [examples].
    """

    name: str
    index: int
    x: Tensor
    y: Tensor
    classes: tuple[int, ...] | None = None
    mirrored: Tensor | None = None
    strangers: Tensor | None = None
    known: Tensor | None = None

    def labels(self) -> tuple[Tensor, Tensor | None]:
        """Labels as positions among the classes, and the classes as an index."""
        return positions(self.y, self.classes)


@dataclass(frozen=True)
class Plan:
    """How long to train and how to step."""

    optimizer: Optimizer
    epochs: int
    batch_size: int
    milestones: Sequence[int] = ()


class Method(Protocol):
    """A continual-learning method."""

    def learn(
        self, nets: Nets, weights: Tensor, memory: Memory, lesson: Lesson, listen: Listener | None = None
    ) -> tuple[Tensor, Memory]:
        """Learn one task, having none of the others at hand.

        Args:
            nets: What is trained.
            weights: [seeds, entries]; left as they are.
            memory: What this method returned after the task before; empty at first.
            lesson: The task.
            listen: Called after every epoch.

        Returns:
            The new weights and memory.
        """
        ...


@dataclass(frozen=True)
class Schedule:
    """Settings that all methods share.

    Attributes:
        optimizer: "sgd" or "adam".
        rate: Learning rate.
        epochs: Passes over a task's data.
        batch_size: Examples a step; the last incomplete batch is dropped.
        milestones: Epochs after which the rate falls to a tenth.
    """

    optimizer: str = "sgd"
    rate: float = 0.001
    epochs: int = 30
    batch_size: int = 128
    milestones: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.optimizer not in ("sgd", "adam"):
            raise InvalidSetting(f"optimizer is {self.optimizer!r}; choose one of 'sgd', 'adam'")
        if not 0 < self.rate < math.inf:
            raise InvalidSetting(f"rate is {self.rate}; it must be a positive number")
        if self.batch_size < 1 or self.epochs < 0:
            raise InvalidSetting("batch_size must be at least 1, and epochs not negative")
        if getattr(self, "strength", 0.0) < 0:
            raise InvalidSetting("strength is negative: it must be zero or more")

    def plan(self) -> Plan:
        return Plan(stepping(self.optimizer, self.rate), self.epochs, self.batch_size, self.milestones)


def stepping(optimizer: str, rate: float) -> Optimizer:
    """An optimizer by its name."""
    return SGD(rate) if optimizer == "sgd" else Adam(rate)


Loss = Callable[[Tensor, Tensor], Tensor]


def objective_of(loss: Loss, network: Network, classes: Tensor | None) -> Objective:
    """A loss of outputs [batch, classes] and labels [batch], among some classes; its statistic is the accuracy."""

    def objective(weights: Parameters, fixed: Fixed, batch: Batch) -> tuple[Tensor, Statistics]:
        out = network.run(weights, batch["x"], batch.get("noise"))
        out = out if classes is None else out[:, classes]
        return loss(out, batch["y"]), lambda: hits(out, batch["y"])

    return objective


def cross_entropy(network: Network, classes: Tensor | None) -> Objective:
    """Cross-entropy among some classes."""
    return objective_of(F.cross_entropy, network, classes)


def hits(out: Tensor, labels: Tensor) -> Tensor:
    """Share of a batch that is right, [1]."""
    return (out.detach().argmax(1) == labels).mean(0, keepdim=True, dtype=out.dtype)


def trained(
    nets: Nets,
    phase: Phase,
    weights: Tensor,
    lesson: Lesson,
    listen: Listener | None,
    fixed: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """Weights after one phase on a task; NaN where training diverged."""
    labels, _ = lesson.labels()
    keys = nets.keys(lesson.index, 0)
    return train(phase, weights, fixed or {}, {"x": lesson.x, "y": labels}, {}, keys, telling(lesson, listen))


def telling(lesson: Lesson, listen: Listener | None) -> Listener | None:
    """A listener that is told the task's name."""
    if listen is None:
        return None

    def hear(progress: Progress) -> None:
        listen(replace(progress, task=lesson.name))

    return hear


def earlier(memory: Memory, name: str) -> Tensor:
    """What a memory has of each earlier task by some name, [seeds, tasks, ...]; "enough" is younger than others."""
    return memory[name] if name in memory else torch.ones_like(memory["certified"], dtype=torch.bool)


def check_nested(weights: Tensor, edges: tuple[Tensor, Tensor], parent: tuple[Tensor, Tensor]) -> None:
    """Regions lie in their parents, and weights in their regions, or nothing earlier would be certain any more."""
    (low, up), (lower, upper) = edges, parent
    inside = (lower <= low) & (low <= weights) & (weights <= up) & (up <= upper)
    if not bool(inside.all()):
        raise InvalidRegion("a region left its parent, or its own weights: old floors would not hold. This is a bug")


def diverged(weights: Tensor, nets: Nets) -> list[int]:
    """The seeds whose training ended in NaN or infinity."""
    return [seed for seed, fine in zip(nets.seeds, weights.isfinite().all(1).tolist(), strict=True) if not fine]
