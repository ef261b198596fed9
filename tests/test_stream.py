"""Two files held against each other without loading them: as icn.verify decides, in little memory, without torch."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import intercontinet as icn
from intercontinet import header, stream
from intercontinet.errors import CertificateError, InterContiNetError, InvalidModel, RegionMismatch
from intercontinet.files import load_weights, save_weights
from intercontinet.stream import verify_files
from tests.tiny import mlp, with_statistics

FLOOR = icn.TaskFloor("any", 1, 2, 2, keep=0.5)


def outcome(weights: Path, certificate: Path, streamed: bool) -> tuple[type[object], str]:
    """What comes of verifying: its kind and its words."""
    try:
        if streamed:
            verdict = verify_files(weights, certificate)
        else:
            verdict = icn.verify(load_weights(weights), icn.Certificate.load(certificate))
    except InterContiNetError as error:
        return type(error), str(error)
    return type(verdict), str(verdict)


def both(weights: Path, certificate: Path) -> tuple[type[object], str]:
    """The outcome, which is the same either way."""
    one, other = (outcome(weights, certificate, streamed) for streamed in (True, False))
    assert one == other
    return one


class Pair:
    """A model's weights and its certificate as files."""

    def __init__(
        self, folder: Path, model: nn.Module, region: icn.Region, floors: tuple[icn.TaskFloor, ...] = (FLOOR,)
    ):
        self.weights, self.certificate = folder / "model.safetensors", folder / "model.icn"
        self.state: dict[str, Tensor] = dict(model.state_dict())
        save_weights(model, self.weights)
        icn.Certificate.of(model, region, floors).save(self.certificate)

    def with_state(self, **changes: Tensor | None) -> tuple[type[object], str]:
        """The outcome for weights with some tensors (dots as underscores) changed or, where None, left out."""
        state = {**self.state, **{name.replace("_", ".", 1): tensor for name, tensor in changes.items()}}
        plain = {name: tensor.contiguous().clone() for name, tensor in state.items() if tensor is not None}
        safetensors.torch.save_file(plain, self.weights)
        return both(self.weights, self.certificate)


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    model = with_statistics()
    return Pair(tmp_path, model, icn.Region.around(model, {"0.weight": 0.1, "3.weight": 0.1}))


def test_weights_inside_give_the_same_verdict(pair: Pair) -> None:
    kind, words = pair.with_state()
    assert kind is icn.Verdict and words.startswith("every floor holds:\n  any: 1 of 2")
    assert icn.verify(pair.weights, str(pair.certificate)) == verify_files(str(pair.weights), pair.certificate)
    assert icn.verify(pair.weights, icn.Certificate.load(pair.certificate))


def test_weights_outside_give_the_same_violation(pair: Pair) -> None:
    moved = {"0_weight": pair.state["0.weight"] - 0.3, "3_weight": pair.state["3.weight"] + 0.2}
    kind, words = pair.with_state(**moved)
    assert kind is icn.Violation and words.startswith("'0.weight' lies 0.2")
    kind, words = pair.with_state(**moved, **{"1_running_var": pair.state["1.running_var"] * 2})
    assert kind is icn.Violation and words.startswith("'1.running_var' is frozen and has changed; outside")


def test_the_last_bit_counts(pair: Pair) -> None:
    region = icn.Certificate.load(pair.certificate).region
    for edge, away in ((region.upper["0.weight"], math.inf), (region.lower["0.weight"], -math.inf)):
        assert pair.with_state(**{"0_weight": edge})[0] is icn.Verdict
        beyond = edge.clone()
        beyond[-1, -1] = torch.nextafter(edge[-1, -1], torch.tensor(away))
        assert pair.with_state(**{"0_weight": beyond})[0] is icn.Violation


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"0_weight": torch.full((6, 2), math.nan)}, InvalidModel, "'0.weight' holds NaN"),
        ({"0_bias": torch.full((6,), -math.inf)}, InvalidModel, "'0.bias' holds NaN or infinite"),
        ({"0_weight": torch.zeros(6, 2, dtype=torch.float16)}, InvalidModel, "'0.weight' is float16"),
        ({"0_bias": torch.zeros(6, dtype=torch.bfloat16)}, InvalidModel, "'0.bias' is bfloat16"),
        ({"3_bias": torch.zeros(2, dtype=torch.float64)}, InvalidModel, "'3.bias' is float64"),
        ({"0_weight": None}, RegionMismatch, "bounds '0.weight', which the model lacks (did you mean '3.weight'?)"),
        ({"0_bias": None}, RegionMismatch, "bounds '0.bias', which the model lacks"),
        ({"0_bias": torch.zeros(6, dtype=torch.int32)}, RegionMismatch, "bounds '0.bias', which the model lacks"),
        ({"4_bias": torch.zeros(2)}, RegionMismatch, "the model's '4.bias' has no edges"),
        ({"4_bias": torch.full((2,), math.nan)}, InvalidModel, "'4.bias' holds NaN"),
        ({"0_weight": torch.zeros(2, 6)}, RegionMismatch, "'0.weight' has shape (2, 6) in the model and (6, 2)"),
        ({"0_bias": torch.zeros(1, 6)}, RegionMismatch, "'0.bias' has shape (1, 6) in the model and (6,)"),
        ({"1_num_batches_tracked": None}, icn.Verdict, "every floor holds"),
        ({"1_num_batches_tracked": torch.tensor(5)}, icn.Verdict, "every floor holds"),
    ],
    ids=str,
)
def test_weights_of_another_model_are_refused_alike(
    pair: Pair, changes: dict[str, Tensor | None], kind: type[object], words: str
) -> None:
    found, said = pair.with_state(**changes)
    assert found is kind and words in said


