"""Training loops of every kind, held in a region: steps end inside."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from intercontinet.certificate import Certificate
from intercontinet.errors import InvalidModel, Violation
from intercontinet.keep_inside import keep_inside
from intercontinet.region import Region
from tests.loops import OPTIMIZERS, X, Y, make, narrow, sgd, train
from tests.models import resnet18
from tests.strategies import lopsided_region
from tests.tiny import mlp, same, snapshot, with_statistics

VARIANTS = [
    (name, options)
    for name, kind in OPTIMIZERS.items()
    for options in ({}, {"foreach": True}, {"fused": True}, {"maximize": True}, {"weight_decay": 10.0})
    if all(option in inspect.signature(kind).parameters for option in options)
]


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_every_step_of_every_optimizer_ends_inside(name: str, options: dict[str, Any]) -> None:
    model, free = mlp(), mlp()
    region = narrow(model)
    inside = []
    optimizer = make(name, model.parameters(), lr=1.0, **options)
    with keep_inside(model, optimizer, region):
        train(model, optimizer, after=lambda: inside.append(region.contains(model)))
    assert inside == [True] * 3
    train(free, make(name, free.parameters(), lr=1.0, **options))
    assert not region.contains(free), "the same training without a hold leaves"


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    name=st.sampled_from(sorted(OPTIMIZERS)),
    rate=st.sampled_from([1e-4, 0.1, 1e3, 1e30]),
    radius=st.sampled_from([0.0, 1e-7, 1e-3, 0.5]),
    seed=st.integers(0, 1000),
)
def test_boxes_of_any_shape_hold_any_rate(name: str, rate: float, radius: float, seed: int) -> None:
    model = mlp(seed=seed)
    region = lopsided_region(model, radius, torch.Generator().manual_seed(seed))
    optimizer = make(name, model.parameters(), lr=rate)
    try:
        with keep_inside(model, optimizer, region):
            train(model, optimizer, steps=2, after=lambda: check(region, model))
    except InvalidModel:
        assert any(bool(weight.isnan().any()) for weight in model.parameters())
    else:
        assert region.contains(model)


def check(region: Region, model: nn.Module) -> None:
    """Inside, but for what is NaN, which no box can hold."""
    for name, weight in model.named_parameters():
        at = weight.detach()
        assert bool(((region.lower[name] <= at) & (at <= region.upper[name]) | at.isnan()).all())


def test_momentum_and_decay_push_outwards_in_vain() -> None:
    model = mlp()
    region = narrow(model)
    groups: list[dict[str, Any]] = [{"params": model[0].parameters(), "lr": 5.0}, {"params": model[2].parameters()}]
    optimizer = torch.optim.SGD(groups, lr=1.0, momentum=0.99, weight_decay=0.5)
    with keep_inside(model, optimizer, region):
        train(model, optimizer, steps=20, after=lambda: check(region, model))
    at_an_edge = [bool(((p == region.lower[n]) | (p == region.upper[n])).any()) for n, p in model.named_parameters()]
    assert region.contains(model) and any(at_an_edge)


def test_a_step_that_stays_inside_is_not_changed() -> None:
    model, free = mlp(), mlp()
    region = narrow(model, 100.0)
    optimizer = sgd(model, 0.1)
    with keep_inside(model, optimizer, region):
        train(model, optimizer)
    train(free, sgd(free, 0.1))
    assert same(snapshot(model), snapshot(free))


def test_points_are_put_back_to_the_bit_while_the_rest_moves() -> None:
    model = mlp()
    before = snapshot(model)
    region = Region.around(model, {"2.weight": 0.1})
    optimizer = sgd(model)
    with keep_inside(model, optimizer, region):
        train(model, optimizer, after=lambda: check(region, model))
    after = snapshot(model)
    assert not torch.equal(after.pop("2.weight"), before.pop("2.weight"))
    assert same(after, before)


def test_after_the_block_the_optimizer_is_free_again() -> None:
    model = mlp()
    region, optimizer = narrow(model), sgd(model)
    with keep_inside(model, optimizer, region):
        train(model, optimizer)
    train(model, optimizer)
    assert not region.contains(model)


def test_several_optimizers_each_keep_their_own() -> None:
    model = mlp()
    region = narrow(model)
    pair = [torch.optim.SGD(model[0].parameters(), lr=10.0), torch.optim.Adam(model[2].parameters(), lr=1.0)]
    with keep_inside(model, pair, region):
        train(model, *pair, after=lambda: check(region, model))
    assert region.contains(model)


def test_parameters_of_another_model_move_as_they_like() -> None:
    model, other = mlp(), mlp(seed=1)
    free = copy.deepcopy(other)
    region = narrow(model)
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=10.0)
    with keep_inside(model, optimizer, region):
        train(nn.Sequential(model, other), optimizer, steps=1)
    assert region.contains(model)
    assert not same(snapshot(other), snapshot(free))


def test_a_group_added_in_the_block_is_kept_too() -> None:
    model = mlp()
    region = narrow(model)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=10.0)
    with keep_inside(model, optimizer, region):
        optimizer.add_param_group({"params": list(model[0].parameters())})
        train(model, optimizer, after=lambda: check(region, model))
    assert region.contains(model)


@pytest.mark.parametrize("fused", [False, True])
def test_scaled_gradients_and_skipped_steps_stay_inside(fused: bool) -> None:
    model = mlp()
    region, optimizer = narrow(model), sgd(model, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    scales = []
    with keep_inside(model, optimizer, region):
        for _ in range(6):
            optimizer.zero_grad()
            torch.autograd.backward(scaler.scale(1e3 * nn.functional.cross_entropy(model(X), Y)))
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
            check(region, model)
    assert scales[0] < 2.0**127, "the first step overflows and is skipped"
    assert region.contains(model)


def test_a_schedule_and_a_loader_with_workers_fit_in() -> None:
    model = mlp()
    region, optimizer = narrow(model), sgd(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=8, num_workers=1)
    with keep_inside(model, optimizer, region):
        for x, y in loader:
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            schedule.step()
            check(region, model)
    assert region.contains(model)


def test_a_resnet_ends_inside_to_the_bit() -> None:
    torch.manual_seed(0)
    model = resnet18(classes=2, width=4)
    x, y = torch.randn(8, 3, 16, 16), torch.arange(8) % 2
    before = snapshot(model)
    region, optimizer = narrow(model, 0.01), sgd(model, 0.5, momentum=0.9)

    def loop() -> None:
        with keep_inside(model, optimizer, region):
            for _ in range(3):
                model.train()
                optimizer.zero_grad()
                torch.autograd.backward(nn.functional.cross_entropy(model(x), y))
                assert not region.contains(model), "the forward pass moved the statistics"
                optimizer.step()
                assert region.contains(model)
            model(x)

    with pytest.warns(UserWarning, match=r"'stem\.1' and 19 more.*call \.eval\(\)") as told:
        loop()
    assert len(told) == 1
    assert told[0].filename == __file__, "it points at the loop"
    assert region.contains(model)
    assert torch.equal(model.get_buffer("stem.1.running_var"), before["stem.1.running_var"])
    assert not torch.equal(model.get_parameter("fc.weight"), before["fc.weight"])


def test_frozen_norm_layers_train_in_silence() -> None:
    model = with_statistics().train()
    model[1].eval()
    region, optimizer = narrow(model), sgd(model)
    with keep_inside(model, optimizer, region):
        train(model, optimizer)
    assert region.contains(model)


def test_channels_last_and_tied_weights() -> None:
    torch.manual_seed(0)
    body = nn.Conv2d(2, 2, 3, padding=1)
    model = nn.Sequential(body, nn.ReLU(), body, nn.Flatten(), nn.Linear(32, 2))
    region = narrow(model)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = sgd(model)
    with keep_inside(model, optimizer, region):
        torch.autograd.backward(nn.functional.cross_entropy(model(torch.randn(4, 2, 4, 4)), torch.ones(4).long()))
        optimizer.step()
        assert region.contains(model)
    assert body.weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda model: torch.compile(model, backend="eager")])
def test_wrappers_are_looked_through(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model = mlp()
    region = narrow(model)
    wrapped = wrap(model)
    model.cpu()  # where there is a GPU, DataParallel took it there
    optimizer = sgd(wrapped)
    with keep_inside(wrapped, optimizer, region):
        train(model, optimizer)
    assert region.contains(model)


def test_a_graph_that_waits_for_its_backward_pass_is_not_disturbed() -> None:
    models = nn.ModuleList([with_statistics().train(), with_statistics(1).train()])
    region = narrow(models)
    optimizers = [sgd(model) for model in models]
    with warnings.catch_warnings(), keep_inside(models, optimizers, region):
        warnings.simplefilter("ignore")
        losses = [nn.functional.cross_entropy(model(X), Y) for model in models]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            torch.autograd.backward(loss)
            optimizer.step()
    assert region.contains(models)


def test_a_certificate_stands_for_its_region() -> None:
    model = mlp()
    certificate, optimizer = Certificate.of(model, narrow(model)), sgd(model)
    with keep_inside(model, optimizer, certificate):
        train(model, optimizer)
    assert certificate.region.contains(model)


def inside(region: Region, model: nn.Module) -> None:
    assert region.contains(model)


def test_what_a_region_knows_by_its_digest_alone_stays_as_it_is() -> None:
    model = with_statistics()
    before = snapshot(model)
    region, optimizer = Region.around(model, {"3.bias": 0.1}).without_values(), sgd(model)
    assert "0.weight" in region.frozen
    with keep_inside(model, optimizer, region):
        train(model, optimizer, after=lambda: inside(region, model))
    after = snapshot(model)
    assert not torch.equal(after.pop("3.bias"), before.pop("3.bias"))
    assert same(after, before)
    model[0].get_parameter("weight").data.add_(1e-3)
    with (
        pytest.raises(Violation, match=r"'0\.weight' is frozen and has changed"),
        keep_inside(model, optimizer, region),
    ):
        pytest.fail("the block was entered")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}, {"capturable": True}])
def test_on_a_gpu_with_a_region_from_elsewhere(options: dict[str, Any]) -> None:
    model = mlp()
    region = narrow(model)
    model.cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, **options)
    with keep_inside(model, optimizer, region):
        for _ in range(3):
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(model(X.cuda()), Y.cuda()))
            optimizer.step()
            assert region.to("cuda").contains(model)
