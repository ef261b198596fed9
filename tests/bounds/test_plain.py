"""Models must do what their code and their rules say: weights are registered, modes obey, nothing is wrapped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intercontinet as icn
from intercontinet.bounds import in_float64
from intercontinet.bounds.forward import forward
from intercontinet.bounds.network import Network
from intercontinet.errors import InvalidData, TrainingMode, UnsupportedLayer
from intercontinet.interval import Interval
from intercontinet.region import Region
from tests.bounds.between import FINE, Net, inputs


class Derived(nn.Linear):
    """Computes its weight from another parameter, behind the back of Linear's rule."""

    weight = property(lambda self: self.raw * 2)


class Doubled(nn.Linear):
    """What is registered under the name that Linear looks for is not what it finds."""

    weight = property(lambda self: self._parameters["weight"] * 2)


class Deferred(nn.Linear):
    """Gives another parameter for its weight."""

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__("raw" if name == "weight" else name)


class Flipped(torch.Tensor):
    """A tensor that computes as it likes."""


def with_plain(name: str) -> nn.Linear:
    layer = nn.Linear(4, 4)
    held = getattr(layer, name).detach().clone()
    delattr(layer, name)
    setattr(layer, name, held)
    return layer


def with_subclass() -> nn.Linear:
    layer = nn.Linear(4, 4)
    layer.weight = nn.Parameter(torch.randn(4, 4).as_subclass(Flipped))
    return layer


def turned(kind: type[nn.Linear], raw: bool) -> nn.Linear:
    layer = nn.Linear(4, 4)
    if raw:
        layer.register_parameter("raw", layer._parameters.pop("weight"))
    layer.__class__ = kind
    return layer


@pytest.mark.parametrize("chained", [True, False])
@pytest.mark.parametrize(
    ("build", "complaint"),
    [
        (lambda: turned(Derived, raw=True), "uses a 'weight' that is neither a parameter nor a buffer.*register it"),
        (lambda: turned(Doubled, raw=False), "something else for 'weight' than the tensor registered"),
        (lambda: with_plain("weight"), "uses a 'weight' that is neither"),
        (lambda: with_plain("bias"), "uses a 'bias' that is neither"),
        (lambda: turned(Deferred, raw=True), "uses a 'weight' that is neither"),
        (with_subclass, "holds 'weight' as a Flipped"),
    ],
)
def test_weights_that_are_not_what_a_rule_takes_them_for_are_refused(
    build: Callable[[], nn.Linear], complaint: str, chained: bool
) -> None:
    model = Net(lambda net, h: net.inner(h))
    model.inner = build()
    whole: nn.Module = nn.Sequential(model.first, model.inner) if chained else model
    names = {name: parameter.detach().as_subclass(Tensor) for name, parameter in whole.named_parameters()}
    with pytest.raises(UnsupportedLayer, match=f"layer '{1 if chained else 'inner'}'.*{complaint}"):
        forward(whole, names, [in_float64(Interval.point(inputs()))])
    if chained:
        with pytest.raises(UnsupportedLayer, match=complaint):
            Network(whole)


def test_a_layer_is_looked_at_as_the_pass_leaves_it() -> None:
    def swapped(net: Net, h: Tensor) -> Tensor:
        held = net.first.bias
        del net.first.bias
        net.first.bias = h[0]  # type: ignore[assignment]
        out: Tensor = net.first(h)
        del net.first.bias
        net.first.bias = held
        return out

    for between, complaint in (
        (swapped, "layer 'first'.*uses a 'bias' that is neither"),
        (lambda net, h: net.drop.train()(h), "layer 'drop'.*put into training mode"),
    ):
        model = Net(between)
        with pytest.raises(UnsupportedLayer, match=complaint):
            icn.bounds(model, Region.around(model, 0.1), inputs())


class Stubborn(nn.Dropout):
    """Dropout that stays on."""

    def train(self, mode: bool = True) -> Stubborn:
        return super().train(True)


