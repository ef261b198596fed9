"""Files as they are written and read back: exact to the bit, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import math
import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import intercontinet as icn
from intercontinet.errors import CertificateError, WriteError
from intercontinet.files import _UMASK, load_weights, read_header, save_weights, seal, unseal, write_atomically
from intercontinet.record import FORMAT, FORMAT_VERSION, Record
from tests.tiny import blobs, mlp, same, snapshot, with_statistics


def certificate(model: nn.Module | None = None, radius: float = 0.01) -> icn.Certificate:
    model = mlp(hidden=2) if model is None else model
    region = icn.Region.around(model, radius)
    floors = [icn.certify(model, region, blobs(seed=seed), task=f"task {seed}", keep=0.9) for seed in range(2)]
    return icn.Certificate.of(model, region, floors, method="by hand")


def edges(region: icn.Region) -> dict[str, Tensor]:
    return {f"lower {n}": t for n, t in region.lower.items()} | {f"upper {n}": t for n, t in region.upper.items()}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.icn"
    certificate().save(path)
    return path


def only_file(path: Path) -> bool:
    return [p.name for p in path.parent.iterdir()] == [path.name]


def refused(path: Path, content: bytes) -> str:
    """The complaint about a file with this content; it must be a CertificateError."""
    path.write_bytes(content)
    with pytest.raises(CertificateError) as caught:
        icn.Certificate.load(path)
    message = str(caught.value)
    assert str(path) in message
    return message


def resealed(path: Path, tensors: dict[str, Tensor] | None = None, **changes: str) -> bytes:
    """The file with other metadata or tensors, and a hash that fits."""
    content = path.read_bytes()
    metadata = {k: v for k, v in read_header(path, content).items() if k != "sha256"}
    return seal(unseal(path, content) if tensors is None else tensors, {**metadata, **changes})


# What is written is read back.


def test_a_round_trip_keeps_every_bit_and_every_word(tmp_path: Path) -> None:
    model = with_statistics()
    half_free = icn.Region.around(model, {"0.weight": 0.1, "3.bias": math.inf})
    lower = {**half_free.lower, "0.bias": torch.full((6,), -math.inf), "1.bias": torch.full((6,), -0.0)}
    upper = {**half_free.upper, "1.bias": torch.zeros(6), "1.weight": half_free.upper["1.weight"] + 1e-45}
    region = icn.Region(lower, upper)
    odd_name = 'two "classes"\n\u00fcber \\ "sha256":"' + "0" * 64
    floors = (
        icn.TaskFloor(odd_name, 3, 7, 5, (4, 2), 0.1 + 0.2, "ab", 1, 2),
        icn.TaskFloor("plain", 0, 1, 0),
    )
    written = icn.Certificate.of(model, region, floors, method="by hand")
    written.save(tmp_path / "model.icn")
    read = icn.Certificate.load(tmp_path / "model.icn")
    assert read.region.frozen.keys() == {"1.weight", "1.running_mean", "1.running_var", "3.weight"}
    assert same(edges(read.region.with_values(model)), edges(written.region))
    assert replace(read, region=written.region) == written


def test_of_what_may_not_move_only_a_digest_is_stored(tmp_path: Path) -> None:
    model = mlp()
    path = tmp_path / "model.icn"
    icn.Certificate.of(model, icn.Region.around(model, {"0.weight": 0.1})).save(path)
    assert safetensors.torch.load_file(path).keys() == {"lower/0.weight", "upper/0.weight"}
    record = json.loads(read_header(path, path.read_bytes())["record"])
    bits = model.get_parameter("2.weight").detach().numpy().astype("<f4").tobytes()
    assert record["frozen"].keys() == {"0.bias", "2.weight", "2.bias"}
    assert record["frozen"]["2.weight"] == {"shape": [2, 8], "sha256": hashlib.sha256(bits).hexdigest()}


def test_a_model_that_is_frozen_whole_makes_a_small_file(tmp_path: Path) -> None:
    model = nn.Linear(400, 400)
    certificate = icn.Certificate.of(model, icn.Region.around(model, 0.0), [icn.TaskFloor("any", 1, 1, 1)])
    certificate.save(tmp_path / "model.icn")
    assert (tmp_path / "model.icn").stat().st_size < 2000
    read = icn.Certificate.load(tmp_path / "model.icn")
    assert icn.verify(model, read) and icn.verify(model.state_dict(), read)
    read.save(tmp_path / "again.icn")
    assert (tmp_path / "again.icn").read_bytes() == (tmp_path / "model.icn").read_bytes()


def first_version(path: Path, certificate: icn.Certificate) -> None:
    """Write a certificate as the first release did: points as tensors, and one hash for the whole file."""
    tensors, record = {}, json.loads(Record("a", "by hand", certificate.tasks, {}, {}).metadata()["record"])
    del record["frozen"]
    for name, low in certificate.region.lower.items():
        if torch.equal(low, certificate.region.upper[name]):
            tensors[f"point/{name}"] = low
        else:
            tensors[f"lower/{name}"], tensors[f"upper/{name}"] = low, certificate.region.upper[name]
    metadata = {"format": FORMAT, "version": "1", "record": json.dumps(record), "sha256": "0" * 64}
    plain = safetensors.torch.save(tensors)
    size = int.from_bytes(plain[:8], "little")
    text = json.dumps({"__metadata__": metadata, **json.loads(plain[8 : 8 + size])}, separators=(",", ":")).encode()
    content = len(text).to_bytes(8, "little") + text + plain[8 + size :]
    digits = hashlib.sha256(content).hexdigest().encode()
    path.write_bytes(content.replace(b'"sha256":"' + b"0" * 64, b'"sha256":"' + digits, 1))


def test_files_of_the_first_version_are_read(tmp_path: Path) -> None:
    model, path = with_statistics(), tmp_path / "model.icn"
    written = certificate(model)
    first_version(path, written)
    read = icn.Certificate.load(path)
    assert same(edges(read.region), edges(written.region)) and read.tasks == written.tasks
    save_weights(model, tmp_path / "model.safetensors")
    assert icn.verify(tmp_path / "model.safetensors", path) == icn.verify(model.state_dict(), read)
    model.get_buffer("1.running_mean").add_(0.5)
    save_weights(model, tmp_path / "model.safetensors")
    with pytest.raises(icn.Violation, match=r"'1\.running_mean' lies 0\.5 outside"):
        icn.verify(tmp_path / "model.safetensors", path)
    content = path.read_bytes()
    for place in (300, len(content) - 1):
        spoilt = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        refused(path, spoilt)
        with pytest.raises(CertificateError):
            icn.verify(tmp_path / "model.safetensors", path)


def test_files_that_know_nothing_of_constants_are_read(tmp_path: Path) -> None:
    model, path = mlp(hidden=2), tmp_path / "model.icn"
    model.register_buffer("order", torch.arange(3))
    certificate(model).save(path)
    changed = {**snapshot(model), "order": torch.tensor([2, 1, 0])}
    with pytest.raises(icn.Violation, match="'order' is frozen and has changed"):
        icn.verify(changed, path)
    record = json.loads(read_header(path, path.read_bytes())["record"])
    assert record["constants"]["order"]["dtype"] == "I64" and record["constants"]["order"]["shape"] == [3]
    del record["constants"]
    path.write_bytes(resealed(path, record=json.dumps(record)))
    read = icn.Certificate.load(path)
    assert read.constants is None and icn.verify(changed, read)
    read.save(tmp_path / "again.icn")
    assert icn.Certificate.load(tmp_path / "again.icn").constants is None, "nothing was made up"


def test_a_certificate_in_place_of_weights_is_named(saved: Path) -> None:
    with pytest.raises(CertificateError, match=r"model\.icn is a certificate, not weights: give the .*safetensors"):
        load_weights(saved)


def test_edges_that_share_memory_can_be_saved(tmp_path: Path) -> None:
    shared = torch.zeros(4)
    region = icn.Region({"a": shared, "b": shared[:2]}, {"a": shared + 1, "b": shared[:2] + 1})
    icn.Certificate(region, (), "none").save(tmp_path / "model.icn")
    assert same(edges(icn.Certificate.load(tmp_path / "model.icn").region), edges(region))


def test_the_file_is_plain_safetensors_and_says_what_it_promises(saved: Path) -> None:
    metadata = read_header(saved, saved.read_bytes())
    assert metadata["format"] == FORMAT and metadata["version"] == str(FORMAT_VERSION)
    record = json.loads(metadata["record"])
    assert "TF32" in record["promise"]
    assert [task["task"] for task in record["tasks"]] == ["task 0", "task 1"]


def test_weights_make_a_round_trip(tmp_path: Path) -> None:
    model = with_statistics()
    save_weights(model, tmp_path / "model.safetensors")
    assert same(load_weights(tmp_path / "model.safetensors"), snapshot(model))


def test_a_model_with_tied_weights_can_be_saved(tmp_path: Path) -> None:
    layer = nn.Linear(2, 2)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    save_weights(model, tmp_path / "model.safetensors")
    assert same(load_weights(tmp_path / "model.safetensors"), snapshot(model))


@pytest.mark.parametrize("content", [None, b"", b"not safetensors at all", "a folder"])
def test_weights_that_cannot_be_read_are_refused(tmp_path: Path, content: bytes | str | None) -> None:
    path = tmp_path / "model.safetensors"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content:
        path.mkdir()
    with pytest.raises(CertificateError, match=r"cannot read weights from .*model\.safetensors"):
        load_weights(path)


# Written whole or not at all.


@contextmanager
def full_disk(after: int) -> Iterator[None]:
    """Really refuse to let any file grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (after, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("space", [0, 1, 700])
def test_a_full_disk_leaves_the_old_file_and_no_litter(saved: Path, space: int) -> None:
    before = saved.read_bytes()
    with (
        full_disk(after=space),
        pytest.raises(WriteError, match=r"cannot write .*model\.icn: .*Nothing was changed: check .* space left"),
    ):
        certificate(radius=0.5).save(saved)
    assert saved.read_bytes() == before
    assert only_file(saved)
    assert len(icn.Certificate.load(saved).tasks) == 2


def test_a_full_disk_leaves_nothing_where_nothing_was(tmp_path: Path) -> None:
    with full_disk(after=100), pytest.raises(WriteError):
        certificate().save(tmp_path / "model.icn")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyboardInterrupt()])