class Ordered(nn.Module):
    """A layer whose inputs are put in an order that is saved with the weights."""

    def __init__(self) -> None:
        super().__init__()
        order = torch.arange(6)
        self.register_buffer("order", order)
        self.register_buffer("again", order)
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("num_batches_tracked", torch.tensor(3))
        self.a = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.a(x[:, self.get_buffer("order")])
        return self.get_buffer("num_batches_tracked") * out

    def get_extra_state(self) -> Tensor:
        return torch.tensor([1, 2])

    def set_extra_state(self, state: object) -> None:
        pass


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({}, icn.Verdict, "every floor holds"),
        ({"again": None}, icn.Verdict, "every floor holds"),
        ({"order": torch.arange(6).flip(0)}, icn.Violation, "'order' is frozen and has changed"),
        ({"again": torch.arange(6).flip(0)}, icn.Violation, "'again' is frozen and has changed"),
        ({"mask": torch.tensor([True, True])}, icn.Violation, "'mask' is frozen and has changed"),
        ({"num_batches_tracked": torch.tensor(-1)}, icn.Violation, "'num_batches_tracked' is frozen and has changed"),
        ({"_extra_state": torch.tensor([1, -2])}, icn.Violation, "'_extra_state' is frozen and has changed"),
        (
            {"order": torch.arange(6, dtype=torch.int32)},
            RegionMismatch,
            "'order' is I32 (6,) in the model and I64 (6,)",
        ),
        ({"order": torch.arange(6)[None]}, RegionMismatch, "'order' is I64 (1, 6) in the model and I64 (6,)"),
        ({"order": None}, RegionMismatch, "constant 'order', which the model lacks"),
        ({"order": torch.arange(6.0)}, RegionMismatch, "the model's 'order' has no edges"),
        ({"orders": torch.arange(6)}, RegionMismatch, "no constant 'orders' (did you mean 'order'?): leave it out"),
        (
            {"more": torch.zeros(2)},
            RegionMismatch,
            "'more' has no edges in the region: leave it out of the weights, or",
        ),
        ({"b.num_batches_tracked": torch.tensor(1)}, icn.Verdict, "every floor holds"),
    ],
    ids=str,
)
def test_whole_numbers_that_are_saved_may_not_change(
    tmp_path: Path, changes: dict[str, Tensor | None], kind: type[object], words: str
) -> None:
    model = Ordered()
    pair = Pair(tmp_path, model, icn.Region.around(model, 0.1))
    assert icn.verify(model, icn.Certificate.load(pair.certificate))
    plain = {name: t.clone() for name, t in {**pair.state, **changes}.items() if t is not None}
    safetensors.torch.save_file(plain, pair.weights)
    found, said = both(pair.weights, pair.certificate)
    assert found is kind and words in said


def test_a_certificate_in_place_of_weights_is_named(pair: Pair) -> None:
    kind, words = both(pair.certificate, pair.certificate)
    assert kind is CertificateError and "model.icn is a certificate, not weights" in words


def test_a_file_without_parameters_is_refused(pair: Pair) -> None:
    safetensors.torch.save_file({"n": torch.ones(1, dtype=torch.int64)}, pair.weights)
    assert both(pair.weights, pair.certificate) == (InvalidModel, outcome(pair.weights, pair.certificate, False)[1])
    safetensors.torch.save_file({}, pair.weights)
    assert both(pair.weights, pair.certificate)[0] is InvalidModel


