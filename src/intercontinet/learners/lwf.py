"""Learning without forgetting (Li and Hoiem 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from intercontinet.bounds import Network
from intercontinet.engine.loop import Batch, Fixed, Listener, Objective, Parameters, Statistics
from intercontinet.errors import InvalidSetting
from intercontinet.learners.method import Lesson, Memory, Nets, Schedule, cross_entropy, hits, trained
from intercontinet.noise import mixed

OLD = "old/"


@final
@dataclass(frozen=True)
class LwF(Schedule):
    r""":math:`\ell(\theta) + \alpha \sum_h \mathrm{KL}(q_h \,\Vert\, p_h)`: on the new task's examples, stay near
    what the net said before it.

    For each old head h, q and p are the old and the new net's softmax at a temperature, over the outputs that its task
    had examples of. With one head for all tasks there is one h, and the softmax is over all outputs, the sum over those
    seen before.

    Attributes:
        strength: :math:`\alpha`.
        temperature: What logits are divided by.
        old_drops: Whether the old net answers with dropout, where it has any, as in the paper's code.
    """

    strength: float = 0.5
    temperature: float = 0.5
    old_drops: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.temperature > 0:
            raise InvalidSetting(f"temperature is {self.temperature}; it must be positive")

    def learn(
        self, nets: Nets, weights: Tensor, memory: Memory, lesson: Lesson, listen: Listener | None = None
    ) -> tuple[Tensor, Memory]:
        labels, classes = lesson.labels()
        heads = _heads(memory)
        objective = cross_entropy(nets.network, classes)
        fixed: dict[str, Tensor] = {}
        if heads:
            objective = distilled(nets.network, classes, heads, self.strength, self.temperature, self.old_drops)
            fixed = {OLD + name: tensor for name, tensor in nets.layout.unflatten(memory["weights"]).items()}
        phase = nets.phase("train", objective, self.plan())
        learned = trained(nets, phase, weights, lesson, listen, fixed)
        seen = torch.unique(labels if classes is None else classes[labels])
        return learned, {"weights": learned, "seen": _with(memory, lesson, seen, len(nets.seeds))}


Head = tuple[Tensor | None, Tensor]  # the head's outputs (None: all), and where those seen before are among them


def distilled(
    network: Network,
    classes: Tensor | None,
    heads: Sequence[Head],
    strength: float,
    temperature: float,
    old_drops: bool = False,
) -> Objective:
    """Cross-entropy among ``classes``, and for each old head the distance from the old weights' answers."""

    def objective(weights: Parameters, fixed: Fixed, batch: Batch) -> tuple[Tensor, Statistics]:
        noise = batch.get("noise")
        new = network.run(weights, batch["x"], noise)
        noise = mixed(noise) if old_drops and noise is not None else None  # it drops other units than the new net
        with torch.no_grad():
            old = network.run({name.removeprefix(OLD): tensor for name, tensor in fixed.items()}, batch["x"], noise)
        out = new if classes is None else new[:, classes]
        loss = F.cross_entropy(out, batch["y"])
        for outputs, seen in heads:
            ours, theirs = (new, old) if outputs is None else (new[:, outputs], old[:, outputs])
            log_p = F.log_softmax(ours / temperature, dim=1)[:, seen]
            q = F.softmax(theirs / temperature, dim=1)[:, seen]
            loss = loss + strength * F.kl_div(log_p, q, reduction="batchmean")
        return loss, lambda: hits(out, batch["y"])

    return objective


def _with(memory: Memory, lesson: Lesson, seen: Tensor, seeds: int) -> Tensor:
    """Outputs seen so far, [seeds, 2, n]: each, and the task whose head it belongs to, or -1 for a shared head."""
    head = torch.full_like(seen, -1 if lesson.classes is None else lesson.index)
    now = torch.stack([seen, head]).expand(seeds, 2, -1)
    return torch.cat([memory["seen"], now], dim=2) if memory else now.contiguous()


def _heads(memory: Memory) -> list[Head]:
    if not memory:
        return []
    outputs, tasks = memory["seen"][0]
    heads: list[Head] = []
    for task in torch.unique(tasks):
        own = torch.unique(outputs[tasks == task])
        heads.append((None, own) if task < 0 else (own, torch.arange(len(own), device=own.device)))
    return heads
