"""Run folders: taken up again they end with the same bits, whatever stopped them; and nobody writes into another's."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from typer.testing import CliRunner

import intercontinet as icn
from intercontinet.cli import app
from intercontinet.data import fingerprint
from intercontinet.errors import InvalidData, InvalidSetting, WriteError
from intercontinet.files import load_weights, read_header, seal, unseal
from intercontinet.study.config import configure
from intercontinet.study.folder import CHECKPOINT, CONFIG, held, leave, read_config, resume, start, stored_config
from intercontinet.study.run import Run
from intercontinet.study.state import State
from intercontinet.tasks import Scenario, Stream, stream

SMALL = ("--scenario", "domain", "--net", "mlp-8", "--epochs", "2", "--device", "cpu")
HANGS_IN_THE_THIRD_TASK = """
import time
from intercontinet.cli import main
from intercontinet.report.live import Live

def hear(progress):
    if (progress.task, progress.phase) == ("4/5", "radii"):
        print("now", flush=True)
        time.sleep(600)

Live.listener = lambda *_: hear
main()
"""


@cache
def few(dataset: str, scenario: Scenario, *, tasks: int | None) -> Stream:
    """A quarter of the examples."""
    whole = stream(dataset, scenario, tasks=tasks)
    return replace(whole, tasks=[replace(task, train=(task.train[0][::4], task.train[1][::4])) for task in whole.tasks])


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intercontinet.study.run.stream", few)


def go(folder: Path, *more: str, code: int = 0) -> str:
    """``intercontinet run`` on a few small things; what it says. Its errors are raised."""
    done = CliRunner().invoke(app, ["run", *SMALL, *more, "--out", str(folder)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.output


def small(method: str = "intercontinet", seeds: tuple[int, ...] = (0,), tasks: int = 2, **changes: Any) -> Run:
    usual: dict[str, Any] = {"net": "levels-40-5"} if method == "exact" else {"net": "mlp-8", "epochs": 2}
    config = configure("digits", "domain", method, seeds, tasks, **usual, **changes)
    return Run(config, "cpu")


def left_in(folder: Path) -> dict[str, Any]:
    """All that a run leaves but for times and checkpoint: bytes, and what JSON says."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix in (".icn", ".safetensors") and name != CHECKPOINT:
            found[name] = path.read_bytes()
        elif path.name == "metrics.jsonl":
            found[name] = [timeless(json.loads(line)) for line in path.read_text().splitlines()]
        elif path.suffix == ".json":
            found[name] = timeless(json.loads(path.read_text()))
        else:
            assert path.is_dir() or name in (".lock", CHECKPOINT), f"{name} was left behind"
    return found


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: timeless(part) for name, part in value.items() if name not in ("seconds", "started")}
    return [timeless(part) for part in value] if isinstance(value, list) else value


# Stopped and taken up again.


@pytest.mark.parametrize("method", ["ewc", "si", "lwf", "adam", "offline", "intercontinet", "exact"])
def test_resumed_after_any_task_it_ends_with_the_same_bits(method: str, tmp_path: Path) -> None:
    def run() -> Run:
        return small(method, (0, 3), 3)

    whole = run()
    (tmp_path / "whole").mkdir()
    start(tmp_path / "whole", whole)
    states = [whole.begin()]
    while states[-1].done < whole.lessons:
        states.append(whole.advance(states[-1]))
    leave(tmp_path / "whole", whole, states[-1])
    expected = left_in(tmp_path / "whole")
    assert len(expected) == 2 + 2 * (3 if method in ("intercontinet", "exact") else 2)
    for stopped in range(len(states)):
        folder = tmp_path / f"{stopped}"
        folder.mkdir()
        start(folder, run())
        if stopped:
            leave(folder, run(), states[stopped])
        again = run()
        state = resume(folder, again)
        assert (0 if state is None else state.done) == stopped
        state = again.begin() if state is None else state
        while state.done < again.lessons:
            state = again.advance(state)
        leave(folder, again, state)
        assert left_in(folder) == expected


def test_killed_in_mid_task_it_is_resumed_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "killed"
    command = [sys.executable, "-c", HANGS_IN_THE_THIRD_TASK, "run", *SMALL, "--out", str(folder)]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=alone, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "now\n"
            with pytest.raises(InvalidSetting, match="another process"), held(folder):
                pass
        finally:
            process.kill()
    monkeypatch.setattr("intercontinet.study.run.stream", stream)
    assert len((folder / "seed-0" / "metrics.jsonl").read_text().splitlines()) == 2 * 3, "two tasks"
    go(folder, "--resume")
    go(tmp_path / "unbroken")
    assert left_in(folder) == left_in(tmp_path / "unbroken")


