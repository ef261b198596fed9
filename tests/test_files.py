"""The .icn file: exact, atomic, and refusing whatever is not exactly what was written."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import intercontinet as icn
from intercontinet.errors import CertificateError, WriteError
from intercontinet.files import load_weights, read_header, save_weights, seal, unseal, write_atomically
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


# Refused, whatever is wrong with it.


def refused(path: Path, content: bytes) -> str:
    """The complaint about a file with this content; it must be a CertificateError."""
    path.write_bytes(content)
    with pytest.raises(CertificateError) as caught:
        icn.Certificate.load(path)
    message = str(caught.value)
    assert str(path) in message
    return message


def test_every_truncation_is_refused(saved: Path) -> None:
    content = saved.read_bytes()
    for length in range(len(content)):
        refused(saved, content[:length])


def test_every_flipped_bit_of_the_header_and_many_of_the_data_are_refused(saved: Path) -> None:
    content = saved.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    dice = random.Random(0)
    everywhere = [(place, bit) for place in range(8) for bit in range(8)]
    everywhere += [(place, bit) for place in range(8, header) for bit in range(8)]
    everywhere += [(dice.randrange(header, len(content)), dice.randrange(8)) for _ in range(600)]
    accepted = []
    for place, bit in everywhere:
        damaged = bytearray(content)
        damaged[place] ^= 1 << bit
        saved.write_bytes(damaged)
        try:
            icn.Certificate.load(saved)
            accepted.append((place, bit))
        except CertificateError:
            pass
    assert len(everywhere) > 5000
    assert not accepted


def test_added_swapped_and_zeroed_bytes_are_refused(saved: Path) -> None:
    content = saved.read_bytes()
    assert "do not end with the file" in refused(saved, content + b"\0")
    refused(saved, b"\0" + content)
    swapped = content[:-8] + content[-4:] + content[-8:-4]
    assert swapped != content and "altered or damaged" in refused(saved, swapped)
    refused(saved, bytes(len(content)))


def test_an_empty_file_another_kind_of_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.icn"
    assert "cut short (0 bytes)" in refused(path, b"")
    for content in (b"{}", b"PK\3\4" + bytes(100), b"\x89PNG\r\n\x1a\n" + bytes(64), b"just a line of text\n"):
        assert "not a certificate" in refused(path, content)
    for header in (b"[]", b'{"__metadata__":3}', b"[" * 100_000, b"\xff\xfe", b'{"__metadata__":null}'):
        assert "header cannot be read" in refused(path, len(header).to_bytes(8, "little") + header)
    assert "no certificate of this package" in refused(path, (2).to_bytes(8, "little") + b"{}")
    with pytest.raises(CertificateError, match=r"cannot read .*Is a directory"):
        icn.Certificate.load(tmp_path)
    with pytest.raises(CertificateError, match=r"cannot read .*nowhere\.icn: No such file"):
        icn.Certificate.load(tmp_path / "nowhere.icn")


def test_foreign_safetensors_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.icn"
    tensors = {"lower/w": torch.zeros(2), "upper/w": torch.ones(2)}
    refused(path, safetensors.torch.save(tensors))
    assert "no certificate of this package" in refused(path, safetensors.torch.save(tensors, {"format": "pt"}))
    assert "no certificate" in refused(path, seal(tensors, {"format": "another"}))


def resealed(path: Path, tensors: dict[str, Tensor] | None = None, **changes: str) -> bytes:
    """The file with other metadata or tensors, and a hash that fits."""
    content = path.read_bytes()
    metadata = {k: v for k, v in read_header(path, content).items() if k != "sha256"}
    return seal(unseal(path, content) if tensors is None else tensors, {**metadata, **changes})


def test_a_newer_version_asks_for_an_upgrade(saved: Path) -> None:
    newer = resealed(saved, version=str(FORMAT_VERSION + 1))
    assert "version '3'; this release reads 1 to 2: upgrade intercontinet" in refused(saved, newer)


def test_resealing_without_a_change_is_accepted(saved: Path) -> None:
    before = icn.Certificate.load(saved)
    saved.write_bytes(resealed(saved))
    after = icn.Certificate.load(saved)
    assert same(edges(before.region), edges(after.region)) and after.tasks == before.tasks


def test_a_sealed_file_that_makes_no_sense_is_refused(saved: Path) -> None:
    record = json.loads(read_header(saved, saved.read_bytes())["record"])
    nonsense: list[bytes] = [resealed(saved, record=text) for text in ("", "[]", "{}", "null", "3")]
    for key in record:
        if key not in ("promise", "constants"):
            nonsense.append(resealed(saved, record=json.dumps({k: v for k, v in record.items() if k != key})))
    nonsense.append(resealed(saved, record=json.dumps({**record, "tasks": [{"task": "x"}]})))
    w, names = torch.zeros(2), ("w", "lower/w", "middle/w")
    nonsense += [resealed(saved, {name: w}) for name in names]
    nonsense.append(resealed(saved, {"lower/w": w + 1, "upper/w": w}))
    nonsense.append(resealed(saved, {"lower/w": w.double(), "upper/w": w.double()}))
    nonsense.append(resealed(saved, {"lower/w": w * torch.nan, "upper/w": w}))
    nonsense.append(resealed(saved, {"point/w": w}))
    nonsense.append(resealed(saved, {"lower/w": w, "upper/w": w[:1]}))
    nonsense.append(resealed(saved, {"lower/w": w - torch.inf, "upper/w": w - torch.inf}))
    frozen = {"shape": [2], "sha256": "0" * 64}
    for spoilt in ({"w": frozen | {"shape": [-1]}}, {"w": frozen | {"sha256": "0"}}, {"w": 3}, {"0.bias": frozen}):
        nonsense.append(resealed(saved, record=json.dumps({**record, "frozen": spoilt})))
    constant = frozen | {"dtype": "I64"}
    odds: list[object] = [{"w": frozen}, {"w": constant | {"dtype": 3}}, {"w": 3}, {"0.bias": constant}, [], None]
    for odd in odds:
        nonsense.append(resealed(saved, record=json.dumps({**record, "constants": odd})))
    nonsense.append(resealed(saved, record=json.dumps({**record, "tied": {"0.bias": "2.bias"}})))
    nonsense.append(resealed(saved, record=json.dumps({**record, "method": "\ud800"})))
    for content in nonsense:
        assert "makes no sense" in refused(saved, content)


def with_counts(path: Path, **counts: object) -> bytes:
    """The file with 40 certain of 48 examples in each task, and these counts."""
    record = json.loads(read_header(path, path.read_bytes())["record"])
    for floor in record["tasks"]:
        del floor["unseen_certified"], floor["unseen_total"]
        floor |= {"certified": 40, "total": 48, "correct": 44, **counts}
    return resealed(path, record=json.dumps(record))


@pytest.mark.parametrize(
    "counts",
    [
        {"certified": -1},
        {"certified": 49},
        {"correct": 49},
        {"correct": -1},
        {"total": 0},
        {"total": 10**12},
        {"total": 48.0},
        {"certified": True},
        {"keep": math.nan},
        {"keep": "0.9"},
        {"classes": ["0"]},
        {"data": None},
        {"unseen_certified": 1},
        {"unseen_total": 1},
        {"unseen_certified": 1, "unseen_total": None},
        {"unseen_certified": -1, "unseen_total": 4},
        {"unseen_certified": 5, "unseen_total": 4},
        {"unseen_certified": 40, "unseen_total": 49},
        {"unseen_certified": 41, "unseen_total": 42},
        {"unseen_certified": 1, "unseen_total": 10},
        {"unseen_certified": 1.5, "unseen_total": 4},
        {"unseen_certified": "1", "unseen_total": 4},
        {"unseen_certified": 1, "unseen_total": math.nan},
    ],
    ids=str,
)
def test_counts_that_cannot_be_of_one_set_of_examples_are_refused(saved: Path, counts: dict[str, object]) -> None:
    assert "the counts of task 'task 0' make no sense" in refused(saved, with_counts(saved, **counts))


@pytest.mark.parametrize("unseen", [(0, 0), (0, 8), (9, 10), (40, 48)])
def test_counts_of_what_was_held_back_are_read(saved: Path, unseen: tuple[int, int]) -> None:
    saved.write_bytes(with_counts(saved, unseen_certified=unseen[0], unseen_total=unseen[1]))
    floor = icn.Certificate.load(saved).tasks[0]
    assert (floor.unseen_certified, floor.unseen_total) == unseen


def test_a_file_that_knows_nothing_of_unseen_examples_is_read(saved: Path) -> None:
    saved.write_bytes(with_counts(saved))
    floor = icn.Certificate.load(saved).tasks[0]
    assert (floor.certified, floor.unseen_total, floor.unseen_floor) == (40, None, None)
