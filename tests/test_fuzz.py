"""Damaged, doctored and senseless files: refused with an error of this package, or a yes that is right. No crash."""

from __future__ import annotations

import hashlib
import json
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from torch import nn

import intercontinet as icn
from intercontinet.errors import InterContiNetError
from intercontinet.files import load_weights, save_weights
from intercontinet.header import BLOCK
from intercontinet.stream import verify_files
from tests.test_files import first_version
from tests.tiny import with_statistics

QUICK, THOROUGH = 60, 2000  # files of each kind
JUNK: list[Any] = [
    None, True, False, 0, -1, 1, 3, 2**31, 2**63 - 1, 2**63, 10**30, 0.5, -0.0, 1e400, float("nan"), "", "x", "F32",
    "F64", "BOOL", "I64", "C64", "\ud800", "\0", "0" * 64, [], [0], [1, 1], [-1, 2], [2**62, 4], [[]], {}, {"a": 1},
    ["F32"], {"shape": [6], "sha256": "0" * 64}, [2**40, 2**40, 0], "0.weight", "lower/0.weight",
    "unicode \u202e\u00e9",
]  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tied layer, statistics and a frozen part; its certificate, also as the first release wrote it."""
    folder = tmp_path_factory.mktemp("fuzz")
    model = with_statistics()
    model.append(nn.Linear(2, 2)).append(nn.Linear(2, 2))
    model[5].bias = model[4].bias
    model.register_buffer("order", torch.arange(3))
    model.eval()
    region = icn.Region.around(model, {"0.weight": 0.1, "3.weight": 0.1, "4.weight": 0.0, "4.bias": 1.0})
    floor = icn.TaskFloor("any", 40, 48, 44, (0, 1), 0.5, "ab", 9, 10)
    certificate = icn.Certificate.of(model, region, [floor, floor], method="by hand")
    certificate.save(folder / "model.icn")
    first_version(folder / "first.icn", certificate)
    save_weights(model, folder / "model.safetensors")
    plain = load_weights(folder / "model.safetensors")
    safetensors.torch.save_file({n: t for n, t in plain.items() if n != "5.bias"}, folder / "untied.safetensors")
    return folder


# Ways to spoil a file.


def parts(content: bytes) -> tuple[dict[str, Any], bytes]:
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def joined(header: object, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return len(text).to_bytes(8, "little") + text + data


def resealed(header: dict[str, Any], data: bytes) -> bytes:
    """With hashes that fit, as whoever wants to deceive would make them."""
    blocks = "".join(hashlib.sha256(data[at : at + BLOCK]).hexdigest() for at in range(0, len(data), BLOCK))
    header = {**header, "__metadata__": {**header["__metadata__"], "sha256": "0" * 64}}
    whole = "blocks" not in header["__metadata__"]
    if not whole:
        header["__metadata__"]["blocks"] = blocks
    blank = joined(header, data)
    digits = hashlib.sha256(blank if whole else blank[: len(blank) - len(data)]).hexdigest()
    return blank.replace(b'"sha256":"' + b"0" * 64, b'"sha256":"' + digits.encode(), 1)


def spoilt_bytes(content: bytes, dice: random.Random) -> bytes:
    """Bits flipped; bytes cut off, put in, taken out, exchanged, zeroed, repeated."""
    size = 8 + int.from_bytes(content[:8], "little")
    place = dice.choice([dice.randrange(8), dice.randrange(size), dice.randrange(len(content))])
    length = dice.choice([1, 2, 4, 8, 100])
    piece = content[place : place + length]
    match dice.randrange(7):
        case 0:
            flipped = bytearray(content)
            for _ in range(dice.choice([1, 1, 2, 5])):
                flipped[(place + dice.randrange(length)) % len(content)] ^= 1 << dice.randrange(8)
            return bytes(flipped)
        case 1:
            return content[:place]
        case 2:
            return content[:place] + dice.randbytes(length) + content[place:]
        case 3:
            return content[:place] + content[place + length :]
        case 4:
            other = dice.randrange(len(content))
            swapped = bytearray(content)
            swapped[place : place + 4], swapped[other : other + 4] = (
                content[other : other + 4],
                content[place : place + 4],
            )
            return bytes(swapped)
        case 5:
            return content[:place] + bytes(len(piece)) + content[place + length :]
        case _:
            return content[:place] + piece + content[place:]


def spoilt_tree(value: Any, dice: random.Random) -> Any:
    """JSON with one thing in it replaced, removed or doubled, anywhere."""
    if isinstance(value, dict) and value and dice.random() < 0.85:
        key = dice.choice(list(value))
        match dice.randrange(6):
            case 0:
                return {k: v for k, v in value.items() if k != key}
            case 1:
                return {**value, str(dice.choice(JUNK)): value[key]}
            case 2:
                other = dice.choice(list(value))
                return {**value, key: value[other], other: value[key]}
            case _:
                return {**value, key: spoilt_tree(value[key], dice)}
    if isinstance(value, list) and value and dice.random() < 0.7:
        index = dice.randrange(len(value))
        return [*value[:index], spoilt_tree(value[index], dice), *value[index + 1 :]]
    if isinstance(value, int) and dice.random() < 0.5:
        return value + dice.choice([-8, -4, -1, 1, 4, 8])
    return dice.choice(JUNK)


def spoilt_header(content: bytes, dice: random.Random) -> bytes:
    header, data = parts(content)
    match dice.randrange(6):
        case 0:
            text = json.dumps(header).encode()
            return joined(text[:1] + text[1:-1] + b"," + text[1:], data)  # every key twice
        case 1:
            return joined(b"[" * 50_000 + b"]" * 50_000, data)
        case 2:
            return dice.choice([2**63 - 1, 2**64 - 1, 10**8, 10**8 + 1]).to_bytes(8, "little") + content[8:]
        case _:
            return joined(spoilt_tree(header, dice), data)


def spoilt_and_resealed(content: bytes, dice: random.Random) -> bytes:
    """A certificate whose hashes are right and whose record, header or edges are not."""
    header, data = parts(content)
    match dice.randrange(4):
        case 0:
            header = spoilt_tree(header, dice)
        case 1:
            place = 4 * dice.randrange(len(data) // 4)
            value = dice.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3e38, -3e38, dice.gauss(0, 1)])
            data = data[:place] + np.float32(value).tobytes() + data[place + 4 :]
        case _:
            record = spoilt_tree(json.loads(header["__metadata__"]["record"]), dice)
            header["__metadata__"]["record"] = json.dumps(record)
    if not isinstance(header, dict) or not isinstance(header.get("__metadata__"), dict):
        return joined(header, data)
    return resealed(header, data)


# What must come of it.


def outcome(check: Callable[[], object]) -> tuple[str, str]:
    """Its kind and its words; anything but an error of this package is a failure of the test."""
    try:
        return "yes", str(check())
    except InterContiNetError as error:
        str(error).encode()
        return type(error).__name__, str(error)


def same_constants(state: dict[str, Any], record: dict[str, Any]) -> bool:
    """Whether whole numbers are as a record has them, if it speaks of them at all."""
    names = {"I64": "int64", "I32": "int32", "BOOL": "bool", "I8": "int8", "U8": "uint8"}
    constants = record.get("constants")
    if constants is None:
        return True
    for name, value in state.items():
        if np.issubdtype(value.dtype, np.floating) or (name.endswith("num_batches_tracked") and name not in constants):
            continue
        known = constants.get(name) or constants[record["tied"][name]]
        if (names[known["dtype"]], known["shape"]) != (value.dtype.name, list(value.shape)):
            return False
        if known["sha256"] != hashlib.sha256(value.tobytes()).hexdigest():
            return False
    return set(constants) <= set(state)


def is_right(weights: Path, certificate: Path) -> bool:
    """Whether a yes is deserved, found out by other means: safetensors' own reader, and NumPy."""
    state, edges = safetensors.numpy.load(weights.read_bytes()), safetensors.numpy.load(certificate.read_bytes())
    record = json.loads(parts(certificate.read_bytes())[0]["__metadata__"]["record"])
    names = {key.split("/", 1)[1] for key in edges} | record.get("frozen", {}).keys()
    floats = {name: value for name, value in state.items() if np.issubdtype(value.dtype, np.floating)}
    for name, value in floats.items():
        first = record["tied"].get(name)
        if name not in names and first is not None and np.array_equal(value, floats[first]):
            continue
        if not np.isfinite(value).all() or value.dtype != np.float32:
            return False
        if name in record.get("frozen", {}):
            frozen = record["frozen"][name]
            if (list(value.shape), hashlib.sha256(value.tobytes()).hexdigest()) != (frozen["shape"], frozen["sha256"]):
                return False
            continue
        point = edges.get(f"point/{name}")
        lower, upper = (edges.get(f"{kind}/{name}", point) for kind in ("lower", "upper"))
        if lower is None or upper is None or lower.shape != value.shape or upper.shape != value.shape:
            return False
        if not ((lower <= value) & (value <= upper)).all():
            return False
    return set(names) <= set(floats) and same_constants(state, record)


