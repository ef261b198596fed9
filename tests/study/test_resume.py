"""Going on with a run: what its folder says need not be said again, and folders older than a setting still serve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from intercontinet.errors import InvalidData, InvalidSetting
from intercontinet.study.command import Asked, asked
from intercontinet.study.config import Config, configure
from intercontinet.study.folder import CONFIG, FORMAT, VERSION, leave, read_config, resume, start, stored_config
from intercontinet.study.run import Run

YOUNG = ("held_out", "unseen", "drift")  # settings that InterContiNet had not always


def small(**changes: Any) -> Run:
    return Run(configure("digits", "domain", "intercontinet", tasks=2, net="mlp-8", epochs=2, **changes), "cpu")


def folder_of(folder: Path, config: Config, *lacking: str) -> Path:
    """What a run with this configuration notes first, without some settings."""
    stored = config.record()
    stored["settings"] = {name: value for name, value in stored["settings"].items() if name not in lacking}
    folder.mkdir(exist_ok=True)
    (folder / CONFIG).write_text(json.dumps({"format": FORMAT, "version": VERSION, "config": stored}))
    return folder


# Folders that are older than a setting.


def test_a_folder_from_before_a_setting_goes_on_as_if_it_had_its_default(tmp_path: Path) -> None:
    run = small()
    start(tmp_path, run)
    first = run.advance(run.begin())
    assert not any(name.startswith("unseen") for name in first.memory), "as memories were then"
    leave(tmp_path, run, first)
    folder_of(tmp_path, run.config, *YOUNG)
    for again in (small(), Run(stored_config(tmp_path), "cpu")):
        found = resume(tmp_path, again)
        assert found is not None and found.done == 1
        end, unbroken = again.advance(found), run.advance(first)
        assert torch.equal(end.weights, unbroken.weights)
        assert end.memory.keys() == unbroken.memory.keys()
        assert all(torch.equal(end.memory[name], unbroken.memory[name]) for name in end.memory)
    with pytest.raises(InvalidSetting, match=r"settings \{'unseen': 0\.0\}, not \{'unseen': 0\.1\}"):
        resume(tmp_path, small(settings={"unseen": 0.1}))


def test_a_setting_younger_than_the_folder_has_not_todays_preset(tmp_path: Path) -> None:
    config = configure("fashion-mnist", "class", "exact", settings={"tuning": "multiplied"})
    assert configure("fashion-mnist", "class", "exact").settings["tuning"] == "shifted"
    assert stored_config(folder_of(tmp_path, config, "tuning")) == config


@pytest.mark.parametrize("method", ["sgd", "offline", "ewc", "intercontinet", "exact"])
def test_any_configuration_is_read_back_as_it_was(tmp_path: Path, method: str) -> None:
    config = configure("digits", "class", method, (3, 7), 2)
    assert stored_config(folder_of(tmp_path, config)) == config


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"version": 1, "config": {}}, "it lacks 'format'"),
        ({"format": FORMAT, "version": VERSION}, "it lacks 'config'"),
        ([], "it is no JSON object"),
        ({"format": FORMAT, "version": VERSION, "config": {}}, "its settings are no JSON object"),
    ],
)
def test_a_configuration_that_is_none_is_told_why_with_a_way_out(tmp_path: Path, content: object, why: str) -> None:
    (tmp_path / CONFIG).write_text(json.dumps(content))
    with pytest.raises(InvalidData) as caught:
        read_config(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / CONFIG} is not the configuration of a run: {why}. Start afresh in another --out"
    )


# What need not be said again.


def again(folder: Path, *settings: str, **flags: Any) -> Asked:
    return asked({"out": str(folder), **flags}, settings, None, resume=True)


@pytest.fixture
def domains(tmp_path: Path) -> tuple[Path, Config]:
    """A folder of a run with little in it that is as by default."""
    config = configure("digits", "domain", "ewc", (3, 7), 2, "mlp-8", settings={"strength": 5}, epochs=4)
    return folder_of(tmp_path / "run", config), config


@pytest.mark.parametrize(
    "same",
    [
        {},
        {"seeds": "3,7"},
        {"method": "ewc", "epochs": 4},
        {"scenario": "domain", "tasks": 2, "net": "mlp-8", "augment": False},
    ],
)
def test_what_is_said_again_must_be_the_same_and_the_rest_is_as_it_was(
    domains: tuple[Path, Config], same: dict[str, Any]
) -> None:
    folder, config = domains
    assert again(folder, "strength=5", device="cpu", **same) == Asked(config, "cpu", folder, ())


@pytest.mark.parametrize(
    ("settings", "flags", "words"),
    [
        ((), {"seeds": "2"}, "seeds [3, 7], not [0, 1]"),
        ((), {"method": "sgd", "tasks": 3}, "method ewc, not sgd; tasks 2, not 3"),
        ((), {"epochs": 5}, "epochs 4, not 5"),
        (("strength=6",), {}, "strength 5, not 6"),
        (("rate=1e-2", "strength=5"), {"tasks": 2}, "rate 0.1, not 0.01"),
    ],
)
def test_only_what_was_said_and_differs_is_named(
    domains: tuple[Path, Config], settings: tuple[str, ...], flags: dict[str, Any], words: str
) -> None:
    folder, _ = domains
    with pytest.raises(InvalidSetting) as caught:
        again(folder, *settings, **flags)
    assert str(caught.value) == (
        f"{folder} holds a run with {words}: leave that out, since --out {folder} --resume alone goes on with it, or "
        "choose another --out"
    )


def test_a_share_to_keep_is_held_against_the_runs_own_and_its_method(
    tmp_path: Path, domains: tuple[Path, Config]
) -> None:
    assert again(domains[0], keep=0.5).notes == ("keep is left out: ewc promises nothing",)
    folder = folder_of(tmp_path / "promising", configure("digits", "domain", settings={"keep": 0.7}))
    assert again(folder, keep=0.7).config.keep == 0.7
    with pytest.raises(InvalidSetting, match=r"holds a run with keep 0\.7, not 0\.5: leave that out"):
        again(folder, keep=0.5)


def test_slips_are_named_when_going_on_too(domains: tuple[Path, Config]) -> None:
    with pytest.raises(InvalidSetting, match="method 'ewc' has no setting 'strenght'"):
        again(domains[0], "strenght=3")
    with pytest.raises(InvalidSetting, match="did you mean 'ewc'"):
        again(domains[0], method="ewk")


def test_the_usual_folder_is_gone_on_with_where_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = configure("digits", "class", "sgd", tasks=2)
    (tmp_path / "runs").mkdir()
    folder_of(Path("runs/digits-class-sgd"), config)
    assert asked({"method": "sgd", "scenario": "class"}, (), None, resume=True).config == config
    with pytest.raises(InvalidSetting, match=r"runs/digits-task-sgd holds no run to go on with"):
        asked({"method": "sgd"}, (), None, resume=True)
