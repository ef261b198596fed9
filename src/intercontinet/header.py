"""The header of a safetensors file, read without trust and without torch; and the seal that covers the whole file."""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, final

from intercontinet.errors import CertificateError

BLOCK = 4 * 2**20  # bytes of tensor data that have a hash of their own
BLANK = b"0" * 64
MARK = b'"sha256":"'
LONGEST = 100_000_000  # bytes, as safetensors itself allows
BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E5M2FNUZ", "F8_E4M3FNUZ"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 8),
}


@final
@dataclass(frozen=True)
class Stored:
    """Where a tensor lies.

    Attributes:
        dtype: Its type, as safetensors calls it.
        shape: Its shape.
        start: Its first byte, counted from the start of the file.
        end: The byte after its last.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@final
@dataclass(frozen=True)
class Header:
    """What a safetensors file says of itself.

    Attributes:
        metadata: Words by name.
        tensors: Where each tensor lies, by name, in the order of names.
        raw: The bytes before the tensors: the length of the header, and the header.
        end: The file's length in bytes.
    """

    metadata: dict[str, str]
    tensors: dict[str, Stored]
    raw: bytes
    end: int

    @property
    def claimed(self) -> str:
        """The SHA-256 that the file carries."""
        return self.metadata.get("sha256", "")

    def sealed(self) -> bool:
        """Whether the header fits the SHA-256 that it carries, which is counted with its 64 digits as zeros."""
        return hashlib.sha256(blanked(self.raw)).hexdigest() == self.claimed

    def blocks(self) -> list[tuple[int, int, bytes]] | None:
        """First byte, end and SHA-256 of each block of tensor data; None where one hash covers the whole file.

        Raises:
            ValueError: There are too few or too many hashes.
        """
        if "blocks" not in self.metadata:
            return None
        digests = bytes.fromhex(self.metadata["blocks"])
        starts = range(len(self.raw), self.end, BLOCK)
        if len(digests) != 32 * len(starts):
            raise ValueError("there is not one hash for every block")
        return [(at, min(at + BLOCK, self.end), digests[32 * i : 32 * i + 32]) for i, at in enumerate(starts)]


def blanked(raw: bytes) -> bytes:
    """A header with zeros in place of the digits of its own hash."""
    start = raw.find(MARK) + len(MARK)
    return raw[:start] + BLANK + raw[start + 64 :]


@contextmanager
def opened(path: str | Path) -> Iterator[BinaryIO]:
    """A regular file, to be read. Anything else, a pipe for one, might never end.

    Raises:
        OSError: It is not there, or is not a regular file.
    """
    kind = os.stat(path).st_mode
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(21, "Is a directory")
    if not stat.S_ISREG(kind):
        raise OSError(22, "Not a regular file")
    with open(path, "rb", buffering=0) as file:
        yield file


def weights_header(path: str | Path) -> Header:
    """The header of a file of weights.

    Raises:
        CertificateError: It cannot be read as safetensors.
    """
    try:
        with opened(path) as file:
            return parse_header(file)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise CertificateError(f"cannot read weights from {path}: {why}") from error


def certificate_header(path: str | Path, file: BinaryIO) -> Header:
    """The header of a sealed file.

    Raises:
        CertificateError: It is no safetensors file, or is cut short.
    """
    try:
        return parse_header(file)
    except ValueError as error:
        raise CertificateError(f"{path} is not a certificate: {error}") from None


def unreadable(path: str | Path, error: OSError) -> CertificateError:
    return CertificateError(f"cannot read {path}: {error.strerror or error}")


def parse_header(file: BinaryIO) -> Header:
    """Read and check the header: its tensors must fill the rest of the file, without gaps and without overlap.

    Raises:
        ValueError: The file is no safetensors file, is cut short, or says things about itself that cannot be.
    """
    end = file.seek(0, os.SEEK_END)
    file.seek(0)
    length = int.from_bytes(file.read(8), "little") if end >= 8 else -1
    if not 0 <= length <= min(LONGEST, end - 8):
        raise ValueError(f"not safetensors, or cut short ({end} bytes): take a fresh copy")
    file.seek(0)
    raw = file.read(8 + length)
    try:
        text = raw[8:].decode()
        header = _object(json.loads(text, object_pairs_hook=_once)) if text.startswith("{") else None
    except (ValueError, RecursionError):
        header = None
    if header is None:
        raise ValueError("its header cannot be read")
    metadata = _object(header.pop("__metadata__", {}))
    if metadata is None or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its header cannot be read: the metadata are not words")
    tensors = {name: _stored(name, header[name], len(raw)) for name in sorted(header)}
    edges = [len(raw), *(e for s in sorted((t.start, t.end) for t in tensors.values()) for e in s), end]
    if any(one != other for one, other in zip(edges[::2], edges[1::2], strict=True)):
        raise ValueError("its tensors overlap, leave gaps, or do not end with the file: take a fresh copy")
    return Header(metadata, tensors, raw, end)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object none of whose keys occurs twice, or is no Unicode."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key occurs twice")
    for key, value in pairs:
        key.encode()
        if isinstance(value, str):
            value.encode()
    return made


def _object(value: object) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def is_size(value: object) -> bool:
    """Whether a value from JSON is a whole number that a length or a place in a file can be."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _stored(name: str, entry: object, data: int) -> Stored:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"its header does not say where '{name}' lies")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BYTES:
        raise ValueError(f"'{name}' is of an unknown type: {str(dtype)[:40]}")
    for numbers in (shape, offsets):
        if not isinstance(numbers, list) or len(numbers) > 64 or not all(map(is_size, numbers)):
            raise ValueError(f"'{name}' has a shape or place that makes no sense")
    if len(offsets) != 2 or math.prod(n for n in shape if n) >= 2**63:
        raise ValueError(f"'{name}' has a shape or place that makes no sense")
    start, end = offsets
    if end - start != math.prod(shape) * BYTES[dtype]:
        raise ValueError(f"'{name}' has a shape that its bytes do not fit")
    return Stored(dtype, tuple(shape), data + start, data + end)
