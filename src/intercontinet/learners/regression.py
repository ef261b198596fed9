"""Logistic regression on chosen rows: columns of a table that tell classes apart, found by a few epochs of Adam."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from intercontinet.learners.method import Lesson
from intercontinet.learners.table import sums
from intercontinet.noise import key_of, orders

EPOCHS, BATCH = 5, 500
SCALE = 30.0  # what multiplies a mean over rows


def training_rows(lesson: Lesson, counted: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of the examples that are trained on, with their labels; seen in a mirror too, where the lesson has that.

    Args:
        lesson: The task.
        counted: Which of its examples are trained on, [examples].
        labels: Of those, [counted examples].
    """
    rows = lesson.x[counted]
    if lesson.mirrored is None:
        return rows, labels
    return torch.cat([rows, lesson.mirrored[counted]]), torch.cat([labels, labels])


def regressed(
    rows: Tensor, labels: Tensor, size: int, columns: int, rate: float, key: int, each: bool = False
) -> Tensor:
    """Columns whose sums over an example's rows are its logits but for a factor, [size, columns].

    Args:
        rows: [examples, chosen], below ``size``.
        labels: [examples], below ``columns``; with ``each``, also ``columns``, for examples of none of the classes.
        size: Rows of the table.
        columns: How many.
        rate: Adam's step size.
        key: Fixes the order of examples.
        each: Whether each column tells its own class from all others by itself, its sum being above zero or below.
            Of two classes, and no others, the columns are then each other's negatives.

    >>> rows, labels = torch.tensor([[0, 2], [1, 2]]), torch.tensor([0, 1])
    >>> regressed(rows, labels, size=3, columns=2, rate=0.1, key=0).argmax(1)[:2]
    tensor([0, 1])
    """
    weight = torch.zeros(size, columns, device=rows.device, requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=rate)
    for epoch in range(EPOCHS):
        order = orders(torch.tensor([key_of(key, epoch)]), len(rows))[0].to(rows.device)
        for batch in torch.split(order, BATCH):
            with torch.enable_grad():
                logits = sums(rows[batch], weight) * (SCALE / rows.shape[1])
                if each:
                    own = F.one_hot(labels[batch], columns + 1)[:, :columns].to(logits.dtype)
                    loss = F.binary_cross_entropy_with_logits(2 * logits, own)
                else:
                    loss = F.cross_entropy(logits, labels[batch])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return weight.detach()