def test_ctrl_c_loses_the_task_in_hand_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, advance = tmp_path / "interrupted", Run.advance

    def interrupted(run: Run, state: State, *rest: Any) -> State:
        if state.done == 1:
            raise KeyboardInterrupt
        return advance(run, state, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "advance", interrupted)
        said = go(folder, "--tasks", "2", code=130)
    assert "Interrupted after 1 of 2 task(s)" in said and "--resume" in said
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["complete"] is False and len(summary["seeds"][0]["accuracy_matrix"]) == 1
    go(folder, "--tasks", "2", "--resume")
    go(tmp_path / "unbroken", "--tasks", "2")
    assert left_in(folder) == left_in(tmp_path / "unbroken")


def test_a_run_is_not_taken_up_again_on_other_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small()
    start(tmp_path, run)
    leave(tmp_path, run, run.advance(run.begin()))
    assert resume(tmp_path, small()) is not None
    monkeypatch.setattr("intercontinet.study.run.stream", stream)  # all examples, now
    with pytest.raises(InvalidSetting, match="are not those that were learned"):
        resume(tmp_path, small())


def test_a_certificate_names_the_data_that_was_counted(tmp_path: Path) -> None:
    run = small()
    start(tmp_path, run)
    state = run.advance(run.begin())
    leave(tmp_path, run, state)
    certificate = run.certificate(state, 0)
    assert certificate is not None
    assert certificate.tasks[0].data == fingerprint(*run.stream.tasks[0].train)


def test_every_process_that_worked_on_a_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small()
    start(tmp_path, run)
    leave(tmp_path, run, run.advance(run.begin()))
    assert "resumed" not in json.loads((tmp_path / "summary.json").read_text())
    monkeypatch.setattr("intercontinet.study.machine.commit", lambda: "another")
    again = small()
    state = resume(tmp_path, again)
    assert state is not None
    leave(tmp_path, again, again.advance(state))
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["commit"] != "another" and [origin["commit"] for origin in summary["resumed"]] == ["another"]


def test_a_finished_run_is_shown_again_and_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go(tmp_path, "--tasks", "2")
    (tmp_path / "summary.json").unlink()
    monkeypatch.setattr(Run, "advance", lambda *_: pytest.fail("it was run again"))
    assert "Left in" in go(tmp_path, "--tasks", "2", "--resume")
    assert json.loads((tmp_path / "summary.json").read_text())["complete"] is True


# A disk that fills up.


def test_a_full_disk_at_any_write_is_told_and_the_folder_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go(tmp_path / "whole", "--tasks", "2")
    expected = left_in(tmp_path / "whole")
    real, room = os.fsync, [0]

    def filling(handle: int) -> None:
        room[0] -= 1
        if room[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", filling)
    files = 1 + 3 + 2 * 5  # config; then neither certificate nor checkpoint yet; then all five after each task
    for writes in range(files):
        folder, room[0] = tmp_path / f"{writes}", writes
        with pytest.raises(
            WriteError, match="No space left" + (r".*--resume goes on: at least [01] of 2 task" if writes else "")
        ):
            go(folder, "--tasks", "2")
        room[0] = 100
        if (folder / "summary.json").exists():
            (seed,) = json.loads((folder / "summary.json").read_text())["seeds"]
            state = resume(folder, small())
            assert len(seed["accuracy_matrix"]) <= (0 if state is None else state.done), "no more than can be taken up"
        go(folder, "--tasks", "2", *(["--resume"] if writes else []))  # at first not even the request was noted
        assert left_in(folder) == expected, f"after {writes} write(s)"
    room[0] = files
    go(tmp_path / "enough", "--tasks", "2")


def test_folders_that_cannot_be_made_are_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(WriteError, match="--out"), held(tmp_path / "file" / "run"):
        pass
    run = small("sgd")
    (tmp_path / "seed-0").write_text("in the way")
    with pytest.raises(WriteError, match="seed-0"):
        leave(tmp_path, run, run.begin())


# Whose folder it is.


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with held(tmp_path):
        with pytest.raises(InvalidSetting, match="another process is at work"), held(tmp_path):
            pass
        with pytest.raises(InvalidSetting, match="another process is at work"):
            go(tmp_path)
    with held(tmp_path):
        pass


def test_a_run_is_not_started_over_another(tmp_path: Path) -> None:
    start(tmp_path, small())
    with pytest.raises(InvalidSetting, match="--resume"):
        start(tmp_path, small())


def test_there_must_be_a_run_to_go_on_with(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="leave --resume out"):
        resume(tmp_path, small())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seeds": (0, 1)}, "seeds [0], not [0, 1]"),
        ({"method": "ewc"}, "method intercontinet, not ewc"),
        ({"tasks": 3}, "tasks 2, not 3"),
        ({"settings": {"rate": 0.5}}, "settings {'rate': 0.1}, not {'rate': 0.5}"),
    ],
)
def test_a_changed_request_is_refused_and_the_difference_named(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    start(tmp_path, small())
    with pytest.raises(InvalidSetting) as caught:
        resume(tmp_path, small(**change))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2, "intercontinet": "9.9"}, "version 2; written by intercontinet 9.9"),
        ({"version": "1"}, "another version"),
        ({"format": "somebody's folder"}, "somebody's folder"),
        ({"config": [1]}, "another version"),
    ],
)
def test_a_folder_of_another_version_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    start(tmp_path, small())
    path = tmp_path / CONFIG
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InvalidSetting) as caught:
        resume(tmp_path, small())
    assert words in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"{}", b'{"format": 1}', b"\xff\xfe"])
