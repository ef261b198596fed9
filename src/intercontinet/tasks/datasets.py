"""The image data sets of the paper, from files in their official formats."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from intercontinet.errors import InvalidData, InvalidSetting
from intercontinet.tasks.formats import Bytes, read_cifar, read_idx
from intercontinet.tasks.scenario import Pair, Scenario, Stream, split

_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
Part = tuple[Bytes, Bytes]


@dataclass(frozen=True)
class ImageSet:
    """What a data set consists of.

    Attributes:
        folder: Its folder below the data folder.
        files: Names of its files; an idx file may be gzipped.
        read: From those files to images and labels, for training and for testing.
        shape: Of one image.
        classes: Number of classes.
        train: Number of training images.
        test: Number of test images.
    """

    folder: str
    files: tuple[str, ...]
    read: Callable[[list[Path]], tuple[Part, Part]]
    shape: tuple[int, int, int]
    classes: int
    train: int
    test: int


def _read_idx_set(paths: list[Path]) -> tuple[Part, Part]:
    images, labels, test_images, test_labels = map(read_idx, paths)
    return (images[:, None], labels), (test_images[:, None], test_labels)


def _read_cifar_10(paths: list[Path]) -> tuple[Part, Part]:
    *batches, test = (read_cifar(path, labels=1) for path in paths)
    return (np.concatenate([x for x, _ in batches]), np.concatenate([y for _, y in batches])), test


def _read_cifar_100(paths: list[Path]) -> tuple[Part, Part]:
    train, test = (read_cifar(path, labels=2) for path in paths)
    return train, test


_GREY, _COLOUR = (1, 28, 28), (3, 32, 32)
_BATCHES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
IMAGE_SETS = {
    "mnist": ImageSet("mnist", _IDX, _read_idx_set, _GREY, 10, 60_000, 10_000),
    "fashion-mnist": ImageSet("fashion-mnist", _IDX, _read_idx_set, _GREY, 10, 60_000, 10_000),
    "cifar-10": ImageSet("cifar-10-batches-bin", _BATCHES, _read_cifar_10, _COLOUR, 10, 50_000, 10_000),
    "cifar-100": ImageSet("cifar-100-binary", ("train.bin", "test.bin"), _read_cifar_100, _COLOUR, 100, 50_000, 10_000),
}


def data_folder() -> Path:
    """Where data sets are kept: ``INTERCONTINET_DATA``, or ``intercontinet`` in the user's cache folder."""
    chosen = os.environ.get("INTERCONTINET_DATA")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(chosen) if chosen else cache / "intercontinet"


def image_set(name: str) -> tuple[Pair, Pair]:
    """Train and test examples: x [n, channels, height, width] in [0, 1], y [n].

    Raises:
        InvalidSetting: There is no data set of that name.
        InvalidData: A file is missing, damaged, or not the one it should be.
    """
    if name not in IMAGE_SETS:
        raise InvalidSetting(f"there is no data set '{name}': choose one of {', '.join(IMAGE_SETS)}")
    about = IMAGE_SETS[name]
    train, test = about.read(_paths(about))
    return _examples(name, "training", about, train, about.train), _examples(name, "test", about, test, about.test)


def split_images(name: str, scenario: Scenario) -> Stream:
    """The paper's streams: five tasks of two classes, or, for CIFAR-100, twenty of five."""
    train, test = image_set(name)
    size = 5 if name == "cifar-100" else 2
    groups = [tuple(range(i, i + size)) for i in range(0, IMAGE_SETS[name].classes, size)]
    return split(train, test, groups, scenario)


def _paths(about: ImageSet) -> list[Path]:
    folder = data_folder() / about.folder
    found = [next((p for p in (folder / f, folder / f"{f}.gz") if p.is_file()), None) for f in about.files]
    missing = [file for file, path in zip(about.files, found, strict=True) if path is None]
    if missing:
        raise InvalidData(
            f"{', '.join(missing)} (gzipped or not) should be in {folder}. Put the official files there, or set "
            "INTERCONTINET_DATA to the folder that holds them"
        )
    return [path for path in found if path is not None]


def _examples(name: str, kind: str, about: ImageSet, part: Part, count: int) -> Pair:
    images, labels = part
    if images.shape != (count, *about.shape) or labels.shape != (count,) or labels.max() >= about.classes:
        raise InvalidData(
            f"the {kind} files of {name} hold images {images.shape} and labels {labels.shape} up to {labels.max()}; "
            f"expected {count} images {about.shape} and labels up to {about.classes - 1}: these are other files"
        )
    x = torch.from_numpy(images.astype(np.float32)).div_(255)
    return x, torch.from_numpy(labels.astype(np.int64))