def check(weights: Path, certificate: Path) -> str:
    streamed = outcome(lambda: verify_files(weights, certificate))
    loaded = outcome(lambda: icn.verify(load_weights(weights), icn.Certificate.load(certificate)))
    assert streamed == loaded
    if streamed[0] == "yes":
        assert is_right(weights, certificate)
    return streamed[0]


def spoil(files: Path, which: str, how: Callable[[bytes, random.Random], bytes], count: int) -> set[str]:
    """Spoil one of the two files in many ways; all that came of it."""
    content, target = (files / which).read_bytes(), files / f"spoilt-{which}"
    weights = files / ("untied.safetensors" if which == "first.icn" else "model.safetensors")
    seen, dice = set(), random.Random(f"{which} {how.__name__}")
    for _ in range(count):
        spoilt = how(content, dice)
        target.write_bytes(spoilt)
        found = check(*((target, files / "model.icn") if which.endswith("safetensors") else (weights, target)))
        if which.endswith("icn") and how is not spoilt_and_resealed:
            assert found == "CertificateError" or spoilt == content
        seen.add(found)
    return seen


CASES = [
    pytest.param(which, how, id=f"{which}-{how.__name__}")
    for which in ("model.safetensors", "untied.safetensors", "model.icn", "first.icn")
    for how in (spoilt_bytes, spoilt_header, spoilt_and_resealed)
    if which.endswith("icn") or how is not spoilt_and_resealed
]


