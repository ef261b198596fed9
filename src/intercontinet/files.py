"""Files that are whole or not there: atomic writes, and a safetensors file that carries a hash of all its bytes."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from intercontinet.errors import CertificateError, InvalidSetting, WriteError
from intercontinet.header import BLANK, BLOCK, MARK, Header, blanked, certificate_header, weights_header
from intercontinet.record import altered, check_weights


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


_UMASK = _umask()  # once, before there are threads: it can only be read by setting it, for all of them


def write_atomically(path: str | Path, content: bytes) -> None:
    """Write a file so that it is complete or, on any failure, as it was before.

    What is there already and is no file, a device or a pipe such as /dev/stdout, is written to as it is.

    Raises:
        WriteError: The folder is missing or read-only, the disk is full, ...
    """
    if _takes_bytes(path):
        _write_into(path, content)
        return
    target = Path(path).resolve()
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, target.stat().st_mode if target.exists() else 0o666 & ~_UMASK)
        os.replace(temporary, target)
    except BaseException as error:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        if not isinstance(error, OSError):
            raise
        raise WriteError(
            f"cannot write {target}: {error.strerror or error}. Nothing was changed: check folder and space left"
        ) from error


def check_writable(path: Path, what: str) -> None:
    """Refuse a file that :func:`write_atomically` could not write, which is better known before long work than after.

    Raises:
        InvalidSetting: It is a folder, or its own is missing; ``what`` names the option.
        WriteError: Its folder takes no file.
    """
    if _takes_bytes(path):
        return
    if path.is_dir():
        raise InvalidSetting(f"{what}: {path} is a folder: name a file in it")
    target = path.resolve()
    if not target.parent.is_dir():
        raise InvalidSetting(f"{what}: there is no folder {path.parent}: make it, or choose another file")
    try:
        tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.").close()
    except OSError as error:
        raise WriteError(f"{what}: cannot write {path}: {error.strerror}. Choose another file") from error


def _takes_bytes(path: str | Path) -> bool:
    """Whether something is there that is neither a file nor a folder: putting a file in its place would destroy it."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _write_into(path: str | Path, content: bytes) -> None:
    try:
        with open(path, "wb") as file:
            file.write(content)
    except OSError as error:
        raise WriteError(
            f"cannot write to {path}: {error.strerror or error}. It is a device or a pipe: choose a file, or one that "
            "takes it all"
        ) from error


def save_weights(model: nn.Module, path: str | Path) -> None:
    """A model's state dict as plain safetensors."""
    write_atomically(path, safetensors.torch.save(_apart(model.state_dict())))


def load_weights(path: str | Path) -> dict[str, Tensor]:
    """A state dict from safetensors.

    Raises:
        CertificateError: The file cannot be read as safetensors, or is a certificate.
    """
    check_weights(path, weights_header(path).metadata)
    try:
        return dict(sorted(safetensors.torch.load_file(str(path)).items()))
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise CertificateError(f"cannot read weights from {path}: {error}") from error


def seal(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """A safetensors file that vouches for all its bytes.

    Its metadata hold ``blocks``, the SHA-256 of each 4 MiB of tensor data one after the other, and ``sha256``, that of
    all before the data, counted with its own digits as zeros.
    """
    plain = safetensors.torch.save(_apart(tensors))
    size = int.from_bytes(plain[:8], "little")
    header, data = json.loads(plain[8 : 8 + size]), memoryview(plain)[8 + size :]
    blocks = "".join(hashlib.sha256(data[at : at + BLOCK]).hexdigest() for at in range(0, len(data), BLOCK))
    header = {"__metadata__": {**metadata, "blocks": blocks, "sha256": BLANK.decode()}, **header}
    text = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()  # safetensors itself shuffles metadata
    text += b" " * (-len(text) % 8)
    raw = len(text).to_bytes(8, "little") + text
    raw = raw.replace(MARK + BLANK, MARK + hashlib.sha256(raw).hexdigest().encode(), 1)
    return b"".join((raw, data))


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that share no memory, which safetensors refuses."""
    return {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}


def read_header(path: str | Path, content: bytes) -> dict[str, str]:
    """The metadata of a sealed file's bytes.

    Raises:
        CertificateError: It is no safetensors file, or is cut short.
    """
    return certificate_header(path, io.BytesIO(content)).metadata


def unseal(path: str | Path, content: bytes) -> dict[str, Tensor]:
    """The tensors of a sealed file, if not one bit of it has changed.

    Raises:
        CertificateError: A hash does not fit the bytes.
    """
    if not _intact(certificate_header(path, io.BytesIO(content)), content):
        raise altered(path)
    try:
        return safetensors.torch.load(content)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise CertificateError(f"{path} holds no readable tensors: {error}") from error


def _intact(header: Header, content: bytes) -> bool:
    try:
        blocks = header.blocks()
    except ValueError:
        return False
    if blocks is None:  # as files of format version 1 are
        whole = hashlib.sha256(blanked(header.raw))
        whole.update(memoryview(content)[len(header.raw) :])
        return header.claimed == whole.hexdigest()
    data = memoryview(content)
    return header.sealed() and all(hashlib.sha256(data[at:end]).digest() == known for at, end, known in blocks)