def test_weights_that_are_not_finite_never_pass_where_nothing_is_promised(tmp_path: Path) -> None:
    model = mlp()
    pair = Pair(tmp_path, model, icn.Region.everything(model))
    assert pair.with_state()[0] is icn.Verdict
    for value in (math.inf, -math.inf, math.nan):
        spoilt = pair.state["2.weight"].clone()
        spoilt[0, 0] = value
        assert pair.with_state(**{"2_weight": spoilt})[0] is InvalidModel


def test_tied_parameters_are_compared_with_each_other(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    model[2].weight = model[0].weight
    pair = Pair(tmp_path, model, icn.Region.around(model, 0.1))
    assert pair.with_state()[0] is icn.Verdict
    kind, words = pair.with_state(**{"2_weight": pair.state["2.weight"] + 1})
    assert kind is icn.Violation and words.startswith("'2.weight' lies 1 outside")
    assert pair.with_state(**{"2_weight": torch.zeros(3)})[0] is RegionMismatch


def test_a_certificate_without_floors_is_refused(tmp_path: Path) -> None:
    model = mlp()
    assert "holds no floors" in Pair(tmp_path, model, icn.Region.around(model, 0.1), ()).with_state()[1]


@pytest.mark.parametrize("which", ["weights", "certificate"])
def test_what_cannot_be_read_is_refused_alike(pair: Pair, which: str, tmp_path: Path) -> None:
    path = getattr(pair, which)
    for content in (b"", b"just a line of text", path.read_bytes()[:-1], path.read_bytes() + b"\0"):
        path.write_bytes(content)
        kind, words = both(pair.weights, pair.certificate)
        assert kind is CertificateError and path.name in words
    path.unlink()
    assert both(pair.weights, pair.certificate)[0] is CertificateError
    path.mkdir()
    assert "Is a directory" in both(pair.weights, pair.certificate)[1]
    path.rmdir()
    os.mkfifo(path)
    assert "Not a regular file" in both(pair.weights, pair.certificate)[1], "which might never end"


def test_many_pieces_blocks_and_threads_find_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "PIECE", 64)
    for module in (stream, header):
        monkeypatch.setattr(module, "BLOCK", 256)
    monkeypatch.setattr("intercontinet.files.BLOCK", 256)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    model = nn.Sequential(nn.Linear(7, 33), nn.ReLU(), nn.Linear(33, 1), nn.Linear(1, 5))
    pair = Pair(tmp_path, model, icn.Region.around(model, {"0.weight": 0.1, "0.bias": 0.1, "2.weight": 0.1}))
    assert pair.with_state()[0] is icn.Verdict
    for place in range(0, 7 * 33, 29):
        moved = pair.state["0.weight"].clone()
        moved.view(-1)[place] += 0.2 + place
        assert pair.with_state(**{"0_weight": moved})[1].startswith("'0.weight' lies")
    pair.with_state()
    content = pair.certificate.read_bytes()
    data = 8 + int.from_bytes(content[:8], "little")
    for place in range(data, len(content), 211):
        pair.certificate.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert "altered or damaged" in both(pair.weights, pair.certificate)[1]


def test_no_thread_is_left_behind(pair: Pair) -> None:
    verify_files(pair.weights, pair.certificate)
    assert threading.active_count() == 1 or not any("ThreadPool" in t.name for t in threading.enumerate())


