"""L2 against its formula, with penalties written out one by one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from intercontinet.learners.l2 import L2
from intercontinet.learners.method import Lesson, Nets
from tests.learners.naive import (
    QUICKLY,
    SEEDS,
    Anchors,
    anchored,
    close,
    descend,
    learned_by,
    lessons,
    named,
    start,
)
from tests.tiny import blobs


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_tasks_in_turn_are_those_of_a_plain_loop(optimizer: str, heads: bool) -> None:
    method, tasks = L2(optimizer, **QUICKLY, strength=0.3), lessons(heads)
    found = learned_by(method, tasks)
    for row, seed in enumerate(SEEDS):
        values = start(seed)
        anchors: Anchors = []
        for lesson, (weights, _) in zip(tasks, found, strict=True):
            values = descend(method, values, lesson, seed, anchored(anchors))
            close(weights[row], values)
            anchors.append((0.3 * used(lesson), values))


def used(lesson: Lesson) -> Tensor:
    """Ones for all weights but, with heads, those of rows of the last layer that belong to other tasks."""
    marks = torch.ones_like(start(0))
    if lesson.classes is not None:
        parts = named(marks)
        others = [c for c in range(6) if c not in lesson.classes]
        parts["2.weight"][others] = 0
        parts["2.bias"][others] = 0
    return marks


def test_a_free_weight_goes_to_the_mean_of_its_anchors() -> None:
    """With no gradient of its own: two tasks left it at 0 and 3, so the third's penalty is least at 1.5."""
    model = nn.Linear(1, 2, bias=False)
    nets, (x, y) = Nets(model, (0,)), blobs(inputs=1)
    lesson = Lesson("", 0, x * 0, y)
    method = L2(rate=0.1, epochs=0, strength=1.0)
    memory = method.learn(nets, torch.zeros(1, 2), {}, lesson)[1]
    memory = method.learn(nets, torch.full((1, 2), 3.0), memory, lesson)[1]
    assert memory["curvature"].tolist() == [[2.0, 2.0]] and memory["pull"].tolist() == [[3.0, 3.0]]
    weights, _ = L2(rate=0.1, epochs=60, strength=1.0).learn(nets, torch.full((1, 2), 9.0), memory, lesson)
    torch.testing.assert_close(weights, torch.full((1, 2), 1.5), rtol=0, atol=1e-5)


def test_a_last_layer_that_is_not_linear_is_held_whole() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.Identity())
    x, y = blobs()
    method = L2(epochs=0, strength=0.5)
    _, memory = method.learn(Nets(model, (0,)), torch.zeros(1, 12), {}, Lesson("", 0, x, y, (0, 1)))
    assert torch.equal(memory["curvature"], torch.full((1, 12), 0.5))


def test_a_head_that_does_not_train_is_no_part_of_the_penalty() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4))
    model[2].requires_grad_(False)
    x, y = blobs()
    _, memory = L2(epochs=0).learn(Nets(model, (0,)), torch.zeros(1, 9), {}, Lesson("", 0, x, y, (0, 1)))
    assert memory["curvature"].shape == (1, 9) and bool((memory["curvature"] > 0).all())
