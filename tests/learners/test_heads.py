"""Heads of their own: trained as by plain logistic regression, and out of each other's way."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from intercontinet.errors import InvalidData
from intercontinet.learners.exact_settings import ExactSettings
from intercontinet.learners.method import Lesson
from intercontinet.learners.regression import EPOCHS, SCALE
from tests.learners.tables import GROUPS, SIZE, everything, examples, learn, scores, table

HEADS = ExactSettings(head="per-task")


def with_classes(lesson: Lesson, *more: int) -> Lesson:
    return replace(lesson, classes=(*torch.unique(lesson.y).tolist(), *more))


def test_heads_are_trained_as_by_plain_logistic_regression() -> None:
    of, lesson = table(), with_classes(examples((2, 3)))
    made = learn(HEADS, of, everything(of), lesson, key=5)
    counted = HEADS.divided(60, 5, torch.device("cpu"))[0]
    dense = torch.nn.functional.one_hot(lesson.x[counted], SIZE).sum(1).double()
    y = lesson.y[counted] - 2
    weight = torch.zeros(SIZE, 2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=HEADS.fit_rate)
    for _ in range(EPOCHS):  # all examples fit into one batch
        optimizer.zero_grad()
        torch.autograd.backward(torch.nn.functional.cross_entropy(dense @ weight * SCALE / GROUPS, y))
        optimizer.step()
    apart = (made.box.weight[:, 2:4].double() - weight.detach()).abs()
    assert float((apart < 1e-4).double().mean()) > 0.95 and float(apart.max()) < 0.005, "Adam blows up some rounding"
    answers = scores(made.box.weight, lesson.x, 1)[:, 2:4].argmax(1) + 2
    assert made.correct == int((answers == lesson.y.numpy()).sum()) > 50
    assert made.certified >= made.correct - 2, "a point is certain but for rounding"
    unseen = HEADS.divided(60, 5, torch.device("cpu"))[2].numpy()
    right = (answers == lesson.y.numpy()) & unseen
    assert made.unseen_total == 6 and right.sum() - 1 <= made.unseen_certified <= right.sum(), "but for rounding"


def test_heads_do_not_disturb_each_other() -> None:
    of = table()
    first, second = with_classes(examples((0, 1))), with_classes(examples((2, 3), seed=1))
    one = learn(HEADS, of, everything(of), first, key=1)
    both = learn(HEADS, of, one.box, second, key=2)
    alone = learn(HEADS, of, everything(of), second, key=2)
    assert torch.equal(both.box.weight[:, :2], one.box.weight[:, :2])
    assert torch.equal(both.box.weight[:, 2:4], alone.box.weight[:, 2:4])
    assert (both.certified, both.correct) == (alone.certified, alone.correct)
    assert both.box.free.tolist() == [False] * 4 + [True] * 2
    assert bool(both.box.upper[:, 4:].isinf().all()), "other heads have no ceiling"
    with pytest.raises(InvalidData, match="output 0 has no free column left"):
        learn(HEADS, of, both.box, first)


@pytest.mark.parametrize(("slots", "parts", "more"), [(2, 1, ()), (3, 2, ()), (1, 1, (5,)), (2, 2, (4, 5))])
def test_no_column_of_a_head_is_left_free_to_claim_its_examples(slots: int, parts: int, more: tuple[int, ...]) -> None:
    """Columns to spare, and outputs that compete though no example shows them."""
    of = table(slots=slots)
    made = learn(replace(HEADS, parts=parts), of, everything(of), with_classes(examples((0, 1)), *more))
    assert made.correct > 50 and made.certified >= made.correct - 2
    free = made.box.free.view(-1, slots)
    assert [output for output, own in enumerate(free.all(1).tolist()) if own] == [
        output for output in range(2, 6) if output not in more
    ]
