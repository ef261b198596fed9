"""Elastic weight consolidation against closed forms and plain PyTorch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intercontinet.learners.ewc import EWC
from intercontinet.learners.method import Lesson, Memory, Nets
from intercontinet.noise import key_of
from tests.learners.naive import (
    MODEL,
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


def fisher(method: EWC, values: Tensor, lesson: Lesson, seed: int) -> Tensor:
    """Squared gradients of batches with the net's own predictions as labels."""

    def loss(out: Tensor) -> Tensor:
        return F.cross_entropy(out, out.detach().argmax(1))

    return torch.stack([g**2 for g in gradients(method, values, lesson, seed, loss)]).sum(0)


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_tasks_in_turn_are_those_of_a_plain_loop(optimizer: str, heads: bool, online: bool) -> None:
    method = EWC(optimizer, **QUICKLY, strength=0.7, online=online, decay=0.5 if online else 1.0)
    tasks = lessons(heads)
    found = learned_by(method, tasks)
    for row, seed in enumerate(SEEDS):
        values, old = start(seed), torch.zeros(())
        anchors: Anchors = []
        for lesson, (weights, memory) in zip(tasks, found, strict=True):
            values = descend(method, values, lesson, seed, anchored(anchors))
            close(weights[row], values)
            new = fisher(method, values, lesson, seed)
            if online:
                old = 0.5 * old + new
                anchors = [(0.7 * old, values)]
            else:
                anchors.append((0.7 * new, values))
            close(memory["curvature"][row], torch.stack([strength for strength, _ in anchors]).sum(0))
    assert float(found[-1][1]["curvature"].max()) > 1e-3, "a penalty that can be felt"


@pytest.mark.parametrize("classes", [None, (1, 3)])
def test_the_importance_of_a_linear_model_is_its_closed_form(classes: tuple[int, ...] | None) -> None:
    """The gradient of a batch is the mean of (p - e) x^T, for W, and of p - e, for b; e marks the largest p."""
    model = nn.Linear(3, 4).double()
    nets = Nets(model, (5,))
    x, y = blobs(labels=(1, 3), examples=20, inputs=3)
    x = x.double()
    w, b = model.weight.detach(), model.bias.detach()
    own = list(range(4)) if classes is None else list(classes)
    expected_w, expected_b = torch.zeros(4, 3, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    for rows in batches(key_of(5, 2, 1), 1, 20, 6):
        slope = torch.zeros(6, 4, dtype=torch.float64)
        for place, row in enumerate(rows):
            logits = (w @ x[row] + b)[own]
            p = torch.exp(logits) / torch.exp(logits).sum()
            p[int(p.argmax())] -= 1
            slope[place, own] = p
        expected_w += (slope.T @ x[rows] / 6) ** 2
        expected_b += slope.mean(0) ** 2
    method = EWC(epochs=0, batch_size=6, strength=10.0)
    weights = torch.cat([w.reshape(-1), b])[None]
    learned, memory = method.learn(nets, weights, {}, Lesson("", 2, x, y, classes))
    assert torch.equal(learned, weights)
    torch.testing.assert_close(
        memory["curvature"][0], 10 * torch.cat([expected_w.reshape(-1), expected_b]), rtol=1e-12, atol=1e-15
    )
    torch.testing.assert_close(memory["pull"], memory["curvature"] * weights, rtol=1e-12, atol=1e-15)
    if classes is not None:
        assert not bool(memory["curvature"][0].view(-1)[:3].any()), "other tasks' heads do not matter"


def test_the_labels_do_not_matter_to_importance() -> None:
    lesson = lessons(heads=False)[0]
    method = EWC(epochs=0, batch_size=16)
    (one,), (other,) = (learned_by(method, [replace(lesson, y=y)]) for y in (lesson.y, 1 - lesson.y))
    assert torch.equal(one[1]["curvature"], other[1]["curvature"])


def after(memory: Memory, online: bool, decay: float = 1.0) -> Memory:
    method = EWC(epochs=0, batch_size=16, strength=1.0, online=online, decay=decay)
    lesson = lessons(heads=False)[1]
    return method.learn(Nets(MODEL, SEEDS), torch.stack([start(s) for s in SEEDS]), memory, lesson)[1]


def test_online_one_penalty_around_the_latest_weights_replaces_all() -> None:
    entries = start(0).numel()
    first = {"curvature": torch.full((2, entries), 4.0).double(), "pull": torch.full((2, entries), 8.0).double()}
    fresh = after({}, online=False)["curvature"]
    latest = torch.stack([start(seed) for seed in SEEDS])
    separate, online, fading = after(first, False), after(first, True), after(first, True, decay=0.25)
    close(separate["curvature"], 4 + fresh)
    close(separate["pull"], 8 + fresh * latest)
    close(online["curvature"], 4 + fresh)
    close(online["pull"], (4 + fresh) * latest)
    close(fading["curvature"], 1 + fresh)
    close(fading["pull"], (1 + fresh) * latest)
