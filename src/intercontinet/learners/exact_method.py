"""The exact learner as a method: one task of a table, learned in the way that its net and its settings ask for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from intercontinet.engine.loop import Listener
from intercontinet.errors import InvalidSetting
from intercontinet.learners.counting import learn_counts
from intercontinet.learners.exact_settings import ExactSettings
from intercontinet.learners.heads import learn_heads
from intercontinet.learners.method import Lesson, Memory, Nets, check_nested, earlier
from intercontinet.learners.outcome import Outcome, progress_of
from intercontinet.learners.shares import Shares
from intercontinet.learners.table import Box, Table
from intercontinet.learners.voices import learn_voices


@final
@dataclass(frozen=True)
class ExactMethod:
    """The exact learner on a stack of seeds, one after the other; examples of its lessons are rows already.

    Memory: "lower", "upper" [seeds, entries]; "certified", "correct", "unseen_certified", "unseen_total", "enough"
    [seeds, tasks]; "left_out", whether an output was not learned, [seeds, tasks, outputs].
    """

    settings: ExactSettings

    def learn(
        self, nets: Nets, weights: Tensor, memory: Memory, lesson: Lesson, listen: Listener | None = None
    ) -> tuple[Tensor, Memory]:
        table = Table.of(nets.model)
        upper = memory["upper"] if memory else torch.full_like(weights, math.inf)
        lower = memory["lower"] if memory else -upper
        sure = torch.ones(len(lesson.x), dtype=torch.bool, device=weights.device)
        made = []
        for row, key in enumerate(nets.keys(lesson.index)):
            box = Box(*(edge[row].view(-1, table.columns) for edge in (weights, lower, upper)))
            made.append(learn_task(self.settings, table, box, lesson, sure, key))
        out = {"lower": torch.stack([one.box.lower.flatten() for one in made])}
        out["upper"] = torch.stack([one.box.upper.flatten() for one in made])
        for name in ("certified", "correct", "unseen_certified", "unseen_total", "enough"):
            out[name] = torch.tensor([[getattr(one, name)] for one in made], device=weights.device)
        outputs = range(table.columns // (2 * table.slots if table.capped else table.slots))
        out["left_out"] = torch.tensor([[[o in one.left_out for o in outputs]] for one in made], device=weights.device)
        for name in out.keys() - {"lower", "upper"} if memory else ():
            out[name] = torch.cat([earlier(memory, name), out[name]], dim=1)
        learned = torch.stack([one.box.weight.flatten() for one in made])
        check_nested(learned, (out["lower"], out["upper"]), (lower, upper))
        if listen is not None:
            listen(progress_of(made, lesson))
        return learned, out


@torch.no_grad()
def learn_task(settings: ExactSettings, table: Table, box: Box, lesson: Lesson, sure: Tensor, key: int) -> Outcome:
    """Learn the outputs of one task, then lower the ceiling of all free columns until the task is certain.

    Args:
        settings: How.
        table: The net.
        box: Where the tasks before have left it; not changed.
        lesson: The task; its examples are rows, [examples, chosen].
        sure: Examples whose rows no rounding could change, [examples].
        key: Fixes which examples are held out, how classes are divided, and the order of training.
    """
    if settings.parts > table.slots:
        raise InvalidSetting(
            f"parts is {settings.parts}, but an output has {table.slots} column(s): build the net with more slots"
        )
    if lesson.strangers is not None and not table.capped:
        raise InvalidSetting("strangers are for nets whose classes are trained under a ceiling: capped ones")
    counted, watched, unseen = settings.divided(len(lesson.y), key, lesson.y.device, lesson.known)
    shares = Shares(settings.keep, sure, watched, unseen, lesson.known)
    if settings.head == "per-task":
        return learn_heads(settings, table, box, lesson, counted, shares, key)
    step = 2 if table.capped else 1  # ceilings are not meant
    deepest = box.lower[:, ::step][:, box.free[::step]]
    if bool((deepest.isfinite() & (deepest != deepest.new_tensor(-settings.depth))).any()):
        raise InvalidSetting(
            f"depth is {settings.depth}, and was {-float(deepest.max()):g} in the tasks before: use theirs"
        )
    learn = learn_voices if table.capped else learn_counts
    return learn(settings, table, box, lesson, counted, shares, key)
