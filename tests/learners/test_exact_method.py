"""The exact learner as a method: each seed by itself, task by task."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from intercontinet.engine.loop import Progress
from intercontinet.learners.exact_method import ExactMethod
from intercontinet.learners.exact_settings import ExactSettings
from intercontinet.learners.method import Memory, Nets
from intercontinet.learners.table import Box
from intercontinet.noise import key_of
from tests.learners.tables import SIZE, everything, examples, learn, same_bits, table


def test_each_seed_learns_by_itself_and_counts_are_remembered_task_by_task() -> None:
    of, how = table(4), ExactSettings()
    heard: list[Progress] = []
    nets = Nets(of.net, (3, 8))
    lessons = [examples((0, 1)), replace(examples((2, 3)), index=1)]
    states: list[tuple[Tensor, Memory]] = [(torch.zeros(2, SIZE * 4), {})]
    for lesson in lessons:
        states.append(ExactMethod(how).learn(nets, *states[-1], lesson, heard.append))
    weights, memory = states[-1]
    for row, seed in enumerate((3, 8)):
        box, counts = everything(of), []
        for index, lesson in enumerate(lessons):
            made = learn(how, of, box, lesson, key_of(seed, index))
            box = made.box
            counts.append((made.certified, made.correct, made.unseen_certified, made.unseen_total))
        found = Box(*(edge[row].view(SIZE, 4) for edge in (weights, memory["lower"], memory["upper"])))
        assert same_bits(found, box)
        names = ("certified", "correct", "unseen_certified", "unseen_total")
        assert [tuple(int(memory[name][row, index]) for name in names) for index in range(2)] == counts
    assert not torch.equal(weights[0], weights[1]), "each has its own split"
    last = heard[-1]
    assert torch.equal(last.parameters, weights), "listeners hear what was learned, not what was there before"
    assert last.statistics[1] == tuple(int(memory[name][1, 1]) / 60 for name in ("certified", "correct"))
