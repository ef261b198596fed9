"""Recording a step: only on a GPU, where what a replay does must be what the step does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from intercontinet.engine.loop import train
from intercontinet.engine.optimizer import SGD, Adam, Measure, Optimizer, PathIntegral
from intercontinet.engine.record import recorded, stream_of_thread
from intercontinet.learners.method import Lesson, Nets, Plan, cross_entropy
from intercontinet.learners.plain import Plain
from tests.tiny import blobs, mlp


def test_elsewhere_than_on_a_gpu_a_step_is_left_alone_and_not_tried() -> None:
    count = torch.zeros(1)

    def step() -> None:
        count.add_(1)

    assert recorded(step, [count], torch.device("cpu")) is step
    assert float(count) == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_recorded_step_counts_from_where_it_was_and_sees_what_changes() -> None:
    device = torch.device("cuda")
    values, by = torch.zeros(3, device=device), torch.ones(3, device=device)

    def step() -> None:
        values.add_(by)

    take = recorded(step, [values], device)
    assert take is not step and values.tolist() == [0, 0, 0], "the trial step is undone"
    take()
    by.fill_(10)
    take()
    assert values.tolist() == [11, 11, 11]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", ["sgd", "adam", "path", "measure"])
@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
def test_a_recorded_phase_trains_as_a_plain_one(
    kind: str, seeds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With milestones and pauses, for every optimizer, alone and stacked."""
    device = torch.device("cuda")
    model = mlp(hidden=4).to(device)
    nets = Nets(model, seeds)
    weights = nets.layout.flatten(dict(model.named_parameters())).detach()[None].repeat(len(seeds), 1)
    x, y = (part.to(device) for part in blobs(examples=50))
    results = []
    for recording in (True, False):
        if not recording:
            monkeypatch.setattr("intercontinet.engine.loop.recorded", lambda step, *_, **__: step)
        total = torch.zeros_like(weights)
        choices: dict[str, Optimizer] = {
            "sgd": SGD(0.2),
            "adam": Adam(0.01),
            "path": PathIntegral(SGD(0.2), total),
            "measure": Measure(2, total),
        }
        plan = Plan(choices[kind], 4, 16, milestones=(2,))
        phase = nets.phase("test", cross_entropy(nets.network, None), plan, pause=lambda means: means[:, 0] > 0.97)
        values = train(phase, weights, {}, {"x": x, "y": y}, {}, nets.keys(0, 0))
        results.append((values.cpu(), total.cpu()))
    for recorded_one, plain_one in zip(*results, strict=True):
        torch.testing.assert_close(recorded_one, plain_one, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_threads_record_and_train_side_by_side() -> None:
    device = torch.device("cuda")
    x, y = (part.to(device) for part in blobs(examples=50))
    model = mlp(hidden=4).to(device)  # here, not in the threads: its weights come from torch's global generator

    def learn(seed: int) -> torch.Tensor:
        with torch.cuda.stream(stream_of_thread(device, "running")):
            nets = Nets(model, (seed,))
            weights = nets.layout.flatten(dict(model.named_parameters())).detach()[None]
            for index in range(5):
                weights, _ = Plain(rate=0.2, epochs=3, batch_size=16).learn(nets, weights, {}, Lesson("", index, x, y))
            return weights.cpu()

    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(learn, range(12)))
    for seed, weights in enumerate(together):
        torch.testing.assert_close(weights, learn(seed), rtol=1e-5, atol=1e-6)
