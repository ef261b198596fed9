"""The one training loop. One model is the case of one seed; many seeds train side by side through the same functions.

A learner hands over an objective: a pure function of one seed's parameters, what that seed holds fixed, and a batch.
Everything here carries a leading seed axis. Three routes lead through a step: one seed alone; many at once through
:func:`torch.func.vmap`; or, for convolutions, which do not stack well, many one after the other. On a GPU the step,
whichever its route, is recorded once as a CUDA graph and replayed, with no Python in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from intercontinet.engine.layout import Layout
from intercontinet.engine.optimizer import Optimizer, Stride
from intercontinet.engine.parametrisation import Parametrisation
from intercontinet.engine.place import WINDOW, InPython, InTensors, Place
from intercontinet.engine.record import recorded
from intercontinet.noise import mixed, orders

Fixed = Mapping[str, Tensor]
Batch = Mapping[str, Tensor]
Parameters = Mapping[str, Tensor]
Statistics = Callable[[], Tensor]
Objective = Callable[[Parameters, Fixed, Batch], tuple[Tensor, Statistics]]
Pause = Callable[[Tensor], Tensor]
Augment = Callable[[Tensor, Tensor], Tensor]

SLOWER = 0.1  # what a milestone multiplies the learning rate by


@dataclass(frozen=True)
class Phase:
    """One stretch of training.

    Attributes:
        name: For people: "centres", "radii".
        objective: (parameters by name, fixed, batch) -> (loss [], a call that gives statistics [k]) of one seed.
        layout: Where each parameter lies in the trained vector.
        parametrisation: From that vector's values to parameters.
        optimizer: How to step.
        epochs: Passes over the data.
        batch_size: Examples a step; the last incomplete batch of an epoch is dropped.
        pause: From statistics averaged over the last batches, [seeds, k], which seeds take no step now; they resume
            when their averages no longer say so.
        milestones: Epochs, from 1, after which the learning rate falls to a tenth.
        noise: Whether batches carry "noise", a fresh key [] for each seed and step, for dropout.
        augment: (examples [seeds, batch, ...], keys [seeds]) -> examples.
        stacked: Whether many seeds go through vmap, or one after the other. Where they do not, nets are convolutional:
            images are laid out as convolutions are fastest, and on a GPU products may be rounded to TF32 in training.
        statistics: How many statistics the objective returns.
    """

    name: str
    objective: Objective
    layout: Layout
    parametrisation: Parametrisation
    optimizer: Optimizer
    epochs: int
    batch_size: int
    pause: Pause | None = None
    milestones: Sequence[int] = ()
    noise: bool = False
    augment: Augment | None = None
    stacked: bool = True
    statistics: int = 1


@dataclass(frozen=True)
class Progress:
    """What a listener hears after every epoch.

    Attributes:
        phase: The phase's name.
        epoch: Epochs done, from 1.
        epochs: Epochs to do.
        loss: Mean over the epoch, for each seed.
        statistics: Averages over the last batches, for each seed.
        paused: Share of steps in this epoch that changed nothing, over all seeds.
        parameters: [seeds, entries] as they are now; overwritten by the next epoch.
        task: The task's name, where there is one.
    """

    phase: str
    epoch: int
    epochs: int
    loss: tuple[float, ...]
    statistics: tuple[tuple[float, ...], ...]
    paused: float
    parameters: Tensor
    task: str = ""

    def mean(self, statistic: int) -> float:
        """One of the statistics, over all seeds; negative positions count from the end."""
        return sum(own[statistic] for own in self.statistics) / len(self.statistics)


Listener = Callable[[Progress], None]
LEARNED = "learned"  # the phase after the last, which no epoch belongs to


def train(
    phase: Phase,
    trained: Tensor,
    fixed: Mapping[str, Tensor],
    shared: Mapping[str, Tensor],
    own: Mapping[str, Tensor],
    keys: Sequence[int],
    listen: Listener | None = None,
) -> Tensor:
    """Train every seed through a phase.

    Args:
        phase: What to do.
        trained: [seeds, entries]; left as it is.
        fixed: What each seed holds fixed, [seeds, ...].
        shared: Examples that all seeds see, [examples, ...], under "x", "y", ...
        own: Per-example values of each seed, [seeds, examples].
        keys: One a seed; it alone decides that seed's shuffling, dropout and augmentation.
        listen: Called after every epoch.

    Returns:
        The trained values, [seeds, entries]; the parametrisation decodes them. Where every seed has diverged to NaN,
        the epochs that are left are told of, but not gone through: they would change nothing.
    """
    steps = _Steps(phase, trained, fixed, shared, own, keys)
    _run(phase, steps, trained.device, listen)
    return steps.values


def _run(phase: Phase, steps: _Steps, device: torch.device, listen: Listener | None) -> None:
    take, lost = None, False
    for epoch in range(1, phase.epochs + 1):
        if lost:
            if listen is not None:
                listen(steps.progress(epoch))
            continue
        steps.begin(epoch)
        if epoch - 1 in phase.milestones:
            steps.optimizer = steps.optimizer.scaled(SLOWER)
            take = None
        if take is None:  # on a GPU a graph holds its learning rate, so a new rate needs a new graph
            take = recorded(steps.take, steps.changing, device, coarse=not phase.stacked)
            steps.decode()  # what was tried while recording is undone
        for _ in range(steps.count):
            take()
        if listen is not None:
            listen(steps.progress(epoch))
        lost = steps.lost()


class _Steps:
    """All that a step reads and writes, in tensors that stay where they are."""

    def __init__(
        self, phase: Phase, trained: Tensor, fixed: Fixed, shared: Batch, own: Batch, keys: Sequence[int]
    ) -> None:
        device = trained.device
        seeds, examples = len(trained), len(shared["x"])
        size = min(phase.batch_size, examples)
        self.count = examples // size
        self.values = trained.clone()
        self.optimizer = phase.optimizer
        self._phase, self._fixed, self._shared, self._own = phase, fixed, shared, own
        self._state = phase.optimizer.start(self.values)
        self._keys = torch.tensor(list(keys), device=device)
        self._epoch_keys = self._keys.clone()
        self._order = torch.empty(seeds, examples, dtype=torch.int64, device=device)
        self._losses = torch.zeros(seeds, dtype=trained.dtype, device=device)
        self._held = torch.zeros(seeds, dtype=torch.int64, device=device)
        recent = torch.zeros(WINDOW, seeds, phase.statistics, dtype=trained.dtype, device=device)
        watched = phase.pause is not None
        self._place: Place = InTensors(recent, size)
        if device.type != "cuda":  # where steps are recorded
            self._place = InPython(recent, self.count, size, watched)
        self._skips = seeds == 1 and device.type == "cpu"  # a look at a value costs nothing there
        self._parameters = phase.parametrisation.decode(self.values)
        views = phase.layout.unflatten(self._parameters)  # which every step refreshes
        if seeds == 1:
            self._evaluate = _one_seed(phase.objective, views)
        else:
            self._evaluate = (_many_seeds if phase.stacked else _each_seed)(phase.objective, views)

    @property
    def changing(self) -> list[Tensor]:
        """What a step writes and later steps read."""
        return [self.values, self._losses, self._held, *self._place.changing, *self._state]

    def decode(self) -> None:
        """Parameters for the values as they are now."""
        self._phase.parametrisation.decode(self.values)

    def begin(self, epoch: int) -> None:
        """Shuffle, and count from nothing."""
        self._epoch_keys.copy_(mixed(self._keys + epoch))
        self._order.copy_(orders(self._epoch_keys, self._order.shape[1]))
        self._place.begin()
        self._losses.zero_()
        self._held.zero_()

    @torch.no_grad()
    def take(self) -> None:
        """One step of every seed. Gradients are asked for by name, inside; nothing else here needs a record of them."""
        phase = self._phase
        batch = self._batch()
        loss, statistics, gradient = self._evaluate(self._fixed, batch)
        self._place.step(statistics)
        self._losses += loss
        moving = None
        if phase.pause is not None:
            paused = phase.pause(self._place.means())
            self._held += paused
            if not self._skips:
                moving = ~paused
            elif bool(paused):
                return
        phase.parametrisation.move_(self.values, gradient(), Stride(self.optimizer, self._state, moving))

    def lost(self) -> bool:
        """Whether every seed has diverged, from which no step leads back."""
        return bool(self._losses.isnan().all()) and not bool(self.values.isfinite().all(1).any())

    def progress(self, epoch: int) -> Progress:
        phase = self._phase
        loss, means = (self._losses / self.count).tolist(), self._place.means().tolist()
        paused = float(self._held.sum()) / (self.count * len(self.values))
        rows = tuple(tuple(row) for row in means)
        return Progress(phase.name, epoch, phase.epochs, tuple(loss), rows, paused, self._parameters)

    def _batch(self) -> dict[str, Tensor]:
        rows = self._place.rows(self._order)
        flat = rows.reshape(-1)  # tensor[rows] is the same, but takes a CPU twice as long
        batch = {n: t.index_select(0, flat).view(*rows.shape, *t.shape[1:]) for n, t in self._shared.items()}
        batch.update({name: tensor.gather(1, rows) for name, tensor in self._own.items()})
        phase = self._phase
        if phase.noise or phase.augment is not None:
            noise = mixed(self._epoch_keys + self._place.position + 1)
            if phase.augment is not None:
                batch["x"] = phase.augment(batch["x"], mixed(noise))
            if phase.noise:
                batch["noise"] = noise
        if not phase.stacked and batch["x"].dim() == 5:
            batch["x"] = _channels_last(batch["x"])
        return batch


def _channels_last(images: Tensor) -> Tensor:
    """The same images, laid out as convolutions are fastest; layers hand that on. [seeds, batch, channels, *size].

    A copy even where there is one channel, whose strides are of either order; convolutions take it for channels first.
    """
    return images.movedim(2, -1).clone(memory_format=torch.contiguous_format).movedim(-1, 2)


Evaluated = tuple[Tensor, Statistics, Callable[[], Sequence[Tensor]]]
Evaluate = Callable[[Fixed, Batch], Evaluated]


def _one_seed(objective: Objective, parameters: Parameters, seed: int = 0) -> Evaluate:
    """Without vmap, and with a gradient that is computed only when asked for."""
    leaves = {name: tensor[seed].detach().requires_grad_() for name, tensor in parameters.items()}

    def evaluate(fixed: Fixed, batch: Batch) -> Evaluated:
        with torch.enable_grad():
            loss, statistics = objective(leaves, _row(fixed, seed), _row(batch, seed))

        def gradient() -> list[Tensor]:
            return [part[None] for part in torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)]

        return loss.detach()[None], lambda: statistics().detach()[None], gradient

    return evaluate


def _row(stacked: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    return {name: tensor[seed] for name, tensor in stacked.items()}


def _each_seed(objective: Objective, parameters: Parameters) -> Evaluate:
    """One seed after the other."""
    seeds = len(next(iter(parameters.values())))
    singles = [_one_seed(objective, parameters, seed) for seed in range(seeds)]

    def evaluate(fixed: Fixed, batch: Batch) -> Evaluated:
        losses, statistics, gradients = [], [], []
        for single in singles:
            loss, own, gradient = single(fixed, batch)
            losses.append(loss)
            statistics.append(own())
            gradients.append(gradient())  # at once, so that one seed's activations are kept at a time
        parts = [torch.cat(part) for part in zip(*gradients, strict=True)]
        return torch.cat(losses), lambda: torch.cat(statistics), lambda: parts

    return evaluate


def _many_seeds(objective: Objective, parameters: Parameters) -> Evaluate:
    def whole(*given: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        loss, statistics = objective(*given)
        return loss, statistics()

    stacked = vmap(grad_and_value(whole, has_aux=True), randomness="different")

    def evaluate(fixed: Fixed, batch: Batch) -> Evaluated:
        gradients, (loss, statistics) = stacked(dict(parameters), dict(fixed), dict(batch))
        return loss.detach(), statistics.detach, lambda: list(gradients.values())

    return evaluate
