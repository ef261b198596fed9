"""Ways in which a true count could become a false promise, each closed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import intercontinet as icn
from intercontinet.bounds import Arithmetic, registry
from intercontinet.errors import CertificateError, InvalidData, InvalidModel, InvalidRegion, UnsupportedLayer
from intercontinet.files import load_weights, save_weights
from tests.tiny import blobs, mlp

INPLACE = [nn.ReLU, nn.LeakyReLU, nn.ReLU6, nn.Hardtanh, nn.ELU, nn.SiLU, nn.Hardswish]


def certified(model: nn.Module, radius: float = 0.01) -> icn.Certificate:
    region = icn.Region.around(model, radius)
    return icn.Certificate.of(model, region, [icn.certify(model, region, blobs(), task="blobs")])


@pytest.mark.parametrize("kind", INPLACE)
def test_layers_that_work_in_place_do_not_change_the_examples(kind: type[nn.Module]) -> None:
    model = nn.Sequential(kind(inplace=True), nn.Linear(2, 2))
    x, y = blobs()
    before = x.clone()
    icn.certify(model, icn.Region.around(model, 0.01), (x, y))
    icn.attack(model, icn.Region.around(model, 0.01), (x, y), steps=2)
    icn.InterContiNet(model, centre_epochs=1, radii_epochs=1).learn((x, y))
    assert torch.equal(x, before)


def test_a_certificate_without_floors_verifies_nothing() -> None:
    model = mlp()
    with pytest.raises(CertificateError, match="holds no floors"):
        icn.verify(model, icn.Certificate.of(model, icn.Region.around(model, 0.1)))


def test_a_model_outside_the_region_is_not_certified_in_it() -> None:
    model = mlp()
    region = icn.Region.around(model, 0.01)
    with torch.no_grad():
        model.get_parameter("0.weight").neg_()
    with pytest.raises(InvalidRegion, match=r"'0\.weight' lies .* outside"):
        icn.certify(model, region, blobs())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (nn.LeakyReLU(0.1), nn.LeakyReLU(-0.9)),
        (nn.LeakyReLU(np.float32(0.1)), nn.LeakyReLU(np.float32(-0.9))),  # type: ignore[arg-type]
        (nn.ReLU(), nn.Tanh()),
        (nn.Softplus(), nn.Softplus(beta=2)),
    ],
)
def test_other_settings_are_another_architecture(one: nn.Module, other: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(2, 4), one, nn.Linear(4, 2))
    changed = nn.Sequential(model[0], other, model[2])
    with pytest.raises(CertificateError, match="another architecture"):
        icn.verify(changed, certified(model))


def test_a_list_is_as_good_a_setting_as_a_tuple_but_must_be_the_same_one() -> None:
    def model(size: object) -> nn.Sequential:
        torch.manual_seed(0)
        pool = nn.AdaptiveAvgPool2d(size)  # type: ignore[arg-type]
        return nn.Sequential(nn.Unflatten(1, (1, 1, 2)), pool, nn.Flatten(), nn.Linear(2, 2))

    assert icn.verify(model((1, 2)), certified(model([1, 2])))
    with pytest.raises(CertificateError, match="another architecture"):
        icn.verify(model([2, 1]), certified(model([1, 2])))


class Reorder(nn.Module):
    """Features in another order: a constant of whole numbers, and one that is not saved."""

    def __init__(self, order: list[int], gain: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("order", torch.tensor(order))
        self.register_buffer("gain", torch.tensor([gain]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x[:, self.get_buffer("order")] * self.get_buffer("gain")


@pytest.mark.parametrize("other", [Reorder([1, 0]), Reorder([0, 1], gain=-1.0)])
def test_constants_that_no_region_holds_belong_to_the_architecture(
    other: Reorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))

    @icn.rule(Reorder)
    def reorder(layer: Reorder, parameters: object, x: icn.Interval, arithmetic: Arithmetic) -> icn.Interval:
        return icn.Interval(x.lower[:, layer.get_buffer("order")], x.upper[:, layer.get_buffer("order")])

    head = nn.Linear(2, 2)
    certificate = certified(nn.Sequential(Reorder([0, 1]), head))
    assert icn.verify(nn.Sequential(Reorder([0, 1]), head), certificate)
    with pytest.raises(CertificateError, match="another architecture"):
        icn.verify(nn.Sequential(other, head), certificate)


def test_a_model_with_hooks_does_not_verify() -> None:
    model = mlp()
    certificate = certified(model)
    model.register_forward_hook(lambda module, inputs, output: -output)
    with pytest.raises(UnsupportedLayer, match="forward hooks"):
        icn.verify(model, certificate)


def test_tied_weights_verify_from_a_file_and_come_back_whole_from_an_attack(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    model[2].weight = model[0].weight
    certified(model).save(tmp_path / "model.icn")
    save_weights(model, tmp_path / "model.safetensors")
    state = load_weights(tmp_path / "model.safetensors")
    assert icn.verify(state, tmp_path / "model.icn")
    state["2.weight"] = state["2.weight"] + 1
    with pytest.raises(icn.Violation, match=r"'2\.weight' lies 1 outside"):
        icn.verify(state, tmp_path / "model.icn")
    worst = icn.attack(model, icn.Region.around(model, 0.5), blobs(), steps=2)
    model.load_state_dict(worst.weights)


def test_a_model_that_mixes_examples_is_refused() -> None:
    model = nn.Sequential(nn.Flatten(0, 1), nn.Linear(3, 2))
    with pytest.raises(InvalidModel, match=r"for 1 example\(s\) the model gives \(4, 2\)"):
        icn.certify(model, icn.Region.around(model, 0.1), (torch.randn(1, 4, 3), torch.tensor([0])))


def test_an_input_that_does_not_fit_names_the_layer() -> None:
    model = mlp()
    with pytest.raises(InvalidData, match=r"layer '0' \(Linear\) cannot take an input of shape \(3, 7\)"):
        icn.bounds(model, icn.Region.around(model, 0.1), torch.randn(3, 7))


def test_numbers_of_any_kind_are_saved(tmp_path: Path) -> None:
    model = mlp()
    learner = icn.InterContiNet(model, keep=float(np.float32(0.9)), centre_epochs=1, radii_epochs=1)
    learner.learn(blobs(), task="arrays", classes=np.array([0, 1]))  # type: ignore[arg-type]
    learner.certificate.save(tmp_path / "model.icn")
    assert icn.Certificate.load(tmp_path / "model.icn").tasks[0].classes == (0, 1)


@pytest.mark.parametrize(("name", "value"), [("keep", "0.9"), ("radius", None), ("batch_size", 12.5)])
def test_a_setting_of_another_type_is_named(name: str, value: object) -> None:
    with pytest.raises(icn.InterContiNetError, match=f"{name} is"):
        icn.InterContiNet(mlp(), **{name: value})  # type: ignore[arg-type]


def test_a_missed_promise_is_in_the_headline() -> None:
    model = mlp()
    region = icn.Region.around(model, 0.5)
    floor = icn.certify(model, region, blobs(), keep=0.99)
    assert not floor.kept
    text = str(icn.verify(model, icn.Certificate.of(model, region, [floor])))
    assert "1 of 1 lower than was asked for" in text
    assert "NOT" in text


def test_a_statistic_too_small_for_float32_promises_nothing() -> None:
    layer = nn.BatchNorm1d(2, eps=0.0).eval()
    layer.get_buffer("running_var").fill_(1e-40)
    model = nn.Sequential(layer, nn.Linear(2, 2))
    out = icn.bounds(model, icn.Region.around(model, 0.0), torch.randn(3, 2))
    assert bool(out.upper.isinf().all())
