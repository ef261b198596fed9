"""What makes two models the same function of their weights."""

from __future__ import annotations

import enum
import functools
import os
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import intercontinet as icn
from intercontinet.architecture import architecture_hash, describe
from intercontinet.errors import CertificateError
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


def encoder(**settings: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, **settings)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: mlp(seed=0), lambda: mlp(seed=1)),
        (lambda: nn.Sequential(nn.ReLU()), lambda: nn.Sequential(nn.ReLU(inplace=True)).eval()),
        (lambda: nn.Dropout(0.1), lambda: nn.Dropout(0.5)),
        (lambda: nn.BatchNorm1d(3, momentum=0.1), lambda: nn.BatchNorm1d(3, momentum=0.2)),
        (lambda: nn.MultiheadAttention(4, 2), lambda: nn.MultiheadAttention(4, 2, dropout=0.5)),
        (lambda: nn.LSTM(2, 3, 2), lambda: nn.LSTM(2, 3, 2, dropout=0.5)),
    ],
    ids=["weights", "mode and inplace", "dropout rate", "momentum", "attention", "LSTM"],
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
        (nn.MultiheadAttention(8, 2), nn.MultiheadAttention(8, 4)),
        (nn.MultiheadAttention(8, 2), nn.MultiheadAttention(8, 2, add_zero_attn=True)),
        (encoder(), encoder(activation="gelu")),
        (encoder(), encoder(norm_first=True)),
        (nn.EmbeddingBag(3, 2), nn.EmbeddingBag(3, 2, mode="sum")),
        (nn.AvgPool2d(2), nn.AvgPool2d(2, divisor_override=7)),
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


# Settings of any kind.


class Set(nn.Module):
    """A layer with a setting of any kind."""

    def __init__(self, value: object) -> None:
        super().__init__()
        self.value = value


@dataclass
class Config:
    """A setting made of settings."""

    k: Any = 1


class Slotted:
    """One without a dictionary."""

    __slots__ = ("k",)

    def __init__(self, k: int) -> None:
        self.k = k


class Choice(enum.Enum):
    """One of two."""

    A = 1
    B = 2


class Word(str):
    """A word of one's own."""


def scaled(by: float) -> Callable[[float], float]:
    def times(x: float) -> float:
        return by * x

    return times


DIFFERENT: list[tuple[object, object]] = [
    (Config(1), Config(2)),
    (Config(Config(1)), Config(Config(2))),
    (Slotted(1), Slotted(2)),
    (types.SimpleNamespace(a=1), types.SimpleNamespace(a=2)),
    (functools.partial(F.leaky_relu, negative_slope=0.1), functools.partial(F.leaky_relu, negative_slope=0.9)),
    (F.relu, F.gelu),
    (torch.sin, torch.cos),
    (lambda x: x, lambda x: -x),
    (scaled(1.0), scaled(2.0)),
    (slice(0, 2), slice(0, 3)),
    (range(2), range(3)),
    ({1, 2}, {3}),
    (frozenset("ab"), frozenset("bc")),
    (b"a", b"b"),
    (1, 1.0),
    (1, True),
    (1j, 2j),
    (Choice.A, Choice.B),
    (torch.float32, torch.float64),
    (torch.Size([1]), torch.Size([2])),
    (np.arange(3), np.arange(3) + 1),
    (np.zeros((2, 3)), np.zeros((3, 2))),
    (torch.zeros(2, 3), torch.zeros(3, 2)),
    ({"a": [Config(1)]}, {"a": [Config(2)]}),
    (nn.ReLU, nn.Tanh),
    (functools.lru_cache(scaled), functools.lru_cache(encoder)),
    ([nn.ReLU()], [nn.Tanh()]),
    ([nn.LeakyReLU(0.1)], [nn.LeakyReLU(0.2)]),
    (Path("a"), Path("b")),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT, ids=lambda value: type(value).__name__)
def test_settings_of_any_kind_count(one: object, other: object) -> None:
    assert architecture_hash(Set(one)) != architecture_hash(Set(other))
    assert architecture_hash(Set(one)) == architecture_hash(Set(one))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 2], (1, 2)),
        (np.float64(0.1), 0.1),
        (np.int32(3), 3),
        (np.bool_(True), True),
        (torch.tensor(3), 3),
        (Word("a"), "a"),
        (Config((1,)), Config([1])),
        ({3, 1, 2}, {2, 3, 1}),
        (scaled(2.0), scaled(2.0)),
        (torch.device("cpu"), torch.device("meta")),
        (object(), object()),
    ],
    ids=str,
)
def test_settings_of_the_same_value_are_the_same(one: object, other: object) -> None:
    assert architecture_hash(Set(one)) == architecture_hash(Set(other))


