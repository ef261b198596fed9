"""All kinds of networks and settings learn, and keep what they learned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import intercontinet as icn
from tests.learners.test_intercontinet import right
from tests.tiny import QUICK, blobs, mlp, snapshot, with_statistics


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16, 2),
    )  # fmt: skip


def tied() -> nn.Module:
    layer = nn.Linear(6, 6)
    return nn.Sequential(nn.Linear(2, 6), nn.ReLU(), layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(6, 2))


KINDS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "separate margins": (mlp, {"margins": "separate"}),
    "plain shift": (mlp, {"shift": "plain"}),
    "sgd": (mlp, {"optimizer": "sgd", "rate": 0.5, "radii_rate": 10.0}),
    "dropout": (lambda: nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2)), {}),
    "convolutions": (convolutional, {}),
    "tanh": (lambda: nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)), {}),
    "normalised": (with_statistics, {}),
    "no biases": (lambda: nn.Sequential(nn.Linear(2, 8, bias=False), nn.ReLU(), nn.Linear(8, 2, bias=False)), {}),
    "one layer": (lambda: nn.Linear(2, 2), {}),
    "three layers": (lambda: nn.Sequential(mlp(outputs=8), nn.Tanh(), mlp(inputs=8)), {}),
    "tied weights": (tied, {}),
    "a last layer that is not linear": (lambda: nn.Sequential(mlp(), nn.Identity()), {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_network_learns_two_tasks_and_keeps_the_first(kind: str) -> None:
    build, options = KINDS[kind]
    torch.manual_seed(1)
    model = build()
    inputs = 16 if kind == "convolutions" else 2
    data = blobs(inputs=inputs)
    modes = [part.training for part in model.modules()]
    resting = {name: buffer.clone() for name, buffer in model.named_buffers()}
    learner = icn.InterContiNet(model, keep=0.9, **{**QUICK, "centre_epochs": 30, **options})
    first = learner.learn(data, task="first")
    assert [part.training for part in model.modules()] == modes
    parent = learner.region
    assert first.kept and first.accuracy > 0.9 and parent.size().radii > 0
    second = learner.learn(blobs(seed=1, inputs=inputs), task="second")
    assert second.kept and learner.region.within(parent) and learner.region.contains(model)
    assert all(torch.equal(buffer, resting[name]) for name, buffer in model.named_buffers())
    assert right(model, data) >= first.certified
    joint = options.get("margins") != "separate"
    assert (
        icn.certify(model, learner.region, data, margins="joint" if joint else "separate").certified >= first.certified
    )


def test_parameters_that_do_not_require_gradients_stay_as_points() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    before = snapshot(model)
    learner = icn.InterContiNet(model, **QUICK)
    learner.learn(blobs())
    assert torch.equal(snapshot(model)["0.weight"], before["0.weight"])
    assert torch.equal(learner.region.lower["0.weight"], before["0.weight"])
    assert torch.equal(learner.region.upper["0.weight"], before["0.weight"])
    assert learner.region.size(("2.weight",)).radii > 0
