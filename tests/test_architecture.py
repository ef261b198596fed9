"""What makes two models the same function of their weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import Tensor, nn

from intercontinet.architecture import architecture_hash, describe
from tests.tiny import mlp


class Power(nn.Module):
    """An own layer whose setting goes by the name of Dropout's."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return x**self.p


class Shifted(nn.ReLU):
    """A layer that adds a setting to one of torch's without declaring it."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - self.by)


def conv(**settings: object) -> nn.Module:
    return nn.Conv2d(2, 2, 3, **{"padding": 1, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: mlp(seed=0), lambda: mlp(seed=1)),
        (lambda: nn.Sequential(nn.ReLU()), lambda: nn.Sequential(nn.ReLU(inplace=True)).eval()),
        (lambda: nn.Dropout(0.1), lambda: nn.Dropout(0.5)),
        (lambda: nn.BatchNorm1d(3, momentum=0.1), lambda: nn.BatchNorm1d(3, momentum=0.2)),
    ],
    ids=["weights", "mode and inplace", "dropout rate", "momentum"],
)
def test_what_does_not_shape_an_evaluated_output_does_not_count(
    one: Callable[[], nn.Module], other: Callable[[], nn.Module]
) -> None:
    assert architecture_hash(one()) == architecture_hash(other())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (nn.Sequential(nn.ReLU()), nn.Sequential(nn.Tanh())),
        (nn.LeakyReLU(0.1), nn.LeakyReLU(0.2)),
        (nn.Softplus(beta=1), nn.Softplus(beta=2)),
        (nn.Hardtanh(-1, 1), nn.Hardtanh(-1, 2)),
        (nn.GELU(), nn.GELU("tanh")),
        (nn.ELU(1.0), nn.ELU(0.5)),
        (conv(), conv(stride=2)),
        (conv(padding=2, dilation=2), conv(padding=2)),
        (conv(), conv(padding_mode="circular")),
        (nn.MaxPool2d(2), nn.MaxPool2d(2, stride=1)),
        (nn.AvgPool2d(2, padding=1), nn.AvgPool2d(2, padding=1, count_include_pad=False)),
        (nn.Flatten(), nn.Flatten(0)),
        (nn.BatchNorm1d(3), nn.BatchNorm1d(3, eps=1e-3)),
        (nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Sequential(nn.Linear(2, 2)))),
        (nn.Linear(2, 3), nn.Linear(2, 3, bias=False)),
        (nn.Linear(2, 3), nn.Linear(3, 2)),
        (Power(1.0), Power(2.0)),
        (Shifted(0.0), Shifted(1.0)),
    ],
    ids=lambda module: type(module).__name__,
)
def test_layers_settings_names_and_shapes_count(one: nn.Module, other: nn.Module) -> None:
    assert architecture_hash(one) != architecture_hash(other)


def test_a_layer_used_twice_is_told_from_two_layers() -> None:
    layer = nn.ReLU()
    assert describe(nn.Sequential(layer, layer)) == ["Sequential()", "0 ReLU()", "1 ReLU()"]
