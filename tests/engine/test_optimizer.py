"""Steps on a stack of seeds against torch's own optimizers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from intercontinet.engine.optimizer import SGD, Adam, Optimizer

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