def test_a_damaged_configuration_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / CONFIG).write_bytes(content)
    with pytest.raises(InvalidData, match=r"config\.json"):
        read_config(tmp_path)


def test_going_on_where_nothing_was_learned_is_told(tmp_path: Path) -> None:
    start(tmp_path, small())
    assert "starting with the first one" in go(tmp_path, "--tasks", "2", "--resume")
    assert "starting with the first one" not in go(tmp_path, "--tasks", "2", "--resume")


def test_a_damaged_checkpoint_is_refused_with_a_way_out(tmp_path: Path) -> None:
    run = small()
    start(tmp_path, run)
    path = tmp_path / CHECKPOINT
    leave(tmp_path, run, run.advance(run.begin()))
    whole = path.read_bytes()
    tensors = unseal(path, whole)
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    foreign = [
        seal(tensors, {}),
        seal(tensors, {"state": "{"}),
        seal(tensors, {"state": "[]"}),
        seal(tensors, {"state": '{"epochs": 3}'}),
        seal({"other": tensors["weights"]}, {"state": '{"initial": [], "lines": []}'}),
    ]
    for content in (b"", whole[:7], whole[:-1], bytes(flipped), *foreign):
        path.write_bytes(content)
        with pytest.raises(InvalidData, match="Start afresh in another --out"):
            resume(tmp_path, run)
    path.write_bytes(whole)
    assert resume(tmp_path, run) is not None


# What is left behind.


@pytest.mark.parametrize("method", ["intercontinet", "intercontinet-published"])
@pytest.mark.parametrize("scenario", ["task", "class"])
def test_the_certificate_holds_for_the_weights_beside_it(tmp_path: Path, method: str, scenario: str) -> None:
    go(tmp_path, "--tasks", "2", "--method", method, "--scenario", scenario)
    own = tmp_path / "seed-0"
    certificate = icn.Certificate.load(own / "model.icn")
    weights = load_weights(own / "model.safetensors")
    assert icn.verify(weights, certificate)
    verified = CliRunner().invoke(app, ["verify", str(own / "model.safetensors"), str(own / "model.icn")])
    assert verified.exit_code == 0 and "5/6/7/8/9" in verified.output
    (seed,) = json.loads((tmp_path / "summary.json").read_text())["seeds"]
    counts = [(f["task"], f["certified"], f["total"]) for f in seed["floors"]]
    assert counts == [(t.task, t.certified, t.total) for t in certificate.tasks]
    run = Run(configure("digits", scenario, method, (0,), 2, net="mlp-8"), "cpu")
    model = run.model(run.begin(), 0)
    model.load_state_dict(weights)
    for task, floor in zip(run.stream.tasks, certificate.tasks, strict=True):
        again = icn.certify(model, certificate.region, task.train, classes=task.classes)
        assert again.certified >= floor.certified, "later regions lie in earlier ones"
        assert again.data == floor.data


def test_methods_that_promise_nothing_leave_no_certificate(tmp_path: Path) -> None:
    go(tmp_path, "--tasks", "2", "--method", "sgd", "--seeds", "4,2")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["seed-2", "seed-4"]
    assert {path.name for path in tmp_path.glob("seed-*/*")} == {"metrics.jsonl", "model.safetensors"}


def test_a_checkpoint_goes_with_its_own_configuration_alone(tmp_path: Path) -> None:
    """Or a run would be recorded with settings that it never had."""
    run = small("sgd")
    start(tmp_path, run)
    leave(tmp_path, run, run.advance(run.begin()))
    content = json.loads((tmp_path / CONFIG).read_text())
    content["config"]["settings"]["rate"] = 0.5
    (tmp_path / CONFIG).write_text(json.dumps(content))
    with pytest.raises(
        InvalidData, match=r"left by a run with settings \{'rate': .*\}, not \{'rate': 0.5\}: config.json"
    ):
        resume(tmp_path, small("sgd", settings={"rate": 0.5}))
    for name in (CONFIG, "summary.json"):
        (tmp_path / name).unlink()
    with pytest.raises(InvalidSetting, match=r"holds checkpoint.safetensors, which is of something else"):
        start(tmp_path, run)


