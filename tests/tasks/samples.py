"""Files of tiny data sets, in the formats of the real ones."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from intercontinet.tasks import IMAGE_SETS
from intercontinet.tasks.formats import Bytes
from tests.tasks.mirror import Mirror

CIFAR_TEST: dict[str, bytes | tarfile.TarInfo] = {
    "cifar-100-binary/test.bin": bytes(2 * 3074),
    "cifar-100-binary/fine_label_names.txt": b"apple\n",
}


def idx(values: Bytes) -> bytes:
    """An array as an idx file."""
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return bytes([0, 0, 8, values.ndim]) + sizes + values.tobytes()


def tiny_idx_files() -> dict[str, bytes]:
    """Twenty training and ten test images, by the names of MNIST's files; noise, which does not compress."""
    generator = np.random.default_rng(0)
    files = {}
    for file, count in zip(IMAGE_SETS["mnist"].files, (20, 20, 10, 10), strict=True):
        labels = np.arange(count, dtype=np.uint8) % 10
        files[file] = idx(generator.integers(0, 256, (count, 28, 28), np.uint8) if "images" in file else labels)
    return files


def tar(members: dict[str, bytes | tarfile.TarInfo]) -> bytes:
    """A gzipped tar archive of files, and of members made by hand."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                archive.addfile(content)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def left_over(folder: Path) -> list[str]:
    """Names of what is in a folder."""
    return sorted(path.name for path in folder.iterdir())


def serve_cifar(mirror: Mirror, monkeypatch: pytest.MonkeyPatch, members: dict[str, bytes | tarfile.TarInfo]) -> None:
    """Put an archive of these members on the mirror as CIFAR-100."""
    remote = mirror.add("cifar-100-binary.tar.gz", tar(members))
    tiny = replace(IMAGE_SETS["cifar-100"], remotes=(remote,), train=4, test=2, counts=None)
    monkeypatch.setitem(IMAGE_SETS, "cifar-100", tiny)