def test_settings_that_hold_themselves_the_model_or_its_weights_come_to_an_end() -> None:
    def made() -> nn.Module:
        model = Set([])
        model.layer = nn.Linear(2, 2)
        ring: dict[str, object] = {}
        ring["self"] = ring
        stray = Set([model])
        model.value = [model, ring, stray, model.layer.weight, types.SimpleNamespace(ring=ring, owner=model)]
        return model

    assert architecture_hash(made()) == architecture_hash(made()), "weights differ, and go by their names"


# Code.


def net(kind: str) -> type[nn.Module]:
    """Classes of one name, which differ in what they compute or only in how they are written."""
    if kind == "plain":

        class Net(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x + 1

        return Net
    if kind == "rewritten":

        class Net(nn.Module):  # type: ignore[no-redef]
            """With words."""

            def forward(self, x):  # type: ignore[no-untyped-def]
                """More words."""
                # and a comment
                return (
                    x + 1
                )  # fmt: skip

        return Net
    if kind == "negated":

        class Net(nn.Module):  # type: ignore[no-redef]
            def forward(self, x: Tensor) -> Tensor:
                return -(x + 1)

        return Net
    if kind == "decorated":

        class Net(nn.Module):  # type: ignore[no-redef]
            @torch.no_grad()
            def forward(self, x: Tensor) -> Tensor:
                return x + 1

        return Net

    class Net(nn.Module):  # type: ignore[no-redef]
        by = 2 if kind == "attribute" else 3

        @property
        def shift(self) -> int:
            return 1

        @torch.no_grad()
        def forward(self, x: Tensor) -> Tensor:
            return x + 2

    return Net


def hash_of(kind: type[nn.Module]) -> str:
    kind.__qualname__ = "Net"
    return architecture_hash(kind())


def test_what_a_class_computes_counts_and_how_it_is_written_does_not() -> None:
    assert hash_of(net("plain")) == hash_of(net("rewritten")) == hash_of(net("plain"))
    others = [hash_of(net(kind)) for kind in ("plain", "negated", "decorated", "attribute", "other attribute")]
    assert len(set(others)) == 5


def typed(body: str) -> type[nn.Module]:
    """A class as one types it at a prompt: without a source."""
    space: dict[str, Any] = {"nn": nn, "__name__": "prompt"}
    exec(f"class Net(nn.Module):\n  def forward(self, x):\n    {body}", space)
    kind: type[nn.Module] = space["Net"]
    return kind


def test_without_a_source_the_bytecode_counts() -> None:
    assert hash_of(typed("return x + 1")) == hash_of(typed("'words'\n\n    return x + 1"))
    bodies = ("x + 1", "x + 2", "x - 1", "x.a", "x.b", "[y + 1 for y in x]", "[y + 2 for y in x]", "x in {1, 2}")
    assert len({hash_of(typed(f"return {body}")) for body in bodies}) == len(bodies)
    assert hash_of(typed("'a'\n    return 'a'")) != hash_of(typed("'b'\n    return 'b'")), "not words alone"


def test_code_of_bases_counts() -> None:
    def heir(kind: str) -> type[nn.Module]:
        return type("Net", (net(kind),), {})

    assert hash_of(heir("plain")) == hash_of(heir("plain")) != hash_of(heir("negated"))


def test_a_traced_graph_counts() -> None:
    one, other = (torch.fx.symbolic_trace(net(kind)()) for kind in ("plain", "negated"))
    assert architecture_hash(one) != architecture_hash(other)


def test_a_class_with_another_forward_pass_is_not_verified() -> None:
    class Net(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    first = Net

    class Net(nn.Linear):  # type: ignore[no-redef]
        def forward(self, x: Tensor) -> Tensor:
            return -super().forward(x)

    model, turned = first(2, 2), Net(2, 2)
    turned.load_state_dict(model.state_dict())
    certificate = icn.Certificate.of(model, icn.Region.around(model, 0.1), [icn.TaskFloor("any", 1, 1, 1)])
    assert icn.verify(model, certificate)
    with pytest.raises(CertificateError, match="the code of a class differ"):
        icn.verify(turned, certificate)


def test_hashes_are_the_same_in_every_process() -> None:
    code = (
        "from intercontinet.architecture import architecture_hash as h\n"
        "from tests import test_architecture as t\n"
        "print(*[h(t.Set(one)) for one, _ in t.DIFFERENT], t.hash_of(t.net('decorated')), t.hash_of(t.typed('x')),"
        "h(t.encoder()))"
    )
    found = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        found.add(done.stdout)
    assert len(found) == 1 and len(found.pop().split()) == len(DIFFERENT) + 3
