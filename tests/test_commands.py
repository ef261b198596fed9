"""The commands for shipped models: what they print, what they leave behind, and their exit codes."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import intercontinet as icn
from intercontinet import cli
from intercontinet.files import load_weights, save_weights
from intercontinet.search import Search
from tests.tiny import blobs, fitted, mlp, same

Call = Callable[..., tuple[int, str, str]]
NET = ("--model", "icn_store:build", "--weights", "v1.safetensors")
STORE = """
from torch import nn
def build(): return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
def other(): return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
def number(): return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
"""


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Call]:
    """``intercontinet`` in this process, in a folder with a model and its data: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "icn_store.py").write_text(STORE)
    old, new = blobs(spread=0.5), blobs(seed=3, spread=0.5)
    save_weights(fitted(old), tmp_path / "v1.safetensors")
    for name, (x, y) in (("old", old), ("new", new), ("more", blobs(seed=0, examples=30))):
        np.savez(tmp_path / f"{name}.npz", x=x.numpy(), y=y.numpy())

    def invoke(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["intercontinet", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return (int(ended.value.code or 0), *capsys.readouterr())

    yield invoke
    sys.modules.pop("icn_store", None)


@pytest.fixture
def protected(call: Call) -> Call:
    assert call("protect", *NET, "--data", "old.npz", "--out", "v1.icn", "--keep", 0.8, "--steps", 5)[0] == 0
    return call


def test_protect_writes_a_certificate_and_shows_every_number(call: Call, tmp_path: Path) -> None:
    code, out, err = call("protect", *NET, "--data", "old.npz", "--unseen", "more.npz", "--steps", 3, "--keep", 0.9)
    assert code == 0 and not err
    certificate = icn.Certificate.load("model.icn")
    seen, unseen = certificate.tasks
    assert (seen.task, unseen.task, seen.keep, seen.drift) == ("old", "old (unseen)", 0.9, None)
    assert seen.kept and seen.attacked is not None and unseen.unseen_floor is not None
    for words in (
        f"{seen.certified} of 48", f"{seen.attacked / 48:.1%}", f"{seen.accuracy:.1%}",
        f"{int(1000 * unseen.unseen_floor) / 10:.1f}%", "Wrote model.icn",
    ):  # fmt: skip
        assert words in out


def test_protect_takes_every_option(call: Call) -> None:
    code, out, _ = call(
        "protect", *NET, "--data", "old.npz", "--out", "v1.icn", "--keep", 0.7, "--plastic", "0.bias",
        "--plastic", "head", "--task", "shapes", "--drift", 1e-6, "--no-attack", "--steps", 2,
        "--seconds", 60, "--seed", 5, "--json",
    )  # fmt: skip
    assert code == 0
    told = json.loads(out)
    certificate = icn.Certificate.load(told["certificate"])
    (floor,) = certificate.tasks
    assert (floor.task, floor.keep, floor.drift, floor.attacked) == ("shapes", 0.7, 1e-6, None)
    assert certificate.region.frozen.keys() == {"0.weight"}
    assert told["floors"][0]["certified"] == floor.certified and told["floors"][0]["kept"] is True
    assert told["region"]["entries"] == 8 + 18 and told["region"]["mean_radius"] > 0
    again = call(
        "protect", *NET, "--data", "old.npz", "--out", "w.icn", "--plastic", "head", "--seconds", 0.2, "--json"
    )
    assert again[0] == 0 and json.loads(again[1])["region"]["entries"] == 18


def test_a_certificate_is_not_overwritten_by_a_slip(protected: Call, tmp_path: Path) -> None:
    before = (tmp_path / "v1.icn").read_bytes()
    code, out, err = protected("protect", *NET, "--data", "old.npz", "--out", "v1.icn", "--json")
    assert code == 2 and "v1.icn is there already" in err and "--resume" in err
    assert "is there already" in json.loads(out)["error"]
    assert (tmp_path / "v1.icn").read_bytes() == before
    for command in ("update", "attack"):
        arguments = (*NET, "--data", "old.npz", "--certificate", "v1.icn", "--out", "v1.safetensors")
        code, _, err = protected(command, *arguments)
        assert code == 2 and "v1.safetensors is there already" in err


def test_ctrl_c_leaves_a_valid_certificate_to_go_on_from(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Search, generator: torch.Generator) -> None:
        raise KeyboardInterrupt

    arguments = ("protect", *NET, "--data", "old.npz", "--out", "v1.icn", "--keep", 0.9)
    monkeypatch.setattr(Search, "step", interrupted)
    code, _, err = call(*arguments)
    assert code == 130 and "v1.icn holds the best region so far" in err and "--resume" in err
    left = icn.Certificate.load("v1.icn")
    assert left.tasks[0].kept and call("verify", "v1.safetensors", "v1.icn")[0] == 0
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert call(*arguments, "--resume", "--steps", 10)[0] == 0
    assert icn.Certificate.load("v1.icn").region.size().log_volume > left.region.size().log_volume


def test_ctrl_c_before_anything_was_found_leaves_nothing(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("intercontinet.release.examples", interrupted)
    code, _, err = call("protect", *NET, "--data", "old.npz")
    assert code == 130 and "nothing was written" in err and not Path("model.icn").exists()


def test_going_on_with_other_data_leaves_the_certificate_alone(protected: Call, tmp_path: Path) -> None:
    before = (tmp_path / "v1.icn").read_bytes()
    code, _, err = protected("protect", *NET, "--data", "new.npz", "--out", "v1.icn", "--resume", "--steps", 0)
    assert code == 2 and "for other data" in " ".join(err.split())
    assert (tmp_path / "v1.icn").read_bytes() == before


def test_going_on_needs_something_to_go_on_from(call: Call) -> None:
    code, _, err = call("protect", *NET, "--data", "old.npz", "--resume")
    assert code == 2 and "--resume: there is no model.icn" in err


def test_update_stays_inside_and_verify_agrees(protected: Call) -> None:
    arguments = ("--data", "new.npz", "--certificate", "v1.icn", "--epochs", 2, "--rate", 0.01, "--batch", 8)
    code, out, err = protected("update", *NET, *arguments, "--out", "v2.safetensors", "--seed", 3)
    assert code == 0 and "every floor holds" in out and re.search(r"\d% right before, .*% after", out)
    assert err.count("epoch") == 2
    assert not same(load_weights("v1.safetensors"), load_weights("v2.safetensors"))
    code, out, _ = protected("verify", "v2.safetensors", "v1.icn", "--model", "icn_store:build")
    assert code == 0 and "Checked: architecture" in out
    code, out, _ = protected("update", *NET, *arguments, "--optimizer", "sgd", "--out", "v3.safetensors", "--json")
    told = json.loads(out)
    assert code == 0 and told["weights"] == "v3.safetensors" and 0 <= told["before"] <= 1 and 0 <= told["after"] <= 1
    assert told["floors"][0]["task"] == "old"


def test_a_chain_by_command(protected: Call) -> None:
    protected("update", *NET, "--data", "new.npz", "--certificate", "v1.icn", "--out", "v2.safetensors")
    code, _, err = protected(
        "protect", "--model", "icn_store:build", "--weights", "v2.safetensors", "--data", "new.npz",
        "--within", "v1.icn", "--out", "v2.icn", "--keep", 0.5, "--steps", 2,
    )  # fmt: skip
    assert code == 0, err
    second, first = icn.Certificate.load("v2.icn"), icn.Certificate.load("v1.icn")
    assert second.region.within(first.region) and [floor.task for floor in second.tasks] == ["old", "new"]
    assert protected("verify", "v2.safetensors", "v2.icn")[0] == 0


def test_weights_outside_are_refused_with_exit_code_1(protected: Call) -> None:
    state = load_weights("v1.safetensors")
    model = mlp()
    model.load_state_dict(state | {"2.bias": state["2.bias"] + 9})
    save_weights(model, "moved.safetensors")
    moved = ("--model", "icn_store:build", "--weights", "moved.safetensors", "--data", "new.npz")
    for command in (("update", *moved, "--certificate", "v1.icn", "--out", "v2.safetensors"),
                    ("attack", *moved, "--certificate", "v1.icn"),
                    ("protect", *moved, "--within", "v1.icn"),
                    ("verify", "moved.safetensors", "v1.icn", "--model", "icn_store:build")):  # fmt: skip
        code, _, err = protected(*command)
        assert code == 1 and "'2.bias' lies" in err
    assert not Path("v2.safetensors").exists() and not Path("model.icn").exists()


def test_attack_argues_with_a_floor_and_writes_the_worst_weights(protected: Call) -> None:
    arguments = (*NET, "--data", "old.npz", "--certificate", "v1.icn", "--starts", 2, "--steps", 3, "--seed", 1)
    code, out, _ = protected("attack", *arguments, "--out", "worst.safetensors")
    assert code == 0 and "Certified: old" in out
    found = int(re.findall(r"get (\d+) of 48 right", out)[0])
    assert protected("verify", "worst.safetensors", "v1.icn")[0] == 0, "the worst weights lie inside"
    model, (x, y) = mlp(), blobs(spread=0.5)
    model.load_state_dict(load_weights("worst.safetensors"))
    assert int((model(x).argmax(1) == y).sum()) == found
    code, out, _ = protected("attack", *arguments, "--json")
    told = json.loads(out)
    assert code == 0 and told["right"] == found and told["broken"] is False and told["floor"]["task"] == "old"


def test_attack_on_examples_that_no_floor_speaks_of(protected: Call) -> None:
    code, out, _ = protected("attack", *NET, "--data", "new.npz", "--certificate", "v1.icn", "--steps", 1)
    assert code == 0 and "No floor of the certificate speaks of these examples" in out


def test_a_floor_that_an_attack_breaks_does_not_hold(protected: Call) -> None:
    promise = icn.Certificate.load("v1.icn")
    (floor,) = promise.tasks
    wide = promise.region.with_values(load_weights("v1.safetensors")).scaled(50.0, load_weights("v1.safetensors"))
    replace(promise, region=wide).save("wrong.icn")
    code, out, err = protected("attack", *NET, "--data", "old.npz", "--certificate", "wrong.icn", "--json")
    assert code == 1 and "below a certified floor" in err
    assert json.loads(out)["broken"] is True and json.loads(out)["right"] < floor.certified


def test_an_attack_must_ask_what_the_floor_promises(protected: Call, tmp_path: Path) -> None:
    code, _, err = protected("attack", *NET, "--data", "old.npz", "--certificate", "v1.icn", "--multi-label")
    assert code == 2 and ("speaks of classification" in err or "targets" in err)


@pytest.fixture
def numbers(call: Call, tmp_path: Path) -> Call:
    model, x = mlp(outputs=1), torch.randn(40, 2)
    save_weights(model, tmp_path / "n.safetensors")
    np.savez(tmp_path / "n.npz", x=x.numpy(), y=model(x).detach().numpy())
    np.savez(tmp_path / "labels.npz", x=x.numpy(), y=(model(x) > 0).numpy())
    return call


@pytest.mark.parametrize(("data", "options"), [("n.npz", ("--tolerance", 0.2)), ("labels.npz", ("--multi-label",))])
def test_numbers_and_labels_go_all_the_way(numbers: Call, data: str, options: tuple[object, ...]) -> None:
    net = ("--model", "icn_store:number", "--weights", "n.safetensors", "--data", data, *options)
    assert numbers("protect", *net, "--out", "n.icn", "--steps", 2)[0] == 0
    (floor,) = icn.Certificate.load("n.icn").tasks
    assert floor.kept and floor.criterion != "classification" and floor.attacked is not None
    code, out, _ = numbers("attack", *net, "--certificate", "n.icn", "--steps", 2)
    assert code == 0 and "Certified: " in out
    assert numbers("update", *net, "--certificate", "n.icn", "--out", "n2.safetensors", "--epochs", 1)[0] == 0
    other = ("--tolerance", 0.3) if data == "n.npz" else ("--tolerance", 0.5)
    net = (*net[:-len(options)], *other)  # fmt: skip
    code, _, err = numbers("attack", *net, "--certificate", "n.icn")
    assert code == 2 and f"the floor of these examples speaks of {floor.criterion}" in err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"--model": "icn_store"}, "say package.module:factory"),
        ({"--model": "icn_nowhere:build"}, "cannot import 'icn_nowhere'"),
        ({"--model": "icn_store:number"}, "do not fit icn_store:number: '2.weight' is"),
        ({"--weights": "nowhere.safetensors"}, "nowhere.safetensors"),
        ({"--data": "nowhere.npz"}, "cannot read nowhere.npz"),
        ({"--data": "v1.safetensors"}, "no .npz file, or is damaged"),
        ({"--data": "icn_empty"}, "holds no folders"),
        ({"--keep": "0"}, "keep is 0.0"),
        ({"--plastic": "3.*"}, "no parameter is called '3.*'"),
        ({"--steps": "-1"}, "must not be negative"),
        ({"--drift": "2"}, "drift is 2.0"),
        ({"--within": "v1.safetensors"}, "no certificate of this package"),
        ({"--tolerance": "-1"}, "the tolerance is -1.0"),
        ({"--unseen": "nowhere.npz"}, "cannot read nowhere.npz"),
        ({"--out": "nowhere/v1.icn"}, "cannot write"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(call: Call, changes: dict[str, str], words: str) -> None:
    Path("icn_empty").mkdir()
    options = dict(zip(NET[::2], NET[1::2], strict=True)) | {"--data": "old.npz", "--steps": "1"} | changes
    code, out, err = call("protect", *[part for pair in options.items() for part in pair], "--json")
    assert code == 2 and words in err and re.fullmatch(r"error: [^\n]+\n", err)
    assert words in json.loads(out)["error"]
    assert not Path("model.icn").exists()


def test_verify_with_the_model_sees_what_weights_do_not_tell(protected: Call) -> None:
    assert protected("verify", "v1.safetensors", "v1.icn")[0] == 0
    code, out, err = protected("verify", "v1.safetensors", "v1.icn", "--model", "icn_store:other", "--json")
    assert code == 2 and "another architecture" in err
    assert json.loads(out)["holds"] is False and "another architecture" in json.loads(out)["error"]
    code, out, _ = protected("verify", "v1.safetensors", "v1.icn", "--model", "icn_store:build", "--json")
    assert code == 0 and json.loads(out)["holds"] is True
    assert protected("verify", "v1.safetensors", "v1.icn", "--model", "icn_store:missing")[0] == 2


def test_several_inputs_by_command(call: Call, tmp_path: Path) -> None:
    (tmp_path / "icn_pair.py").write_text(
        "from torch import nn\n"
        "class Pair(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.a = nn.Linear(2, 2); self.b = nn.Linear(3, 2)\n"
        "    def forward(self, x, z): return self.a(x) + self.b(z)\n"
    )

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(3, 2)

        def forward(self, x: Tensor, z: Tensor) -> Tensor:
            out: Tensor = self.a(x) + self.b(z)
            return out

    model, x, z = Pair(), torch.randn(20, 2), torch.randn(20, 3)
    save_weights(model, tmp_path / "p.safetensors")
    np.savez(tmp_path / "p.npz", x0=x.numpy(), x1=z.numpy(), y=model(x, z).argmax(1).numpy())
    net = ("--model", "icn_pair:Pair", "--weights", "p.safetensors", "--data", "p.npz")
    assert call("protect", *net, "--out", "p.icn", "--steps", 1)[0] == 0
    assert call("update", *net, "--certificate", "p.icn", "--out", "p2.safetensors", "--epochs", 1)[0] == 0
    sys.modules.pop("icn_pair", None)


def test_help_names_every_option(call: Call) -> None:
    options: dict[str, list[Any]] = {
        "protect": ["--keep", "--plastic", "--within", "--drift", "--unseen", "--seconds", "--resume", "--json"],
        "update": ["--certificate", "--out", "--epochs", "--rate", "--json"],
        "attack": ["--certificate", "--starts", "--steps", "--json"],
        "verify": ["--model", "--json"],
    }
    for command, words in options.items():
        code, out, _ = call(command, "--help")
        assert code == 0 and all(word in out for word in words)
