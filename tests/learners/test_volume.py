"""Log-volume as the aim: the objective against a naive one, and the regions that come of it."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

import intercontinet as icn
from intercontinet.engine.loop import Batch, Fixed, Parameters, Statistics
from intercontinet.errors import InvalidSetting
from intercontinet.learners.intercontinet import Hyperrectangles
from intercontinet.learners.method import Lesson, Memory, Nets
from intercontinet.learners.settings import Settings
from intercontinet.learners.volume import LEAST, WEIGHT, volume_objective
from tests.tiny import QUICK, blobs, mlp

VOLUME: dict[str, Any] = {
    **QUICK,
    "radii_rate": 0.15,
    "radii_epochs": 30,
    "aim": "volume",
    "worst": "lost",
    "edges": "asymmetric",
    "shift": "clamped",
}


@cache
def learned(seeds: tuple[int, ...], **options: Any) -> list[tuple[Tensor, Memory]]:
    """Weights and memory after each of two tasks."""
    method, nets = Hyperrectangles(Settings(keep=0.8, **{**VOLUME, **options})), Nets(mlp(), seeds)
    weights = torch.stack([parameters_to_vector(mlp(seed=seed).parameters()).detach() for seed in seeds])
    memory: Memory = {}
    found = []
    for k in range(2):
        weights, memory = method.learn(nets, weights, memory, Lesson(str(k), k, *blobs(seed=k, spread=0.6)))
        found.append((weights, memory))
    return found


@pytest.mark.parametrize(("certain", "sign"), [(0.9, 1), (0.5, -1)])
def test_the_objective_rewards_logarithms_layer_by_layer_and_steers_its_own_weight(certain: float, sign: int) -> None:
    def worst(distances: Parameters, fixed: Fixed, batch: Batch) -> tuple[Tensor, Statistics]:
        loss = sum((d.square().sum() for d in distances.values()), torch.zeros(()))
        return loss, lambda: torch.tensor([certain, 1.0])

    distances = {"a": torch.tensor([0.1, 0.2, 0.3]), "b": torch.tensor([0.4]), "c": torch.tensor([0.5, 0.0])}
    parameters = {n: t.double().requires_grad_() for n, t in {**distances, WEIGHT: torch.tensor(0.7)}.items()}
    objective = volume_objective(worst, {("a", "b"): 1.0, ("c",): 0.25}, keep=0.8)
    loss, statistics = objective(parameters, {}, {})
    gradients = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))
    for name, budget, entries in (("a", 1.0, 4), ("b", 1.0, 4), ("c", 0.25, 2)):
        for d, gradient in zip(parameters[name].tolist(), gradients[name].tolist(), strict=True):
            reward = 0.7 * budget / entries / d if d > LEAST else 0.0
            assert gradient == pytest.approx(2 * d - reward), f"of {name}"
    assert float(gradients[WEIGHT]) * 0.7 == pytest.approx(-sign), "by the weight's logarithm: up, while there is room"
    assert torch.equal(statistics(), torch.tensor([certain, 1.0]))


def test_regions_nest_keep_their_promise_and_are_larger_than_the_papers() -> None:
    found = learned((3, 1))
    paper = learned(
        (3, 1), radii_epochs=4, radii_rate=0.3, edges="symmetric", aim="loss", worst="entropy", shift="scaled"
    )
    for (_, parent), (weights, child) in pairwise(found):
        assert bool((parent["lower"] <= child["lower"]).all() and (child["upper"] <= parent["upper"]).all())
        assert bool((child["lower"] <= weights).all() and (weights <= child["upper"]).all())
    counts = found[-1][1]
    assert bool((counts["certified"] >= 0.8 * counts["correct"]).all()) and int(counts["correct"].min()) > 40

    def room(memory: Memory) -> float:
        return float((memory["upper"] - memory["lower"]).clamp(min=LEAST).log().mean())

    assert room(found[0][1]) > room(paper[0][1]) + 0.3
    weights, memory = found[0]
    below, above = weights - memory["lower"], memory["upper"] - weights
    assert float((below / above.clamp(min=LEAST)).log().abs().mean()) > 0.1, "edges are not symmetric"


def test_many_seeds_side_by_side_learn_what_each_learns_alone() -> None:
    together, alone = learned((3, 1)), learned((1,))
    for k in range(2):
        for part in ("lower", "upper"):
            torch.testing.assert_close(together[k][1][part][1], alone[k][1][part][0], rtol=0, atol=2e-3)
        torch.testing.assert_close(together[k][0][1], alone[k][0][0], rtol=0, atol=2e-3)


def test_a_layer_without_a_budget_gets_no_room_of_its_own() -> None:
    def room(budgets: tuple[float, ...]) -> dict[str, float]:
        model = mlp()
        learner = icn.InterContiNet(model, keep=0.8, **{**VOLUME, "budgets": budgets})
        assert learner.learn(blobs()).kept
        region = learner.region
        return {name: float((region.upper[name] - region.lower[name]).mean()) for name in region.lower}

    first, second = room((1.0, 0.0)), room((0.0, 1.0))
    assert first["0.weight"] > 2 * second["0.weight"] and second["2.weight"] > 2 * first["2.weight"]


@pytest.mark.parametrize("edges", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("aim", ["loss", "volume"])
def test_heads_of_their_own_and_rigid_layers_stay_points_whatever_the_aim(edges: str, aim: str) -> None:
    model = mlp(hidden=6, outputs=4)
    options: dict[str, Any] = {**VOLUME, "radii_epochs": 3, "edges": edges, "aim": aim}
    learner = icn.InterContiNet(model, keep=0.8, head="per-task", **options)
    for k, pair in enumerate([(0, 1), (2, 3)]):
        assert learner.learn(blobs(labels=pair, seed=k)).kept
    lower, upper = learner.region.lower, learner.region.upper
    assert torch.equal(lower["2.weight"], upper["2.weight"]) and not torch.equal(lower["0.weight"], upper["0.weight"])
    learner = icn.InterContiNet(mlp(), keep=0.8, rigid=1, **options)
    learner.learn(blobs())
    lower, upper = learner.region.lower, learner.region.upper
    assert torch.equal(lower["0.weight"], upper["0.weight"]) and not torch.equal(lower["2.weight"], upper["2.weight"])


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"optimizer": "sgd"}, "optimizer='adam'"),
        ({"budgets": (1.0, -1.0)}, "none of them negative"),
        ({"budgets": 0.5}, "a tuple of numbers"),
        ({"budgets": (1.0, 1.0, 1.0)}, r"budgets has 3 numbers, but only 2 layer\(s\) can move"),
        ({"edges": "round"}, "choose one of 'symmetric', 'asymmetric'"),
        ({"aim": "high"}, "choose one of 'loss', 'volume'"),
        ({"worst": "of all"}, "choose one of 'entropy', 'lost'"),
    ],
)
def test_settings_that_make_no_sense_say_what_would(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidSetting, match=complaint):
        icn.InterContiNet(mlp(), **{**VOLUME, **options}).learn(blobs())
