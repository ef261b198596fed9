"""The file formats that MNIST, FashionMNIST and CIFAR come in, read with care: a damaged file is named."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from intercontinet.errors import InvalidData

Bytes = NDArray[np.uint8]
_UNSIGNED_BYTE = 0x08
_PIXELS = 3 * 32 * 32
AFRESH = "Delete it, and it is downloaded afresh"


def read_idx(path: Path) -> Bytes:
    """An idx file of unsigned bytes, gzipped or not: a magic number, the sizes, the values.

    Raises:
        InvalidData: It cannot be read, has another magic number, or is not as long as its sizes say.
    """
    content = _content(path)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTE or not content[3]:
        number = content[:4].hex() or "missing"
        raise InvalidData(f"{path} is no idx file of bytes: its magic number is {number}. {AFRESH}")
    start = 4 + 4 * content[3]
    sizes = [int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4)]
    wanted = start + int(np.prod(sizes, dtype=object))
    if len(content) != wanted:
        raise InvalidData(f"{path} holds {len(content)} bytes where {wanted} belong. {AFRESH}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(sizes)


def read_cifar(path: Path, labels: int) -> tuple[Bytes, Bytes]:
    """CIFAR's binary version: records of one or more label bytes and 3 x 32 x 32 pixels.

    Args:
        path: The file.
        labels: Label bytes a record has: 1 in CIFAR-10, 2 (coarse, fine) in CIFAR-100.

    Returns:
        Images [n, 3, 32, 32] and the last label of each, [n].

    Raises:
        InvalidData: It cannot be read, or does not consist of whole records.
    """
    content = _content(path)
    record = labels + _PIXELS
    if not content or len(content) % record:
        raise InvalidData(f"{path} holds {len(content)} bytes, not a whole number of {record}-byte records. {AFRESH}")
    table = np.frombuffer(content, np.uint8).reshape(-1, record)
    return table[:, labels:].reshape(-1, 3, 32, 32), table[:, labels - 1]


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidData(f"{path} is cut short or damaged: {error}. {AFRESH}") from error
    except OSError as error:
        raise InvalidData(f"cannot read {path}: {error.strerror or error}") from error
