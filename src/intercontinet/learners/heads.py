"""Heads of their own, one for each task: nothing else competes, so that logistic regression trains their columns."""

from __future__ import annotations

import torch
from torch import Tensor

from intercontinet.errors import InvalidSetting
from intercontinet.floor import certain_examples
from intercontinet.inference import right
from intercontinet.learners.exact_settings import ExactSettings
from intercontinet.learners.method import Lesson
from intercontinet.learners.outcome import Outcome, outcome_of
from intercontinet.learners.regression import regressed, training_rows
from intercontinet.learners.shares import Shares
from intercontinet.learners.table import WEIGHT, Box, Table


def learn_heads(
    settings: ExactSettings, table: Table, box: Box, lesson: Lesson, counted: Tensor, shares: Shares, key: int
) -> Outcome:
    """Train all free columns of the task's outputs, which become points: no ceiling has to fall.

    Args:
        settings: How.
        table: One that is not capped.
        box: Where the tasks before have left it; not changed.
        lesson: The task; its examples are rows, [examples, chosen].
        counted: Which of them are trained on, [examples].
        shares: Which are watched and unseen.
        key: Fixes the order of training.
    """
    if table.capped:
        raise InvalidSetting("head is 'per-task', where nothing competes, but the net is capped: build one that is not")
    made = box.clone()
    labels, index = lesson.labels()
    heads = sorted({*torch.unique(lesson.y).tolist(), *(lesson.classes or ())})
    taken = [column for output in heads for column in table.free_columns(box.free, output)]  # none may stay free
    if not bool(box.upper[:, taken].isinf().all()):
        raise InvalidSetting(
            "head is 'per-task', but these outputs have a ceiling, which tasks before have left them: go on with "
            "head='shared', as they did"
        )
    outputs = torch.tensor([column // table.slots for column in taken], device=lesson.y.device)
    own = (lesson.y[counted].long()[:, None] == outputs).int().argmax(1)
    size = table.bag.num_embeddings
    rows, own = training_rows(lesson, counted, own)
    trained = regressed(rows, own, size, len(taken), settings.fit_rate, key)
    for tensor in (made.weight, made.lower, made.upper):
        tensor[:, taken] = trained
    hits = right(table.net, {WEIGHT: made.weight}, lesson.x, labels, index)
    certain = certain_examples(table.net, made.region, lesson.x, labels, index, False)
    return outcome_of(made, certain, hits, shares)
