"""Following forward passes: what is noted holds for any weights, and models stay as they were."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

import intercontinet as icn
from intercontinet.bounds import Arithmetic, Float32, in_float64, registry
from intercontinet.bounds.recording import record
from intercontinet.errors import InvalidRegion, UnsupportedLayer
from intercontinet.interval import Interval
from intercontinet.region import Region
from tests.bounds.between import FINE, Net, check_contained, check_unchanged, in_place, inputs, looped, state


@pytest.fixture
def own_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules registered by a test are forgotten after it."""
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))


@pytest.mark.parametrize("which", list(FINE))
def test_outputs_of_any_weights_lie_inside_and_the_model_is_as_before(which: str) -> None:
    check_contained(Net(FINE[which]), inputs())


@pytest.mark.parametrize("training", [True, False])
def test_modes_of_every_module_come_back(training: bool) -> None:
    model = Net(FINE["dropout"])
    model.drop.train(training)
    model.first.train(not training)
    before = state(model)
    icn.bounds(model, Region.around(model, 0.1), inputs())
    check_unchanged(model, before)


def test_several_inputs_of_several_kinds() -> None:
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.fc = nn.Embedding(5, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor, rows: Tensor, there: Tensor) -> Tensor:
            out: Tensor = self.fc((x.unsqueeze(1) + self.words(rows)).masked_fill(~there[..., None], 0.0).sum(1))
            return out

    rows = torch.tensor([[0, 1], [4, 4], [2, 0]])
    check_contained(Several(), (inputs(), rows, rows > 0))
    wide = Interval(inputs(), inputs() + 0.5)
    model = Several()
    box = icn.bounds(model, Region.around(model, 0.0), (wide, rows, rows > 0))
    with torch.no_grad():
        for share in torch.linspace(0, 1, 9):
            assert box.contains(model(wide.lower.lerp(wide.upper, share).clamp(wide.lower, wide.upper), rows, rows > 0))


def test_a_parameter_used_twice_and_one_of_two_names() -> None:
    model = Net(lambda net, h: net.first(h), size=4)
    model.other = nn.Linear(4, 4)
    model.other.weight = model.first.weight
    model.between = lambda net, h: net.other(h) - net.first(h)
    check_contained(model, inputs())


def test_a_buffer_that_was_read_must_be_a_point_of_the_region() -> None:
    model = Net(FINE["a mask from a buffer"])
    point = Region.around(model, 0.0)
    for shift in ("upper", "both"):
        moved = {name: t + 1 if name == "causal" else t for name, t in point.upper.items()}
        region = Region(moved if shift == "both" else point.lower, moved)
        with pytest.raises(InvalidRegion, match=r"buffer 'causal'.*other values"):
            icn.bounds(model, region, inputs())


def test_inference_mode_around_it_is_no_hindrance() -> None:
    model, x = Net(looped), inputs()
    with torch.inference_mode():
        assert icn.bounds(model, Region.around(model, 0.1), x + 0).lower.isfinite().all()


@pytest.mark.usefixtures("own_rules")
def test_a_rule_for_a_whole_block_covers_what_is_inside() -> None:
    class Sign(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.inner = nn.Parameter(torch.ones(4)), nn.Linear(4, 4)

        def forward(self, x: Tensor, power: int = 1) -> dict[str, Tensor]:
            _ = self.inner(x)
            return {"sign": torch.sign(x) * self.scale if x.sum() > -1e9 else x, "same": x}

    @icn.rule(Sign)
    def sign(
        layer: Sign, parameters: Mapping[str, Interval], x: Interval, arithmetic: Arithmetic, power: int = 1
    ) -> dict[str, Interval]:
        assert set(parameters) == {"scale", "inner.weight", "inner.bias"} and power == 2
        size = parameters["scale"].magnitude.expand(x.shape)
        return {"sign": Interval(-size, size), "same": x}

    class Model(Net):
        def __init__(self) -> None:
            super().__init__(lambda net, h: self.choose(self.block(x=h, power=2)))
            self.block = Sign()

        def choose(self, parts: dict[str, Tensor]) -> Tensor:
            return parts["sign"] + 0.1 * parts["same"]

    check_contained(Model().eval(), inputs())


@pytest.mark.usefixtures("own_rules")
def test_a_rule_that_gives_another_shape_is_found_out() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    @icn.rule(Odd)
    def odd(layer: Odd, parameters: Mapping[str, Interval], x: Interval, arithmetic: Arithmetic) -> Interval:
        return x[:1]

    model = Net(lambda net, h: net.odd(h))
    model.odd = Odd()
    with pytest.raises(UnsupportedLayer, match=r"layer 'odd' \(Odd\): its rule gives \[1, 4\], and the model \[3, 4\]"):
        icn.bounds(model, Region.around(model, 0.1), inputs())


def test_two_threads_may_follow_one_model_while_a_third_runs_it() -> None:
    model, x = Net(in_place), inputs()
    region = Region.around(model, 0.05)
    expected = icn.bounds(model, region, x)
    wrong: list[str] = []
    with torch.no_grad():
        out = model(x)

    def bound() -> None:
        for _ in range(15):
            box = icn.bounds(model, region, x)
            if not (torch.equal(box.lower, expected.lower) and torch.equal(box.upper, expected.upper)):
                wrong.append("bounds")

    def run() -> None:
        with torch.no_grad():
            for _ in range(150):
                if not torch.equal(model(x), out):
                    wrong.append("outputs")

    threads = [threading.Thread(target=work) for work in (bound, bound, run)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and all("forward" not in vars(module) for module in model.modules())


def test_notes_hold_no_more_than_what_is_still_needed() -> None:
    """Every value is dropped after its last use; what nothing uses at once."""
    model = Net(lambda net, h: h.max(1, keepdim=True)[0].expand(-1, 4) + h)
    tape = record(model, [inputs()], list(Region.around(model, 0.0).lower))
    boxes = Region.around(model, 0.0).intervals(torch.float64)
    values = tape._played(len(tape.notes), boxes, [in_float64(Interval.point(inputs()))], Float32())
    assert len(values) == 1
