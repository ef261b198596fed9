"""The benchmark: it measures what it says, against the same plain step, and writes it down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn
from typer.testing import CliRunner

from intercontinet.cli import app
from intercontinet.errors import InvalidSetting
from intercontinet.nets import mlp
from intercontinet.study import bench

RATIOS = {"naive_ratio", "centre_ratio", "radii_ratio", "certify_ratio"}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "BATCH", 4)
    monkeypatch.setattr(bench, "STEPS", 2)
    monkeypatch.setattr(bench, "CERTIFIED", 1)
    monkeypatch.setattr(bench, "_mlp", lambda: (mlp(5, (6,), 10, seed=0), (5,)))
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 10))
    monkeypatch.setattr(bench, "_convolutional", lambda: (net, (1, 4, 4)))


def test_all_figures_are_there_and_positive() -> None:
    said: list[str] = []
    assert "convolutional" not in bench.measured(1, said.append)
    said.clear()
    figures = bench.measured(1, said.append, convolutional=True)
    assert set(figures) == {*RATIOS, "plain_ms", "convolutional", "rounds", "hardware", "versions"}
    assert set(figures["convolutional"]) == {*RATIOS, "plain_ms"}
    for ours in (figures, figures["convolutional"]):
        assert all(ours[name] > 0 for name in (*RATIOS, "plain_ms"))
    assert figures["rounds"] == 1
    assert len(said) == 7 and "784-400-400-10: plain step" in said[3] and said[1].strip() == "warming up"


def test_ratios_are_medians_of_rounds_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    took = {"plain": [9, 1, 2, 1], "radii": [9, 3, 2, 9], "certify": [9, 1, 1, 1]}  # seconds, round by round

    def ticks() -> Iterator[float]:
        now = 0.0
        for turn in range(4):
            for name in took:
                yield now
                if turn:
                    now += took[name][turn]
                    yield now

    clock = ticks()
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    found = bench._ratios({name: lambda: None for name in took}, 3, lambda _: None)
    assert found["radii"] == 3.0, "the median of 3/1, 2/2 and 9/1"
    assert found["certify"] == 1.0 * bench.STEPS / bench.CERTIFIED, "the median of 1, 1/2 and 1, a batch"
    assert found["plain_ms"] == 1000 / bench.STEPS


def test_it_measures_at_least_once() -> None:
    with pytest.raises(InvalidSetting, match="rounds is 0"):
        bench.measured(0, print)


def test_the_command_writes_its_figures(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["bench", "--rounds", "1", "--json", str(tmp_path / "speed.json")])
    assert done.exit_code == 0, done.output
    assert "Wrote" in done.output
    assert set(json.loads((tmp_path / "speed.json").read_text())) >= RATIOS
