"""Headers of safetensors files: what is accepted is what safetensors itself reads, and nothing that cannot be."""

from __future__ import annotations

import hashlib
import io
import json
from typing import Any

import pytest
import safetensors.torch
import torch

from intercontinet.files import seal
from intercontinet.header import BLOCK, BYTES, parse_header


def entry(start: int, end: int, shape: list[Any] | None = None, dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": [(end - start) // 4] if shape is None else shape, "data_offsets": [start, end]}


def parsed(header: dict[str, object] | bytes, data: int = 0) -> object:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return parse_header(io.BytesIO(len(text).to_bytes(8, "little") + text + bytes(data)))


def test_what_safetensors_writes_is_read() -> None:
    tensors = {name: torch.zeros(3, dtype=dtype) for name, dtype in safetensors.torch._TYPES.items()}
    tensors |= {"none": torch.zeros(0, 4), "number": torch.tensor(1.0)}
    content = safetensors.torch.save(tensors, {"key": "word"})
    header = parse_header(io.BytesIO(content))
    assert header.metadata == {"key": "word"} and header.end == len(content)
    assert list(header.tensors) == sorted(tensors)
    for name, place in header.tensors.items():
        assert place.shape == tuple(tensors[name].shape)
        assert place.end - place.start == tensors[name].numel() * tensors[name].element_size()
    assert set(safetensors.torch._TYPES) <= set(BYTES), "every type that torch has a name for"


@pytest.mark.parametrize(
    ("header", "data", "complaint"),
    [
        (b"", 0, "header cannot be read"),
        (b"[]", 0, "header cannot be read"),
        (b" {}", 0, "header cannot be read"),
        (b'{"a":' * 100_000, 0, "header cannot be read"),
        (b'{"__metadata__":{"a":"1","a":"2"}}', 0, "header cannot be read"),
        (b'{"__metadata__":{"\\ud800":""}}', 0, "header cannot be read"),
        ("{}".encode("utf-16"), 0, "header cannot be read"),
        ({"__metadata__": {"a": 1}}, 0, "metadata are not words"),
        ({"a": 3}, 0, "does not say where 'a' lies"),
        ({"a": {"dtype": "F32", "shape": [1]}}, 4, "does not say where 'a' lies"),
        ({"a": entry(0, 4) | {"more": 1}}, 4, "does not say where 'a' lies"),
        ({"a": entry(0, 4, dtype="F31")}, 4, "'a' is of an unknown type: F31"),
        ({"a": entry(0, 4, dtype=["F32"])}, 4, "'a' is of an unknown type"),
        ({"a": entry(0, 4, [True])}, 4, "'a' has a shape or place that makes no sense"),
        ({"a": entry(0, 4, [-1, -1])}, 4, "'a' has a shape or place"),
        ({"a": entry(0, 4, [1.0])}, 4, "'a' has a shape or place"),
        ({"a": entry(0, 4, [1] * 65)}, 4, "'a' has a shape or place"),
        ({"a": entry(0, 0, [0, 2**40, 2**40])}, 0, "'a' has a shape or place"),
        ({"a": entry(-4, 0)}, 4, "'a' has a shape or place"),
        ({"a": entry(0, 4, [2])}, 4, "'a' has a shape that its bytes do not fit"),
        ({"a": entry(4, 0, [1])}, 4, "'a' has a shape that its bytes do not fit"),
        ({"a": entry(4, 8)}, 8, "overlap, leave gaps"),
        ({"a": entry(0, 4), "b": entry(8, 12)}, 12, "overlap, leave gaps"),
        ({"a": entry(0, 8), "b": entry(4, 12)}, 12, "overlap, leave gaps"),
        ({"a": entry(0, 4), "b": entry(0, 4)}, 4, "overlap, leave gaps"),
        ({"a": entry(0, 4)}, 8, "do not end with the file"),
        ({"a": entry(0, 8)}, 4, "do not end with the file"),
        ({}, 1, "do not end with the file"),
    ],
)
def test_what_cannot_be_is_refused(header: dict[str, object] | bytes, data: int, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parsed(header, data)


@pytest.mark.parametrize("content", [b"", bytes(7), (3).to_bytes(8, "little") + b"{}", b"\xff" * 16])
def test_what_is_cut_short_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=rf"cut short \({len(content)} bytes\)"):
        parse_header(io.BytesIO(content))


@pytest.mark.parametrize("entries", [0, 1, BLOCK // 4, BLOCK // 4 + 1])
def test_a_sealed_file_has_a_hash_for_every_block(entries: int) -> None:
    content = seal({"w": torch.ones(entries)}, {"key": "word"})
    header = parse_header(io.BytesIO(content))
    blocks = header.blocks()
    assert header.sealed() and blocks is not None
    assert b"".join(content[at:end] for at, end, _ in blocks) == content[len(header.raw) :]
    assert all(hashlib.sha256(content[at:end]).digest() == known for at, end, known in blocks)
    assert len(blocks) == -(-4 * entries // BLOCK)
    header.metadata["blocks"] += "00" * 32
    with pytest.raises(ValueError, match="not one hash for every block"):
        header.blocks()
