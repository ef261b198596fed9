"""Recording a step, on a GPU: a replay must do what the step does. How it fails is tried on a pretended one."""

from __future__ import annotations

import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import ClassVar

import pytest
import torch

from intercontinet.engine import record
from intercontinet.engine.loop import train
from intercontinet.engine.optimizer import SGD, Adam, Measure, Optimizer, PathIntegral
from intercontinet.engine.record import give_back_memory, recorded, stream_of_thread
from intercontinet.errors import InvalidData
from intercontinet.learners.method import Lesson, Nets, Plan, cross_entropy
from intercontinet.learners.plain import Plain
from tests.tiny import blobs, mlp


def test_elsewhere_than_on_a_gpu_a_step_is_left_alone_and_not_tried() -> None:
    count = torch.zeros(1)

    def step() -> None:
        count.add_(1)

    assert recorded(step, [count], torch.device("cpu")) is step
    assert float(count) == 0


class PretendedStream:
    """Notes what it waits for."""

    def __init__(self) -> None:
        self.waited_for: list[object] = []

    def wait_stream(self, other: object) -> None:
        self.waited_for.append(other)


POOL = (0, 7)


class PretendedGraph:
    """A graph whose recording may fail in the end, as one that finds no memory does."""

    failure: RuntimeError | None = None
    warning: str = ""
    recording = False
    left: ClassVar[list[tuple[str, int, tuple[int, int]]]] = []  # what torch's allocator was told

    def capture_begin(self, pool: object, **_: object) -> None:
        assert pool == POOL
        PretendedGraph.recording = True

    def capture_end(self) -> None:
        if self.warning:
            warnings.warn(self.warning, stacklevel=2)
        if self.failure is not None:
            raise self.failure
        PretendedGraph.recording = False

    def replay(self) -> None:
        pass


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> tuple[PretendedStream, PretendedStream]:
    """The current stream and the one for recording of a GPU that is not there."""
    current, aside = PretendedStream(), PretendedStream()
    left = PretendedGraph.left
    left.clear()
    monkeypatch.setattr(record, "stream_of_thread", lambda device, use: aside)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1, 1))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", PretendedGraph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: POOL)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda device, pool: left.append(("end", device, pool)))
    monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda device, pool: left.append(("release", device, pool)))
    PretendedGraph.recording = False
    return current, aside


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch says of a graph that failed before anything was recorded."""
    monkeypatch.setattr(PretendedGraph, "warning", "The CUDA Graph is empty.")


NO_MEMORY = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
)


@pytest.mark.parametrize("error", NO_MEMORY, ids=range(len(NO_MEMORY)))
@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.usefixtures("empty")
def test_a_step_that_finds_no_memory_is_waited_for_and_its_error_raised(
    error: RuntimeError, call: int, streams: tuple[PretendedStream, PretendedStream]
) -> None:
    """In the trial step or while recording: else the next attempt would share memory with what is left of this one."""
    current, aside = streams
    calls = 0

    def step() -> None:
        nonlocal calls
        calls += 1
        if calls >= call:
            raise error

    with pytest.raises(RuntimeError) as raised:
        recorded(step, [], torch.device("cuda"))
    assert raised.value is error and calls == (1 if call == 1 else 3), "a recording is begun twice"
    assert current.waited_for == [aside]


@pytest.mark.usefixtures("streams")
def test_a_recording_that_finds_no_memory_begins_again_once_what_torch_keeps_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = 0
    made: list[weakref.ref[object]] = []
    alive: list[int] = []  # whenever memory is given back

    class Noted(PretendedGraph):
        def __init__(self) -> None:
            made.append(weakref.ref(self))

    def step() -> None:
        nonlocal calls
        calls += 1
        values = torch.zeros(3)
        made.append(weakref.ref(values))
        if calls == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Noted)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: alive.append(sum(ref() is not None for ref in made)))
    assert recorded(step, [], torch.device("cuda")) is not step
    assert calls == 3 and len(made) == 5 and alive == [0] and not PretendedGraph.recording


@pytest.mark.parametrize(("free", "emptied"), [(1, 1), (2, 0)])
def test_what_graphs_that_are_gone_have_held_is_given_back_before_the_device_is_full(
    free: int, emptied: int, streams: tuple[PretendedStream, PretendedStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[None] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 4))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append(None))
    recorded(lambda: None, [], torch.device("cuda"))
    assert len(calls) == emptied


def test_a_graph_that_finds_no_memory_in_the_end_is_an_error(
    streams: tuple[PretendedStream, PretendedStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PretendedGraph, "failure", RuntimeError("CUDA error: out of memory"))
    with pytest.raises(RuntimeError, match="out of memory"):
        recorded(lambda: None, [], torch.device("cuda"))
    assert streams[0].waited_for == [streams[1]]


def test_a_step_that_no_graph_can_hold_is_taken_without(
    streams: tuple[PretendedStream, PretendedStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PretendedGraph, "failure", RuntimeError("operation not permitted\nwhen stream is capturing"))
    values = torch.zeros(1)

    def step() -> None:
        values.add_(1)

    with pytest.warns(UserWarning, match="runs slower without: operation not permitted$"):
        assert recorded(step, [values], torch.device("cuda")) is step
    assert values.item() == 0, "what was tried is undone"
    assert PretendedGraph.left == [("end", 3, POOL), ("release", 3, POOL)], "its pool is no longer filled"


@pytest.mark.parametrize("error", [InvalidData("outputs are not finite"), ValueError(), KeyboardInterrupt()])
def test_whatever_stops_a_recording_ends_it(
    error: BaseException, streams: tuple[PretendedStream, PretendedStream]
) -> None:
    """Else all that the thread does next would be recorded, too."""
    calls = 0

    def step() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            assert PretendedGraph.recording
            raise error

    if isinstance(error, Exception):
        with pytest.warns(UserWarning, match=f"without: {str(error) or 'ValueError'}$"):
            assert recorded(step, [], torch.device("cuda")) is step
    else:
        with pytest.raises(KeyboardInterrupt):
            recorded(step, [], torch.device("cuda"))
    assert not PretendedGraph.recording and not PretendedGraph.left
    assert streams[0].waited_for == [streams[1]]


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
TOO_MUCH = 1 << 50


def check_recording_works() -> None:
    """As nothing does any more on a stream or with an allocator that a failure left recording."""
    values = torch.zeros(3, device="cuda")

    def step() -> None:
        values.add_(torch.ones_like(values))

    take = recorded(step, [values], torch.device("cuda"))
    take()
    give_back_memory()
    take()
    assert values.tolist() == [2, 2, 2]


@needs_gpu
@pytest.mark.parametrize("call", [1, 2])
def test_after_a_step_that_found_no_memory_the_next_is_recorded(call: int) -> None:
    calls = 0

    def step() -> None:
        nonlocal calls
        calls += 1
        torch.ones(1000, device="cuda").sum()
        if calls >= call:
            torch.empty(TOO_MUCH, device="cuda")

    with pytest.raises(torch.OutOfMemoryError):
        recorded(step, [], torch.device("cuda"))
    give_back_memory()
    check_recording_works()


@needs_gpu
def test_where_nothing_else_runs_all_memory_is_given_back() -> None:
    torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")
    give_back_memory()
    before = torch.cuda.memory_reserved()
    give_back_memory(alone=True)
    assert torch.cuda.memory_reserved() < before
    check_recording_works()


@needs_gpu
@pytest.mark.parametrize("error", [RuntimeError, InvalidData])
def test_a_step_that_looks_at_a_value_is_taken_without_a_graph(error: type[Exception]) -> None:
    values = torch.zeros(3, device="cuda")

    def step() -> None:
        try:
            values.add_(1).sum().item()
        except RuntimeError as refusal:
            raise error(str(refusal)) from refusal

    with pytest.warns(UserWarning, match="cannot be recorded"):
        assert recorded(step, [values], torch.device("cuda")) is step
    assert values.tolist() == [0, 0, 0]
    give_back_memory()
    check_recording_works()


@needs_gpu
def test_what_a_failed_step_began_is_over_before_its_memory_is_used_again() -> None:
    values = torch.zeros(3, device="cuda")

    def step() -> None:
        torch.cuda._sleep(200_000_000)  # type: ignore[no-untyped-call]
        values.fill_(1)
        torch.empty(TOO_MUCH, device="cuda")

    with pytest.raises(torch.OutOfMemoryError):
        recorded(step, [values], torch.device("cuda"))
    values.fill_(2)
    assert values.tolist() == [2, 2, 2]


@needs_gpu
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


@needs_gpu
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


@needs_gpu
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
