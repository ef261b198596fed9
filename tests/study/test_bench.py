"""The benchmark: it measures what it says, against the same plain step, and writes it down."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from intercontinet.cli import app
from intercontinet.errors import InvalidSetting
from intercontinet.learners.method import Lesson
from intercontinet.nets import mlp
from intercontinet.study import bench
from intercontinet.study.config import Config
from intercontinet.study.run import Run
from intercontinet.study.state import State
from intercontinet.study.studies import STUDIES, Plan, Study
from intercontinet.tasks import Scenario, Stream, stream

RATIOS = {"naive_ratio", "centre_ratio", "clamped_ratio", "radii_ratio", "certify_ratio"}
CPU = torch.device("cpu")
TINY = Study(
    tuple(Plan("digits", "domain", method) for method in ("sgd", "intercontinet", "intercontinet-published")),
    seeds=2,
    epochs=2,
)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "BATCH", 4)
    monkeypatch.setattr(bench, "STEPS", 2)
    monkeypatch.setattr(bench, "CERTIFIED", 1)
    monkeypatch.setattr(bench, "_mlp", lambda: (mlp(5, (6,), 10, seed=0), (5,)))
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 10))
    monkeypatch.setattr(bench, "_convolutional", lambda: (net, (1, 4, 4)))
    monkeypatch.setattr(bench, "TASKS", 5)
    monkeypatch.setattr(bench, "TEN", 2)
    monkeypatch.setattr(bench, "EXAMPLES", 20)
    monkeypatch.setattr(bench, "stream", _five_tasks)
    monkeypatch.setattr(bench, "DATASET", "digits")
    monkeypatch.setattr(bench, "TABLE", "tiny")
    monkeypatch.setattr(bench, "EPOCHS", 2)
    monkeypatch.setitem(STUDIES, "tiny", TINY)


def _five_tasks(name: str, scenario: Scenario, *, tasks: int | None = None) -> Stream:
    assert (name, tasks) in (("permuted-mnist", 5), ("digits", None))
    return stream("digits", scenario)


def test_all_figures_are_there_and_positive() -> None:
    said: list[str] = []
    assert "convolutional" not in bench.measured(1, said.append)
    said.clear()
    figures = bench.measured(1, said.append, convolutional_on=CPU)
    assert set(figures) == {*RATIOS, "plain_ms", "convolutional", "rounds", "hardware", "versions"}
    assert set(figures["convolutional"]) == {*RATIOS, "plain_ms", "apart_ratio"}
    assert figures["convolutional"]["apart_ratio"] > 0
    for ours in (figures, figures["convolutional"]):
        assert all(ours[name] > 0 for name in (*RATIOS, "plain_ms"))
    assert figures["rounds"] == 1
    assert (
        len(said) == 8
        and said[-1].startswith("3 seeds of it on ")
        and "784-400-400-10: plain step" in said[3]
        and said[1].strip() == "warming up"
    )


def test_ratios_are_medians_of_rounds_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    took = {"plain": [9, 1, 2, 1], "radii": [9, 3, 2, 9], "certify": [9, 1, 1, 1]}  # seconds, round by round
    now, order = 0.0, list[str]()

    def call(name: str) -> Callable[[], None]:
        def run() -> None:
            nonlocal now
            now += took[name][len(order) // 4]  # two calls a round, each after a plain one
            order.append(name)

        return run

    monkeypatch.setattr("time.perf_counter", lambda: now)
    found = bench._ratios({name: call(name) for name in took}, 3, lambda _: None)
    assert found["radii"] == 3.0, "the median of 3/1, 2/2 and 9/1"
    assert found["certify"] == 1.0 * bench.STEPS / bench.CERTIFIED, "the median of 1, 1/2 and 1, a batch"
    assert found["plain_ms"] == 1000 / bench.STEPS
    assert order[::2] == ["plain"] * 8
    assert all({*order[turn : turn + 4 : 2]} == {"radii", "certify"} for turn in range(1, 16, 4))


def test_it_measures_at_least_once() -> None:
    with pytest.raises(InvalidSetting, match="rounds is 0"):
        bench.measured(0, print)


def test_a_long_stream_is_told_by_tens_with_all_that_the_learner_holds() -> None:
    said: list[str] = []
    figures = bench.long_stream(CPU, said.append)
    assert len(figures["seconds_by_tens"]) == 3 and all(figures["seconds_by_tens"])
    assert figures["last_over_first"] == figures["seconds_by_tens"][2] / figures["seconds_by_tens"][0]
    entries = 64 * 400 + 400 + 400 * 400 + 400 + 400 * 2 + 2
    assert (figures["entries"], figures["tasks"], figures["examples"]) == (entries, 5, 20)
    assert figures["state_first"] * entries == pytest.approx(2 * entries + 2), "the edges, and a floor's two counts"
    assert figures["state_last"] * entries == pytest.approx(2 * entries + 2 * 5)
    assert [line.split(":")[0].strip() for line in said[1:4]] == ["tasks 1 to 2", "tasks 3 to 4", "tasks 5 to 5"]
    assert "2.0000 D after the first task, 2.0001 D after the last" in said[4]
    assert 0.9 < figures["movable"] <= 1 and "% of all weights can still move" in said[4]
    assert all(0 < share <= 1 for share in figures["right_by_tens"])


def test_a_long_stream_is_timed_warm_and_by_its_medians(monkeypatch: pytest.MonkeyPatch) -> None:
    took, clock = iter([4.0, 2.0, 1.0, 7.0, 6.0]), [0.0]
    learned: list[int] = []

    class Learner:
        def __init__(self, settings: object) -> None: ...

        def learn(self, nets: object, weights: torch.Tensor, memory: object, lesson: Lesson) -> object:
            assert len(lesson.x) == 20
            learned.append(lesson.index)
            clock[0] += 1000.0 if len(learned) == 1 else next(took)
            edges = {"lower": torch.zeros_like(weights), "upper": torch.ones_like(weights)}
            edges["upper"][:, : weights.numel() // 4] = 0
            return weights, {**edges, "any": torch.zeros_like(weights), "correct": torch.tensor([[len(learned) - 1]])}

    monkeypatch.setattr(bench, "Hyperrectangles", Learner)
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    figures = bench.long_stream(CPU, lambda _: None)
    assert learned == [0, 0, 1, 2, 3, 4]
    assert figures["seconds_by_tens"] == [3.0, 4.0, 6.0] and figures["last_over_first"] == 2.0
    assert figures["right_by_tens"] == pytest.approx([1.5 / 20, 3.5 / 20, 5 / 20])
    assert figures["movable"] == pytest.approx(0.75, abs=1e-4)
    expected = 3 + 1 / figures["entries"]
    assert figures["state_first"] == figures["state_last"] == expected, "under whatever name it is held"


def test_the_exact_learner_is_timed_in_turn_with_the_papers_encoders_included(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, took = [0.0], {"exact": iter([2.0, 1.0, 4.0]), "intercontinet": iter([4.0, 4.0, 16.0])}
    order: list[str] = []

    class Slow(Run):
        def __init__(self, config: Config, device: str, say: bench.Say, tasks: Stream) -> None:
            super().__init__(config, device, say, tasks=tasks)
            order.append(config.method)
            clock[0] += next(took[config.method])

        def advance(self, state: State, listen: object = None) -> State:
            assert self.config.seeds == (0,) and self.config.scenario == "class" and not state.done
            return replace(state, seconds=1.0)

    monkeypatch.setattr(bench, "Run", Slow)
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    said: list[str] = []
    figures = bench.exact(CPU, said.append)
    assert order == ["exact", "intercontinet"] * 3
    assert (figures["exact_seconds"], figures["paper_seconds"]) == (3.0, 5.0), "building, and learning"
    assert figures["exact_ratio"] == 0.4 and said[-1].endswith("exact 3.0 s, the paper's 5.0 s: 0.40x")


def test_tables_time_five_seeds_and_all_cells_but_those_as_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    figures = bench.tables(CPU, said.append)
    assert set(figures) == {
        "five_seeds_seconds", "five_seeds_learning_seconds", "table_seconds", "table_cells", "hardware",
    }  # fmt: skip
    assert 0 < figures["five_seeds_learning_seconds"] < figures["five_seeds_seconds"]
    assert figures["table_cells"] == 2 and figures["table_seconds"] > 0
    assert not any("published" in line for line in said)
    assert sum("domain-" in line for line in said) == 2 and said[-1].startswith("tiny: 2 cells of 2 seeds in ")
    assert list(tmp_path.iterdir()) == []


def test_the_table_is_the_papers_first_with_ten_methods_in_three_scenarios() -> None:
    methods = {plan.method for plan in STUDIES["table1"].plans} - {bench.LEFT_OUT}
    assert len(methods) == 10 and {plan.dataset for plan in STUDIES["table1"].plans} == {"mnist"}
    assert len([plan for plan in STUDIES["table1"].plans if plan.method in methods]) == 30


def test_tables_are_not_run_on_a_cpu_unless_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidSetting, match=r"takes hours: add --device cpu"):
        bench.device_for_tables("auto")
    assert bench.device_for_tables("cpu") == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert bench.device_for_tables("auto").type == "cuda"


def test_the_command_measures_all_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(bench, "long_stream", lambda device, _: {"stream on": device.type})
    monkeypatch.setattr(bench, "tables", lambda device, _: {"tables on": device.type})
    monkeypatch.setattr(bench, "exact", lambda device, _: {"exact on": device.type})
    file = tmp_path / "speed.json"
    words = ["bench", "--rounds", "1", "--json", str(file), "--stream"]
    for more in ([], ["--exact", "--tables", "--device", "cpu"]):
        done = CliRunner().invoke(app, words + more)
        assert done.exit_code == 0, done.output
        figures = json.loads(file.read_text())
        assert set(figures) >= RATIOS and figures["stream"] == {"stream on": "cpu"}
        assert figures.get("tables") == ({"tables on": "cpu"} if more else None)
        assert figures.get("exact") == ({"exact on": "cpu"} if more else None)
    refused = CliRunner().invoke(app, [*words, "--tables"])
    assert isinstance(refused.exception, InvalidSetting)


def test_the_command_writes_its_figures(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["bench", "--rounds", "1", "--json", str(tmp_path / "speed.json")])
    assert done.exit_code == 0, done.output
    assert "Wrote" in done.output
    assert set(json.loads((tmp_path / "speed.json").read_text())) >= RATIOS
