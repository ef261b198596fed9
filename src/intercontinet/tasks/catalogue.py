"""The image data sets of the paper: which files they consist of, where those lie, and where they come from."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from intercontinet.complaints import nearest
from intercontinet.errors import InvalidData, InvalidSetting
from intercontinet.tasks.formats import AFRESH, Bytes, read_cifar, read_idx

Part = tuple[Bytes, Bytes]
Counts = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Remote:
    """A file on an official mirror: its address, its MD5 checksum and its size in bytes."""

    url: str
    md5: str
    size: int

    @property
    def file(self) -> str:
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class ImageSet:
    """What a data set consists of.

    Attributes:
        folder: Its folder below the data folder.
        files: Names of its files; an idx file may be gzipped.
        remotes: Where they come from: each file by itself, gzipped, or one ``.tar.gz`` of them all.
        read: From those files to images and labels, for training and for testing.
        shape: Of one image.
        classes: Number of classes.
        train: Number of training images.
        test: Number of test images.
        counts: How many of each class there are, for training and for testing, since other sets have files of the
            same names and shapes; None where that is not checked.
    """

    folder: str
    files: tuple[str, ...]
    remotes: tuple[Remote, ...]
    read: Callable[[list[Path]], tuple[Part, Part]]
    shape: tuple[int, int, int]
    classes: int
    train: int
    test: int
    counts: Counts | None = None

    @property
    def place(self) -> Path:
        """The folder in which its files belong."""
        return data_folder() / self.folder

    @property
    def packed(self) -> bool:
        """Whether its files come in one archive."""
        return self.remotes[0].file.endswith(".tar.gz")

    def find(self, file: str) -> Path | None:
        """Where a file is, gzipped or not; None where it is missing."""
        return next((path for path in (self.place / file, self.place / f"{file}.gz") if path.is_file()), None)

    def missing(self) -> list[str]:
        """Names of the files that are not there."""
        return [file for file in self.files if self.find(file) is None]


def data_folder() -> Path:
    """Where data sets are kept: ``INTERCONTINET_DATA``, or ``intercontinet`` in the user's cache folder."""
    chosen = os.environ.get("INTERCONTINET_DATA")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.path.expanduser(chosen)) if chosen else cache / "intercontinet"


def about(name: str) -> ImageSet:
    """What there is to know about a data set.

    Raises:
        InvalidSetting: There is none of that name.
    """
    if name not in IMAGE_SETS:
        hint = nearest(name, IMAGE_SETS)
        raise InvalidSetting(f"there is no image data set '{name}'{hint}: choose one of {', '.join(IMAGE_SETS)}")
    return IMAGE_SETS[name]


def _read_idx_set(paths: list[Path]) -> tuple[Part, Part]:
    images, labels, test_images, test_labels = map(read_idx, paths)
    return (images[:, None], labels), (test_images[:, None], test_labels)


def _read_cifar_10(paths: list[Path]) -> tuple[Part, Part]:
    *batches, test = parts = [read_cifar(path, labels=1) for path in paths]
    usual = Counter(len(y) for _, y in parts).most_common(1)[0][0]  # all hold as many
    for path, (_, y) in zip(paths, parts, strict=True):
        if len(y) != usual:
            raise InvalidData(f"{path} holds {len(y)} images, and the others of its set {usual} each. {AFRESH}")
    return (np.concatenate([x for x, _ in batches]), np.concatenate([y for _, y in batches])), test


def _read_cifar_100(paths: list[Path]) -> tuple[Part, Part]:
    train, test = (read_cifar(path, labels=2) for path in paths)
    return train, test


def _idx_set(folder: str, mirror: str, counts: Counts, *remotes: tuple[str, int]) -> ImageSet:
    files = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
    sources = tuple(Remote(f"{mirror}/{file}.gz", *known) for file, known in zip(files, remotes, strict=True))
    return ImageSet(folder, files, sources, _read_idx_set, (1, 28, 28), 10, 60_000, 10_000, counts)


def _even(classes: int, train: int, test: int) -> Counts:
    return (train,) * classes, (test,) * classes


_OF_MNIST = (
    (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
    (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
)
_CIFAR = "https://www.cs.toronto.edu/~kriz"
IMAGE_SETS = {
    "mnist": _idx_set(
        "mnist",
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        _OF_MNIST,
        ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
        ("d53e105ee54ea40749a09fcbcd1e9432", 28_881),
        ("9fb629c4189551a2d022fa330f9573f3", 1_648_877),
        ("ec29112dd5afa0611ce80d1b7f02629c", 4_542),
    ),
    "fashion-mnist": _idx_set(
        "fashion-mnist",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        _even(10, 6000, 1000),
        ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
        ("25c81989df183df01b3e8a0aad5dffbe", 29_515),
        ("bef4ecab320f06d8554ea6380940ec79", 4_422_102),
        ("bb300cfdad3c16e7a12a480ee83cd310", 5_148),
    ),
    "cifar-10": ImageSet(
        "cifar-10-batches-bin",
        (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"),
        (Remote(f"{_CIFAR}/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", 170_052_171),),
        _read_cifar_10,
        (3, 32, 32),
        10,
        50_000,
        10_000,
        _even(10, 5000, 1000),
    ),
    "cifar-100": ImageSet(
        "cifar-100-binary",
        ("train.bin", "test.bin"),
        (Remote(f"{_CIFAR}/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", 168_513_733),),
        _read_cifar_100,
        (3, 32, 32),
        100,
        50_000,
        10_000,
        _even(100, 500, 100),
    ),
}
