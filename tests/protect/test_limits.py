"""The search at its limits: models and data that leave it nothing to do, and what is refused by name."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import intercontinet as icn
from intercontinet.criterion import Criterion
from intercontinet.errors import (
    InvalidData,
    InvalidModel,
    InvalidSetting,
    NotCertified,
    TrainingMode,
    UnsupportedLayer,
)
from intercontinet.question import Question
from intercontinet.search import Search, Shape
from tests.protect.points import points, right_everywhere
from tests.tiny import Pair, blobs, mlp, snapshot, with_statistics


class Idle(nn.Module):
    """One parameter takes no part in the output."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.idle = nn.Linear(2, 2), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x)
        return out


def test_a_parameter_that_takes_no_part_may_go_far() -> None:
    torch.manual_seed(0)
    model, (x, _) = Idle(), blobs()
    region = icn.protect(model, (x, model(x).argmax(1)), steps=2, challenge=True).region
    width = {name: region.upper[name] - low for name, low in region.lower.items()}
    assert float(width["idle"].min()) > 5 * float(width["head.weight"].max())


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ("data", "for other data: ask for the same"),
        ("classes", r"for classes None \(not \(0, 1, 2\)\)"),
        ("criterion", r"for criterion classification \(not mine\)"),
        ("drift", r"for drift None \(not 0.0\)"),
    ],
)
def test_a_start_that_promises_something_else_is_refused(
    case: tuple[nn.Sequential, Pair], first: icn.Certificate, changed: str, complaint: str
) -> None:
    model, (x, y) = case
    mine = Criterion("mine", lambda out, targets: out.lower.amax(1))
    values: dict[str, Any] = {"classes": (0, 1, 2), "drift": 0.0, "criterion": mine}
    options = {} if changed == "data" else {changed: values[changed]}
    with pytest.raises(InvalidSetting, match=complaint):
        icn.protect(model, (x[1:], y[1:]) if changed == "data" else (x, y), 0.9, start=first, steps=0, **options)
    empty = dataclasses.replace(first, tasks=())
    with pytest.raises(InvalidSetting, match="holds no floor"):
        icn.protect(model, (x, y), 0.9, start=empty, steps=0)


@pytest.mark.parametrize("keep", [0.0, -0.5, 1.1, math.nan])
def test_a_share_out_of_range_is_refused(case: tuple[nn.Sequential, Pair], keep: float) -> None:
    with pytest.raises(InvalidSetting, match="keep is"):
        icn.protect(*case, keep=keep)


@pytest.mark.parametrize("setting", [{"steps": -1}, {"seconds": -1.0}, {"seconds": math.nan}, {"drift": -1.0}])
def test_settings_that_make_no_sense_are_refused(case: tuple[nn.Sequential, Pair], setting: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting, match=r"must not be negative|drift is"):
        icn.protect(*case, **setting)


def test_a_model_that_gets_nothing_right_has_nothing_to_keep(case: tuple[nn.Sequential, Pair]) -> None:
    model, (x, _) = case
    with pytest.raises(NotCertified, match="gets no example right"):
        icn.protect(model, (x, (model(x).argmax(1) + 1) % 3))


def test_ties_are_never_certain() -> None:
    model = mlp()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    x = torch.randn(10, 2)
    with pytest.raises(NotCertified, match="0 are certain"):
        icn.protect(model, (x, torch.zeros(10, dtype=torch.int64)))


def test_constant_outputs_and_a_single_example() -> None:
    model = mlp()
    nn.init.zeros_(model[2].weight)  # type: ignore[arg-type]
    model.get_parameter("2.bias").data = torch.tensor([0.0, 1.0])
    for x in (torch.randn(10, 2), torch.zeros(1, 2)):
        certificate = icn.protect(model, (x, torch.ones(len(x), dtype=torch.int64)), 1.0, steps=12)
        assert certificate.tasks[0].certified == len(x)
        weights = points(certificate.region, 0)
        assert right_everywhere(model, weights, lambda out: out.argmax(1) == 1, x) == len(x)


def test_one_class_leaves_nothing_to_lose_and_edges_stay_finite() -> None:
    model, x = mlp(outputs=1), torch.randn(5, 2)
    region = icn.protect(model, (x, torch.zeros(5, dtype=torch.int64)), steps=3).region
    assert all(bool(edge.isfinite().all()) for edge in (*region.lower.values(), *region.upper.values()))


