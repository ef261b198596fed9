"""The image data sets of the paper as tensors, downloaded where they are missing, and a list of what is at hand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from intercontinet.errors import InvalidData
from intercontinet.tasks.catalogue import IMAGE_SETS, Part, about
from intercontinet.tasks.download import download
from intercontinet.tasks.formats import Bytes
from intercontinet.tasks.scenario import Pair


@dataclass(frozen=True)
class SetDescription:
    """A line of the list of data sets.

    Attributes:
        name: What it is called here.
        folder: Where its files belong.
        present: Whether all of them are there.
        damage: What is wrong with them, if anything is.
        classes: Number of classes.
        shape: Of one image.
        train: Number of training images.
        test: Number of test images.
        download: Bytes to download where it is missing.
    """

    name: str
    folder: Path
    present: bool
    damage: str
    classes: int
    shape: tuple[int, int, int]
    train: int
    test: int
    download: int


def describe_sets() -> list[SetDescription]:
    """Every image data set, at hand or not. What is at hand is read, which takes a second or two."""
    return [
        SetDescription(
            name=name,
            folder=known.place,
            present=not known.missing(),
            damage=_damage(name),
            classes=known.classes,
            shape=known.shape,
            train=known.train,
            test=known.test,
            download=sum(remote.size for remote in known.remotes),
        )
        for name, known in IMAGE_SETS.items()
    ]


def _damage(name: str) -> str:
    try:
        if not about(name).missing():
            image_set(name)
    except InvalidData as error:
        return str(error)
    return ""


def image_set(name: str) -> tuple[Pair, Pair]:
    """Train and test examples: x [n, channels, height, width] in [0, 1], y [n]. Missing files are downloaded.

    What lies in the folder is judged by its contents (shape, counts of each class), since the same examples may well be
    packed in other bytes; what is downloaded, by its checksum too.

    Raises:
        InvalidSetting: There is no data set of that name.
        InvalidData: A file is missing and cannot be downloaded, is damaged, or is not the one it should be.
        WriteError: A download cannot be written.
    """
    known = about(name)
    if known.missing():
        download(name)
    train, test = known.read([path for path in map(known.find, known.files) if path is not None])
    return _examples(name, False, train), _examples(name, True, test)


def _examples(name: str, testing: bool, part: Part) -> Pair:
    known, (images, labels) = about(name), part
    kind, count = ("test", known.test) if testing else ("training", known.train)
    if images.shape != (count, *known.shape) or labels.shape != (count,) or labels.max() >= known.classes:
        raise InvalidData(
            f"the {kind} files of {name} in {known.place} hold images {images.shape} and labels {labels.shape} up to "
            f"{labels.max(initial=0)}; expected {count} images {known.shape} and labels up to {known.classes - 1}: "
            f"these are {'cut short, or ' if len(images) < count else ''}other files. Delete them, and the official "
            "ones are downloaded"
        )
    _check_counts(name, testing, labels)
    x = torch.from_numpy(images.astype(np.float32)).div_(255)
    return x, torch.from_numpy(labels.astype(np.int64))


def _check_counts(name: str, testing: bool, labels: Bytes) -> None:
    """Tell sets apart whose files have the same names and shapes, as those of MNIST and FashionMNIST do."""
    known = about(name)
    if known.counts is None:
        return
    found, wanted = tuple(np.bincount(labels, minlength=known.classes).tolist()), known.counts[testing]
    if found == wanted:
        return
    odd = next(member for member in range(known.classes) if found[member] != wanted[member])
    twins = [n for n, a in IMAGE_SETS.items() if a.files == known.files and a.counts and a.counts[testing] == found]
    perhaps = f" (perhaps of {twins[0]})" if twins else ""
    raise InvalidData(
        f"the {'test' if testing else 'training'} files of {name} in {known.place} have {found[odd]} examples of class "
        f"{odd} where {wanted[odd]} belong: these are other files{perhaps}. Delete them, and the official ones are "
        "downloaded"
    )
