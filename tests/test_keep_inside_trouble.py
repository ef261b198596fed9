"""What may go wrong while a model is held in a region: it is put back, or what cannot be held is said."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from intercontinet.errors import InterContiNetError, InvalidModel, InvalidSetting, RegionMismatch, Violation
from intercontinet.keep_inside import keep_inside
from tests.loops import narrow, sgd, train
from tests.tiny import mlp


def test_weights_loaded_or_moved_by_hand_come_inside_at_the_next_step_or_the_end() -> None:
    model = mlp()
    region, optimizer = narrow(model), sgd(model)
    with keep_inside(model, optimizer, region):
        model.load_state_dict(mlp(seed=1).state_dict())
        train(model, optimizer, steps=1)
        assert region.contains(model)
        model.load_state_dict(mlp(seed=1).state_dict())
    assert region.contains(model)


def test_a_parameter_that_no_optimizer_holds_is_put_back_at_the_end() -> None:
    model = mlp()
    region, optimizer = narrow(model), torch.optim.SGD(model[2].parameters(), lr=1.0)
    with keep_inside(model, optimizer, region):
        model[0].get_parameter("bias").data.add_(1.0)
    assert region.contains(model)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_leaves_the_model_inside_and_the_optimizer_free(error: type[BaseException]) -> None:
    model = mlp()
    region, optimizer = narrow(model), sgd(model)
    with pytest.raises(error, match="mine"), keep_inside(model, optimizer, region):  # noqa: PT012
        train(model, optimizer)
        model.load_state_dict(mlp(seed=1).state_dict())
        raise error("mine")
    assert region.contains(model)
    train(model, optimizer)
    assert not region.contains(model)


def test_an_exception_that_leaves_nan_says_so_and_stays_itself() -> None:
    model = mlp()
    optimizer = sgd(model)

    def loop() -> None:
        with keep_inside(model, optimizer, narrow(model)):
            model[0].get_parameter("bias").data.fill_(torch.nan)
            raise KeyError

    words = r"KeyError ended keep_inside, and not inside: '0\.bias' holds NaN"
    with pytest.warns(UserWarning, match=words), pytest.raises(KeyError):
        loop()


def test_a_model_outside_is_refused_with_the_way_back() -> None:
    model = mlp()
    region = narrow(mlp(seed=1))
    optimizer = sgd(model)
    with pytest.raises(Violation, match=r"region\.clamp_\(model\)"), keep_inside(model, optimizer, region):
        pass
    region.clamp_(model)
    with keep_inside(model, optimizer, region):
        train(model, optimizer)
    assert region.contains(model)


def test_nan_is_found_while_training_and_at_the_end() -> None:
    model = mlp()
    optimizer = sgd(model)
    steps = []
    with pytest.raises(InvalidModel, match=r"'0\.weight' holds NaN"), keep_inside(model, optimizer, narrow(model)):
        train(
            model,
            optimizer,
            steps=100,
            after=lambda: steps.append(model[0].get_parameter("weight").data.fill_(torch.nan)),
        )
    assert len(steps) < 5
    model = mlp()
    optimizer = sgd(model)
    with pytest.raises(InvalidModel, match=r"'2\.bias' holds NaN"), keep_inside(model, optimizer, narrow(model)):
        model[2].get_parameter("bias").data[1] = torch.nan


def replaced(model: nn.Sequential) -> None:
    model[0].weight = nn.Parameter(torch.zeros(8, 2))


def new_layer(model: nn.Sequential) -> None:
    model[0] = nn.Linear(2, 8)


def removed(model: nn.Sequential) -> None:
    model[0].weight = None  # type: ignore[assignment]


def converted(model: nn.Sequential) -> None:
    model.double()


def moved(model: nn.Sequential) -> None:
    model.to("meta")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (replaced, r"'0\.weight' was replaced by another parameter"),
        (new_layer, r"'0\.weight' was replaced by another parameter"),
        (removed, r"'0\.weight' was taken out of the model"),
        (converted, r"'0\.weight' was float32 \(8, 2\) on cpu and became float64 \(8, 2\) on cpu"),
        (moved, r"'0\.weight' was (replaced|float32)"),
    ],
)
def test_a_model_changed_in_the_block_is_named(change: Callable[[nn.Sequential], None], complaint: str) -> None:
    model = mlp()
    optimizer = sgd(model)
    with pytest.raises(InvalidModel, match=complaint), keep_inside(model, optimizer, narrow(model)):
        change(model)
    if change is not new_layer:  # whose parameters an optimizer that was made before does not hold
        model = mlp()
        optimizer = sgd(model)
        with pytest.raises(InvalidModel, match=complaint), keep_inside(model, optimizer, narrow(model)):  # noqa: PT012
            change(model)
            optimizer.step()
            pytest.fail("the step was let through")


def test_what_was_given_is_checked() -> None:
    model = mlp()
    region = narrow(model)
    cases: list[tuple[Any, Any, type[InterContiNetError], str]] = [
        (sgd(copy.deepcopy(model)), region, InvalidSetting, "no optimizer given holds a parameter of this model"),
        ([], region, InvalidSetting, "no optimizer given"),
        ([model], region, InvalidSetting, "Sequential is no torch.optim.Optimizer"),
        (sgd(model), narrow(nn.Linear(2, 2)), RegionMismatch, "which the model lacks"),
    ]
    for optimizer, box, error, words in cases:
        with pytest.raises(error, match=words), keep_inside(model, optimizer, box):
            pytest.fail("the block was entered")
