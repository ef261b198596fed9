"""The paper's method on a stack of seeds: what it does for one model, row by row, and its promises."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import intercontinet as icn
from intercontinet.engine.loop import Progress
from intercontinet.learners.boxes import learn_in_boxes, region_of
from intercontinet.learners.intercontinet import Hyperrectangles
from intercontinet.learners.method import Lesson, Memory, Nets
from intercontinet.learners.settings import Settings
from tests.tiny import QUICK, blobs, mlp, with_statistics

SEEDS = (3, 1, 4)
OPTIONS: dict[str, dict[str, Any]] = {
    "shared head": {},
    "head per task": {"head": "per-task"},
    "as published": {"enforce": False, "margins": "separate"},
    "a later rate, milestones": {"later_rate": 0.005, "milestones": (2, 4)},
}


def settings(kind: str) -> dict[str, Any]:
    return {**QUICK, "centre_epochs": 6, "radii_epochs": 3, **OPTIONS[kind]}


def net(seed: int) -> nn.Sequential:
    return mlp(hidden=6, outputs=6, seed=seed)


def tasks(kind: str) -> list[Lesson]:
    pairs = [(0, 1), (2, 3), (4, 5)] if kind == "head per task" else [(0, 1)] * 3
    data = [blobs(labels=pair, seed=k) for k, pair in enumerate(pairs)]
    return [Lesson(str(k), k, x, y, pairs[k]) for k, (x, y) in enumerate(data)]


def learn(kind: str, seeds: tuple[int, ...]) -> list[tuple[Tensor, Memory]]:
    """Weights and memory after each of three tasks."""
    method, nets = Hyperrectangles(Settings(keep=0.9, **settings(kind))), Nets(net(0), seeds)
    weights = torch.stack([parameters_to_vector(net(seed).parameters()).detach() for seed in seeds])
    memory: Memory = {}
    found = []
    for lesson in tasks(kind):
        weights, memory = method.learn(nets, weights, memory, lesson)
        found.append((weights, memory))
    return found


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_row_of_the_stack_is_what_one_model_learns_with_that_seed(kind: str) -> None:
    """To the bit where a seed is alone, and closely beside others."""
    together = learn(kind, SEEDS)
    alone = learn(kind, SEEDS[1:2])
    for row, seed in enumerate(SEEDS):
        model = net(seed)
        learner = icn.InterContiNet(model, keep=0.9, seed=seed, **settings(kind))
        nets = Nets(model, (seed,))
        for k, lesson in enumerate(tasks(kind)):
            floor = learner.learn((lesson.x, lesson.y), classes=lesson.classes)
            weights = parameters_to_vector(model.parameters()).detach()
            lower, upper = (nets.layout.flatten(edge) for edge in (learner.region.lower, learner.region.upper))
            expected = {"weights": weights, "lower": lower, "upper": upper}
            found = {"weights": together[k][0], **together[k][1]}
            for part, tensor in expected.items():
                torch.testing.assert_close(found[part][row], tensor, rtol=0, atol=1e-5)
            assert int(found["certified"][row, k]) == floor.certified and int(found["correct"][row, k]) == floor.correct
            if seed == SEEDS[1]:
                single = {"weights": alone[k][0], **alone[k][1]}
                assert all(torch.equal(single[part][0], tensor) for part, tensor in expected.items())


@pytest.mark.parametrize("kind", OPTIONS)
def test_regions_nest_and_no_floor_falls_for_any_seed(kind: str) -> None:
    found, lessons = learn(kind, SEEDS), tasks(kind)
    counts = found[-1][1]
    assert counts["certified"].shape == counts["correct"].shape == (3, 3)
    assert torch.equal(counts["certified"][:, :2], found[1][1]["certified"]), "older counts stay"
    margins: Any = "separate" if kind == "as published" else "joint"
    for row, seed in enumerate(SEEDS):
        model = net(seed)
        nets = Nets(model, (seed,))
        regions = [region_of(nets, memory["lower"][row], memory["upper"][row]) for _, memory in found]
        assert all(child.within(parent) for parent, child in pairwise(regions))
        vector_to_parameters(found[-1][0][row].clone(), model.parameters())
        assert all(region.contains(model) for region in regions)
        assert regions[-1].size().radii > 0
        for k, lesson in enumerate(lessons):
            certified, correct = int(counts["certified"][row, k]), int(counts["correct"][row, k])
            assert kind == "as published" or certified >= 0.9 * correct > 20
            again = icn.certify(model, regions[-1], (lesson.x, lesson.y), classes=lesson.classes, margins=margins)
            assert again.certified >= certified
            if k == 2:
                assert again.certified == certified and again.correct == correct


def test_each_task_freezes_its_own_rows_of_the_head_and_leaves_those_to_come_free() -> None:
    found = learn("head per task", SEEDS)
    layout = Nets(net(0), SEEDS).layout
    for k, (weights, memory) in enumerate(found):
        parts = {
            part: layout.unflatten(tensor) for part, tensor in (("w", weights), *memory.items()) if part[0] in "wlu"
        }
        for name in ("2.weight", "2.bias"):
            w, low, up = (parts[part][name] for part in ("w", "lower", "upper"))
            done = slice(0, 2 * k + 2)
            assert torch.equal(low[:, done], w[:, done]) and torch.equal(up[:, done], w[:, done])
            assert bool(low[:, 2 * k + 2 :].isneginf().all()) and bool(up[:, 2 * k + 2 :].isposinf().all())
            if k:
                before = layout.unflatten(found[k - 1][0])[name]
                assert torch.equal(w[:, : 2 * k], before[:, : 2 * k])
                assert not torch.equal(w[:, 2 * k : 2 * k + 2], before[:, 2 * k : 2 * k + 2])


def test_without_enforcement_the_count_is_what_it_is() -> None:
    lesson = tasks("as published")[0]
    options: dict[str, Any] = {**settings("as published"), "radii_epochs": 0}
    nets = Nets(net(0), (0,))
    start = parameters_to_vector(net(0).parameters()).detach()[None]
    nowhere = torch.full_like(start, torch.inf)
    boxes = learn_in_boxes(Settings(**options), nets, start, -nowhere, nowhere, lesson)
    assert int(boxes.certified[0]) < 0.9 * int(boxes.correct[0]), "radii of almost one keep too little"
    torch.testing.assert_close(boxes.upper - boxes.lower, torch.full_like(start, 2 * 0.9933), rtol=0, atol=1e-3)


def test_where_nothing_can_move_nothing_is_trained_and_the_task_is_counted() -> None:
    method, nets = Hyperrectangles(Settings(keep=0.9, **settings("shared head"))), Nets(net(0), SEEDS)
    weights = torch.stack([parameters_to_vector(net(seed).parameters()).detach() for seed in SEEDS])
    lesson, heard = tasks("shared head")[0], list[Progress]()
    point = {"lower": weights.clone(), "upper": weights.clone()}
    counted = {"certified": torch.zeros(3, 1).long(), "correct": torch.zeros(3, 1).long()}
    after, memory = method.learn(nets, weights, {**point, **counted}, lesson, heard.append)
    assert all(torch.equal(t, weights) for t in (after, memory["lower"], memory["upper"]))
    epochs = [("centres", epoch, 6) for epoch in range(1, 7)] + [("radii", epoch, 3) for epoch in range(1, 4)]
    assert [(told.phase, told.epoch, told.epochs) for told in heard] == epochs, "as of a task that was trained"
    assert {told.task for told in heard} == {"0"} and all(told.loss[0] != told.loss[0] for told in heard)
    for row, seed in enumerate(SEEDS):
        right = int((net(seed)(lesson.x)[:, [0, 1]].argmax(1) == lesson.y).sum())
        certain = int(memory["certified"][row, 1])
        assert memory["correct"][row].tolist() == [0, right]
        assert 0.9 * right <= certain <= right
        size = len(lesson.x)
        assert heard[0].statistics[row] == pytest.approx((right / size,))
        assert heard[-1].statistics[row] == pytest.approx((certain / size, right / size))
        assert torch.equal(heard[0].parameters[row], weights[row]) and not heard[-1].parameters.any()
    point["lower"][1, 0] -= 1.0  # room for one weight of one seed is enough to learn with
    point["upper"][1, 0] += 1.0
    moved, _ = method.learn(nets, weights, {**point, **counted}, lesson)
    assert [torch.equal(now, start) for now, start in zip(moved, weights, strict=True)] == [True, False, True]


def test_centres_are_trained_on_augmented_examples_and_radii_on_the_examples_themselves() -> None:
    calls: list[int] = []

    def augment(x: Tensor, keys: Tensor) -> Tensor:
        calls.append(len(keys))
        return torch.zeros_like(x)

    start = torch.stack([parameters_to_vector(net(seed).parameters()).detach() for seed in SEEDS])
    nets = Nets(net(0), SEEDS, augment)
    weights, _ = Hyperrectangles(Settings(**settings("shared head"))).learn(nets, start, {}, tasks("shared head")[0])
    assert calls == [3] * (6 * 3), "six epochs of three batches, and none of the radii"
    assert torch.equal(weights[:, :12], start[:, :12]), "from black examples the first layer learns nothing"


def test_milestones_slow_the_centres_down() -> None:
    moved = {}
    for milestones in ((), (1,)):
        method = Hyperrectangles(Settings(**{**settings("shared head"), "optimizer": "sgd"}, milestones=milestones))
        start = parameters_to_vector(net(0).parameters()).detach()[None]
        weights, _ = method.learn(Nets(net(0), (0,)), start, {}, tasks("shared head")[0])
        moved[milestones] = float((weights - start).abs().max())
    assert 0 < moved[1,] < 0.5 * moved[()]


def test_what_does_not_train_is_a_point_of_the_region() -> None:
    model = with_statistics()
    model[0].requires_grad_(False)
    nets = Nets(model, (0,))
    start = nets.layout.flatten(dict(model.named_parameters())).detach()[None]
    x, y = blobs()
    _, memory = Hyperrectangles(Settings(**QUICK)).learn(nets, start, {}, Lesson("", 0, x, y))
    region = region_of(nets, memory["lower"][0], memory["upper"][0])
    assert memory["lower"].shape == start.shape
    for name in ("0.weight", "0.bias", "1.running_mean", "1.running_var"):
        resting = model.state_dict()[name]
        assert torch.equal(region.lower[name], resting) and torch.equal(region.upper[name], resting)
    assert region.size(("3.weight",)).radii > 0
