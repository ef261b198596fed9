"""Memory aware synapses against closed forms and plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from intercontinet.learners.mas import MAS
from intercontinet.learners.method import Lesson, Nets
from intercontinet.noise import key_of
from tests.learners.naive import (
    QUICKLY,
    SEEDS,
    Anchors,
    anchored,
    close,
    descend,
    gradients,
    learned_by,
    lessons,
    start,
)
from tests.tiny import batches, blobs


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_tasks_in_turn_are_those_of_a_plain_loop(optimizer: str, heads: bool, online: bool) -> None:
    method, tasks = (
        MAS(optimizer, **QUICKLY, strength=0.2, online=online, decay=0.75 if online else 1.0),
        lessons(heads),
    )
    found = learned_by(method, tasks)
    for row, seed in enumerate(SEEDS):
        values, importance = start(seed), torch.zeros(())
        anchors: Anchors = []
        for lesson, (weights, memory) in zip(tasks, found, strict=True):
            values = descend(method, values, lesson, seed, anchored(anchors))
            close(weights[row], values)
            new = [g.abs() for g in gradients(method, values, lesson, seed, lambda out: (out**2).mean())]
            importance = (0.75 * importance if online else 0) + torch.stack(new).sum(0)
            anchors = [*([] if online else anchors), (0.2 * importance, values)]
            close(memory["curvature"][row], torch.stack([strength for strength, _ in anchors]).sum(0))
            close(memory["pull"][row], torch.stack([strength * place for strength, place in anchors]).sum(0))
    assert float(found[-1][1]["curvature"].max()) > 0.01, "a penalty that can be felt"


@pytest.mark.parametrize("classes", [None, (1, 3)])
def test_the_importance_of_a_linear_model_is_its_closed_form(classes: tuple[int, ...] | None) -> None:
    """The mean of squared outputs has the gradient 2 / (batch x outputs) times the sum of out x^T."""
    model = nn.Linear(3, 4).double()
    x, y = blobs(labels=(1, 3), examples=20, inputs=3)
    x = x.double()
    w, b = model.weight.detach(), model.bias.detach()
    own = [0, 1, 2, 3] if classes is None else list(classes)
    expected_w, expected_b = torch.zeros(4, 3, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    for rows in batches(key_of(5, 2, 1), 1, 20, 6):
        out = torch.zeros(6, 4, dtype=torch.float64)
        out[:, own] = (x[rows] @ w.T + b)[:, own]
        expected_w += (2 / (6 * len(own)) * (out.T @ x[rows])).abs()
        expected_b += (2 / (6 * len(own)) * out.sum(0)).abs()
    weights = torch.cat([w.reshape(-1), b])[None]
    method = MAS(epochs=0, batch_size=6, strength=3.0)
    _, memory = method.learn(Nets(model, (5,)), weights, {}, Lesson("", 2, x, y, classes))
    expected = 3 * torch.cat([expected_w.reshape(-1), expected_b])
    torch.testing.assert_close(memory["curvature"][0], expected, rtol=1e-12, atol=1e-15)


def test_by_hand_on_one_weight() -> None:
    """One output w x with w = 2, x = 1 and 3 in batches of one: |4 x 1| + |4 x 9| = 40."""
    model = nn.Linear(1, 1, bias=False)
    data = torch.tensor([[1.0], [3.0]]), torch.zeros(2, dtype=torch.long)
    method = MAS(epochs=0, batch_size=1, strength=0.5)
    nets, weights = Nets(model, (0,)), torch.tensor([[2.0]])
    _, memory = method.learn(nets, weights, {}, Lesson("", 0, *data))
    assert float(memory["curvature"]) == 20 and float(memory["pull"]) == 40
    _, memory = method.learn(nets, weights / 2, memory, Lesson("", 1, *data))
    assert float(memory["curvature"]) == 30 and float(memory["pull"]) == 30


def test_labels_do_not_matter_to_importance() -> None:
    lesson = lessons(heads=False)[0]
    method = MAS(epochs=0, batch_size=40)
    other = Lesson("", 0, lesson.x, 1 - lesson.y)
    ((_, one),), ((_, two),) = learned_by(method, [lesson]), learned_by(method, [other])
    assert torch.equal(one["curvature"], two["curvature"])
