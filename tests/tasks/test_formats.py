"""idx and CIFAR files: whole ones are read as they are, damaged ones are named."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from intercontinet.errors import InvalidData
from intercontinet.tasks.formats import read_cifar, read_idx
from tests.tasks.samples import idx

VALUES = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files_come_back_as_they_were_written(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / ("values.gz" if zipped else "values")
    path.write_bytes(gzip.compress(idx(VALUES)) if zipped else idx(VALUES))
    assert np.array_equal(read_idx(path), VALUES)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "magic number is missing"),
        (b"\0\0\x0d\x01" + bytes(8), "magic number is 00000d01"),
        (b"\x89PNG" + bytes(99), "magic number is 89504e47"),
        (idx(VALUES)[:-1], "holds 39 bytes where 40 belong"),
        (idx(VALUES) + b"\0", "holds 41 bytes where 40 belong"),
        (b"\0\0\x08\x03\0\0", "bytes where"),
        (b"\0\0\x08\x02" + b"\xff" * 8, "bytes where"),
    ],
)
def test_damaged_idx_files_are_named(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "train-images"
    path.write_bytes(content)
    with pytest.raises(InvalidData, match=words) as error:
        read_idx(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("cut", [1, 10, 30])
def test_a_gzip_file_cut_short_is_named(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "labels.gz"
    path.write_bytes(gzip.compress(idx(VALUES))[:-cut])
    with pytest.raises(InvalidData, match="damaged"):
        read_idx(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match=r"cannot read .*nothing"):
        read_idx(tmp_path / "nothing")


@pytest.mark.parametrize("labels", [1, 2])
def test_cifar_records_are_taken_apart(tmp_path: Path, labels: int) -> None:
    generator = np.random.default_rng(0)
    table = generator.integers(0, 256, (3, labels + 3072), dtype=np.uint8)
    path = tmp_path / "batch.bin"
    path.write_bytes(table.tobytes())
    images, own = read_cifar(path, labels)
    assert np.array_equal(own, table[:, labels - 1])
    assert images[2, 1, 5, 7] == table[2, labels + 1024 + 5 * 32 + 7]
    path.write_bytes(table.tobytes()[:-5])
    with pytest.raises(InvalidData, match="whole number"):
        read_cifar(path, labels)
    path.write_bytes(b"")
    with pytest.raises(InvalidData, match="whole number"):
        read_cifar(path, labels)
