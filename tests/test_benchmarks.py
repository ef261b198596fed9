"""Benchmarks still run: each as its command, on digits or as small as it goes, for what it says and not how fast."""

from __future__ import annotations

import importlib
import json
import runpy
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from intercontinet.report.paper import Published, yardstick
from intercontinet.study.store import save_record
from tests.study.records import record, seed_record

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
Bench = Callable[..., str]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bench:
    """A benchmark's command in this process, from an empty folder: what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(BENCHMARKS)  # as Python does for a script

    def run(name: str, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        capsys.readouterr()
        runpy.run_path(str(BENCHMARKS / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_each_is_tested_here() -> None:
    assert [path.stem for path in BENCHMARKS.glob("*.py") if f"test_{path.stem}" not in globals()] == []


def test_gaps(bench: Bench) -> None:
    said = bench("gaps")
    assert "mnist/class/exact: gap " in said and "seeds" in said, "from any folder"
    assert len(said.splitlines()) == len(set(said.splitlines())) > 10


def test_gaps_include_any_learner_that_holds_examples_back(bench: Bench, tmp_path: Path) -> None:
    seed = seed_record(certified=(90, 80))
    for floor, unseen in zip(seed["floors"], (8, 10), strict=True):
        floor |= {"unseen_certified": unseen, "unseen_total": 10, "unseen_floor": 0.5}
    save_record(tmp_path, record([seed], method="intercontinet", variant="volume"))
    save_record(tmp_path, record([seed_record(certified=(90, 80))], method="intercontinet"))
    said = bench("gaps", "--results", tmp_path)
    gaps = "gap 11.1 (at most 11.1), -22.2 (at most -22.2); bounds up to 40.0 below floors; accuracy 90.0 90.0"
    assert said == f"mnist/task/intercontinet/volume: {gaps}\n"


def test_gaps_need_records(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no record in .* has a floor for unseen examples"):
        bench("gaps", "--results", tmp_path)


def test_diverged(bench: Bench) -> None:
    """Of made-up runs, the guess is how many were at chance; the paper's are explained to two decimals."""
    module = importlib.import_module("benchmarks.diverged")
    for diverged in range(1, 5):
        runs = [10.0] * diverged + [19.3] * (5 - diverged)
        found = module.guess(Published(statistics.mean(runs), statistics.stdev(runs)))
        assert found.diverged == diverged
        assert (found.others, found.std) == pytest.approx((19.3, statistics.stdev(runs)))
    for method, diverged in {"sgd": 2, "ewc": 4, "oewc": 2, "si": 1, "mas": 4, "lwf": 3}.items():
        published = yardstick("cifar-10", "class", method)
        assert published is not None
        found = module.guess(published)
        assert found.diverged == diverged and abs(found.std - published.std) < 0.01
    said = bench("diverged")
    assert "class/ewc: 11.83 ± 4.10: 4 of 5 at chance and the others at 19.15 would give 4.09; ours: " in said
    assert "class/offline: 82.72 ± 0.09: not explained by runs at chance" in said
    assert module.ours(SimpleNamespace(overall=[0.1, 0.193, 0.195])) == "ours: 1 of 3, the others at 19.40"
    assert module.ours(SimpleNamespace(overall=[0.1])) == "ours: 1 of 1"


def test_choose_exact(bench: Bench) -> None:
    said = bench(
        "choose_exact", "digits", "task", "--net", "levels-40-5", "--parts", 1, "--parts", 2, "--device", "cpu"
    )
    assert said.startswith("levels-40-5: encoded in") and "parts 1" in said and "parts 2" in said
    assert said.count("certain [") == said.count("above unseen [") == 2


def test_choose_mlp(bench: Bench, tmp_path: Path) -> None:
    options = ("--epochs", 2, "--seeds", 2, "--json", tmp_path / "found.json", "--device", "cpu")
    said = bench("choose_mlp", "digits", "domain", "--variant", "preset", "--variant", "volume", *options)
    assert [line.split(" | ")[0] for line in said.splitlines()[2:]] == ["| preset", "| volume"]
    found = json.loads((tmp_path / "found.json").read_bytes())
    assert [len(each["accuracy"]) for each in found] == [2, 2] and found[1]["settings"]["aim"] == "volume"


def test_keep_inside(bench: Bench) -> None:
    small = ("--width", 4, "--batch", 2, "--steps", 1, "--rounds", 1)
    assert {"ratio", "share", "keeping_seconds"} <= json.loads(bench("keep_inside", *small, "--json")).keys()


def test_verify_speed(bench: Bench) -> None:
    found = json.loads(bench("verify_speed", "--millions", 1, "--rounds", 1))
    assert {"ratio", "hashing_alone", "memory_mb"} <= found.keys() and len(found["bytes"]) == 2


