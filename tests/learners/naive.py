"""Continual learning told naively: one net, plain PyTorch, one batch after the other, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector

from intercontinet.learners.method import Lesson, Memory, Method, Nets, Schedule
from intercontinet.noise import key_of
from tests.tiny import batches, blobs, mlp

SEEDS = (0, 7)
OUTPUTS = 6
QUICKLY: dict[str, Any] = {"rate": 0.1, "epochs": 3, "batch_size": 16}  # 40 examples: the last 8 are dropped
MODEL = mlp(hidden=5, outputs=OUTPUTS).double()

Extra = Callable[[Tensor, Tensor], Tensor]  # (values, x of the batch) -> what is added to the loss
Anchors = list[tuple[Tensor, Tensor]]  # strengths and places of penalties
Watch = Callable[[Tensor, Tensor], None]  # (gradient, change) of a step


def lessons(heads: bool) -> list[Lesson]:
    """Three tasks of two classes each, which compete among themselves or with all others."""
    pairs = [(0, 1), (2, 3), (4, 5)]
    data = [blobs(labels=pair, seed=k, examples=40, spread=0.8) for k, pair in enumerate(pairs)]
    return [Lesson(str(k), k, x.double(), y, pairs[k] if heads else None) for k, (x, y) in enumerate(data)]


def start(seed: int) -> Tensor:
    return parameters_to_vector(mlp(hidden=5, outputs=OUTPUTS, seed=seed).double().parameters()).detach()


def learned_by(method: Method, tasks: list[Lesson], seeds: tuple[int, ...] = SEEDS) -> list[tuple[Tensor, Memory]]:
    """Weights and memory after each task."""
    nets, weights = Nets(MODEL, seeds), torch.stack([start(seed) for seed in seeds])
    memory: Memory = {}
    found = []
    for lesson in tasks:
        weights, memory = method.learn(nets, weights, memory, lesson)
        found.append((weights, memory))
    return found


def named(values: Tensor, model: nn.Module = MODEL) -> dict[str, Tensor]:
    shapes = {name: p.shape for name, p in model.named_parameters()}
    parts = torch.split(values, [shape.numel() for shape in shapes.values()])
    return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def every_output(values: Tensor, x: Tensor, model: nn.Module = MODEL) -> Tensor:
    out: Tensor = functional_call(model, named(values, model), (x,))
    return out


def outputs(values: Tensor, x: Tensor, lesson: Lesson, model: nn.Module = MODEL) -> Tensor:
    """Those among which to choose."""
    out = every_output(values, x, model)
    return out if lesson.classes is None else out[:, list(lesson.classes)]


def targets(lesson: Lesson) -> Tensor:
    """Positions of the labels among those outputs."""
    return lesson.y if lesson.classes is None else torch.tensor([lesson.classes.index(int(y)) for y in lesson.y])


def descend(
    schedule: Schedule,
    values: Tensor,
    lesson: Lesson,
    seed: int,
    extra: Extra | None = None,
    watch: Watch | None = None,
) -> Tensor:
    """Values after a task of torch's own optimizer."""
    values = values.clone().requires_grad_()
    kind = torch.optim.SGD if schedule.optimizer == "sgd" else torch.optim.Adam
    optimizer: torch.optim.Optimizer = kind([values], lr=schedule.rate)
    for rows in batches(key_of(seed, lesson.index, 0), schedule.epochs, len(lesson.x), schedule.batch_size):
        loss = F.cross_entropy(outputs(values, lesson.x[rows], lesson), targets(lesson)[rows])
        if extra is not None:
            loss = loss + extra(values, lesson.x[rows])
        before = values.detach().clone()
        (values.grad,) = torch.autograd.grad(loss, values)
        gradient = values.grad.clone()
        optimizer.step()
        if watch is not None:
            watch(gradient, values.detach() - before)
    return values.detach()


def gradients(
    schedule: Schedule, values: Tensor, lesson: Lesson, seed: int, loss: Callable[[Tensor], Tensor]
) -> Iterator[Tensor]:
    """Of a loss of the outputs, for each batch of one more pass."""
    values = values.clone().requires_grad_()
    for rows in batches(key_of(seed, lesson.index, 1), 1, len(lesson.x), schedule.batch_size):
        yield torch.autograd.grad(loss(outputs(values, lesson.x[rows], lesson)), values)[0]


def anchored(anchors: Anchors) -> Extra:
    """Sum of penalties, each with its strengths and its place."""

    def penalty(values: Tensor, x: Tensor) -> Tensor:
        terms = [(strength * (values - place) ** 2).sum() for strength, place in anchors]
        return torch.stack(terms).sum() if terms else torch.zeros(())

    return penalty


def close(ours: Tensor, expected: Tensor) -> None:
    """To 1e-8: where a gradient is nothing but rounding, Adam takes it for 1e8 times what it is."""
    torch.testing.assert_close(ours, expected, rtol=1e-7, atol=1e-8)
