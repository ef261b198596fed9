"""YAML files: what is read, and what is refused and named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from intercontinet.errors import InvalidSetting
from intercontinet.study.sources import read_config, read_yaml


def write(folder: Path, content: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(content, encoding="utf-8")
    return path


def test_a_file_is_read_and_empty_values_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, "method: ewc\nseeds: [3, 7]\ntasks:\nkeep: 1\nsettings: {strength: 5}\n")
    assert read_config(path) == {"method": "ewc", "seeds": [3, 7], "keep": 1, "settings": {"strength": 5}}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("epoch: 3", "there is no 'epoch' (did you mean 'epochs'?)"),
        ("strength: 3", "there is no 'strength' at the top: settings of the method belong under 'settings'"),
        ("strenght: 3", "there is no 'strenght' (did you mean 'strength'?) at the top: settings of the method belong"),
        ("setings: {rate: 1}", "there is no 'setings' (did you mean 'settings'?); known are"),
        ("colour: 3", "there is no 'colour'; known are"),
        ("- 3", "must be a mapping"),
        ("3: 4", "must be a mapping"),
        ("", "must be a mapping"),
        ("settings: 3", "'settings' must be a mapping"),
        ("method: [", "no valid YAML"),
        ("method: !!python/object/apply:os.system ['true']", "no valid YAML"),
        ("epochs: many", "epochs is 'many'; it must be a whole number"),
        ("epochs: 2.5", "epochs is 2.5; it must be a whole number"),
        ("tasks: true", "tasks is True; it must be a whole number"),
        ("keep: most", "keep is 'most'; it must be a number"),
        ("net: 5", "net is 5; it must be a word"),
        ("dataset: 5", "dataset is 5; it must be a word"),
        ("scenario: [task]", "it must be a word"),
        ("method: {a: 1}", "it must be a word"),
        ("device: 0", "it must be a word"),
        ("out: 5", "it must be a word"),
        ("augment: maybe", "augment is 'maybe'; it must be true or false"),
    ],
)
def test_a_file_that_makes_no_sense_is_named(tmp_path: Path, content: str, words: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(InvalidSetting, match=re.escape(words)) as caught:
        read_config(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x9f")
    for path in (tmp_path, tmp_path / "missing.yaml", tmp_path / "binary.yaml"):
        with pytest.raises(InvalidSetting, match="cannot read"):
            read_config(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("seeds: 2\nkeep: 0.9\nseeds: 3\n", "'seeds' twice, in lines 1 and 3"),
        ("seeds: 2\nsettings:\n  rate: 1\n  rate: 2\n", "'rate' twice, in lines 3 and 4"),
        ("settings: {budgets: [{a: 1, a: 2}]}", "'a' twice, in lines 1 and 1"),
    ],
)
def test_a_name_that_stands_twice_is_refused_rather_than_half_of_it_dropped(content: str, words: str) -> None:
    with pytest.raises(InvalidSetting, match=f"^here has {words}: keep one of them$"):
        read_yaml(content, "here")


def test_the_same_name_in_two_mappings_and_anchors_are_fine() -> None:
    values = read_yaml("one: &a {rate: 1}\ntwo: {rate: 2, more: *a}\nthree: *a\nfour: {<<: *a, rate: 3}", "here")
    assert values["three"] == {"rate": 1} and values["two"]["more"] == {"rate": 1} and values["four"] == {"rate": 3}
    both = read_yaml("one: &a {rate: 1}\ntwo: &b {keep: 2}\nthree:\n  <<: *a\n  <<: *b\n  1: x\n  '1': y", "here")
    assert both["three"] == {"rate": 1, "keep": 2, 1: "x", "1": "y"}
    with pytest.raises(InvalidSetting, match="must be a mapping"):
        read_yaml("", "here")


@pytest.mark.parametrize("content", ["rate: 2024-13-45", "rate: " + "[" * 2000 + "]" * 2000, "rate: [1", "rate: !!x 1"])
def test_what_yaml_cannot_read_is_told_of_in_a_line(content: str) -> None:
    with pytest.raises(InvalidSetting, match=r"^here is no valid YAML: .") as error:
        read_yaml(content, "here")
    assert "\n" not in str(error.value)
