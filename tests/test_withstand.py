"""What goes wrong in practice: each with an error that names the culprit and the way out, and nothing changed."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import intercontinet as icn
from intercontinet.errors import (
    CertificateError,
    DeviceMismatch,
    InterContiNetError,
    InvalidData,
    InvalidModel,
    InvalidRegion,
    InvalidSetting,
    RegionMismatch,
    TrainingMode,
    UnsupportedLayer,
)
from intercontinet.learners import boxes as learners
from intercontinet.learners.settings import Settings
from tests.tiny import blobs, mlp, same, snapshot, with_statistics

X, Y = blobs()
QUICK: dict[str, Any] = {"optimizer": "adam", "rate": 0.01, "centre_epochs": 2, "radii_epochs": 1, "batch_size": 16}


def spoilt(x: Tensor, value: float) -> Tensor:
    x = x.clone()
    x[5, 1] = value
    return x


def region_of(model: nn.Module) -> icn.Region:
    return icn.Region.around(model, 0.01)


Use = Callable[[nn.Module, Any], object]
USES: dict[str, Use] = {
    "certify": lambda model, data: icn.certify(model, region_of(model), data),
    "attack": lambda model, data: icn.attack(model, region_of(model), data, steps=1),
    "learn": lambda model, data: icn.InterContiNet(model, **QUICK).learn(data),
}

BAD_DATA: dict[str, tuple[Any, type[InterContiNetError], str]] = {
    "NaN input": ((spoilt(X, math.nan), Y), InvalidData, "example 5 holds NaN or infinite values: remove or repair"),
    "infinite input": ((spoilt(X, -math.inf), Y), InvalidData, "example 5 holds NaN or infinite"),
    "no examples": ((X[:0], Y[:0]), InvalidData, "the data is empty: give at least one example"),
    "no batches": (DataLoader(TensorDataset(X[:0], Y[:0])), InvalidData, "the DataLoader yields no batch"),
    "an empty data set": (TensorDataset(X[:0], Y[:0]), InvalidData, "yields no batch"),
    "one number": ((torch.tensor(1.0), Y), InvalidData, "the data is empty"),
    "label too large": ((X, Y + 1), InvalidData, "label 2 is out of range: the classes of this task are 0 to 1"),
    "negative label": ((X, Y - 1), InvalidData, "label -1 is out of range"),
    "labels of floats": ((X, Y.float()), InvalidData, r"labels are float32; expected whole numbers: pass y\.long"),
    "labels of booleans": ((X, Y.bool()), InvalidData, "labels are bool"),
    "one-hot labels": ((X, nn.functional.one_hot(Y)), InvalidData, r"labels have shape \(48, 2\); expected one whole"),
    "too few labels": ((X, Y[:-1]), InvalidData, r"labels have shape \(47,\); .* each of 48 examples"),
    "inputs in float64": ((X.double(), Y), InvalidData, r"inputs are float64; .*pass x\.float\(\)"),
    "inputs in bytes": ((X.to(torch.uint8), Y), InvalidData, "inputs are uint8"),
    "inputs of another shape": ((torch.ones(48, 3), Y), InvalidData, r"cannot take examples of shape \(3,\)"),
    "data elsewhere": ((X.to("meta"), Y.to("meta")), DeviceMismatch, "on meta and the model on cpu: move one with"),
    "labels elsewhere": ((X, Y.to("meta")), DeviceMismatch, "inputs are on cpu and labels on meta"),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("what", BAD_DATA)
def test_bad_data_is_refused_and_the_model_left_alone(what: str, use: str) -> None:
    data, error, complaint = BAD_DATA[what]
    model = mlp()
    before = snapshot(model)
    with pytest.raises(error, match=complaint):
        USES[use](model, data)
    assert same(before, snapshot(model))


@pytest.mark.parametrize("what", BAD_DATA)
def test_bad_data_in_a_later_task_leaves_weights_and_certificate_alone(what: str) -> None:
    data, error, complaint = BAD_DATA[what]
    for head in ("shared", "per-task"):
        learner = icn.InterContiNet(mlp(outputs=2), head=head, **QUICK)
        learner.certificate = certificate = icn.Certificate.of(
            learner.model, region_of(learner.model), [icn.TaskFloor("old", 1, 2, 2, (0,))]
        )
        before = snapshot(learner.model)
        with pytest.raises(error, match=complaint if head == "shared" else None):
            learner.learn(data)
        assert same(before, snapshot(learner.model)) and learner.certificate is certificate


def damaged(value: float) -> nn.Module:
    model = mlp()
    with torch.no_grad():
        model.get_parameter("2.weight")[1, 2] = value
    return model


BAD_MODELS: dict[str, tuple[Callable[[], nn.Module], type[InterContiNetError], str]] = {
    "NaN weight": (lambda: damaged(math.nan), InvalidModel, r"'2\.weight' holds NaN or infinite values: reload"),
    "infinite weight": (lambda: damaged(math.inf), InvalidModel, r"'2\.weight' holds NaN or infinite"),
    "half precision": (lambda: mlp().half(), InvalidModel, r"'0\.weight' is float16.*call model\.float\(\) first"),
    "bfloat16": (lambda: mlp().bfloat16(), InvalidModel, r"'0\.weight' is bfloat16"),
    "double precision": (lambda: mlp().double(), InvalidModel, r"'0\.weight' is float64"),
    "no rule": (
        lambda: nn.Sequential(nn.Linear(2, 4), nn.Sequential(nn.Softsign()), nn.Linear(4, 2)),
        UnsupportedLayer,
        r"('softsign' in .*, line \d+|layer '1\.0' \(Softsign\)) has no rule: .*@intercontinet\.rule",
    ),
    "statistics in motion": (lambda: with_statistics().train(), TrainingMode, r"layer '1' .*BatchNorm1d.*model\.eval"),
    "no classifier": (lambda: nn.Sequential(nn.Linear(2, 4), nn.Unflatten(1, (2, 2))), InvalidModel, "give .batch, cl"),
}


@pytest.mark.parametrize("use", ["certify", "learn"])
@pytest.mark.parametrize("what", BAD_MODELS)
def test_a_model_that_nothing_can_be_promised_of_is_refused(what: str, use: str) -> None:
    build, error, complaint = BAD_MODELS[what]
    model = build()
    before, modes = snapshot(model), [module.training for module in model.modules()]
    with pytest.raises(error, match=complaint):
        USES[use](model, (X, Y))
    assert [module.training for module in model.modules()] == modes
    assert same(before, snapshot(model))


def test_bounds_refuse_what_certify_refuses() -> None:
    for what in ("statistics in motion", "no rule", "NaN weight", "half precision"):
        build, error, complaint = BAD_MODELS[what]
        model = build()
        with pytest.raises(error, match=complaint):
            icn.bounds(model, region_of(model), X)
    for what in ("NaN input", "no examples", "inputs in float64", "data elsewhere"):
        data, error, complaint = BAD_DATA[what]
        with pytest.raises(error, match=complaint):
            icn.bounds(mlp(), region_of(mlp()), data[0])


def test_statistics_set_in_motion_after_the_learner_was_made_are_noticed() -> None:
    model = with_statistics()
    learner = icn.InterContiNet(model, **QUICK)
    model.train()
    before = snapshot(model)
    with pytest.raises(TrainingMode, match=r"layer '1' \(BatchNorm1d\) is in training mode: call model\.eval\(\)"):
        learner.learn((X, Y))
    assert same(before, snapshot(model)) and not learner.certificate.tasks


def test_a_model_moved_out_of_its_region_between_tasks_is_noticed() -> None:
    model = mlp(outputs=2)
    learner = icn.InterContiNet(model, **QUICK)
    learner.learn((X, Y))
    certificate = learner.certificate
    with torch.no_grad():
        model.get_parameter("0.bias").add_(10.0)
    before = snapshot(model)
    with pytest.raises(icn.Violation, match=r"'0\.bias' lies .*clamp_"):
        learner.learn((X, Y))
    assert learner.certificate is certificate and same(before, snapshot(model))


@pytest.mark.parametrize(
    ("region", "error", "complaint"),
    [
        (icn.Region.around(mlp(hidden=9), 0.1), RegionMismatch, r"'0\.weight' has shape \(8, 2\) in the model and \(9"),
        (icn.Region.around(nn.Linear(2, 2), 0.1), RegionMismatch, "bounds 'weight', which the model lacks"),
        (icn.Region.around({"0.weight": torch.ones(8, 2)}, 0.1), RegionMismatch, r"model's '0\.bias' has no edges"),
        (icn.Region.around(mlp(), 0.1).to("meta"), DeviceMismatch, r"'0\.weight' is on cpu .*meta: use region\.to"),
    ],
    ids=["shapes", "names", "missing", "device"],
)
def test_a_region_that_does_not_fit_is_refused_everywhere(
    region: icn.Region, error: type[InterContiNetError], complaint: str
) -> None:
    model = mlp()
    before = snapshot(model)
    uses: list[Callable[[], object]] = [
        lambda: icn.bounds(model, region, X),
        lambda: icn.certify(model, region, (X, Y)),
        lambda: icn.attack(model, region, (X, Y)),
        lambda: region.contains(model),
        lambda: region.scaled(0.5, model),
        lambda: region.clamp_(model),
    ]
    for use in uses:
        with pytest.raises(error, match=complaint):
            use()
    assert same(before, snapshot(model))


def test_a_negative_radius_is_refused() -> None:
    with pytest.raises(InvalidRegion, match=r"'0\.weight' is negative or NaN: a radius is zero or more"):
        icn.Region.around(mlp(), -0.1)
    with pytest.raises(InvalidSetting, match="radius is -1"):
        icn.InterContiNet(mlp(), radius=-1)


def test_a_model_elsewhere_than_its_data_is_refused() -> None:
    learner = icn.InterContiNet(mlp(), **QUICK)
    learner.model.to("meta")
    with pytest.raises((DeviceMismatch, InvalidModel), match="meta"):
        learner.learn((X, Y))
    assert not learner.certificate.tasks


@pytest.mark.parametrize("head", ["shared", "per-task"])
@pytest.mark.parametrize(
    ("classes", "complaint"),
    [((0, 7), "class 7 .*out of range: .*0 to 3"), ((0, 1, 1), "class 1 is given twice"), ((2, 3), "label 0 is out")],
)
def test_classes_that_the_model_lacks_are_refused(head: str, classes: tuple[int, ...], complaint: str) -> None:
    model = mlp(outputs=4)
    before = snapshot(model)
    with pytest.raises(InvalidData, match=complaint):
        icn.InterContiNet(model, head=head, **QUICK).learn((X, Y), classes=classes)
    assert same(before, snapshot(model))


# Settings.


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"centre_epoch": 3}, "no option 'centre_epoch' .did you mean 'centre_epochs'.*: they are keep, radius"),
        ({"zzz": 3}, "no option 'zzz': they are"),
        ({"keep": 0.0}, "keep is 0.0; it is a share"),
        ({"keep": 1.01}, "keep is 1.01"),
        ({"keep": math.nan}, "keep is nan"),
        ({"radius": 0.0}, "radius is 0.0; it must be a positive number"),
        ({"radius": math.inf}, "radius is inf"),
        ({"rate": -1.0}, "rate is -1.0"),
        ({"later_rate": 0.0}, "later_rate is 0.0"),
        ({"radii_rate": math.nan}, "radii_rate is nan"),
        ({"later_radii_rate": -1.0}, "later_radii_rate is -1.0"),
        ({"radii_start": math.nan}, "radii_start is nan"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"radii_epochs": -1}, "epochs and rigid not negative"),
        ({"optimizer": "adm"}, "optimizer is 'adm'; choose one of 'sgd', 'adam'"),
        ({"head": "own"}, "head is 'own'; choose one of 'shared', 'per-task'"),
        ({"margins": "both"}, "margins is 'both'"),
        ({"shift": "tanh"}, "shift is 'tanh'"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidSetting, match=complaint):
        icn.InterContiNet(mlp(), **options)


def test_keep_may_be_all() -> None:
    assert Settings(keep=1.0).keep == 1.0


@pytest.mark.parametrize(
    "options",
    [{"optimizer": "sgd", "rate": 1e30}, {"optimizer": "sgd", "rate": 1e4}, {"rate": 1e20}, {"rate": 1e38}],
    ids=str,
)
def test_a_learning_rate_that_diverges_changes_nothing(options: dict[str, Any]) -> None:
    model = mlp()
    learner = icn.InterContiNet(model, **{**QUICK, **options})
    before, certificate = snapshot(model), learner.certificate
    with pytest.raises(InvalidSetting, match="lower the learning rate"):
        learner.learn((X, Y))
    assert same(before, snapshot(model)) and learner.certificate is certificate


def test_in_later_tasks_no_learning_rate_leads_out_of_the_region() -> None:
    model = mlp()
    learner = icn.InterContiNet(model, **{**QUICK, "optimizer": "sgd", "later_rate": 1e30})
    first = learner.learn((X, Y))
    parent = learner.region
    learner.learn(blobs(seed=1))
    assert parent.contains(model) and learner.region.within(parent)
    assert int((model(X).argmax(1) == Y).sum()) >= first.certified


def test_radii_whose_loss_is_not_a_number_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoilt_objective(*args: Any) -> Callable[..., Any]:
        return lambda radii, *_: (sum(r.sum() for r in radii.values()) * math.nan, lambda: torch.tensor([0.0, 1.0]))

    monkeypatch.setattr(learners, "radii_objective", spoilt_objective)
    model = mlp()
    learner = icn.InterContiNet(model, **QUICK)
    before, certificate = snapshot(model), learner.certificate
    with pytest.raises(InvalidSetting, match=r"worst-case loss became NaN: .*radii_rate"):
        learner.learn((X, Y))
    assert same(before, snapshot(model)) and learner.certificate is certificate


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_radii_that_rush_to_nothing_still_keep_what_was_asked(optimizer: str) -> None:
    learner = icn.InterContiNet(mlp(), **{**QUICK, "optimizer": optimizer, "radii_rate": 1e30})
    assert learner.learn((X, Y)).kept


def test_a_head_per_task_needs_a_linear_layer_at_the_end() -> None:
    with pytest.raises(InvalidModel, match="needs a Linear layer as the model's last one"):
        icn.InterContiNet(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), head="per-task")


def test_a_model_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(InvalidModel, match="nothing to learn"):
        icn.InterContiNet(mlp().requires_grad_(False))


# Certificates.


def test_a_damaged_or_foreign_certificate_is_refused_by_name(tmp_path: Path) -> None:
    model, path = mlp(), tmp_path / "model.icn"
    icn.Certificate.of(model, region_of(model)).save(path)
    whole = path.read_bytes()
    for content in (whole[:-1], whole[:100], whole[:-3] + bytes([whole[-3] ^ 4]) + whole[-2:], b"", b"PK" * 99):
        path.write_bytes(content)
        with pytest.raises(CertificateError, match=r"model\.icn .*(certificate|copy)"):
            icn.Certificate.load(path)
        assert path.read_bytes() == content and len(list(tmp_path.iterdir())) == 1


def test_going_on_from_a_certificate_of_another_model_is_refused() -> None:
    model = mlp()
    certificate = icn.Certificate.of(model, region_of(model))
    tanh = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
    with pytest.raises(CertificateError, match="another architecture"):
        icn.InterContiNet(tanh, certificate=certificate)
    with pytest.raises(icn.Violation, match=r"'0\.bias' lies .*'0\.weight'"):
        icn.InterContiNet(mlp(seed=1), certificate=certificate)
    with pytest.raises(RegionMismatch, match=r"'0\.weight' has shape"):
        icn.InterContiNet(mlp(hidden=3), certificate=certificate)
