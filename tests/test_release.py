"""What the commands share: models by name, examples from files, and fine-tuning that stays inside."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

import intercontinet as icn
from intercontinet.criterion import Criterion, multi_label, regression
from intercontinet.errors import CertificateError, InvalidData, InvalidModel, InvalidSetting
from intercontinet.files import save_weights
from intercontinet.release import built, criterion_of, examples, update
from tests.tiny import blobs, mlp, same, snapshot, with_statistics

SHOP = """
import torch
from torch import nn
def build(): return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
def tied():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)); model[2].weight = model[0].weight; return model
def half(): return build().half()
def fails(): raise ValueError("no such\\n  size")
def words(): return "words"
number = 3
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "icn_shop.py").write_text(SHOP)
    (tmp_path / "icn_broken.py").write_text("1 / 0")
    save_weights(mlp(), tmp_path / "v1.safetensors")
    yield tmp_path
    for name in ("icn_shop", "icn_broken"):
        sys.modules.pop(name, None)


def test_a_model_is_built_by_name_with_its_weights_and_evaluated(shop: Path) -> None:
    model = built("icn_shop:build", shop / "v1.safetensors")
    assert same(snapshot(model), snapshot(mlp())) and not model.training


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("icn_shop", "say package.module:factory"),
        (":build", "say package.module:factory"),
        ("icn_shop:", "say package.module:factory"),
        ("icn_nowhere:build", "cannot import 'icn_nowhere'.*ModuleNotFoundError"),
        ("icn_broken:build", "cannot import 'icn_broken'.*ZeroDivisionError: division by zero"),
        ("..icn_shop:build", "cannot import"),
        ("icn_shop:biuld", r"has no function 'biuld' \(did you mean 'build'\?\)"),
        ("icn_shop:number", "has no function 'number'"),
        ("icn_shop:fails", "icn_shop:fails fails: ValueError: no such size"),
        ("icn_shop:words", "makes a str: it must return an nn.Module"),
    ],
)
def test_what_makes_no_model_is_named(shop: Path, spec: str, words: str) -> None:
    with pytest.raises(InvalidSetting, match=words) as caught:
        built(spec, shop / "v1.safetensors")
    assert "\n" not in str(caught.value)


def test_weights_that_do_not_fit_are_named(shop: Path) -> None:
    def refused(state: dict[str, Tensor], words: str, spec: str = "icn_shop:build") -> None:
        save_file(state, shop / "other.safetensors")
        with pytest.raises(InvalidModel, match=rf"other.safetensors do not fit {spec}: .*{words}") as caught:
            built(spec, shop / "other.safetensors")
        assert "\n" not in str(caught.value)

    state = snapshot(mlp())
    renamed = {("2.wieght" if name == "2.weight" else name): tensor for name, tensor in state.items()}
    refused(renamed, r"lacks '2.weight' \(did you mean '2.wieght'\?\)")
    refused({name: tensor for name, tensor in state.items() if name != "0.bias"}, "lacks '0.bias'")
    refused({**state, "3.weight": torch.zeros(1)}, "the model lacks '3.weight'")
    refused(snapshot(mlp(hidden=9)), r"'0.weight' is float32 \(9, 2\) in the file and float32 \(8, 2\) in the model")
    refused({name: tensor.half() for name, tensor in state.items()}, "'0.weight' is float16")
    refused(state, "'0.weight' is float32 .* and float16", "icn_shop:half")
    with pytest.raises(CertificateError, match="nowhere"):
        built("icn_shop:build", shop / "nowhere.safetensors")


def test_a_tied_parameter_may_come_once_or_twice_but_not_differently(shop: Path) -> None:
    weight, biases = torch.randn(2, 2), {"0.bias": torch.zeros(2), "2.bias": torch.ones(2)}
    for state in ({"0.weight": weight, **biases}, {"0.weight": weight, "2.weight": weight.clone(), **biases}):
        save_file(state, shop / "tied.safetensors")
        model = built("icn_shop:tied", shop / "tied.safetensors")
        assert model.get_parameter("2.weight") is model.get_parameter("0.weight")
        assert torch.equal(model.get_parameter("0.weight"), weight)
    save_file({"0.weight": weight, "2.weight": weight + 1, **biases}, shop / "tied.safetensors")
    with pytest.raises(InvalidModel, match=r"'2\.weight' and '0\.weight' are one parameter.*differ"):
        built("icn_shop:tied", shop / "tied.safetensors")


