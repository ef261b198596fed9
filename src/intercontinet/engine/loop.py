"""The one training loop. One model is the case of one seed; many seeds train side by side through the same functions.

A learner hands over an objective: a pure function of one seed's parameters, what that seed holds fixed, and a batch.
Everything here carries a leading seed axis; :func:`torch.func.vmap` adds it to the objective; a single seed goes
without.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from intercontinet.engine.layout import Layout
from intercontinet.engine.optimizer import Optimizer
from intercontinet.engine.parametrisation import Parametrisation

Fixed = Mapping[str, Tensor]
Batch = Mapping[str, Tensor]
Parameters = Mapping[str, Tensor]
Objective = Callable[[Parameters, Fixed, Batch], tuple[Tensor, Tensor]]
Pause = Callable[[Tensor], Tensor]

WINDOW = 10  # batches over which statistics are averaged


@dataclass(frozen=True)
class Phase:
    """One stretch of training.

    Attributes:
        name: For people: "centres", "radii".
        objective: (parameters by name, fixed, batch) -> (loss [], statistics [k]) of one seed.
        layout: Where each parameter lies in the trained vector.
        parametrisation: From that vector's values to parameters.
        optimizer: How to step.
        epochs: Passes over the data.
        batch_size: Examples a step; the last incomplete batch of an epoch is dropped.
        pause: From statistics averaged over the last batches, [seeds, k], which seeds take no step now; they resume
            when their averages no longer say so.
    """

    name: str
    objective: Objective
    layout: Layout
    parametrisation: Parametrisation
    optimizer: Optimizer
    epochs: int
    batch_size: int
    pause: Pause | None = None


@dataclass(frozen=True)
class Progress:
    """What a listener hears after every epoch.

    Attributes:
        phase: The phase's name.
        epoch: Epochs done, from 1.
        epochs: Epochs to do.
        loss: Mean over the epoch and the seeds.
        statistics: Averages over the last batches, over all seeds.
        paused: Share of steps in this epoch that changed nothing.
        task: The task's name, where there is one.
    """

    phase: str
    epoch: int
    epochs: int
    loss: float
    statistics: tuple[float, ...]
    paused: float
    task: str = ""


def train(
    phase: Phase,
    trained: Tensor,
    fixed: Mapping[str, Tensor],
    shared: Mapping[str, Tensor],
    own: Mapping[str, Tensor],
    generators: Sequence[torch.Generator],
    listen: Callable[[Progress], None] | None = None,
) -> Tensor:
    """Train every seed through a phase.

    Args:
        phase: What to do.
        trained: [seeds, entries]; left as it is.
        fixed: What each seed holds fixed, [seeds, ...].
        shared: Examples that all seeds see, [examples, ...], under "x", "y", ...
        own: Per-example values of each seed, [seeds, examples].
        generators: One a seed; it alone shuffles that seed's examples.
        listen: Called after every epoch.

    Returns:
        The trained values, [seeds, entries]; the parametrisation decodes them.
    """
    values = trained.clone()
    state = phase.optimizer.start(values)
    seeds, examples = len(values), len(shared["x"])
    size = min(phase.batch_size, examples)
    steps = examples // size
    recent: deque[Tensor] = deque(maxlen=WINDOW)
    parameters = phase.layout.unflatten(phase.parametrisation.decode(values))  # views: decoding again refreshes them
    evaluate = (_one_seed if seeds == 1 else _many_seeds)(phase.objective, parameters)
    device = values.device
    for epoch in range(1, phase.epochs + 1):
        order = torch.stack([torch.randperm(examples, generator=g) for g in generators]).to(device)
        losses, held = torch.zeros((), device=device), torch.zeros((), device=device)
        for step in range(steps):
            rows = order[:, step * size : (step + 1) * size]
            batch = {name: tensor[rows] for name, tensor in shared.items()}
            batch.update({name: tensor.gather(1, rows) for name, tensor in own.items()})
            phase.parametrisation.decode(values)
            loss, statistics, gradient = evaluate(fixed, batch)
            recent.append(statistics)
            losses += loss.sum()
            moving = None if phase.pause is None else ~phase.pause(torch.stack(tuple(recent)).mean(0))
            if moving is not None:
                held += seeds - moving.sum()
                if seeds == 1:
                    if not bool(moving):
                        continue
                    moving = None
            phase.optimizer.step_(values, phase.parametrisation.pull(gradient()), state, moving)
        if listen is not None:
            figures = tuple(torch.stack(tuple(recent)).mean((0, 1)).tolist())
            total = steps * seeds
            listen(Progress(phase.name, epoch, phase.epochs, float(losses) / total, figures, float(held) / total))
    return values


Evaluated = tuple[Tensor, Tensor, Callable[[], Sequence[Tensor]]]
Evaluate = Callable[[Fixed, Batch], Evaluated]


def _one_seed(objective: Objective, parameters: Parameters) -> Evaluate:
    """Without vmap, and with a gradient that is computed only when asked for."""
    leaves = {name: tensor[0].detach().requires_grad_() for name, tensor in parameters.items()}

    def evaluate(fixed: Fixed, batch: Batch) -> Evaluated:
        with torch.enable_grad():
            loss, statistics = objective(leaves, _first(fixed), _first(batch))

        def gradient() -> list[Tensor]:
            return [part[None] for part in torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)]

        return loss.detach()[None], statistics.detach()[None], gradient

    return evaluate


def _first(stacked: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor[0] for name, tensor in stacked.items()}


def _many_seeds(objective: Objective, parameters: Parameters) -> Evaluate:
    stacked = vmap(grad_and_value(objective, has_aux=True), randomness="different")

    def evaluate(fixed: Fixed, batch: Batch) -> Evaluated:
        gradients, (loss, statistics) = stacked(dict(parameters), dict(fixed), dict(batch))
        return loss.detach(), statistics.detach(), lambda: list(gradients.values())

    return evaluate
