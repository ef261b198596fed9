"""The demonstration: its floors, attacks, certificates and files, and how they are shown."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import intercontinet as icn
from intercontinet.demo import ENCODER, HIDDEN, METHODS, Method, epochs_in_all, run_scenario
from intercontinet.engine.loop import Progress
from intercontinet.files import load_weights
from intercontinet.nets import build_exact_net, mlp
from intercontinet.report.plot import draw, draw_room, save
from intercontinet.report.results import ScenarioResult
from intercontinet.report.table import table
from intercontinet.tasks import SCENARIOS, Scenario, split_digits
from tests.conftest import Call


def test_demo_refuses_a_folder_it_cannot_make(call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    code, _, err = call("demo", "--out", tmp_path / "file" / "demo")
    assert code == 2
    assert "--out" in err


Results = dict[tuple[Scenario, Method], ScenarioResult]
EVERY = [(scenario, method) for scenario in SCENARIOS for method in METHODS]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Results]:
    out = tmp_path_factory.mktemp("demo")
    return out, {
        (scenario, method): run_scenario(scenario, method, out / scenario / method) for scenario, method in EVERY
    }


def test_demo_runs_the_papers_learner_and_the_exact_one() -> None:
    assert METHODS == ("intercontinet", "exact")


def test_the_readme_tells_what_the_demo_finds(results: tuple[Path, Results]) -> None:
    """Within half a point: processors round differently."""
    text = (Path(__file__).parent.parent / "README.md").read_text()
    for method, name in zip(METHODS, ("InterContiNet", "ExactInterContiNet"), strict=True):
        (row,) = re.findall(rf"^\| `{name}`[^|]*\|(.*)\|$", text, re.M)
        told = [float(cell.strip().removesuffix("%")) for cell in row.split("|")]
        found = [results[1][scenario, method].tasks for scenario in SCENARIOS]
        means = [100 * sum(task.test for task in tasks) / len(tasks) for tasks in found]
        assert told == pytest.approx(means, abs=0.5), name


@pytest.mark.parametrize("which", EVERY, ids="-".join)
def test_demo_floors_lie_below_attacks_and_attacks_below_accuracy(
    results: tuple[Path, Results], which: tuple[Scenario, Method]
) -> None:
    assert len(results[1][which].tasks) == 5
    for task in results[1][which].tasks:
        assert task.floor == task.certified / task.total
        assert task.floor <= task.attacked <= task.after
        assert task.floor <= task.now
        assert task.kept


@pytest.mark.parametrize("which", EVERY, ids="-".join)
def test_demo_leaves_a_certificate_whose_floors_are_counted_again(
    results: tuple[Path, Results], which: tuple[Scenario, Method]
) -> None:
    scenario, method = which
    folder = results[0] / scenario / method
    certificate = icn.Certificate.load(folder / "model.icn")
    assert icn.verify(load_weights(folder / "model.safetensors"), certificate)
    stream = split_digits(scenario)
    if method == "exact":
        slots = 5 if scenario == "domain" else 1
        model = build_exact_net(ENCODER, stream.tasks[0].train[0], stream.outputs, slots, seed=0)
    else:
        model = mlp(64, HIDDEN, stream.outputs)
    model.load_state_dict(load_weights(folder / "model.safetensors"))
    for task, floor in zip(stream.tasks, certificate.tasks, strict=True):
        again = icn.certify(model, certificate.region, task.train, classes=task.classes)
        assert again.certified >= floor.certified
        assert again.data == floor.data


@pytest.mark.parametrize("method", METHODS)
def test_demo_leaves_weights_that_its_certificate_refuses(
    call: Call, results: tuple[Path, Results], method: Method
) -> None:
    folder = results[0] / "domain" / method
    code, _, err = call("verify", folder / "after-first-task.safetensors", folder / "model.icn")
    assert code == 1
    assert "violation" in err


@pytest.mark.parametrize("method", METHODS)
def test_demo_writes_one_json_object_a_line(results: tuple[Path, Results], method: Method) -> None:
    text = (results[0] / "domain" / method / "metrics.jsonl").read_text()
    assert "NaN" not in text and "Infinity" not in text
    lines = [json.loads(line) for line in text.splitlines()]
    assert {line["event"] for line in lines} == {"epoch", "task"}
    assert len([line for line in lines if line["event"] == "epoch"]) == epochs_in_all(method)
    assert [line["task"] for line in lines if line["event"] == "task"] == ["0/1", "2/3", "4/5", "6/7", "8/9"]


def test_demo_shows_that_only_the_exact_learner_learns_later_classes(results: tuple[Path, Results]) -> None:
    paper = {scenario: results[1][scenario, "intercontinet"] for scenario in SCENARIOS}
    exact = {scenario: results[1][scenario, "exact"] for scenario in SCENARIOS}
    assert paper["task"].average_test > 0.95 and exact["task"].average_test > 0.95
    assert 0.65 < paper["domain"].average_test < exact["domain"].average_test - 0.1
    assert paper["class"].average_test < 0.4 < 0.85 < exact["class"].average_test
    assert min(paper["class"].tasks[0].floor, exact["class"].tasks[0].floor) > 0.75
    assert paper["class"].tasks[-1].after < 0.1 < 0.8 < exact["class"].tasks[-1].floor


def test_demo_attack_reaches_the_exact_floors(results: tuple[Path, Results]) -> None:
    """One corner is the worst for every example: what is certain there and what is found differ by rounding alone."""
    for task in results[1]["class", "exact"].tasks:
        assert task.attacked == pytest.approx(task.floor, abs=0.005)


@pytest.mark.parametrize("method", METHODS)
def test_demo_is_reproducible(results: tuple[Path, Results], tmp_path: Path, method: Method) -> None:
    heard: list[Progress] = []
    again = run_scenario("domain", method, tmp_path, listen=heard.append)
    assert again == results[1]["domain", method]
    assert heard[0].task == "0/1"
    assert len(heard) == epochs_in_all(method)
    assert (tmp_path / "model.icn").read_bytes() == (results[0] / "domain" / method / "model.icn").read_bytes()


def test_plots_show_every_scenario_and_method(results: tuple[Path, Results], tmp_path: Path) -> None:
    figure = draw(list(results[1].values()), "A title")
    assert len(figure.axes) == 6
    assert [axis.get_ylabel().strip() for axis in figure.axes[::3]] == ["InterContiNet, enforced", "ExactInterContiNet"]
    for axis, (scenario, method) in zip(figure.axes, sorted(EVERY, key=lambda w: METHODS.index(w[1])), strict=True):
        result = results[1][scenario, method]
        shown = [text.get_text() for text in axis.texts]
        assert shown == [f"{100 * share:.1f}" for share in (*(t.floor for t in result.tasks), result.average_test)]
    save(figure, tmp_path / "demo")
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert "<!-- A title -->" in (tmp_path / "demo.svg").read_text()
    room = draw_room([results[1][scenario, "intercontinet"] for scenario in SCENARIOS], "Room")
    assert [len(axis.lines) for axis in room.axes] == [2, 2, 2]
    save(room, tmp_path / "room")


def printed(*shown: ScenarioResult, width: int = 100) -> str:
    console = Console(record=True, force_terminal=True, width=width, file=io.StringIO())
    console.print(table(shown))
    return console.export_text(styles=True)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_table_sets_both_learners_side_by_side(results: tuple[Path, Results], scenario: Scenario) -> None:
    both = [results[1][scenario, method] for method in METHODS]
    text = re.sub("\x1b\\[[0-9;]*m", "", printed(*both))
    assert re.search("InterContiNet, enforced .* ExactInterContiNet", text)
    assert max(map(len, text.splitlines())) <= 100
    for row, *tasks in zip(range(5), both[0].tasks, both[1].tasks, strict=True):
        line = next(line for line in text.splitlines() if f"│ {tasks[0].task} " in line)
        figures = [(t.after, t.now, t.floor, t.attacked, t.test) for t in tasks]
        assert re.findall(r"[\d.]+%", line) == [f"{share:.1%}" for own in figures for share in own], row
    (average,) = (line for line in text.splitlines() if "average" in line)
    assert re.findall(r"[\d.]+%", average)[4::5] == [f"{result.average_test:.1%}" for result in both]


@pytest.mark.parametrize("kept", [True, False])
def test_on_a_narrow_terminal_the_tables_are_stacked_and_no_number_is_cut(
    results: tuple[Path, Results], kept: bool
) -> None:
    both = [results[1]["task", method] for method in METHODS]
    both = [replace(result, tasks=[replace(task, kept=kept) for task in result.tasks]) for result in both]
    text = re.sub("\x1b\\[[0-9;]*m", "", printed(*both, width=80))
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    tasks = [task for result in both for task in result.tasks]
    rows = [line for line in text.splitlines() if re.search(r"│ \d/\d ", line)]
    for line, t in zip(rows, tasks, strict=True):
        assert re.findall(r"[\d.]+%", line) == [f"{x:.1%}" for x in (t.after, t.now, t.floor, t.attacked, t.test)]
        assert ("NOT CERTIFIED" in line) is not kept


def test_a_missed_promise_is_shown_in_red(results: tuple[Path, Results]) -> None:
    both = [results[1]["domain", method] for method in METHODS]
    for place in (0, 1):
        shown = list(both)
        shown[place] = replace(both[place], tasks=[replace(both[place].tasks[0], kept=False)])
        text = printed(*shown)
        assert text.count("NOT") == text.count("CERTIFIED") == 1
        assert "\x1b[1;31m" in text


def test_demo_prints_both_learners_in_every_scenario(
    call: Call, results: tuple[Path, Results], monkeypatch: pytest.MonkeyPatch
) -> None:
    def known(scenario: Scenario, method: Method, out: Path, *_: object) -> ScenarioResult:
        assert out == Path("there") / scenario / method
        return results[1][scenario, method]

    Path("there").mkdir()
    monkeypatch.setattr("intercontinet.demo.run_scenario", known)
    code, out, err = call("demo", "--out", "there")
    assert (code, err) == (0, "")
    assert len(re.findall("┃ +InterContiNet, enforced +┃ +ExactInterContiNet +┃", out)) == 3
    for result in results[1].values():
        assert f"{result.average_test:.1%}" in out
    assert {path.name for path in Path("there").iterdir()} == {"demo.png", "demo.svg", "room.png", "room.svg"}