def test_examples_come_from_arrays_of_any_sort(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=np.full((3, 2), 255, np.uint8), y=np.array([0, 1, 2], np.uint8))
    x, y = examples(path)
    assert isinstance(x, Tensor) and x.dtype == torch.float32 and float(x.max()) == 1.0
    assert y.dtype == torch.int64 and y.tolist() == [0, 1, 2]
    np.savez(path, x=np.ones((3, 2)), y=np.ones((3, 1)))
    x, y = examples(path)
    assert isinstance(x, Tensor) and x.dtype == y.dtype == torch.float32
    np.savez(path, x1=np.ones((3, 2)), x0=np.ones((3, 4), np.int32), xs=np.ones(3), y=np.array([True, False, True]))
    x, y = examples(path)
    assert isinstance(x, tuple) and [part.dtype for part in x] == [torch.int64, torch.float32]
    assert y.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.ones(3)}, "holds x: save x"),
        ({"y": np.ones(3), "X": np.ones(3)}, "holds X, y: save x"),
        ({}, "holds nothing"),
        ({"x": np.array(["a"]), "y": np.ones(1)}, "x in .* is <U1: give numbers"),
        ({"x": np.ones(1, complex), "y": np.ones(1)}, "complex128: give numbers"),
    ],
)
def test_arrays_that_are_no_examples_are_named(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(InvalidData, match=words):
        examples(tmp_path / "data.npz")


def test_examples_come_from_folders_of_images(tmp_path: Path) -> None:
    for number, name in enumerate(("cat", "dog")):
        (tmp_path / name).mkdir()
        Image.new("L", (4, 3), color=255 * number).save(tmp_path / name / "one.png")
    x, y = examples(tmp_path)
    assert isinstance(x, Tensor) and x.shape == (2, 1, 3, 4) and x.flatten(1).mean(1).tolist() == [0.0, 1.0]
    assert y.tolist() == [0, 1]


def test_options_say_what_is_right() -> None:
    assert criterion_of(None, False) is None
    for found, name in (
        (criterion_of(0.5, False), regression(0.5).name),
        (criterion_of(None, True), multi_label().name),
    ):
        assert found is not None and found.name == name
    with pytest.raises(InvalidSetting, match="exclude each other"):
        criterion_of(0.5, True)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_stays_inside_and_learns(optimizer: str) -> None:
    model, data = mlp(), blobs()
    region, heard = icn.Region.around(model, 0.05), []
    update(
        model, data, region, None, epochs=3, rate=0.02, batch=16, optimizer=optimizer, seed=0,
        listen=lambda epoch, loss: heard.append((epoch, loss)),
    )  # fmt: skip
    assert region.contains(model) and not model.training
    assert [epoch for epoch, _ in heard] == [1, 2, 3] and heard[2][1] < heard[0][1]
    assert not same(snapshot(model), snapshot(mlp()))


def test_what_is_frozen_costs_no_gradient_and_statistics_stay() -> None:
    model, (x, y) = with_statistics(), blobs()
    region = icn.Region.around(model, {"3.weight": 0.5, "3.bias": 0.5})
    before = snapshot(model)
    model.get_parameter("3.bias").requires_grad_(False)
    model[0].register_full_backward_hook(lambda *_: pytest.fail("no gradient should come this far down"))
    update(model, (x, y), region, None, epochs=2, rate=0.1, batch=16, optimizer="adam", seed=0, listen=lambda *_: None)
    moved = {name for name, tensor in snapshot(model).items() if not torch.equal(tensor, before[name])}
    assert moved == {"3.weight"}
    assert [n for n, p in model.named_parameters() if not p.requires_grad] == ["3.bias"], "as it was before"


def test_numbers_and_labels_are_learned_too() -> None:
    x = torch.randn(40, 2)
    cases: list[tuple[Criterion, Tensor]] = [(regression(0.1), x.sum(1)), (multi_label(), (x.sum(1) > 0).long())]
    for criterion, y in cases:
        model, losses = mlp(outputs=1), dict[int, float]()
        update(
            model, (x, y), icn.Region.around(model, 0.3), criterion, epochs=4, rate=0.02, batch=8, optimizer="adam",
            seed=0, listen=losses.__setitem__,
        )  # fmt: skip
        assert losses[4] < losses[1]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"optimizer": "lion"}, "there is no optimizer 'lion': use sgd or adam"),
        ({"epochs": 0}, "at least 1"),
        ({"batch": 0}, "at least 1"),
        ({"rate": 0.0}, "above 0"),
        ({"rate": float("nan")}, "above 0"),
        ({"region": icn.Region.around(mlp(), 0.0)}, "there is nothing to train"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting: dict[str, Any], words: str) -> None:
    model = mlp()
    usual: dict[str, Any] = {
        "region": icn.Region.around(model, 0.1),
        "criterion": None,
        "epochs": 1,
        "rate": 0.1,
        "batch": 8,
    }
    usual |= {"optimizer": "sgd", "seed": 0, "listen": lambda *_: None}
    with pytest.raises(InvalidSetting, match=words):
        update(model, blobs(), **(usual | setting))