@pytest.mark.parametrize(("which", "how"), CASES)
def test_spoilt_files_are_refused_or_rightly_accepted(
    files: Path, which: str, how: Callable[[bytes, random.Random], bytes]
) -> None:
    assert "CertificateError" in spoil(files, which, how, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize(("which", "how"), CASES)
def test_thousands_of_spoilt_files_are_refused_or_rightly_accepted(
    files: Path, which: str, how: Callable[[bytes, random.Random], bytes]
) -> None:
    seen = spoil(files, which, how, THOROUGH)
    if how is spoilt_bytes and which.endswith("safetensors"):
        assert {"CertificateError", "Violation", "yes"} <= seen
    if how is spoilt_and_resealed:
        assert {"CertificateError", "RegionMismatch", "Violation", "yes"} <= seen


def test_the_files_are_accepted_as_they_are(files: Path) -> None:
    for weights in ("model.safetensors", "untied.safetensors"):
        for certificate in ("model.icn", "first.icn"):
            expected = "RegionMismatch" if (weights, certificate) == ("model.safetensors", "first.icn") else "yes"
            assert check(files / weights, files / certificate) == expected, "the first release's holds no second names"
    content = (files / "model.icn").read_bytes()
    assert len(resealed(*parts(content))) <= len(content)


@pytest.mark.parametrize("which", ["model.safetensors", "model.icn"])
def test_sizes_that_are_claimed_take_no_memory(files: Path, which: str) -> None:
    header, data = parts((files / which).read_bytes())
    key = next(key for key in header if key != "__metadata__")
    target = files / f"huge-{which}"
    for shape, offsets in (
        ([2**40], [0, 2**42]),
        ([2**31, 2**31, 2], [0, 8]),
        ([2**62, 4, 0], [0, 0]),
        ([0, 10**18], [0, 0]),
        ([10**30], [0, 4 * 10**30]),
        ([2] * 100_000, [0, 8]),
    ):
        target.write_bytes(joined({**header, key: {"dtype": "F32", "shape": shape, "data_offsets": offsets}}, data))
        pair = (target, files / "model.icn") if which.endswith("safetensors") else (files / "model.safetensors", target)
        tracemalloc.start()
        try:
            assert check(*pair) == "CertificateError"
            assert tracemalloc.get_traced_memory()[1] < 20e6
        finally:
            tracemalloc.stop()


def test_counts_that_would_take_for_ever_are_refused(files: Path) -> None:
    header, data = parts((files / "model.icn").read_bytes())
    record = json.loads(header["__metadata__"]["record"])
    for floor in record["tasks"]:
        floor |= {"total": 10**15, "certified": 10**14, "unseen_total": 10**15, "unseen_certified": 10**14}
    header["__metadata__"]["record"] = json.dumps(record)
    target = files / "long.icn"
    target.write_bytes(resealed(header, data))
    assert check(files / "model.safetensors", target) == "CertificateError"


def test_nan_behind_a_digest_that_fits_is_refused(files: Path) -> None:
    header, data = parts((files / "model.icn").read_bytes())
    record = json.loads(header["__metadata__"]["record"])
    state = load_weights(files / "model.safetensors")
    state["0.bias"] = torch.full((6,), torch.nan)
    record["frozen"]["0.bias"]["sha256"] = hashlib.sha256(state["0.bias"].numpy().tobytes()).hexdigest()
    header["__metadata__"]["record"] = json.dumps(record)
    (files / "nan.icn").write_bytes(resealed(header, data))
    safetensors.torch.save_file(state, files / "nan.safetensors")
    assert check(files / "nan.safetensors", files / "nan.icn") == "InvalidModel"
