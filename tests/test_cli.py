"""The command line: what it prints, what it leaves behind, and its exit codes."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from torch import nn

import intercontinet as icn
from intercontinet import cli
from intercontinet.errors import InvalidData
from intercontinet.files import save_weights
from intercontinet.study.folder import held
from intercontinet.study.run import Run
from intercontinet.study.store import save_record
from intercontinet.study.studies import STUDIES, Plan, Study
from intercontinet.study.tables import TABLES
from tests.conftest import Call
from tests.study.records import record


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
        ("same.safetensors", "missing.icn", "missing.icn"),
        ("model.icn", "model.icn", "is a certificate, not weights"),
    ],
)
def test_verify_exits_2_on_bad_input(call: Call, shipped: Path, weights: str, certificate: str, words: str) -> None:
    code, _, err = call("verify", shipped / weights, shipped / certificate)
    assert code == 2
    assert words in err
    assert re.fullmatch(r"error: [^\n]+\n", err)


# The commands that run things.

SMALL = ("--net", "mlp-8", "--epochs", "2", "--tasks", "2", "--device", "cpu")


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(commands(typer.main.get_command(cli.app)))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_names_and_explains_every_option(call: Call, path: tuple[str, ...]) -> None:
    code, text, _ = call(*path, "--help")
    assert code == 0
    for parameter in COMMANDS[path].params:
        if parameter.name != "help":
            assert parameter.help, f"{parameter.name} is not explained"
            assert max(parameter.opts, key=len).lower() in text.lower()
    assert COMMANDS[path].help.strip().split("\n")[0][:40] in text


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("run", "dataset scenario method seeds keep epochs tasks net augment set config device out resume"),
        ("reproduce", "seeds epochs only device out docs show"),
        ("report", "out"),
        ("bench", "rounds convolutional stream tables exact device json"),
        ("data list", ""),
        ("data get", ""),
    ],
)
def test_options_keep_the_names_that_others_script_against(path: str, names: str) -> None:
    found = {option for p in COMMANDS[tuple(path.split())].params for option in p.opts if option.startswith("--")}
    assert found - {"--help"} == {f"--{name}" for name in names.split()}


def test_run_leaves_what_it_is_known_to_leave(call: Call, tmp_path: Path) -> None:
    arguments = ("--dataset", "digits", "--scenario", "class", "--method", "intercontinet", "--keep", "0.7")
    code, out, err = call("run", *arguments, "--seeds", "2", *SMALL, "--out", "here")
    assert (code, err) == (0, ""), out
    assert "Left in here. Look at it with: intercontinet report here" in out
    summary = json.loads(Path("here/summary.json").read_text())
    found = [summary[name] for name in ("dataset", "scenario", "method", "keep", "net", "complete")]
    assert found == ["digits", "class", "intercontinet", 0.7, "mlp-8", True]
    assert set(summary["versions"]) == {"intercontinet", "python", "torch", "numpy"}
    assert summary["hardware"]["device"] == "cpu"
    assert summary["tasks"] == ["0/1/2/3/4", "5/6/7/8/9"]
    for seed, own in enumerate(summary["seeds"]):
        assert own["seed"] == seed and own["seconds"] > 0
        assert [len(row) for row in own["accuracy_matrix"]] == [2, 2]
        assert own["average_accuracy"] == pytest.approx(sum(own["accuracy_matrix"][-1]) / 2)
        for floor, task in zip(own["floors"], summary["tasks"], strict=True):
            assert set(floor) == {"task", "certified", "total", "accuracy", "kept"}
            assert floor["task"] == task and 0 <= floor["certified"] <= floor["total"] and floor["accuracy"] <= 1
        folder = Path(f"here/seed-{seed}")
        assert {path.name for path in folder.iterdir()} == {"model.safetensors", "model.icn", "metrics.jsonl"}
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert [line["event"] for line in lines] == ["epoch", "epoch", "task"] * 2
        assert lines[-1]["accuracy"] == own["accuracy_matrix"][-1]
        assert call("verify", folder / "model.safetensors", folder / "model.icn")[0] == 0
    config = json.loads(Path("here/config.json").read_text())["config"]
    assert (config["seeds"], config["settings"]["keep"]) == ([0, 1], 0.7)
    assert call("report", "here") == (0, "Wrote here/report.html\n", "")
    assert "InterContiNet, enforced" in Path("here/report.html").read_text()
    assert call("report", "here", "--out", "page.html")[0] == 0 and Path("page.html").exists()


def test_run_takes_a_file_with_flags_over_it(call: Call) -> None:
    Path("run.yaml").write_text("method: mas\nscenario: domain\nout: there\nkeep: 0.9\nepochs: 50\n")
    code, out, _ = call("run", "--config", "run.yaml", *SMALL, "--set", "rate=1e-2", "--set", "strength=0.5")
    assert code == 0
    assert "keep is left out: mas promises nothing" in out
    settings = json.loads(Path("there/summary.json").read_text())["settings"]
    assert [settings[name] for name in ("rate", "strength", "epochs")] == [0.01, 0.5, 2]


def test_run_takes_ones_own_data_from_anywhere(call: Call) -> None:
    y = np.arange(80) % 4
    x = (np.random.default_rng(0).normal(size=(80, 5)) + y[:, None]).astype("float32")
    Path("[my] :cat: data").mkdir()
    path = Path("[my] :cat: data/[own].npz")
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    code, out, _ = call("run", "--dataset", path, "--method", "sgd", *SMALL)
    assert code == 0
    assert f"{path}/task/sgd: task 0/1, train 2/2" in out
    assert "Left in runs/[own]-task-sgd." in out
    assert call("report", "runs/[own]-task-sgd")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("run --dataset mnits --out x", "did you mean 'mnist'"),
        ("run --dataset digits --scenario tsk --out x", "did you mean 'task'"),
        ("run --method ewk --out x", "did you mean 'ewc'"),
        ("run --net mpl-8 --out x", "there is no net 'mpl-8'"),
        ("run --net mlp --out x", "there is no net 'mlp': use alexnet, or mlp with its hidden widths"),
        ("run --seeds none --out x", "seeds is 'none'"),
        ("run --seeds 99999999999999999999 --out x", "one run takes at most 10,000"),
        ("run --keep 2 --out x", "keep is 2.0"),
        ("run --epochs 0 --out x", "epochs is 0"),
        ("run --tasks 7 --out x", "too few for 7 task(s)"),
        ("run --set rat=3 --out x", "did you mean 'rate'"),
        ("run --config missing.yaml --out x", "missing.yaml"),
        ("run --dataset nothere.npz --out x", "Check that it is there"),
        ("run --method exact --set mirror=true --out x", "mirror is for images, and these examples are of shape (64,)"),
        ("run --method exact --net capped-levels-9-3 --out x", "use 'levels-9-3'"),
        ("run --method exact --scenario class --net capped-levels-9-3 --set parts=2 --out x", "set parts=1"),
        ("run --net mlp-8-8 --set rigid=5 --out x", "rigid is 5, but only 3 layer(s) can move: at most 2"),
        (
            "run --net mlp-8 --set aim=volume --set optimizer=adam --set budgets=[1,1,1] --out x",
            "budgets has 3 numbers, but only 2 layer(s) can move: at most 2",
        ),
        ("run --device tpu --out x", "there is no device 'tpu'"),
        ("run --dataset mnist --out x", "mnist"),
        ("reproduce tabel1", "did you mean 'table1'"),
        ("reproduce tabel1 --show", "did you mean 'table1'"),
        ("reproduce table1 --only ewk", "no cell of table1 is called 'ewk'"),
        ("reproduce table1 --only ewk --show", "no cell of table1 is called 'ewk' (did you mean 'ewc'?)"),
        ("reproduce tabel1", "tradeoff, docs"),
        ("reproduce table1 --seeds 0", "seeds is 0"),
        ("reproduce table1 --device gpu --out x", "there is no device 'gpu'"),
        ("reproduce docs --out nowhere", "nowhere holds no records"),
        (
            "reproduce docs --show --only sgd",
            "reproduce docs takes no --only and no --show: it runs nothing and writes docs",
        ),
        ("reproduce docs --seeds 2", "takes no --seeds:"),
        ("reproduce docs --epochs 2", "takes no --epochs:"),
        ("report nowhere", "nowhere"),
        ("report .", "."),
        ("data get mnits", "did you mean 'mnist'"),
        ("bench --rounds 0", "rounds is 0"),
        ("bench --json x/figures.json", "there is no folder x: make it"),
        ("bench --json ..", "--json: .. is a folder: name a file in it"),
    ],
)
def test_bad_input_is_one_line_and_exit_2_and_leaves_no_folder(
    call: Call, arguments: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> None:
        raise InvalidData(f"{name} is not here and cannot be downloaded")

    monkeypatch.setattr("intercontinet.tasks.streams.image_set", refuse)
    code, _, err = call(*arguments.split())
    assert code == 2
    assert words in err
    assert re.fullmatch(r"error: [^\n]+\n", err)
    assert not Path("x").exists()


@pytest.mark.parametrize(
    "command", ["demo", "run", "reproduce table1", "report .", "protect", "update", "attack", "reproduce docs --docs d"]
)
def test_an_empty_path_is_not_taken_for_the_folder_one_is_in(call: Call, command: str, tmp_path: Path) -> None:
    code, _, err = call(*command.split(), "--out", "")
    assert code == 2 and "it is empty" in re.sub(r"\W+", " ", err)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("command", ["data list", "run --method sgd --net mlp-8 --epochs 1 --tasks 2 --device cpu"])
def test_output_that_has_nowhere_to_go_is_one_line_and_exit_2(command: str, tmp_path: Path) -> None:
    line = [sys.executable, "-c", "from intercontinet.cli import main; main()", *command.split()]
    with open("/dev/full", "w") as full:
        done = subprocess.run(line, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (2, "error: cannot write the output: No space left on device\n")


@pytest.mark.parametrize("command", ["data list", "data get mnist", "report there", "run --dataset there --out x"])
def test_a_folder_that_may_not_be_entered_is_one_line_and_exit_2(
    call: Call, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("there").mkdir()

    def refuse(path: Path, *_: Any, **__: Any) -> Any:  # as it is for all but root, who runs tests in containers
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        for name in ("is_file", "exists", "iterdir", "open", "mkdir"):
            patch.setattr(Path, name, refuse)
        code, _, err = call(*command.split())
    assert code == 2 and re.fullmatch(r"error: cannot [^\n]+: Permission denied[^\n]+\n", err)


def test_a_fault_of_ours_is_not_taken_for_a_file_that_cannot_be_read(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr("intercontinet.tasks.describe_sets", fail)
    with pytest.raises(OSError, match="Invalid argument"):
        call("data", "list")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_output_that_cannot_show_a_character_shows_another(tmp_path: Path, encoding: str) -> None:
    save_record(tmp_path / "results" / "table1", record(scenario="domain"))
    line = [sys.executable, "-c", "from intercontinet.cli import main; main()", "reproduce", "table1", "--show"]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"EWC" in done.stdout


@pytest.mark.parametrize("target", ["figures.json", "folder/figures.json", "/dev/stdout"])
def test_bench_finds_a_target_that_cannot_be_written_before_it_measures(
    call: Call, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []

    def measure(rounds: int, *_: Any) -> dict[str, int]:
        measured.append(rounds)
        return {"rounds": rounds}

    monkeypatch.setattr("intercontinet.study.bench.measured", measure)
    (tmp_path / "folder").mkdir()
    code, _, err = call("bench", "--json", target)
    assert (code, err, measured) == (0, "", [15])
    if target.startswith("/dev"):
        return
    assert json.loads(Path(target).read_text()) == {"rounds": 15}
    assert [path.name for path in Path(target).parent.iterdir() if path.is_file()] == ["figures.json"]

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", refuse)
    code, _, err = call("bench", "--json", target)
    assert (code, measured) == (2, [15])
    assert err == f"error: --json: cannot write {target}: Permission denied. Choose another file\n"


def test_a_pipe_that_is_closed_ends_quietly(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    line = [sys.executable, "-c", "from intercontinet.cli import main; main()", "data", "list"]
    with open(writer, "w") as closed:
        done = subprocess.run(line, cwd=tmp_path, stdout=closed, stderr=subprocess.PIPE, text=True, timeout=300)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("flags", "docs"),
    [((), "docs"), (("--out", "./results/"), "docs"), (("--out", "a"), "a"), (("--out", "a", "--docs", "b"), "b")],
)
def test_what_another_store_holds_is_not_drawn_over_ours(
    call: Call, flags: tuple[str, ...], docs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Path] = []
    monkeypatch.setattr("intercontinet.study.command.present", lambda study, out, docs, *_, **__: shown.append(docs))
    assert call("reproduce", "figure3", "--show", *flags)[0] == 0
    assert shown == [Path(docs)]


CPU = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried 8 bytes"
GPU = "CUDA out of memory. Tried to allocate 2.00 GiB"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError(f"{CPU}. Error code 12 (Cannot allocate memory)"), f"use fewer seeds or a smaller net ({CPU})"),
        (
            torch.OutOfMemoryError(f"{GPU}. GPU 0 has a total capacity of 8.00 GiB of which 1.00 GiB is free."),
            f"use --device cpu, fewer seeds or a smaller net ({GPU})",
        ),
        (
            RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported"),
            "use --device cpu, fewer seeds or a smaller net (CUDA error: out of memory)",
        ),
        (MemoryError(), "use fewer seeds or a smaller net"),
    ],
)
def test_out_of_memory_is_one_line_and_exit_2(
    call: Call, error: Exception, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(Run, "begin", fail)
    code, _, err = call("run", *SMALL, "--method", "sgd")
    assert (code, err) == (2, f"error: out of memory: {told}\n")


def test_bad_flags_exit_2(call: Call) -> None:
    for arguments in ("run --epochs many", "run --sed 3", "reproduce", "nothing", "data fetch"):
        assert call(*arguments.split())[0] == 2


def test_run_says_how_to_go_on_with_a_folder_and_who_is_in_it(call: Call) -> None:
    go = ("run", *SMALL, "--method", "sgd", "--out", "x")
    assert "--resume" in call(*go, "--resume")[2]
    assert call(*go)[0] == 0
    assert call(*go)[0] == 2
    assert call(*go, "--resume")[0] == 0
    code, _, err = call(*go, "--resume", "--seeds", "2")
    assert code == 2 and "seeds [0], not [0, 1]" in err
    code, _, err = call("run", "--out", "x", "--resume", "--tasks", "3")
    assert code == 2 and "holds a run with tasks 2, not 3: leave that out, since --out x --resume alone goes on" in err
    assert call("run", "--out", "x", "--resume")[0] == 0
    with held(Path("x")):
        code, _, err = call(*go, "--resume")
    assert code == 2 and "another process" in err


def test_show_draws_nothing(call: Call) -> None:
    save_record(Path("results/figure4"), record(dataset="cifar-100"))
    code, out, _ = call("reproduce", "figure4", "--show")
    assert code == 0 and "task/ewc" in out and not Path("docs").exists()


def test_data_list_needs_no_data(call: Call, tmp_path: Path) -> None:
    code, out, _ = call("data", "list")
    assert code == 0
    for name in ("mnist", "fashion-mnist", "cifar-10", "cifar-100"):
        assert re.search(rf"│ {name} .* no ", out)
    assert f"They are kept in {tmp_path / 'data'};" in out
    assert not (tmp_path / "data").exists()


def test_data_list_names_damage(call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "cifar-100-binary"
    folder.mkdir(parents=True)
    for name in ("train.bin", "test.bin"):
        (folder / name).write_bytes(b"cut short")
    code, out, _ = call("data", "list")
    assert code == 0 and re.search(r"│ cifar-100 .* damaged ", out) and "train.bin" in out


def test_data_get_downloads_and_reads_what_is_named(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[str] = []

    def download(name: str) -> Path:
        got.append(f"download {name}")
        return Path(name)

    monkeypatch.setattr("intercontinet.tasks.download", download)
    monkeypatch.setattr("intercontinet.tasks.image_set", lambda name: got.append(f"read {name}"))
    assert call("data", "get", "mnist", "cifar-10")[1] == "mnist: mnist\ncifar-10: cifar-10\n"
    assert got == ["download mnist", "read mnist", "download cifar-10", "read cifar-10"]
    got.clear()
    assert call("data", "get", "all")[0] == 0
    assert len(got) == 8


@pytest.fixture
def tiny_study(monkeypatch: pytest.MonkeyPatch) -> None:
    """Table 1, on digits, with two cells."""
    plans = (Plan("digits", "domain", "intercontinet"), Plan("digits", "domain", "sgd"))
    monkeypatch.setitem(STUDIES, "table1", Study(plans, 2))
    monkeypatch.setitem(TABLES, "table1", ("digits", "Table 1: Split Digits"))


def test_reproduce_runs_what_is_missing_and_shows_it_all(call: Call, tiny_study: None) -> None:
    go = ("reproduce", "table1", "--epochs", "2", "--device", "cpu")
    code, out, _ = call(*go, "--only", "sgd")
    assert code == 0
    assert "results/table1/domain-sgd-seeds-0-1.json" in out
    assert re.search(r"domain .*SGD .* ± ", out)
    assert "1 cell(s) in" in out
    code, out, _ = call(*go)
    assert code == 0
    assert "domain-sgd" not in out and "domain-intercontinet-seeds-0-1.json" in out
    assert re.search(r"InterContiNet, enforced.* ± .* \d?\.\d\d( \d?\.\d\d){4} ", out), "certified shares of five tasks"
    before = {path: path.stat().st_mtime_ns for path in Path("results/table1").glob("*.json")}
    for again in (go, ("reproduce", "table1", "--show")):
        code, out, _ = call(*again)
        assert code == 0 and "cell(s)" not in out and "Table 1: Split Digits" in out
    assert {path: path.stat().st_mtime_ns for path in Path("results/table1").glob("*.json")} == before
    code, out, _ = call("reproduce", "table1", "--show", "--only", "sgd")
    assert code == 0 and re.fullmatch(r"domain/sgd: .* ± .*, 2 seeds, paper -; certified -\nEpochs a task: 2\.\n", out)
    with held(Path("results/table1")):
        code, _, err = call(*go, "--seeds", "3")
    assert code == 2 and "another process" in err


def test_reproduce_interrupted_keeps_what_is_done(
    call: Call, tiny_study: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = Run.advance

    def interrupted(run: Run, *rest: Any) -> Any:
        if run.config.method == "sgd":
            raise KeyboardInterrupt
        return advance(run, *rest)

    go = ("reproduce", "table1", "--epochs", "2", "--seeds", "1", "--device", "cpu")
    with monkeypatch.context() as patch:
        patch.setattr(Run, "advance", interrupted)
        code, out, _ = call(*go)
    assert code == 130 and "Interrupted" in out
    assert [path.name for path in Path("results/table1").glob("*.json")] == ["domain-intercontinet-seeds-0-0.json"]
    code, out, _ = call(*go)
    assert code == 0 and "1 cell(s) in" in out
