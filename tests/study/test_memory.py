"""Runs that are short of memory: fewer seeds at a time, said aloud, with the same results."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from intercontinet.engine.loop import Listener, Progress
from intercontinet.engine.record import give_back_memory
from intercontinet.errors import InvalidSetting
from intercontinet.learners.method import Lesson, Memory, Method, Nets
from intercontinet.study.config import Config
from intercontinet.study.run import Run, complete
from intercontinet.study.state import State
from tests.study.runs import alike, digits, running, tiny


@dataclass(frozen=True)
class Hungry:
    """A method whose device holds only so many seeds: with more, its memory gives out after an epoch."""

    method: Method
    holds: int

    def learn(
        self, nets: Nets, weights: Tensor, memory: Memory, lesson: Lesson, listen: Listener | None = None
    ) -> tuple[Tensor, Memory]:
        def hear(progress: Progress) -> None:
            if listen is not None:
                listen(progress)
            if len(nets.seeds) > self.holds:
                raise torch.OutOfMemoryError("out of memory")

        return self.method.learn(nets, weights, memory, lesson, hear)


@pytest.mark.parametrize("method", ["lwf", "intercontinet"])
@pytest.mark.parametrize(("holds", "said"), [(2, ["2 seed(s)"]), (1, ["2 seed(s)", "1 seed(s)"])])
def test_short_of_memory_it_says_so_takes_fewer_seeds_and_ends_the_same(
    method: str, holds: int, said: list[str]
) -> None:
    config = tiny(method, seeds=(0, 1, 2))
    words: list[str] = []
    run = running(config, say=words.append, curves=True)
    run.method = Hungry(run.method, holds)
    found = complete(run)
    assert [word.split("going on with ")[1].split(" at")[0] for word in words] == said, "once, not once a task"
    assert all("out of memory" in word for word in words)
    plain = running(config, curves=True)
    expected = complete(plain)
    alike(found, expected)
    assert found.memory.keys() == expected.memory.keys()
    for name, tensor in expected.memory.items():
        assert found.memory[name].shape == tensor.shape
    curves = [run.summary(found)["seeds"][2]["curve"], plain.summary(expected)["seeds"][2]["curve"]]
    for mine, theirs in zip(*curves, strict=True):
        assert [mine[key] for key in ("task", "phase", "epoch")] == [theirs[key] for key in ("task", "phase", "epoch")]
        radii = [point["sum_of_radii"] for point in (mine, theirs)]
        assert radii == [None, None] or radii[0] == pytest.approx(radii[1], rel=1e-3)


FRESH = """
import gc, weakref
import torch
from intercontinet.engine import loop
from intercontinet.study.config import configure
from intercontinet.study.run import Run

gc.disable()
take, attempts, said = loop._Steps.take, [], []

def hungry(steps, *given):
    take(steps, *given)
    if len(steps.values) > 1:
        attempts.append(weakref.ref(steps))
        raise torch.OutOfMemoryError("out of memory")

loop._Steps.take = hungry
run = Run(configure("digits", "domain", "sgd", (0, 1), 2, net="mlp-8", epochs=1), "cpu", say=said.append)
state = run.begin()
kept = []
torch.cuda.empty_cache = lambda: kept.extend(attempt() for attempt in attempts if attempt() is not None)
run.advance(state)
print(len(attempts), len(said), len(kept))
"""


def test_nothing_of_an_attempt_that_failed_is_left_when_memory_is_given_back() -> None:
    """In a fresh process: the first vmap keeps its frames in a cycle, and so whatever they hold."""
    found = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, timeout=600, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == ["1", "1", "0"]


LIMITED = """
import resource, sys
import torch
from intercontinet.study.config import configure
from intercontinet.study.run import Run, complete

def run(seeds, said):
    config = configure("digits", "domain", "intercontinet", tuple(range(seeds)), 2, net="mlp-400-400", epochs=2)
    return Run(config, "cpu", say=said.append)

torch.set_num_threads(1)
said, more = [], []
expected = complete(run(24, said)).weights
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
for room in range(20, 1000, 20):  # MiB: the least with which it can go on
    resource.setrlimit(resource.RLIMIT_AS, (used + (room << 20), -1))
    more.clear()
    try:
        found = complete(run(24, more)).weights
    except (RuntimeError, MemoryError, ValueError) as error:
        assert "memory" in str(error) or isinstance(error, MemoryError), error
        continue
    break
print(said, more, found.shape == expected.shape, float((found - expected).abs().max()))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
def test_memory_that_really_gives_out() -> None:
    found = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, timeout=600, check=False)
    assert found.returncode == 0, found.stderr
    assert re.fullmatch(
        r"\[\] \[('the device ran out of memory: going on with \d+ seed\(s\) at a time'(, )?)+\] True \S+",
        found.stdout.strip(),
    ), found.stdout
    assert float(found.stdout.split()[-1]) < 1e-4, "as all at once, to the tolerance of runs"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("method", "seeds"), [("lwf", 32), ("intercontinet", 12)])
def test_a_gpu_whose_memory_really_gives_out(method: str, seeds: int) -> None:
    """With less and less of it, until all seeds at once find no room; and with room for few of them at a time."""
    one, config = (tiny(method, seeds=range(count), net="mlp-400-400") for count in (1, seeds))

    def finished(config: Config, room: int, words: list[str]) -> State:
        give_back_memory()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.set_per_process_memory_fraction(min(1.0, room / torch.cuda.mem_get_info()[1]))
        return complete(Run(config, "cuda", words.append, tasks=digits(config.scenario)))

    words: list[str] = []
    few: list[str] = []
    try:
        finished(one, 1 << 60, words)
        alone = torch.cuda.max_memory_reserved()
        expected = finished(config, 1 << 60, words)
        assert not words
        needed = torch.cuda.max_memory_reserved()
        for share in range(95, 15, -5):
            found = finished(config, needed * share // 100, words)
            if words:
                break
        squeezed = finished(config, 2 * alone, few)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert words, "all seeds at once had room to the last"
    assert len(few) >= len(words)
    for word in (*words, *few):
        assert re.fullmatch(r"the device ran out of memory: going on with \d+ seed\(s\) at a time", word)
    alike(found, expected)
    alike(squeezed, expected)


@pytest.mark.parametrize("method", ["sgd", "offline"])
def test_what_is_learned_and_measured_lies_in_memory_once(method: str) -> None:
    run = running(tiny(method))
    lesson, names, learned = run._lesson(0)
    assert tuple(names) == tuple(run.stream.names if method == "offline" else run.stream.names[:1])
    assert sum(map(len, learned)) == len(lesson.x)
    for examples in learned:
        assert examples.shown.x.untyped_storage().data_ptr() == lesson.x.untyped_storage().data_ptr()


def test_memory_that_gives_out_before_a_lesson_begins_is_taken_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    words: list[str] = []
    run = running(tiny(seeds=(0, 1)), say=words.append)
    lesson = run._models.lesson

    def shown(*given: Any) -> Lesson:
        if run.turns.at_once > 1:
            raise torch.OutOfMemoryError("out of memory")
        return lesson(*given)

    monkeypatch.setattr(run._models, "lesson", shown)
    complete(run)
    assert words == ["the device ran out of memory: going on with 1 seed(s) at a time"]


def test_too_little_memory_for_one_seed_is_an_error_with_a_way_out() -> None:
    run = running(tiny(seeds=(0, 1)), say=lambda text: None)
    run.method = Hungry(run.method, 0)
    with pytest.raises(InvalidSetting, match="--device cpu"):
        complete(run)
