"""The .icn file: whatever is not exactly what was written, or makes no sense, is refused."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
import safetensors.torch
import torch

import intercontinet as icn
from intercontinet.errors import CertificateError
from intercontinet.files import read_header, seal
from intercontinet.record import FORMAT_VERSION
from tests.test_files import certificate, edges, refused, resealed
from tests.tiny import same


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.icn"
    certificate().save(path)
    return path


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
        {"unseen_certified": 1.5, "unseen_total": 4},
        {"unseen_certified": "1", "unseen_total": 4},
        {"unseen_certified": 1, "unseen_total": math.nan},
    ],
    ids=str,
)
def test_counts_that_cannot_be_of_one_set_of_examples_are_refused(saved: Path, counts: dict[str, object]) -> None:
    assert "the counts of task 'task 0' make no sense" in refused(saved, with_counts(saved, **counts))


@pytest.mark.parametrize("unseen", [(0, 0), (0, 8), (1, 10), (9, 10), (40, 48)])
def test_counts_of_what_was_held_back_are_read(saved: Path, unseen: tuple[int, int]) -> None:
    saved.write_bytes(with_counts(saved, unseen_certified=unseen[0], unseen_total=unseen[1]))
    floor = icn.Certificate.load(saved).tasks[0]
    assert (floor.unseen_certified, floor.unseen_total) == unseen


def test_a_file_that_knows_nothing_of_unseen_examples_is_read(saved: Path) -> None:
    saved.write_bytes(with_counts(saved))
    floor = icn.Certificate.load(saved).tasks[0]
    assert (floor.certified, floor.unseen_total, floor.unseen_floor) == (40, None, None)