def test_certify_resnet(bench: Bench) -> None:
    found = json.loads(bench("certify_resnet", "--small", "--examples", 100, "--rounds", 1, "--json"))
    assert found["head"]["certified_share"] > 0.5 and found["ResNet-18, width 16, head alone"]["ratio"] > 0
    assert found["files"]["head_bytes"] < found["files"]["weights_bytes"] < found["files"]["whole_bytes"]


def test_pretrain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pretrain = importlib.import_module("benchmarks.pretrain")
    generator = torch.Generator().manual_seed(0)
    quarters = torch.rand(2, 500, 3, 2, 2, generator=generator)  # of images, each in a colour of its own
    tasks = [
        SimpleNamespace(train=(images, None)) for images in quarters.repeat_interleave(4, 3).repeat_interleave(4, 4)
    ]
    small = {"WIDTHS": (4, 8), "BLOCKS": (0, 1), "BATCH": 100, "TASKS": 2}
    for name, value in {"stream": lambda *_: SimpleNamespace(tasks=tasks), **small}.items():
        monkeypatch.setattr(pretrain, name, value)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)  # which it sets
    twin, out = tmp_path / "twin.safetensors", tmp_path / "out.safetensors"
    monkeypatch.setattr(sys, "argv", ["pretrain", "--epochs", "1", "--twin", str(twin), "--out", str(out)])
    pretrain.main()
    first = load_file(out)
    assert first and all(torch.equal(tensor, tensor.round()) for tensor in first.values()), "whole numbers"
    assert float(capsys.readouterr().out.split()[-1]) > 0.7, "correlation before and after they are made whole"
    pretrain.main()
    again = load_file(out)
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items()), "a twin that exists is not trained"


def test_train_edges(bench: Bench) -> None:
    said = bench("train_edges", "digits", "class", "--net", "levels-40-5", "--steps", 20, "--temperature", 3)
    rows = [line.split(" | ") for line in said.splitlines()[2:]]
    assert [row[0] for row in rows] == ["| falling", "| trained", "| edges", "| counted edges"]
    first = [float(row[4].split()[0]) for row in rows]
    assert all(0.75 <= share <= 1 for share in first), "the first task has all the room there is"


def test_trained_ceilings_are_steered(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reward's weight must go both ways, or else nothing holds the floor."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    script = importlib.import_module("train_edges")
    missing: list[float] = []
    plain = script.steered

    def watched(parameters: object, objective: Callable[..., tuple[object, object, float]], *others: object) -> None:
        def heard(some: object) -> tuple[object, object, float]:
            missing.append(objective(some)[2])
            return objective(some)

        plain(parameters, heard, *others)

    monkeypatch.setattr(script, "steered", watched)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 4, (200, 6), generator=generator) + 4 * torch.arange(6)
    y = torch.arange(200) % 2
    rows[y == 1, :3] = 4 * torch.arange(3)
    training = script.Training(keep=0.8, steps=200, rate=0.1, temperature=1.0, radius=1.0)
    script.Ceilings(24, 4, 1, True, training).learn(script.Task(rows, y, rows, y))
    assert min(missing) < 0 < max(missing)


def test_tighter(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    script = importlib.import_module("tighter")
    monkeypatch.setattr(
        "intercontinet.study.studies.VOLUME", {"centre_epochs": 2, "radii_epochs": 2, "margins": "joint"}
    )
    said = bench("tighter", "digits", "--examples", 60)
    assert said.count("| as it is |") == said.count("| let out |") == 5 and said.count(": accuracy") == 2
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        net = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(9, 12), torch.nn.ReLU(), torch.nn.Linear(12, 10), torch.nn.ReLU(),
            torch.nn.Linear(10, 2),
        ).double()  # fmt: skip
        edges = {}
        for name, weight in net.state_dict().items():
            weight += 0.3 * torch.randn(weight.shape, generator=generator).double()
            radius = 0.1 * torch.rand(weight.shape, generator=generator).double()
            edges[name] = (weight - radius, weight + radius)
        x, y = torch.rand(6, 9, generator=generator).double(), torch.arange(6) % 2
        found = script.leads(edges, x, y)
        worst = torch.full((6,), torch.inf).double()
        for _ in range(300):
            corner = {
                n: torch.where(torch.rand(a.shape, generator=generator) < 0.5, a, b) for n, (a, b) in edges.items()
            }
            out = torch.func.functional_call(net, corner, (x,)).detach()
            worst = torch.minimum(worst, out.gather(1, y[:, None])[:, 0] - out.gather(1, 1 - y[:, None])[:, 0])
        assert bool((worst >= found.intervals - 1e-9).all() and (worst >= found.relaxed - 1e-9).all())
        assert bool((found.relaxed > found.intervals).any()), "or it would be no use"


def test_whole_speed(bench: Bench) -> None:
    said = bench("whole_speed", "--rounds", 1, "--images", 2)
    assert "ms an image" in said or "floating point alone" in said
