"""Synaptic intelligence against closed forms and plain PyTorch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intercontinet.learners.method import Lesson, Nets
from intercontinet.learners.si import SI
from tests.learners.naive import (
    MODEL,
    QUICKLY,
    SEEDS,
    Anchors,
    anchored,
    close,
    descend,
    learned_by,
    lessons,
    outputs,
    start,
)


@pytest.mark.parametrize("limit", [1.0, 1e9])
@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_tasks_in_turn_are_those_of_a_plain_loop(optimizer: str, heads: bool, limit: float) -> None:
    method = SI(optimizer, **QUICKLY, strength=0.4, damping=0.01, limit=limit)
    tasks = lessons(heads)
    found = learned_by(method, tasks)
    for row, seed in enumerate(SEEDS):
        values, credit = start(seed), torch.zeros_like(start(seed))
        anchors: Anchors = []
        for lesson, (weights, memory) in zip(tasks, found, strict=True):
            path = torch.zeros_like(values)

            def watch(gradient: Tensor, change: Tensor, path: Tensor = path) -> None:
                path += gradient * change

            before = values
            values = descend(method, values, lesson, seed, anchored(anchors), watch)
            close(weights[row], values)
            credit = credit - path / ((values - before) ** 2 + 0.01)
            close(memory["credit"][row], credit)
            anchors = [(0.4 / 2 * torch.minimum(credit, torch.tensor(limit)), values)]
            close(memory["curvature"][row], anchors[0][0])
            close(memory["pull"][row], anchors[0][0] * values)
        assert 0 < int((credit > 1).sum()) < len(credit), "the limit must matter, and not to all"


def test_after_one_plain_step_the_credit_is_one_over_the_rate() -> None:
    """-g (-rate g) / (rate g)^2, wherever the gradient is not zero and damping has nothing to do."""
    lesson = lessons(heads=True)[0]
    ((weights, memory),) = learned_by(SI(rate=0.25, epochs=1, batch_size=40, damping=1e-20), [lesson])
    moved = weights != torch.stack([start(seed) for seed in SEEDS])
    close(memory["credit"][moved], torch.full((int(moved.sum()),), 4.0, dtype=torch.float64))
    assert not bool(memory["credit"][~moved].any()) and 0 < int(moved.sum()) < moved.numel()


def test_in_small_steps_the_credits_share_out_the_drop_of_the_loss() -> None:
    lesson = lessons(heads=False)[0]
    method = SI(rate=0.002, epochs=300, batch_size=40, damping=1e-3)
    ((weights, memory),) = learned_by(method, [lesson], seeds=(0,))
    path = memory["credit"][0] * ((weights[0] - start(0)) ** 2 + 1e-3)
    before, after = (F.cross_entropy(outputs(values, lesson.x, lesson), lesson.y) for values in (start(0), weights[0]))
    assert float(before - after) > 0.1
    assert float(path.sum()) == pytest.approx(float(before - after), rel=5e-3)


def test_credits_add_up_and_the_limit_holds_for_their_sum() -> None:
    """By hand: weights that never move keep their credits of 3, of which the limit lets 2 through, and -1."""
    model = nn.Linear(1, 2, bias=False)
    nothing = torch.zeros(1, 2)
    memory = {"curvature": nothing, "pull": nothing, "credit": torch.tensor([[3.0, -1.0]])}
    lesson = Lesson("", 1, torch.zeros(4, 1), torch.zeros(4, dtype=torch.long))
    method = SI(rate=0.1, epochs=2, batch_size=4, strength=10.0, limit=2.0)
    weights, memory_after = method.learn(Nets(model, (0,)), torch.ones(1, 2), memory, lesson)
    assert torch.equal(weights, torch.ones(1, 2))
    assert memory_after["credit"].tolist() == [[3.0, -1.0]]
    assert memory_after["curvature"].tolist() == memory_after["pull"].tolist() == [[10.0, -5.0]]


def test_each_seed_and_each_task_has_a_path_of_its_own() -> None:
    method, lesson = SI(**QUICKLY), lessons(heads=False)[0]
    starts = torch.stack([start(seed) for seed in SEEDS])
    results = [method.learn(Nets(MODEL, SEEDS), starts, {}, lesson)[1]["credit"] for _ in range(2)]
    assert torch.equal(results[0], results[1]), "nothing is left over from an earlier task"
    assert not torch.allclose(results[0][0], results[0][1])
