"""The training loop: seeds side by side, shuffling, pauses, and what a listener hears."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from intercontinet.engine.layout import Layout
from intercontinet.engine.loop import Phase, Progress, train
from intercontinet.engine.optimizer import SGD, Adam, Optimizer
from intercontinet.engine.parametrisation import Identity
from tests.tiny import blobs, mlp

MODEL = mlp(hidden=4)
LAYOUT = Layout.of(dict(MODEL.named_parameters()))
X, Y = blobs(examples=50)
Named = Mapping[str, Tensor]


def objective(parameters: Named, fixed: Named, batch: Named) -> tuple[Tensor, Tensor]:
    out = functional_call(MODEL, {**parameters}, (batch["x"],))
    hits = (out.detach().argmax(1) == batch["y"]).to(out.dtype).mean()
    return (F.cross_entropy(out, batch["y"], reduction="none") * batch["weight"]).mean(), hits[None]


def phase(optimizer: Optimizer | None = None, epochs: int = 3, batch_size: int = 16) -> Phase:
    return Phase("test", objective, LAYOUT, Identity(), optimizer or SGD(0.2), epochs, batch_size)


def start(seed: int) -> Tensor:
    return LAYOUT.flatten(dict(mlp(hidden=4, seed=seed).named_parameters())).detach()


def run(what: Phase, seeds: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    trained = torch.stack([start(seed) for seed in seeds]).to(dtype)
    weight = torch.stack([torch.full((50,), 1.0 + seed, dtype=dtype) for seed in seeds])
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    return train(what, trained, {}, {"x": X.to(dtype), "y": Y}, {"weight": weight}, generators)


@pytest.mark.parametrize("optimizer", [SGD(0.2), Adam(0.01)], ids=["sgd", "adam"])
def test_a_seed_alone_trains_as_it_does_beside_others(optimizer: Optimizer) -> None:
    """To 1e-10 in float64 after nine steps: batched products add up in another order, and nothing else differs."""
    together = run(phase(optimizer), (3, 1, 4), torch.float64)
    for row, seed in enumerate((3, 1, 4)):
        alone = run(phase(optimizer), (seed,), torch.float64)
        torch.testing.assert_close(alone[0], together[row], rtol=1e-10, atol=1e-10)
    assert not torch.allclose(together[0], together[1], atol=1e-3)


@pytest.mark.parametrize("seeds", [(2,), (2, 5)])
def test_training_is_repeatable_bit_for_bit(seeds: tuple[int, ...]) -> None:
    assert torch.equal(run(phase(Adam(0.01)), seeds), run(phase(Adam(0.01)), seeds))


def test_the_loop_takes_the_very_steps_of_a_plain_one() -> None:
    values = start(0).clone().requires_grad_()
    optimizer = torch.optim.SGD([values], lr=0.2)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        order = torch.randperm(50, generator=generator)
        for first in range(0, 48, 16):
            rows = order[first : first + 16]
            optimizer.zero_grad()
            out = functional_call(MODEL, LAYOUT.unflatten(values), (X[rows],))
            torch.autograd.backward(F.cross_entropy(out, Y[rows]))
            optimizer.step()
    torch.testing.assert_close(run(phase(), (0,))[0], values.detach(), rtol=1e-5, atol=1e-6)


def test_the_start_is_left_as_it_is() -> None:
    trained = start(0)[None]
    before = trained.clone()
    shared, own = {"x": X, "y": Y}, {"weight": torch.ones(1, 50)}
    after = train(phase(), trained, {}, shared, own, [torch.Generator().manual_seed(0)])
    assert torch.equal(trained, before) and not torch.equal(after, before)


def test_an_incomplete_last_batch_is_dropped_and_a_small_set_is_one_batch() -> None:
    sizes: list[int] = []

    def spy(parameters: Named, fixed: Named, batch: Named) -> tuple[Tensor, Tensor]:
        sizes.append(len(batch["x"]))
        return objective(parameters, fixed, batch)

    run(replace(phase(epochs=2, batch_size=16), objective=spy), (0,))
    assert sizes == [16] * 6
    sizes.clear()
    run(replace(phase(epochs=2, batch_size=1000), objective=spy), (0,))
    assert sizes == [50] * 2


def test_each_seed_is_shuffled_by_its_own_generator_and_sees_everything_once() -> None:
    seen: list[Tensor] = []

    def spy(parameters: Named, fixed: Named, batch: Named) -> tuple[Tensor, Tensor]:
        seen.append(batch["index"].clone())
        return parameters["w"].sum(), torch.zeros(1)

    layout = Layout({"w": torch.Size([1])})
    what = Phase("test", spy, layout, Identity(), SGD(0.1), 2, 5)
    index = torch.arange(10)
    train(what, torch.zeros(1, 1), {}, {"x": index, "index": index}, {}, [torch.Generator().manual_seed(7)])
    generator = torch.Generator().manual_seed(7)
    first, second = torch.cat(seen[:2]), torch.cat(seen[2:])
    assert torch.equal(first, torch.randperm(10, generator=generator))
    assert torch.equal(second, torch.randperm(10, generator=generator))


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_a_pause_stops_every_update(seeds: tuple[int, ...]) -> None:
    heard: list[Progress] = []
    still = replace(phase(), pause=lambda means: torch.ones(len(means), dtype=torch.bool))
    trained = torch.stack([start(seed) for seed in seeds])
    shared, own = {"x": X, "y": Y}, {"weight": torch.ones(len(seeds), 50)}
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    assert torch.equal(train(still, trained, {}, shared, own, generators, heard.append), trained)
    assert [progress.paused for progress in heard] == [1.0, 1.0, 1.0]


def test_only_the_seeds_that_pause_hold_still() -> None:
    half = replace(phase(), pause=lambda means: torch.tensor([True, False]))
    trained = run(half, (0, 1))
    assert torch.equal(trained[0], start(0))
    torch.testing.assert_close(trained[1], run(phase(), (1,))[0], rtol=1e-4, atol=1e-5)


def test_the_pause_judges_averages_over_the_last_ten_batches() -> None:
    means: list[float] = []
    calls = 0

    def spy(parameters: Named, fixed: Named, batch: Named) -> tuple[Tensor, Tensor]:
        nonlocal calls
        calls += 1
        return parameters["w"].sum(), torch.tensor([float(calls)])

    def listen(statistics: Tensor) -> Tensor:
        means.append(float(statistics[0, 0]))
        return torch.zeros(1, dtype=torch.bool)

    what = Phase("test", spy, Layout({"w": torch.Size([1])}), Identity(), SGD(0.1), 6, 5, listen)
    train(what, torch.zeros(1, 1), {}, {"x": torch.arange(10)}, {}, [torch.Generator().manual_seed(0)])
    assert means == [sum(range(max(1, n - 9), n + 1)) / min(n, 10) for n in range(1, 13)]


def test_a_listener_hears_every_epoch() -> None:
    heard: list[Progress] = []
    trained, own = torch.stack([start(0), start(1)]), {"weight": torch.ones(2, 50)}
    generators = [torch.Generator().manual_seed(seed) for seed in range(2)]
    train(phase(epochs=4), trained, {}, {"x": X, "y": Y}, own, generators, heard.append)
    assert [(p.phase, p.epoch, p.epochs, p.paused) for p in heard] == [("test", n, 4, 0.0) for n in (1, 2, 3, 4)]
    assert heard[-1].loss < heard[0].loss
    assert all(0 <= p.statistics[0] <= 1 for p in heard)
