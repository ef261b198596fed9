"""The command line: what it prints, what it leaves behind, and its exit codes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import intercontinet as icn
from intercontinet.demo import run_scenario
from intercontinet.engine.loop import Progress
from intercontinet.files import load_weights, save_weights
from intercontinet.report.plot import draw, save
from intercontinet.report.results import ScenarioResult
from intercontinet.report.table import table
from intercontinet.tasks import SCENARIOS, Scenario, split_digits


def intercontinet(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from intercontinet.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    model = nn.Linear(2, 2)
    data = torch.randn(20, 2), torch.randint(2, (20,))
    region = icn.Region.around(model, 0.01)
    icn.Certificate.of(model, region, [icn.certify(model, region, data, task="shipped")]).save(tmp_path / "model.icn")
    save_weights(model, tmp_path / "same.safetensors")
    model.weight.data[0, 0] += 0.5
    save_weights(model, tmp_path / "moved.safetensors")
    save_weights(nn.Linear(3, 2), tmp_path / "other.safetensors")
    return tmp_path


def test_verify_exits_0_and_lists_the_floors(shipped: Path) -> None:
    done = intercontinet("verify", "same.safetensors", "model.icn", folder=shipped)
    assert done.returncode == 0, done.stderr
    assert "shipped" in done.stdout


def test_verify_exits_1_and_names_the_parameter_that_left(shipped: Path) -> None:
    done = intercontinet("verify", "moved.safetensors", "model.icn", folder=shipped)
    assert done.returncode == 1
    assert "'weight' lies 0.49" in done.stderr


@pytest.mark.parametrize(
    ("weights", "certificate", "words"),
    [
        ("other.safetensors", "model.icn", "shape"),
        ("missing.safetensors", "model.icn", "missing.safetensors"),
        ("same.safetensors", "same.safetensors", "no certificate"),
        ("model.icn", "missing.icn", "missing.icn"),
    ],
)
def test_verify_exits_2_on_bad_input(shipped: Path, weights: str, certificate: str, words: str) -> None:
    done = intercontinet("verify", weights, certificate, folder=shipped)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_demo_refuses_a_folder_it_cannot_make(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = intercontinet("demo", "--out", tmp_path / "file" / "demo", folder=tmp_path)
    assert done.returncode == 2
    assert "--out" in done.stderr


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[Scenario, ScenarioResult]]:
    out = tmp_path_factory.mktemp("demo")
    return out, {scenario: run_scenario(scenario, out / scenario) for scenario in SCENARIOS}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_demo_floors_lie_below_attacks_and_attacks_below_accuracy(
    results: tuple[Path, dict[Scenario, ScenarioResult]], scenario: Scenario
) -> None:
    for task in results[1][scenario].tasks:
        assert task.floor <= task.attacked <= task.after
        assert task.floor <= task.now
        assert task.kept


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_demo_leaves_a_certificate_whose_floors_are_counted_again(
    results: tuple[Path, dict[Scenario, ScenarioResult]], scenario: Scenario
) -> None:
    folder = results[0] / scenario
    certificate = icn.Certificate.load(folder / "model.icn")
    assert icn.verify(load_weights(folder / "model.safetensors"), certificate)
    stream = split_digits(scenario)
    from intercontinet.demo import HIDDEN
    from intercontinet.nets import mlp

    model = mlp(64, HIDDEN, stream.outputs)
    model.load_state_dict(load_weights(folder / "model.safetensors"))
    for task, floor in zip(stream.tasks, certificate.tasks, strict=True):
        again = icn.certify(model, certificate.region, task.train, classes=task.classes)
        assert again.certified >= floor.certified
        assert again.data == floor.data


def test_demo_leaves_weights_that_its_certificate_refuses(
    results: tuple[Path, dict[Scenario, ScenarioResult]],
) -> None:
    done = intercontinet("verify", "after-first-task.safetensors", "model.icn", folder=results[0] / "domain")
    assert done.returncode == 1
    assert "violation" in done.stderr


def test_demo_writes_one_json_object_a_line(results: tuple[Path, dict[Scenario, ScenarioResult]]) -> None:
    lines = [json.loads(line) for line in (results[0] / "domain" / "metrics.jsonl").read_text().splitlines()]
    assert {line["event"] for line in lines} == {"epoch", "task"}
    assert [line["task"] for line in lines if line["event"] == "task"] == ["0/1", "2/3", "4/5", "6/7", "8/9"]


def test_demo_learns_in_task_and_domain(results: tuple[Path, dict[Scenario, ScenarioResult]]) -> None:
    assert results[1]["task"].average_test > 0.95
    assert results[1]["domain"].average_test > 0.65


def test_demo_is_reproducible(results: tuple[Path, dict[Scenario, ScenarioResult]], tmp_path: Path) -> None:
    heard: list[Progress] = []
    again = run_scenario("domain", tmp_path, listen=heard.append)
    assert again == results[1]["domain"]
    assert heard[0].task == "0/1"
    assert (tmp_path / "model.icn").read_bytes() == (results[0] / "domain" / "model.icn").read_bytes()


def test_plot_and_table_show_every_scenario(
    results: tuple[Path, dict[Scenario, ScenarioResult]], tmp_path: Path
) -> None:
    figure = draw(list(results[1].values()), "A title")
    assert len(figure.axes) == 6
    save(figure, tmp_path / "demo")
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert "<!-- A title -->" in (tmp_path / "demo.svg").read_text()
    assert table(results[1]["class"]).row_count == 6


def test_a_missed_promise_is_shown_in_red(results: tuple[Path, dict[Scenario, ScenarioResult]]) -> None:
    from dataclasses import replace

    from rich.console import Console

    result = results[1]["domain"]
    missed = ScenarioResult(result.scenario, result.keep, [replace(result.tasks[0], kept=False)])
    console = Console(record=True, force_terminal=True, width=120, file=io.StringIO())
    console.print(table(missed))
    text = console.export_text(styles=True)
    assert "NOT CERTIFIED" in text
    assert "\x1b[1;31m" in text
