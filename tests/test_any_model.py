"""Models as engineers have them: float32 outputs lie inside their bounds, and floors below what attacks find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import intercontinet as icn
from intercontinet.criterion import regression
from tests.models import AutoEncoder, Dense, Mixer, Text, ViT, Wave, resnet18
from tests.strategies import lopsided_region, weights_inside


@dataclass(frozen=True)
class Model:
    """How to build one, what to feed it, and a radius at which something is certain, and something is not."""

    build: Callable[[], nn.Module]
    inputs: Callable[[int], Tensor]
    radius: float
    examples: int = 24


MODELS = {
    "resnet18": Model(lambda: resnet18(3, width=2), lambda n: torch.randn(n, 3, 8, 8), 2e-5, examples=6),
    "vit": Model(ViT, lambda n: torch.randn(n, 1, 8, 8), 3e-6),
    "transformer": Model(lambda: ViT(own=False), lambda n: torch.randn(n, 1, 8, 8), 1e-5),
    "wave": Model(Wave, lambda n: torch.randn(n, 2, 12), 5e-3),
    "mixer": Model(Mixer, lambda n: torch.randn(n, 4, 6), 5e-3),
    "text": Model(Text, lambda n: torch.randint(12, (n, 7)), 0.02),
    "dense": Model(Dense, lambda n: torch.randn(n, 4), 5e-3),
}
CLASSIFIERS = pytest.mark.parametrize("which", list(MODELS))


def built(which: str) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = MODELS[which].build().eval()
    x = MODELS[which].inputs(MODELS[which].examples)
    with torch.no_grad():
        return model, x, model(x).argmax(1)


@CLASSIFIERS
@pytest.mark.parametrize("wide", [0.0, 1.0, 30.0])
@torch.no_grad()
def test_outputs_of_weights_and_corners_inside_lie_inside(which: str, wide: float) -> None:
    model, x, _ = built(which)
    generator = torch.Generator().manual_seed(1)
    region = lopsided_region(model, wide * MODELS[which].radius, generator)
    x = x[:4]
    box = icn.bounds(model, region, x)
    assert box.shape == (len(x), 3) and bool((box.lower <= box.upper).all())
    weights = weights_inside(region, 12, generator)
    for index in range(12):
        out = functional_call(model, {name: stack[index] for name, stack in weights.items()}, (x,))
        assert box.contains(out)


@CLASSIFIERS
@pytest.mark.parametrize("drift", [None, 1e-5])
def test_floors_lie_below_what_an_attack_finds(which: str, drift: float | None) -> None:
    model, x, y = built(which)
    y = torch.where(torch.arange(len(y)) % 6 == 0, (y + 1) % 3, y)  # some are wrong
    region = icn.Region.around(model, MODELS[which].radius)
    if drift is not None:
        heads = [name for name, _ in model.named_parameters()][-2:]
        region = icn.Region.around(model, dict.fromkeys(heads, 5e-3))
    floor = icn.certify(model, region, (x, y), drift=drift)
    found = icn.attack(model, region, (x, y), steps=4, starts=2)
    assert 0 < floor.certified <= round(found.accuracy * floor.total) <= floor.correct < floor.total


@pytest.mark.parametrize("which", ["vit", "resnet18", "text"])
def test_where_only_the_last_layer_moves_the_floor_is_the_worst_corner(which: str) -> None:
    """Of each example: its own row of weights low, the rival's high, by the sign of each feature."""
    model, x, y = built(which)
    (weight_name, weight), (bias_name, _) = list(model.named_parameters())[-2:]
    radius = 0.02
    region = icn.Region.around(model, {weight_name: radius, bias_name: radius})
    features: list[Tensor] = []
    handle = list(model.modules())[-1].register_forward_hook(lambda layer, given, out: features.append(given[0]))
    with torch.no_grad():
        out = model(x)
    handle.remove()
    room = radius * (features[0].abs().sum(1) + 1)
    rival = out.scatter(1, y[:, None], -torch.inf).amax(1)
    lead = out.gather(1, y[:, None]).squeeze(1) - rival
    naive = int((lead > 2 * room).sum())
    assert icn.certify(model, region, (x, y), drift=0.0).certified == naive
    assert icn.certify(model, region, (x, y), drift=1e-5).certified <= naive
    assert weight.shape[0] == 3


@torch.no_grad()
def test_an_autoencoder_is_certified_by_regression() -> None:
    torch.manual_seed(0)
    model, x = AutoEncoder().eval(), torch.rand(8, 1, 6, 6)
    region = icn.Region.around(model, 1e-3)
    box = icn.bounds(model, region, x)
    weights = weights_inside(region, 20, torch.Generator().manual_seed(0))
    for index in range(20):
        assert box.contains(functional_call(model, {n: w[index] for n, w in weights.items()}, (x,)))
    off = torch.maximum(box.upper - x, x - box.lower).flatten(1).amax(1)
    tolerance = float(off.median())
    floor = icn.certify(model, region, (x, x), criterion=regression(tolerance))
    assert floor.certified == int((off <= tolerance).sum()) > 0
