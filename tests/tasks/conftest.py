"""Tiny data sets under the names of the real ones, in a folder of their own or on a mirror."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pooch.core
import pytest

from intercontinet.tasks import IMAGE_SETS
from tests.tasks.mirror import Mirror
from tests.tasks.samples import CIFAR_TEST, serve_cifar, tiny_idx_files


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder."""
    monkeypatch.setenv("INTERCONTINET_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def mirror(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    """A mirror with a tiny MNIST and a tiny CIFAR-100, to which all addresses of these two point."""
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(pooch.core, "time", SimpleNamespace(sleep=lambda seconds: None))  # between two attempts
    with Mirror() as mirror:
        remotes = [mirror.add(f"{name}.gz", gzip.compress(content)) for name, content in tiny_idx_files().items()]
        monkeypatch.setitem(
            IMAGE_SETS, "mnist", replace(IMAGE_SETS["mnist"], remotes=tuple(remotes), train=20, test=10, counts=None)
        )
        serve_cifar(mirror, monkeypatch, {"cifar-100-binary/train.bin": bytes(4 * 3074), **CIFAR_TEST})
        yield mirror


@pytest.fixture
def tiny_mnist(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny data set in the place of MNIST's."""
    monkeypatch.setitem(IMAGE_SETS, "mnist", replace(IMAGE_SETS["mnist"], train=20, test=10, counts=None))
    (folder / "mnist").mkdir()
    for file, content in tiny_idx_files().items():
        (folder / "mnist" / file).write_bytes(content)
    return folder / "mnist"
