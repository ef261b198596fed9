"""Steps on a stack of seeds against torch's own optimizers, and what is summed up along them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from intercontinet.engine.optimizer import SGD, Adam, Measure, Optimizer, PathIntegral
from tests.engine.test_loop import LAYOUT, MODEL, X, Y, phase, run, start
from tests.tiny import batches

SEEDS, ENTRIES, STEPS = 3, 17, 25


def gradients(dtype: torch.dtype) -> Tensor:
    """[steps, seeds, entries], over many orders of magnitude, some exactly zero."""
    generator = torch.Generator().manual_seed(1)
    size = 10.0 ** torch.randint(-9, 3, (STEPS, SEEDS, ENTRIES), generator=generator)
    values = torch.randn(STEPS, SEEDS, ENTRIES, generator=generator, dtype=torch.float64) * size
    values[:, :, 0] = 0
    return values.to(dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SGD(0.3), lambda values: torch.optim.SGD([values], lr=0.3)),
        (Adam(0.01), lambda values: torch.optim.Adam([values], lr=0.01)),
        (Adam(0.1, 0.8, 0.95, 1e-3), lambda values: torch.optim.Adam([values], lr=0.1, betas=(0.8, 0.95), eps=1e-3)),
    ],
    ids=["sgd", "adam", "adam with other settings"],
)
def test_steps_are_those_of_torch(
    ours: Optimizer, theirs: Callable[[Tensor], torch.optim.Optimizer], dtype: torch.dtype, tolerance: float
) -> None:
    values = torch.linspace(-1, 1, SEEDS * ENTRIES, dtype=dtype).reshape(SEEDS, ENTRIES)
    reference = values.clone().requires_grad_()
    optimizer = theirs(reference)
    state = ours.start(values)
    for gradient in gradients(dtype):
        ours.step_(values, gradient, state, None)
        reference.grad = gradient.clone()
        optimizer.step()
        torch.testing.assert_close(values, reference.detach(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("optimizer", [SGD(0.3), Adam(0.01)], ids=["sgd", "adam"])
def test_a_row_that_holds_still_changes_in_nothing_and_goes_on_as_if_no_time_had_passed(optimizer: Optimizer) -> None:
    resting = torch.randn(SEEDS, ENTRIES, generator=torch.Generator().manual_seed(2))
    resting[1, 3] = -0.0
    steady = resting.clone()
    state, steady_state = optimizer.start(resting), optimizer.start(steady)
    everyone = torch.ones(SEEDS, dtype=torch.bool)
    for step, gradient in enumerate(gradients(torch.float32)):
        if step % 2:
            before = resting.clone()
            poison = gradient.clone()
            poison[1] = torch.nan
            optimizer.step_(resting, poison, state, torch.tensor([True, False, True]))
            assert before[1].numpy().tobytes() == resting[1].numpy().tobytes()
            assert not torch.equal(before[0], resting[0])
        else:
            optimizer.step_(resting, gradient, state, everyone)
            optimizer.step_(steady, gradient, steady_state, None)
    assert torch.equal(resting[1], steady[1]), "its memory and its count of steps rested too"
    assert not torch.equal(resting[0], steady[0])


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_another_rate_goes_on_with_the_same_memory(kind: str) -> None:
    values = torch.linspace(-1, 1, SEEDS * ENTRIES, dtype=torch.float64).reshape(SEEDS, ENTRIES)
    reference = values.clone().requires_grad_()
    ours: Optimizer = SGD(0.3) if kind == "sgd" else Adam(0.3, 0.8, 0.95, 1e-3)
    theirs: torch.optim.Optimizer = (
        torch.optim.SGD([reference], lr=0.3)
        if kind == "sgd"
        else torch.optim.Adam([reference], lr=0.3, betas=(0.8, 0.95), eps=1e-3)
    )
    state = ours.start(values)
    for step, gradient in enumerate(gradients(torch.float64)):
        if step == 10:
            ours = ours.scaled(0.1)
            theirs.param_groups[0]["lr"] = 0.03
        ours.step_(values, gradient, state, None)
        reference.grad = gradient.clone()
        theirs.step()
    torch.testing.assert_close(values, reference.detach(), rtol=1e-12, atol=1e-12)


# What is summed up along the way.


def of_the_loop(kind: str, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A plain loop in float64: the last values, and the sums over the steps of g times the change, |g| and g^2."""
    values = start(seed).double().requires_grad_()
    optimizer: torch.optim.Optimizer = (
        torch.optim.SGD([values], lr=0.2) if kind == "sgd" else torch.optim.Adam([values], lr=0.2)
    )
    sums = [torch.zeros_like(values, requires_grad=False) for _ in range(3)]
    for rows in batches(seed, 3, len(X), 16):
        before = values.detach().clone()
        out = functional_call(MODEL, LAYOUT.unflatten(values), (X[rows].double(),))
        (gradient,) = torch.autograd.grad((1 + seed) * F.cross_entropy(out, Y[rows]), values)
        if kind != "none":
            values.grad = gradient
            optimizer.step()
        for total, term in zip(sums, (gradient * (values.detach() - before), gradient.abs(), gradient**2), strict=True):
            total += term
    return values.detach(), sums[0], sums[1], sums[2]


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_a_path_integral_is_the_sum_of_each_gradient_times_its_step(kind: str) -> None:
    total = torch.zeros(2, start(0).numel(), dtype=torch.float64)
    trained = run(phase(PathIntegral(SGD(0.2) if kind == "sgd" else Adam(0.2), total)), (0, 1), torch.float64)
    for seed in (0, 1):
        values, path, _, _ = of_the_loop(kind, seed)
        torch.testing.assert_close(trained[seed], values, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(total[seed], path, rtol=1e-8, atol=1e-10)


def test_with_plain_steps_a_path_integral_is_minus_the_rate_times_squared_gradients() -> None:
    total = torch.zeros(1, start(0).numel(), dtype=torch.float64)
    run(phase(PathIntegral(SGD(0.2), total)), (0,), torch.float64)
    torch.testing.assert_close(total[0], -0.2 * of_the_loop("sgd", 0)[3], rtol=1e-8, atol=1e-12)
    assert float(total.min()) < -1e-3


@pytest.mark.parametrize("rate", [0.1, 0.001])
def test_on_a_quadratic_the_path_integral_is_the_drop_of_the_loss_as_steps_shrink(rate: float) -> None:
    """For h/2 theta^2 a step makes it drop by rate (h theta)^2 (1 - rate h / 2): entry by entry, and exactly."""
    curvature = torch.tensor([[0.5, 1.0, 3.0]], dtype=torch.float64)
    values = torch.tensor([[2.0, -1.0, 0.5]], dtype=torch.float64)
    total = torch.zeros_like(values)
    path = PathIntegral(SGD(rate), total)
    state, first = path.start(values), curvature / 2 * values**2
    for _ in range(round(1 / rate)):
        path.step_(values, curvature * values, state, None)
    drop = first - curvature / 2 * values**2
    torch.testing.assert_close(-total * (1 - rate * curvature / 2), drop, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(-total, drop, rtol=2 * rate, atol=0)


def test_a_path_goes_on_through_a_milestone_and_rests_with_its_row() -> None:
    values, total = torch.zeros(2, 1), torch.zeros(2, 1)
    path = PathIntegral(SGD(1.0), total)
    state = path.start(values)
    path.step_(values, torch.full((2, 1), 2.0), state, torch.tensor([True, False]))
    path.scaled(0.5).step_(values, torch.full((2, 1), 2.0), state, None)
    assert values.tolist() == [[-3.0], [-1.0]] and total.tolist() == [[-6.0], [-2.0]]


@pytest.mark.parametrize("power", [1, 2])
def test_measuring_sums_powers_of_gradients_and_moves_nothing(power: int) -> None:
    total = torch.zeros(2, start(0).numel(), dtype=torch.float64)
    trained = run(phase(Measure(power, total)), (0, 1), torch.float64)
    assert torch.equal(trained, torch.stack([start(0), start(1)]).double())
    for seed in (0, 1):
        expected = of_the_loop("none", seed)[1 + power]
        torch.testing.assert_close(total[seed], expected, rtol=1e-9, atol=1e-12)
