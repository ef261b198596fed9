"""Files that are whole or not there: atomic writes, and a safetensors file that carries a hash of all its bytes."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from intercontinet.errors import CertificateError, WriteError

_BLANK = "0" * 64
_MARK = b'"sha256":"'
_LONGEST_HEADER = 100_000_000


def write_atomically(path: str | Path, content: bytes) -> None:
    """Write a file so that it is complete or, on any failure, as it was before.

    Raises:
        WriteError: The folder is missing or read-only, the disk is full, ...
    """
    target = Path(path).resolve()
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, target.stat().st_mode if target.exists() else 0o666 & ~_umask())
        os.replace(temporary, target)
    except BaseException as error:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        if not isinstance(error, OSError):
            raise
        raise WriteError(
            f"cannot write {target}: {error.strerror or error}. Nothing was changed: check folder and space left"
        ) from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def save_weights(model: nn.Module, path: str | Path) -> None:
    """A model's state dict as plain safetensors."""
    write_atomically(path, safetensors.torch.save(_apart(model.state_dict())))


def load_weights(path: str | Path) -> dict[str, Tensor]:
    """A state dict from safetensors.

    Raises:
        CertificateError: The file cannot be read as safetensors.
    """
    try:
        return safetensors.torch.load_file(str(path))
    except (OSError, safetensors.SafetensorError) as error:
        raise CertificateError(f"cannot read weights from {path}: {error}") from error


def seal(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """A safetensors file whose metadata holds the SHA-256 of the whole file, counted with that field zeroed."""
    plain = safetensors.torch.save(_apart(tensors))
    size = int.from_bytes(plain[:8], "little")
    header = {"__metadata__": {**metadata, "sha256": _BLANK}, **json.loads(plain[8 : 8 + size])}
    text = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()  # safetensors itself shuffles metadata
    text += b" " * (-len(text) % 8)
    content = len(text).to_bytes(8, "little") + text + plain[8 + size :]
    return content.replace(_MARK + _BLANK.encode(), _MARK + hashlib.sha256(content).hexdigest().encode(), 1)


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that share no memory, which safetensors refuses."""
    return {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}


def read_header(path: str | Path, content: bytes) -> dict[str, str]:
    """The metadata of a safetensors file's bytes.

    Raises:
        CertificateError: It is no safetensors file, or is cut short.
    """
    size = int.from_bytes(content[:8], "little") if len(content) >= 8 else -1
    if size < 0 or size > _LONGEST_HEADER or 8 + size > len(content):
        raise CertificateError(
            f"{path} is not a certificate, or is cut short ({len(content)} bytes): take a fresh copy"
        )
    try:
        header = json.loads(content[8 : 8 + size])
        return {str(key): str(value) for key, value in header.get("__metadata__", {}).items()}
    except (ValueError, AttributeError, RecursionError):
        raise CertificateError(f"{path} is not a certificate: its header cannot be read") from None


def unseal(path: str | Path, content: bytes) -> dict[str, Tensor]:
    """The tensors of a sealed file, if not one bit of it has changed.

    Raises:
        CertificateError: The hash does not fit the bytes.
    """
    start = content.find(_MARK) + len(_MARK)
    claimed = content[start : start + 64]
    blank = content[:start] + _BLANK.encode() + content[start + 64 :]
    if start < len(_MARK) or hashlib.sha256(blank).hexdigest().encode() != claimed:
        raise CertificateError(f"{path} was altered or damaged: its bytes do not fit their SHA-256. Take a fresh copy")
    try:
        return safetensors.torch.load(content)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise CertificateError(f"{path} holds no readable tensors: {error}") from error