def test_nobodys_files_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("mine")
    assert "holds summary.json, which is of something else" in go_wrong(tmp_path)
    assert (tmp_path / "summary.json").read_text() == "mine"


def go_wrong(folder: Path, *more: str) -> str:
    with pytest.raises(InvalidSetting) as caught:
        go(folder, *more)
    return str(caught.value)


def test_a_checkpoint_of_a_release_before_configurations_were_in_it_is_checked_by_its_shape(tmp_path: Path) -> None:
    run = small("sgd", seeds=(0, 1))
    start(tmp_path, run)
    leave(tmp_path, run, run.advance(run.begin()))
    tensors, header = unsealed(tmp_path / CHECKPOINT)
    (tmp_path / CHECKPOINT).write_bytes(seal(tensors, {"state": header["state"]}))
    assert resume(tmp_path, run) is not None
    tensors["weights"] = tensors["weights"][:1]
    (tmp_path / CHECKPOINT).write_bytes(seal(tensors, {"state": header["state"]}))
    with pytest.raises(InvalidData, match=r"the checkpoint is of 1 nets of \d+ weights, not 2 nets of"):
        resume(tmp_path, run)


def unsealed(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    content = path.read_bytes()
    return unseal(path, content), dict(read_header(path, content))


def test_test_examples_that_changed_in_between_are_refused(tmp_path: Path) -> None:
    run = small("sgd")
    start(tmp_path, run)
    leave(tmp_path, run, run.advance(run.begin()))
    last = run.stream.tasks[1]
    changed = replace(last, test=(last.test[0] * 0, last.test[1]))
    other = Run(run.config, "cpu", tasks=replace(run.stream, tasks=[run.stream.tasks[0], changed]))
    with pytest.raises(InvalidSetting, match=f"the test examples of task {last.name} are not those"):
        resume(tmp_path, other)
    assert resume(tmp_path, run) is not None


def test_a_configuration_of_words_where_numbers_belong_is_damage(tmp_path: Path) -> None:
    run = small("sgd")
    start(tmp_path, run)
    content = json.loads((tmp_path / CONFIG).read_text())
    content["config"]["seeds"] = ["a", 0]
    (tmp_path / CONFIG).write_text(json.dumps(content))
    with pytest.raises(InvalidData, match="is not the configuration of a run"):
        stored_config(tmp_path)


def test_what_a_process_that_was_killed_left_unfinished_is_swept_away_and_nothing_else(tmp_path: Path) -> None:
    run = small("sgd")
    start(tmp_path, run)
    left = [tmp_path / ".summary.json.1a2b.part", tmp_path / "seed-0" / ".model.safetensors.3c4d.part"]
    mine = [tmp_path / ".film.mkv.part", tmp_path / "seed-0" / "notes.part"]
    (tmp_path / "seed-0").mkdir()
    for path in (*left, *mine):
        path.write_text("half")
    assert resume(tmp_path, run) is None
    assert not any(path.exists() for path in left) and all(path.exists() for path in mine)


@pytest.mark.parametrize("name", ["package.json", "seed-0"])
def test_a_folder_of_something_else_is_left_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(InvalidSetting, match=f"holds {name}, which is of something else"):
        start(tmp_path, small("sgd"))
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("count", [1, 3])
def test_a_stream_of_another_number_of_tasks_is_refused(tmp_path: Path, count: int) -> None:
    run = small("sgd")
    start(tmp_path, run)
    leave(tmp_path, run, run.advance(run.begin()))
    tasks = [*run.stream.tasks, run.stream.tasks[0]][:count]
    other = Run(run.config, "cpu", tasks=replace(run.stream, tasks=tasks))
    with pytest.raises(InvalidSetting, match=rf"the run began with 2 task\(s\), and there are {count} now"):
        resume(tmp_path, other)


def test_test_examples_are_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []

    def counted(x: Tensor, y: Tensor) -> str:
        hashed.append(len(x))
        return fingerprint(x, y)

    monkeypatch.setattr("intercontinet.study.run.fingerprint", counted)
    run = small("sgd", tasks=3)
    start(tmp_path, run)
    state = run.begin()
    while state.done < run.lessons:
        state = run.advance(state)
        leave(tmp_path, run, state)
    assert len(hashed) == 3 + 3, "three test sets, and three training sets"