numbers = st.floats(-4, 4, width=32)


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, Tensor], icn.Region, dict[str, str], tuple[icn.TaskFloor, ...]]:
    """A state dict, a region of mostly the same names, some of it frozen, and second names."""
    state, lower, upper = {}, {}, {}
    for name in draw(st.lists(st.sampled_from("abcd"), min_size=1, unique=True)):
        shape = draw(st.sampled_from([(), (1,), (3,), (2, 2), (0,)]))
        size = math.prod(shape)
        entries = draw(st.lists(st.tuples(numbers, numbers, numbers), min_size=size, max_size=size))
        if draw(st.integers(0, 3)):  # mostly inside
            entries = [(min(entry), sum(entry) - min(entry) - max(entry), max(entry)) for entry in entries]
        if draw(st.booleans()):
            entries = [(at, at, at) for _, at, _ in entries]
        low, at, up = (torch.tensor([entry[i] for entry in entries]).reshape(shape) for i in range(3))
        state[name] = at
        lower[name], upper[name] = torch.minimum(low, up), torch.maximum(low, up)
        if draw(st.integers(0, 4)) == 0:
            lower[name] = torch.full(shape, -math.inf)
    region = icn.Region(lower, upper)
    mutation = draw(
        st.sampled_from(["none", "none", "none", "nan", "inf", "drop", "add", "dtype", "int", "shape", "-0"])
    )
    name = draw(st.sampled_from(sorted(state)))
    match mutation:
        case "nan" | "inf":
            state[name] = torch.full_like(state[name], float(mutation))
        case "drop":
            del state[name]
        case "add":
            state["e"] = torch.zeros(draw(st.integers(0, 2)))
        case "dtype":
            state[name] = state[name].half()
        case "int":
            state["e"] = torch.zeros(2, dtype=torch.int64)
        case "shape":
            state[name] = state[name][None]
        case "-0":
            state[name] = -state[name]
    tied = draw(st.sampled_from([{}, {}, {"e": "a"}, {"e": name}, {"e": "f"}]))
    return state, region, tied, draw(st.sampled_from([(FLOOR,), (FLOOR,), ()]))


@settings(derandomize=True, deadline=None, max_examples=150)
@given(cases())
def test_both_ways_agree_on_anything(
    tmp_path_factory: pytest.TempPathFactory,
    case: tuple[dict[str, Tensor], icn.Region, dict[str, str], tuple[icn.TaskFloor, ...]],
) -> None:
    state, region, tied, floors = case
    folder = tmp_path_factory.getbasetemp()
    weights, certificate = folder / "any.safetensors", folder / "any.icn"
    safetensors.torch.save_file({name: t.clone() for name, t in state.items()}, weights)
    icn.Certificate(region, floors, "none", tied=tied).save(certificate)
    kind, _ = both(weights, certificate)
    if kind is icn.Verdict:
        assert region.contains({name: t for name, t in state.items() if name not in tied})


def test_verifying_needs_little_memory_and_no_torch(tmp_path: Path) -> None:
    model = nn.Linear(2000, 2000)  # 16 MB, and 32 MB of edges
    pair = Pair(tmp_path, model, icn.Region.around(model, 0.1))
    code = (
        "import resource, sys; from intercontinet.stream import verify_files\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "assert verify_files(*sys.argv[1:]) and 'torch' not in sys.modules\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000)"
    )
    command = [sys.executable, "-c", code, str(pair.weights), str(pair.certificate)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 12 + 4 * (os.cpu_count() or 1), "megabytes"


def test_the_command_imports_no_torch_and_prints_json(pair: Pair) -> None:
    code = "import sys; from intercontinet.cli import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"

    def command(*options: str) -> tuple[int, dict[str, Any]]:
        done = subprocess.run(
            [sys.executable, "-c", code, "verify", *options, "--json"], capture_output=True, text=True
        )
        assert (done.returncode == 0) == (done.stderr == "")
        return done.returncode, json.loads(done.stdout)

    files = str(pair.weights), str(pair.certificate)
    returned, found = command(*files)
    assert returned == 0 and found["holds"] is True and found["error"] is None and found["violations"] == []
    assert found["floors"][0]["certified"] == 1 and found["floors"][0]["kept"]
    moved = {"0.weight": pair.state["0.weight"] + 1, "0.bias": pair.state["0.bias"] + 1}
    safetensors.torch.save_file({**pair.state, **moved}, pair.weights)
    returned, found = command(*files)
    assert returned == 1 and found["holds"] is False and found["floors"] == []
    first, second = found["violations"]
    assert first == {"parameter": "0.bias", "excess": None, "frozen": True}
    assert second["parameter"] == "0.weight" and second["excess"] == pytest.approx(0.9) and not second["frozen"]
    returned, found = command(files[0], files[0])
    assert returned == 2 and found["holds"] is False and "no certificate" in str(found["error"])


def test_the_surface_is_complete_before_anything_is_imported() -> None:
    code = (
        "import sys, intercontinet as icn\n"
        "assert 'torch' not in sys.modules and set(icn.__all__) <= set(dir(icn))\n"
        "import intercontinet.attack, intercontinet.bounds.network; from intercontinet import *\n"
        "assert callable(icn.attack) and callable(bounds) and icn.Region is Region and icn.__version__\n"
        "for name in icn.__all__: getattr(icn, name)\n"
        "try: icn.nothing\nexcept AttributeError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "module 'intercontinet' has no attribute 'nothing'\n", done.stderr
