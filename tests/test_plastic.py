"""Which parameters may move: every way to say it, and what is said of slips."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from intercontinet.errors import InvalidSetting
from intercontinet.plastic import chosen


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def head() -> tuple[str, ...]:
    return "2.weight", "2.bias"


ALL = ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"]


@pytest.mark.parametrize(
    ("plastic", "names"),
    [
        ("all", ALL),
        ("head", ["2.weight", "2.bias"]),
        ("0.weight", ["0.weight"]),
        ("?.bias", ["0.bias", "1.bias", "2.bias"]),
        (["2.*", "0.bias"], ["0.bias", "2.weight", "2.bias"]),
        (("head", "1.*", "1.bias"), ["1.weight", "1.bias", "2.weight", "2.bias"]),
        (lambda name: "weight" in name, ["0.weight", "1.weight", "2.weight"]),
    ],
)
def test_names_come_in_the_models_order_and_once(plastic: Any, names: list[str]) -> None:
    assert chosen(net(), plastic, head) == names


def test_the_head_is_looked_for_only_where_it_is_meant() -> None:
    def unasked() -> tuple[str, ...]:
        raise AssertionError

    assert chosen(net(), "0.*", unasked) == ["0.weight", "0.bias"]


@pytest.mark.parametrize(
    ("plastic", "words"),
    [
        ("2.wieght", r"no parameter is called '2.wieght' \(did you mean '2.weight'\?\)"),
        (["2.*", "3.*"], "no parameter is called '3.*'"),
        ("1.running_mean", "buffers never move"),
        ([], "nothing may move"),
        (lambda name: False, "nothing may move"),
    ],
)
def test_slips_are_named(plastic: Any, words: str) -> None:
    with pytest.raises(InvalidSetting, match=words.replace("*", r"\*")):
        chosen(net(), plastic, head)


def test_a_model_without_a_last_linear_layer_has_no_head() -> None:
    with pytest.raises(InvalidSetting, match=r"does not end in one.*plastic='classifier\.\*'"):
        chosen(net(), "head", tuple)