def test_huge_weights_leave_finite_edges() -> None:
    state = {"w": torch.tensor([1e37, -1e38])}
    shape = Shape(state, ["w"], None)
    shape.scale(1e30)
    region = shape.region(2.0**20)
    assert bool(region.lower["w"].isfinite().all() and region.upper["w"].isfinite().all())


def test_distances_stay_where_gradients_reach_them(case: tuple[nn.Sequential, Pair]) -> None:
    """Beyond the room there is, a distance would grow for ever and never come back."""
    model, (x, y) = case
    shape = Shape(snapshot(model), ["2.bias"], icn.Region.around(model, 1e-4))
    question, generator = Question.of(model, (x, y), x.device, None, None), torch.Generator().manual_seed(0)
    search = Search(model, question, shape, 0.5, None, generator)
    search.fit()
    for _ in range(5):
        search.step(generator)
    room, distance = shape.room["2.bias"], shape.distances["2.bias"]
    assert bool((distance <= room.log()).all())
    edges = torch.stack(shape.edges("2.bias"))
    assert bool((torch.autograd.grad(edges[1].sum() - edges[0].sum(), distance)[0] > 0).all())


def test_a_batch_norm_in_training_mode_is_named() -> None:
    model = with_statistics()
    model.train()
    with pytest.raises(TrainingMode, match=r"'1' \(BatchNorm1d\).*eval"):
        icn.protect(model, blobs(), 0.5)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.two(torch.relu(self.one(x)))))
        return out


def test_tied_weights_move_together(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Tied(), torch.randn(30, 3)
    y = model(x).argmax(1)
    certificate = icn.protect(model, (x, y), 0.8, steps=4)
    assert "two.weight" not in certificate.region.lower and certificate.tied == {"two.weight": "one.weight"}
    weights = points(certificate.region, 0)
    assert certificate.tasks[0].certified <= right_everywhere(model, weights, lambda out: out.argmax(1) == y, x)
    certificate.save(tmp_path / "v1.icn")
    assert icn.verify(model, tmp_path / "v1.icn")


@pytest.mark.parametrize(("convert", "word"), [(nn.Module.double, "float64"), (nn.Module.half, "float16")])
def test_another_precision_is_refused_by_name(convert: Callable[[nn.Module], nn.Module], word: str) -> None:
    with pytest.raises(InvalidModel, match=rf"'0\.weight' is {word}.*model.float\(\)"):
        icn.protect(convert(mlp()), blobs())


def test_weights_and_data_that_cannot_be_used_are_named(case: tuple[nn.Sequential, Pair]) -> None:
    model, (x, y) = case
    broken = mlp(outputs=3)
    broken.get_parameter("2.bias").data[0] = math.nan
    with pytest.raises(InvalidModel, match=r"'2\.bias' holds NaN"):
        icn.protect(broken, (x, y))
    with pytest.raises(InvalidData, match="the data is empty"):
        icn.protect(model, (x[:0], y[:0]))
    with pytest.raises(InvalidData, match="label 3 is out of range"):
        icn.protect(model, (x, y + 1))
    with pytest.raises(InvalidData, match="example 4 holds NaN"):
        icn.protect(model, (x.index_fill(0, torch.tensor([4]), math.nan), y))
    with pytest.raises(InvalidData, match="cannot take examples of shape"):
        icn.protect(model, (torch.randn(60, 5), y))
    with pytest.raises(InvalidData, match=r"inputs are float64.*x.float\(\)"):
        icn.protect(model, (x.double(), y))


def test_a_search_needs_gradients(case: tuple[nn.Sequential, Pair]) -> None:
    with torch.no_grad():
        assert icn.protect(*case, keep=0.9, steps=2).tasks[0].kept
    with torch.inference_mode(), pytest.raises(InvalidSetting, match=r"inference_mode\(\) forbids"):
        icn.protect(*case)


def test_a_hooked_model_is_refused(case: tuple[nn.Sequential, Pair]) -> None:
    model = mlp(outputs=3)
    model[0].register_forward_hook(lambda *_: None)
    with pytest.raises(UnsupportedLayer, match="remove them first"):
        icn.protect(model, case[1])
