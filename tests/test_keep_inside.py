"""Training loops of every kind, held in a region: steps end inside, and what cannot be held is said."""

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
from torch import Tensor, nn
from torch.optim import Optimizer

from intercontinet.certificate import Certificate
from intercontinet.errors import InterContiNetError, InvalidModel, InvalidSetting, RegionMismatch, Violation
from intercontinet.keep_inside import keep_inside
from intercontinet.region import Region
from tests.models import resnet18
from tests.strategies import lopsided_region
from tests.tiny import blobs, mlp, same, snapshot, with_statistics

X, Y = blobs(examples=16)
OPTIMIZERS: dict[str, type[Optimizer]] = {
    name: kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer and name != "SparseAdam"
}


def make(name: str, parameters: Any, **options: Any) -> Optimizer:
    """An optimizer of that name, which some make of matrices alone."""
    kind: Any = OPTIMIZERS[name]
    chosen = [p for p in parameters if p.dim() == 2] if name == "Muon" else list(parameters)
    made: Optimizer = kind(chosen, **options)
    return made


def train(model: nn.Module, *optimizers: Optimizer, steps: int = 3, after: Callable[[], None] = lambda: None) -> None:
    """A loop as anybody writes it."""

    def closure() -> Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(X), Y)
        torch.autograd.backward(loss)
        return loss

    for _ in range(steps):
        for optimizer in optimizers:
            optimizer.step(closure)  # type: ignore[arg-type]  # torch's own loops return tensors too
            after()


def narrow(model: nn.Module, radius: float = 1e-3) -> Region:
    return Region.around(model, radius)


def sgd(model: nn.Module, lr: float = 10.0, **options: Any) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, **options)


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


def inside(region: Region, model: nn.Module) -> None:
    assert region.contains(model)


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
