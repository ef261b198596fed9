"""Runs: every method in every scenario, measured again by hand; seed by seed, and short of memory."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import intercontinet as icn
from intercontinet.engine.loop import Listener, Progress
from intercontinet.engine.record import give_back_memory
from intercontinet.errors import InvalidSetting
from intercontinet.learners.catalogue import METHODS
from intercontinet.learners.method import Lesson, Memory, Method, Nets
from intercontinet.report.record import parse_record, read_record
from intercontinet.study.config import Config, configure
from intercontinet.study.run import Run, complete
from intercontinet.study.state import State
from intercontinet.study.store import save_record
from intercontinet.tasks import SCENARIOS, Scenario, Stream, Task, stream

INTERVALS = ("intercontinet", "intercontinet-published")
PROMISING = (*INTERVALS, "exact")
ENCODER = "levels-60-5"
CALM = {"ewc": {"strength": 1}, "oewc": {"strength": 1}}  # the small net diverges with more


@pytest.fixture(autouse=True)
def _no_asking_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERCONTINET_COMMIT", "0123abcd")


@cache
def digits(scenario: Scenario) -> Stream:
    """Two tasks of five digits, and of their examples a quarter."""
    whole = stream("digits", scenario, tasks=2)
    few = [
        replace(task, train=(task.train[0][::4], task.train[1][::4]), test=(task.test[0][::4], task.test[1][::4]))
        for task in whole.tasks
    ]
    return replace(whole, tasks=few)


def tiny(method: str = "sgd", scenario: str = "domain", seeds: Sequence[int] = (0, 1), **changes: Any) -> Config:
    usual = {"net": ENCODER} if method == "exact" else {"net": "mlp-8", "epochs": 2}  # counting knows no epochs
    asked = {**usual, "settings": CALM.get(method), **changes}
    return configure("digits", scenario, method, tuple(seeds), **asked)


def running(config: Config, tasks: Stream | None = None, **changes: Any) -> Run:
    return Run(config, "cpu", tasks=digits(config.scenario) if tasks is None else tasks, **changes)


def states_of(run: Run, listen: Listener | None = None) -> list[State]:
    """Before the first task, and after each one."""
    states = [run.begin()]
    while states[-1].done < run.lessons:
        states.append(run.advance(states[-1], listen))
    return states


def timeless(state: State) -> list[list[dict[str, Any]]]:
    """What happened, but for how long it took."""
    return [[{k: v for k, v in line.items() if k != "seconds"} for line in lines] for lines in state.lines]


def alike(one: State, other: State, rows: slice = slice(None)) -> None:
    """The same to within rounding."""
    torch.testing.assert_close(one.weights, other.weights[rows], rtol=1e-3, atol=1e-4)
    for mine, theirs in zip(one.lines, other.lines[rows], strict=True):
        assert [line["event"] for line in mine] == [line["event"] for line in theirs]
        for a, b in zip(mine, theirs, strict=True):
            assert a["accuracy"] == pytest.approx(b["accuracy"], abs=0.01)


# Measured again by hand.


def right(run: Run, state: State, row: int, data: tuple[Tensor, Tensor], task: Task) -> Tensor:
    """Which examples one seed gets right, by a plain loop over a plain module."""
    scores: Tensor = run.model(state, row)(data[0]).detach()
    if task.classes is not None:
        others = [output for output in range(scores.shape[1]) if output not in task.classes]
        scores[:, others] = -torch.inf
    return scores.argmax(1) == data[1]


def share(hits: Tensor) -> float:
    return int(hits.sum()) / len(hits)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_in_every_scenario_measured_by_hand(method: str, scenario: Scenario, tmp_path: Path) -> None:
    run = running(tiny(method, scenario))
    tasks = run.stream.tasks
    states = states_of(run)
    summary = run.summary(states[-1])
    assert [seed["seed"] for seed in summary["seeds"]] == [0, 1]
    assert sum(seed["seconds"] for seed in summary["seeds"]) == pytest.approx(summary["seconds"])
    for row, found in enumerate(summary["seeds"]):
        hits = [[right(run, state, row, task.test, task) for task in tasks] for state in states]
        assert found["initial_accuracy"] == pytest.approx([share(h) for h in hits[0]])
        matrix = [[share(h) for h in after] for after in hits[1:]]
        assert [list(r) for r in found["accuracy_matrix"]] == [pytest.approx(r) for r in matrix]
        assert found["average_accuracy"] == pytest.approx(sum(matrix[-1]) / len(tasks))
        flips = [0.0]
        if method != "offline":
            lost = hits[1][0] & ~hits[2][0]
            flips.append(share(lost))
            learned = [[task] for task in tasks]
        else:
            learned = [list(tasks)]
        assert found["negative_flips"] == pytest.approx(flips)
        trained = [
            share(torch.cat([right(run, state, row, task.train, task) for task in own]))
            for state, own in zip(states[1:], learned, strict=True)
        ]
        assert found["train_accuracy"] == pytest.approx(trained)
        assert [floor["task"] for floor in found["floors"]] == list(run.stream.names)
        if method in PROMISING:
            check_boxes(run, states, row, found)
        else:
            assert found["region"] == []
            assert {(floor["certified"], floor["kept"]) for floor in found["floors"]} == {(0, None)}
    for done, state in enumerate(states):
        so_far = parse_record(json.dumps(run.summary(state)), "so far", incomplete=True)
        assert (so_far.complete, so_far.lessons) == (done == run.lessons, run.lessons)
        assert {len(seed.accuracy_matrix) for seed in so_far.seeds} == {done}
    stored = read_record(save_record(tmp_path, summary))
    assert [seed.average_accuracy for seed in stored.seeds] == [s["average_accuracy"] for s in summary["seeds"]]
    assert stored.keep == (None if method not in PROMISING else run.config.settings["keep"])


def test_negative_flips_are_counted_over_all_earlier_examples_and_not_averaged_over_tasks() -> None:
    whole = stream("digits", "domain", tasks=3)
    tasks = [
        replace(task, test=(task.test[0][: 10 * 3**i], task.test[1][: 10 * 3**i])) for i, task in enumerate(whole.tasks)
    ]
    run = running(tiny(settings={"rate": 0.5}, seeds=[0]), replace(whole, tasks=tasks))
    states = states_of(run)
    hits = [[right(run, state, 0, task.test, task) for task in tasks] for state in states]
    lost = [hits[2][index] & ~hits[3][index] for index in (0, 1)]
    shares = [share(part) for part in lost]
    assert shares[0] != shares[1], "or a mean over tasks would be the same"
    (found,) = run.summary(states[-1])["seeds"]
    assert found["negative_flips"][2] == pytest.approx(share(torch.cat(lost)))


def check_boxes(run: Run, states: list[State], row: int, found: dict[str, Any]) -> None:
    """Floors are counted again, sizes summed again, and boxes lie one in the other."""
    settings = run.config.settings
    outer: icn.Region | None = None
    places = zip(states[1:], run.stream.tasks, found["floors"], found["region"], strict=True)
    for place, (state, task, floor, size) in enumerate(places):
        model, certificate = run.model(state, row), run.certificate(state, row)
        assert certificate is not None
        region = certificate.region
        margins = settings.get("margins", "separate")  # what is counted has columns that share nothing
        again = icn.certify(model, region, task.train, classes=task.classes, margins=margins)
        assert (floor["certified"], floor["total"]) == (again.certified, len(task.train[0]))
        assert floor["accuracy"] == pytest.approx(again.accuracy)
        assert floor["kept"] == (again.certified >= settings["keep"] * again.correct)
        assert floor["kept"] or not settings.get("enforce", True)
        widths = (state.memory["upper"][row] - state.memory["lower"][row]).double()
        widths = widths[widths.isfinite()]
        alive = widths[widths > 0]
        assert size["sum_of_radii"] == pytest.approx(float(widths.sum()) / 2)
        assert size["mean_radius"] == pytest.approx(float(widths.mean()) / 2)
        assert size["log_volume"] == pytest.approx(float(widths.clamp(min=2.0**-149).log().sum()))
        assert size["dead"] == pytest.approx(1 - len(alive) / len(widths))
        assert outer is None or region.within(outer)
        outer = region
        assert icn.verify(model, certificate)
        assert [t.certified for t in certificate.tasks] == [f["certified"] for f in found["floors"]][: place + 1]
        assert certificate.tasks[place].data == again.data


def test_offline_learns_all_at_once_and_has_nothing_to_forget() -> None:
    run = running(tiny("offline", "task"))
    assert run.lessons == 1
    seed = run.summary(complete(run))["seeds"][0]
    assert len(seed["accuracy_matrix"]) == len(seed["train_accuracy"]) == 1
    assert seed["forgetting"] is seed["backward_transfer"] is seed["forward_transfer"] is None
    assert [floor["total"] for floor in seed["floors"]] == [len(task.train[0]) for task in run.stream.tasks]


def test_a_run_that_is_not_complete_says_so() -> None:
    run = running(tiny("intercontinet"))
    state = run.begin()
    summary = run.summary(state)
    assert summary["complete"] is False
    assert summary["seeds"][0]["average_accuracy"] is None
    assert run.certificate(state, 0) is None
    assert run.summary(run.advance(state))["complete"] is False
    begun = running(tiny("offline"))
    assert begun.summary(begun.begin())["seeds"][0]["floors"] == []
    assert state.done == 0 and not state.memory and state.lines == [[], []], "the state given is left as it is"


def test_lines_are_one_an_epoch_and_one_a_task() -> None:
    state = complete(running(tiny("intercontinet", epochs=3)))
    for lines in state.lines:
        found = [(line["event"], line["index"], line.get("phase"), line.get("epoch")) for line in lines]
        assert found == [
            (event, index, phase, epoch)
            for index in range(2)
            for event, phase, epoch in [
                ("epoch", "centres", 1), ("epoch", "centres", 2), ("epoch", "radii", 1), ("task", None, None)
            ]
        ]  # fmt: skip
        assert all(("certified" in line) == (line.get("phase") == "radii") for line in lines)


def test_what_is_certain_in_the_end_is_heard_of_last() -> None:
    """After the promise was made true: during the radii phase less is certain, or more."""
    heard: list[Progress] = []
    run = running(tiny("intercontinet", epochs=3))
    state = states_of(run, heard.append)[-1]
    told = [progress for progress in heard if progress.phase == "learned"]
    assert [progress.task for progress in told] == list(run.stream.names)
    for row, lines in enumerate(state.lines):
        floors = [line["floor"] for line in lines if line["event"] == "task"]
        for progress, floor in zip(told, floors, strict=True):
            certain, right = progress.statistics[row]
            counts = certain * floor["total"], right * floor["total"]
            assert counts == pytest.approx((floor["certified"], floor["correct"]))
    nothing: list[Progress] = []
    states_of(running(tiny("ewc")), nothing.append)
    assert {progress.phase for progress in nothing} == {"train"}, "nothing is promised"


# Curves.


@pytest.mark.parametrize(
    "settings",
    [{}, {"edges": "asymmetric"}, {"edges": "asymmetric", "aim": "volume", "optimizer": "adam", "radii_rate": 0.03}],
    ids=["the paper's", "two distances each", "for volume"],
)
def test_curves_end_each_task_where_the_record_stands(settings: dict[str, Any]) -> None:
    run = running(tiny("intercontinet-published", epochs=4, settings=settings), curves=True)
    heard: list[str] = []
    state = states_of(run, lambda progress: heard.append(progress.phase))[-1]
    seed = run.summary(state)["seeds"][1]
    points = seed["curve"]
    assert [(p["task"], p["phase"], p["epoch"]) for p in points] == [
        (task, phase, epoch) for task in (0, 1) for phase, epochs in (("centres", 3), ("radii", 1))
        for epoch in range(1, epochs + 1)
    ]  # fmt: skip
    assert heard == [*[point["phase"] for point in points[:4]], "learned"] * 2
    for task, (row, size) in enumerate(zip(seed["accuracy_matrix"], seed["region"], strict=True)):
        last = points[4 * task + 3]
        assert (last["current"], last["first"]) == pytest.approx((row[task], row[0]))
        assert last["sum_of_radii"] == pytest.approx(size["sum_of_radii"], rel=1e-3)
    assert [p["sum_of_radii"] for p in points[:3]] == [None] * 3, "there is no region yet"
    assert points[4]["sum_of_radii"] == pytest.approx(seed["region"][0]["sum_of_radii"])


def test_without_curves_there_are_none() -> None:
    run = running(tiny())
    assert "curve" not in run.summary(complete(run))["seeds"][0]


# Seeds, tasks and memory.


@pytest.mark.parametrize("method", ["sgd", "ewc", "si", "lwf", "intercontinet-published", "intercontinet", "exact"])
def test_a_seed_alone_ends_as_beside_others(method: str) -> None:
    together = complete(running(tiny(method, seeds=(5, 1, 3))))
    alone = complete(running(tiny(method, seeds=(1,))))
    alike(alone, together, slice(1, 2))


@pytest.mark.parametrize("method", ["adam", "lwf", "intercontinet", "exact"])
def test_the_same_run_again_gives_the_same_bits(method: str) -> None:
    first, second = (complete(running(tiny(method, "class"))) for _ in range(2))
    assert torch.equal(first.weights, second.weights)
    assert timeless(first) == timeless(second)


@pytest.mark.parametrize(
    "method", [method for method in METHODS if method not in ("offline", "exact")]
)  # see test_leak
def test_learning_a_task_reads_no_other_tasks_data_and_no_test_data(method: str) -> None:
    config = tiny(method, "task")
    states = states_of(running(config))
    tasks = digits("task").tasks

    def poisoned(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return torch.full_like(pair[0], torch.nan), pair[1]

    for learned in range(len(tasks)):
        kept = [
            replace(task, test=poisoned(task.test), train=task.train if place == learned else poisoned(task.train))
            for place, task in enumerate(tasks)
        ]
        after = running(config, replace(digits("task"), tasks=kept)).advance(states[learned])
        assert torch.equal(after.weights, states[learned + 1].weights)
        assert all(torch.equal(after.memory[name], tensor) for name, tensor in states[learned + 1].memory.items())


def test_what_intervals_remember_does_not_grow_with_the_tasks_but_for_two_counts() -> None:
    config = tiny("intercontinet", seeds=(0,))
    states = states_of(running(config, stream("digits", "domain")))
    entries = states[0].weights.numel()
    for tasks in (1, 5):
        memory = states[tasks].memory
        assert sum(tensor.numel() for tensor in memory.values()) == 2 * entries + 2 * tasks


# Short of memory.


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
@pytest.mark.parametrize("method", ["lwf", "intercontinet"])
def test_a_gpu_whose_memory_really_gives_out(method: str) -> None:
    """With less and less of it, until all seeds at once find no room; and with room for few of them at a time."""
    one, config = (tiny(method, seeds=range(seeds), net="mlp-400-400") for seeds in (1, 32))

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
        if run._at_once > 1:
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
