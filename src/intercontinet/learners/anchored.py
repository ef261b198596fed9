r"""What L2, EWC, SI and MAS share: a quadratic pull towards old weights, stronger where a weight mattered.

After each task a method says how much each weight mattered to it, and

.. math:: \ell(\theta) + \sum_k \sum_i c_{k,i} (\theta_i - \theta_{k,i})^2

is what the next one minimises. Two numbers a weight hold the whole sum, however many tasks there were:
:math:`a = \sum_k c_k` and :math:`b = \sum_k c_k \theta_k` (:class:`~intercontinet.engine.parametrisation.Anchored`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from intercontinet.engine.loop import Listener, train
from intercontinet.engine.optimizer import Measure, Optimizer
from intercontinet.engine.parametrisation import Anchored, Identity
from intercontinet.errors import InvalidSetting
from intercontinet.learners.method import (
    Lesson,
    Loss,
    Memory,
    Nets,
    Plan,
    Schedule,
    cross_entropy,
    objective_of,
    trained,
)


def check_decay(online: bool, decay: float) -> None:
    """Refuse a decay that makes no sense, or that would do nothing."""
    if not 0 <= decay < math.inf:
        raise InvalidSetting(f"decay is {decay}; it must be zero or more")
    if decay != 1 and not online:
        raise InvalidSetting(f"decay is {decay}, but only one penalty for all tasks (online) decays: leave it out")


def learn_anchored(
    schedule: Schedule,
    nets: Nets,
    weights: Tensor,
    memory: Memory,
    lesson: Lesson,
    listen: Listener | None,
    optimizer: Optimizer | None = None,
) -> Tensor:
    """Weights after the task, held back by what the memory says; by nothing in the first task."""
    _, classes = lesson.labels()
    way = Anchored(memory["curvature"], memory["pull"]) if memory else Identity()
    plan = schedule.plan()
    plan = plan if optimizer is None else Plan(optimizer, plan.epochs, plan.batch_size, plan.milestones)
    phase = nets.phase("train", cross_entropy(nets.network, classes), plan, way=way)
    return trained(nets, phase, weights, lesson, listen)


def only_here(strength: Tensor, weights: Tensor) -> Memory:
    """A memory with one penalty alone, around these weights."""
    return {"curvature": strength, "pull": strength * weights}


def one_more(memory: Memory, strength: Tensor, weights: Tensor) -> Memory:
    """The memory with one more penalty in its sum, around these weights."""
    new = only_here(strength, weights)
    return {name: memory[name] + tensor for name, tensor in new.items()} if memory else new


def kept(memory: Memory, strength: Tensor, weights: Tensor, online: bool, decay: float) -> Memory:
    """The memory after a task: one more penalty in its sum; or, online, one alone, of the old strength, decayed, and
    the new one."""
    if not online:
        return one_more(memory, strength, weights)
    return only_here(decay * memory["curvature"] + strength if memory else strength, weights)


def importance(
    nets: Nets, weights: Tensor, lesson: Lesson, loss: Loss, power: int, batch_size: int, augmented: bool = False
) -> Tensor:
    """Sum over the task's batches of a batch gradient's powers, entry by entry, without dropout: [seeds, entries].

    Examples are seen as they are, or ``augmented``, where training sees them so.
    """
    total = torch.zeros_like(weights)
    labels, classes = lesson.labels()
    objective = objective_of(loss, nets.network, classes)
    augment = nets.augment if augmented else None
    plan = Plan(Measure(power, total), 1, batch_size)
    phase = nets.phase("importance", objective, plan, noise=False, augment=augment)
    train(phase, weights, {}, {"x": lesson.x, "y": labels}, {}, nets.keys(lesson.index, 1))
    return total