def test_a_failure_before_the_swap_leaves_the_old_file_and_no_litter(
    saved: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    before = saved.read_bytes()

    def fail(handle: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises((WriteError, KeyboardInterrupt)):
        certificate(radius=0.5).save(saved)
    assert saved.read_bytes() == before and only_file(saved)


def test_a_folder_that_is_missing_or_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("regular")
    for path in (tmp_path / "missing" / "model.icn", tmp_path / "file" / "model.icn"):
        with pytest.raises(WriteError, match=r"cannot write .*model\.icn: (No such file|Not a directory)"):
            certificate().save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(WriteError, match="Permission denied"):
            certificate().save(tmp_path / "model.icn")
    finally:
        tmp_path.chmod(0o755)
    assert not list(tmp_path.iterdir())


def test_a_directory_in_the_way_stays(tmp_path: Path) -> None:
    target = tmp_path / "model.icn"
    target.mkdir()
    with pytest.raises(WriteError, match=r"cannot write .*model\.icn"):
        write_atomically(target, b"content")
    assert target.is_dir() and only_file(target)


def being_read(path: Path, most: int = -1) -> tuple[Thread, list[bytes]]:
    """A pipe, and a thread that reads so many bytes from it, or all, and leaves; no failing test waits for it."""
    os.mkfifo(path)
    found: list[bytes] = []

    def read() -> None:
        with open(path, "rb", buffering=0) as file:
            found.append(file.readall() if most < 0 else file.read(most))

    reader = Thread(target=read, daemon=True)
    reader.start()
    return reader, found


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    path, content = tmp_path / "pipe", bytes(range(256)) * 1024  # more than a pipe holds
    reader, found = being_read(path)
    write_atomically(path, content)
    assert stat.S_ISFIFO(path.stat().st_mode) and only_file(path)
    reader.join(timeout=60)
    assert found == [content]


def test_a_pipe_that_takes_too_little_is_named_and_stays_one(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    being_read(path, most=1)
    with pytest.raises(WriteError, match=r"cannot write to .*pipe: Broken pipe"):
        write_atomically(path, bytes(1 << 20))
    assert stat.S_ISFIFO(path.stat().st_mode) and only_file(path)


def test_writing_leaves_the_umask_alone_which_is_every_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(mask: int) -> int:
        raise AssertionError("the umask was set")

    monkeypatch.setattr(os, "umask", asked)
    write_atomically(tmp_path / "file", b"content")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o666 & ~_UMASK