def test_dropout_that_stays_on_is_refused() -> None:
    model = Net(FINE["dropout"])
    model.drop = Stubborn()
    for whole, path in ((model, "drop"), (nn.Sequential(nn.Linear(4, 4), Stubborn()), "1")):
        complaint = rf"layer '{path}' \(Stubborn\) goes on training after model.eval\(\)"
        with pytest.raises(TrainingMode, match=complaint):
            icn.bounds(whole, Region.around(whole, 0.1), inputs())
        with pytest.raises(TrainingMode, match=complaint):
            icn.certify(whole, Region.around(whole, 0.1), (inputs(), torch.zeros(3).long()))
    training = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).train()
    icn.bounds(training, Region.around(training, 0.1), inputs())
    assert training[1].training


@pytest.mark.parametrize("chained", [True, False])
def test_a_buffer_that_is_not_saved_must_not_change_with_a_parameter(chained: bool) -> None:
    model = Net(lambda net, h: F.linear(h, net.view))
    whole: nn.Module = nn.Sequential(model.first, model.last) if chained else model
    whole.register_buffer("view", model.first.weight.data[1:], persistent=False)
    named = "0.weight" if chained else "first.weight"
    with pytest.raises(UnsupportedLayer, match=rf"buffer 'view' is not saved.*memory with '{named}'.*clone"):
        icn.bounds(whole, Region.around(whole, 0.1), inputs())


@torch.no_grad()
def test_a_bias_that_is_not_saved_is_not_forgotten() -> None:
    layer = nn.Linear(4, 3)
    del layer.bias
    layer.register_buffer("bias", torch.full((3,), 5.0), persistent=False)
    for model in (layer, nn.Sequential(layer)):
        assert icn.bounds(model, Region.around(model, 0.0), inputs()).contains(model(inputs()))


@torch.no_grad()
def test_constants_of_higher_precision_are_rounded_as_the_model_rounds_them() -> None:
    def assigned(net: Net, h: Tensor) -> Tensor:
        h[:, 0] = torch.tensor(0.1, dtype=torch.float64)
        return h * torch.tensor(0.7, dtype=torch.float64)

    model = Net(assigned)
    model.last = nn.Identity()  # type: ignore[assignment]
    box = icn.bounds(model, Region.around(model, 0.0), inputs())
    assert box.contains(model(inputs()))
    model.between = lambda net, h: torch.stack([h[:, 0] * 0, h[:, 0] * 0 + 1], 1).masked_fill_(
        torch.tensor([False, True]), torch.tensor(0.1, dtype=torch.float64)
    )
    box = icn.bounds(model, Region.around(model, 0.0), inputs())
    assert bool((box.lower[:, 1] == torch.tensor(0.1).double()).all()) and box.contains(model(inputs()))


def test_inputs_that_compute_in_their_own_way_are_refused() -> None:
    model = Net()
    with pytest.raises(InvalidData, match=r"inputs are a Flipped.*as_subclass\(torch.Tensor\)"):
        icn.bounds(model, Region.around(model, 0.1), inputs().as_subclass(Flipped))


@pytest.mark.parametrize("kind", ["compiled", "spread"])
def test_wrapped_models_are_refused_before_they_run(kind: str) -> None:
    model = Net(lambda net, h: pytest.fail("it ran"))
    wrapped: Any = torch.compile(model, backend="eager") if kind == "compiled" else nn.DataParallel(model)
    complaint = {"compiled": "compiled.*model._orig_mod", "spread": "give model.module"}
    region = Region.around(wrapped, 0.1)
    for call in (
        lambda: icn.bounds(wrapped, region, inputs()),
        lambda: icn.protect(wrapped, (inputs(), torch.zeros(3).long())),
        lambda: icn.certify(wrapped, region, (inputs(), torch.zeros(3).long())),
    ):
        with pytest.raises(UnsupportedLayer, match=complaint[kind]):
            call()
