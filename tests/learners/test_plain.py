"""Training without any defence, and on all tasks at once, against plain PyTorch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from intercontinet.learners.method import Lesson, Nets
from intercontinet.learners.plain import Offline, Plain
from intercontinet.noise import key_of
from tests.learners.naive import (
    MODEL,
    OUTPUTS,
    QUICKLY,
    SEEDS,
    close,
    descend,
    every_output,
    learned_by,
    lessons,
    start,
)
from tests.tiny import batches

HEADS = ((0, 1), (2, 3), (4, 5))


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_tasks_in_turn_are_those_of_a_plain_loop(optimizer: str, heads: bool) -> None:
    method, tasks = Plain(optimizer, **QUICKLY), lessons(heads)
    found = learned_by(method, tasks)
    for row, seed in enumerate(SEEDS):
        values = start(seed)
        for lesson, (weights, memory) in zip(tasks, found, strict=True):
            values = descend(method, values, lesson, seed)
            close(weights[row], values)
            assert memory == {}, "there is nothing to remember"


def test_a_head_that_takes_no_part_stays_as_it_is() -> None:
    (weights, _), *_ = learned_by(Plain(**QUICKLY), lessons(heads=True))
    bias = slice(-OUTPUTS, None)
    assert torch.equal(weights[0, bias][2:], start(0)[bias][2:])
    assert not torch.equal(weights[0, bias][:2], start(0)[bias][:2])


def everything() -> Lesson:
    parts = lessons(heads=False)
    return Lesson("all", 0, torch.cat([lesson.x for lesson in parts]), torch.cat([lesson.y for lesson in parts]))


@pytest.mark.parametrize("heads", [(), HEADS])
def test_offline_learns_all_tasks_at_once_and_examples_compete_in_their_own_head(
    heads: tuple[tuple[int, ...], ...],
) -> None:
    method, lesson = Offline(**QUICKLY, heads=heads), everything()
    ((weights, memory),) = learned_by(method, [lesson])
    assert memory == {}
    for row, seed in enumerate(SEEDS):
        values = start(seed).requires_grad_()
        for rows in batches(key_of(seed, 0, 0), 3, 120, 16):
            out, y = every_output(values, lesson.x[rows]), lesson.y[rows]
            losses: list[Tensor] = []
            for logits, label in zip(out, y.tolist(), strict=True):
                head = next((own for own in heads if label in own), tuple(range(OUTPUTS)))
                losses.append(F.cross_entropy(logits[list(head)], torch.tensor(head.index(label))))
            (gradient,) = torch.autograd.grad(torch.stack(losses).mean(), values)
            values = (values.detach() - 0.1 * gradient).requires_grad_()
        close(weights[row], values.detach())


def test_offline_counts_what_is_right_within_each_head() -> None:
    """A net that always puts class 5 first is right about half of the last task, and only by its head about others."""
    weights = torch.zeros(1, start(0).numel(), dtype=torch.float64)
    weights[0, -OUTPUTS:] = torch.arange(OUTPUTS)  # biases: the second of each pair wins in its head
    lesson, shares = everything(), []
    for heads in ((), HEADS):
        method = Offline(rate=1e-12, epochs=1, batch_size=120, heads=heads)
        method.learn(Nets(MODEL, (0,)), weights, {}, lesson, lambda progress: shares.append(progress.statistics[0][0]))
    assert shares == pytest.approx([1 / 6, 1 / 2])


def test_outputs_that_belong_to_no_task_take_no_part() -> None:
    """As where a stream has fewer classes than the net has outputs."""
    lesson = lessons(heads=False)[0]
    ((weights, _),) = learned_by(Offline(**QUICKLY, heads=HEADS[:1]), [lesson])
    ((expected, _),) = learned_by(Plain(**QUICKLY), [Lesson("0/1", 0, lesson.x, lesson.y, (0, 1))])
    close(weights, expected)


def test_offline_goes_over_the_data_more_often_unless_told_otherwise() -> None:
    assert Offline().epochs == 100 and Plain().epochs == 30
