"""Frozen parts of a model: taken as computed, give or take a drift, and computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intercontinet as icn
from intercontinet.bounds import Arithmetic, Float32, Real, in_float64, leads
from intercontinet.bounds.forward import Chain, Pass, forward
from intercontinet.bounds.tape import Known
from intercontinet.errors import InvalidData, UnsupportedLayer
from intercontinet.interval import Interval
from intercontinet.region import Region
from tests.bounds.between import Net, inputs, looped


def unsupported(net: Net, h: Tensor) -> Tensor:
    return torch.erfinv(h.tanh() / 2) * (1.0 if float(h.sum()) > -1e9 else 2.0)


def head_region(model: nn.Module, radius: float = 0.1) -> Region:
    return Region.around(model, {"last.weight": radius, "last.bias": radius})


def played(model: nn.Module, region: Region, movable: list[str] | None, drift: float = 0.0) -> Pass:
    batch = forward(model, region.lower, [in_float64(Interval.point(inputs()))], movable, drift)
    assert isinstance(batch, Pass)
    return batch


@torch.no_grad()
def test_frozen_parts_are_taken_as_computed_whatever_they_are() -> None:
    model = Net(unsupported)
    region = head_region(model)
    with pytest.raises(UnsupportedLayer, match=r"'float_'|'erfinv'"):
        icn.bounds(model, region, inputs())
    features = unsupported(model, model.first(inputs()))
    boxes = region.intervals(torch.float64)
    batch = played(model, region, ["last.weight", "last.bias"])
    assert len(batch.tape.notes) == 1 and batch.ends_linear and batch.head_names == ("last.weight", "last.bias")
    hidden = batch.head(boxes, Float32())[0]
    assert hidden.is_point and torch.equal(hidden.lower, features.double())
    out = batch.outputs(boxes, Float32())
    naive = F.linear(features, model.last.weight, model.last.bias).double()
    room = 0.1 * (features.abs().sum(1, keepdim=True) + 1).double()
    torch.testing.assert_close(out.upper, naive + room, rtol=0, atol=1e-5)
    torch.testing.assert_close(out.lower, naive - room, rtol=0, atol=1e-5)


@pytest.mark.parametrize("drift", [1e-4, 0.1])
def test_drift_widens_what_was_computed_by_a_share_of_each_examples_largest_entry(drift: float) -> None:
    model = Net(lambda net, h: torch.erfinv(h.tanh() / 2))
    region, names = head_region(model), ["last.weight", "last.bias"]
    boxes = region.intervals(torch.float64)
    features = played(model, region, names).head(boxes, Float32())[0].lower
    hidden = played(model, region, names, drift).head(boxes, Float32())[0]
    slack = drift * features.abs().amax(1, keepdim=True)
    torch.testing.assert_close(hidden.upper, features + slack)
    torch.testing.assert_close(hidden.lower, features - slack)
    tight, wide = (played(model, region, names, d).outputs(boxes, Float32()) for d in (0.0, drift))
    assert bool((wide.lower < tight.lower).all() and (tight.upper < wide.upper).all())


@pytest.mark.parametrize(
    ("between", "complaint"),
    [
        (lambda net, h: F.one_hot(h.argmax(1), 4).float(), "'argmax'.*decides by values that frozen layers compute"),
        (lambda net, h: h * (h > 0), "'gt'.*decides by values"),
        (lambda net, h: h if h.sum() > -1e9 else -h, "'gt'.*decides by values.*drift=0"),
        (lambda net, h: h * float(h.max()), "'float_'.*decides by values"),
        (lambda net, h: h.gather(1, h.sort(1)[1]) + h, "indices"),
        (lambda net, h: h.long().float(), "'long'.*decides by values"),
    ],
)
def test_with_drift_nothing_may_be_decided_by_what_drifts(between: Callable[..., Any], complaint: str) -> None:
    model = Net(between)
    names = ["last.weight", "last.bias"]
    played(model, head_region(model), names)
    with pytest.raises(UnsupportedLayer, match=complaint):
        played(model, head_region(model), names, 1e-5)


def test_with_drift_inputs_constants_and_extremes_may_decide() -> None:
    def decided(net: Net, h: Tensor) -> Tensor:
        return h.max(1, keepdim=True)[0] + h.masked_fill(net.causal[0] == 0, 0.0)

    model = Net(decided)
    assert played(model, head_region(model), ["last.weight"], 1e-5).ends_linear


def test_inputs_and_frozen_weights_do_not_drift() -> None:
    model = Net(lambda net, h: h * net.table.exp())
    region = Region.around(model, {"first.weight": 0.1})
    tape = played(model, region, ["first.weight"], drift=0.5).tape
    known = [leaf for note in tape.notes for leaf in (*note.args, *note.kwargs.values()) if isinstance(leaf, Known)]
    assert [leaf.computed for leaf in known] == [False, True]  # the input, and what was computed from a table
    flattened = Net(lambda net, h: h)
    flattened.first = nn.Sequential(nn.Flatten(), nn.Linear(4, 4))  # type: ignore[assignment]
    tape = played(flattened, Region.around(flattened, {"first.1.weight": 0.1}), ["first.1.weight"], 0.5).tape
    assert isinstance(tape.notes[0].args[0], Known) and not tape.notes[0].args[0].computed


def test_what_moves_is_followed_through_frozen_layers() -> None:
    model = Net(lambda net, h: h.relu())
    region = Region.around(model, {"first.bias": 0.2})
    boxes = region.intervals(torch.float64)
    full, some = (played(model, region, names).outputs(boxes, Float32()) for names in (None, ["first.bias"]))
    assert bool((full.lower <= some.lower).all() and (some.upper <= full.upper).all())
    torch.testing.assert_close(full.upper, some.upper, rtol=0, atol=1e-5)
    unseen = Net(unsupported)
    with pytest.raises(UnsupportedLayer, match=r"'float_'|'erfinv'"):
        played(unseen, Region.around(unseen, {"first.bias": 0.2}), ["first.bias"])


def test_with_drift_inputs_must_be_points() -> None:
    model = Net(looped)
    wide = Interval(inputs(), inputs() + 1)
    with pytest.raises(InvalidData, match="known exactly"):
        forward(model, Region.around(model, 0.1).lower, [wide], ["last.bias"], 0.0)


@pytest.mark.parametrize("movable", [["last.weight"], ["first.bias", "last.bias"], []])
@pytest.mark.parametrize("arithmetic", [Float32(), Real(exact=True)])
@pytest.mark.parametrize("chained", [True, False])
def test_bounds_that_were_computed_for_good_are_the_same_bounds(
    movable: list[str], arithmetic: Arithmetic, chained: bool
) -> None:
    model: nn.Module = Net(lambda net, h: net.norm(h.relu()))
    if chained:
        assert isinstance(model, Net)
        layers = nn.Sequential()
        for name, layer in (("first", model.first), ("relu", nn.ReLU()), ("norm", model.norm), ("last", model.last)):
            layers.add_module(name, layer)
        model = layers.eval()
    region = Region.around(model, dict.fromkeys(movable, 0.1))
    boxes = region.intervals(torch.float64)
    batch = forward(model, region.lower, [in_float64(Interval.point(inputs()))])
    assert isinstance(batch, Chain if chained else Pass)
    baked = batch.baked(boxes, arithmetic, movable)
    labels = torch.tensor([0, 1, 2])
    for radius in (0.1, 0.3):  # other boxes of what moves
        other = Region.around(model, dict.fromkeys(movable, radius)).intervals(torch.float64)
        one, two = batch.outputs(other, arithmetic), baked.outputs(other, arithmetic)
        assert torch.equal(one.lower, two.lower) and torch.equal(one.upper, two.upper)
        assert torch.equal(leads(batch, other, labels, arithmetic), leads(baked, other, labels, arithmetic))
    assert baked.ends_linear and baked.held > 0


def test_baking_computes_what_is_below_once() -> None:
    model = Net(lambda net, h: (h.relu() + h) @ net.first.weight)
    region = head_region(model)
    batch = played(model, region, None)
    baked = batch.baked(region.intervals(torch.float64), Float32(), ["last.weight"])
    assert isinstance(baked, Pass) and len(batch.tape.notes) == 5 and len(baked.tape.notes) == 1
    assert baked.held == 3 * 4 * 8 * 2  # the lower and the upper edge of [3, 4] in float64
