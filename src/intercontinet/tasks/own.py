"""A user's own examples, from an ``.npz`` file of arrays or from a folder of images."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from intercontinet.complaints import nearest
from intercontinet.errors import InvalidData, InvalidSetting
from intercontinet.tasks.formats import Bytes
from intercontinet.tasks.scenario import Pair, check_examples

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp")
_ARRAYS = ("x_train", "y_train", "x_test", "y_test")
_TASKS = ("task_train", "task_test")


def read_npz(path: Path) -> tuple[Pair, Pair, tuple[Tensor, Tensor] | None]:
    """Train and test examples from arrays, and the task of each example where the file says so.

    The file holds ``x_train`` and ``x_test`` [n, ...], floats as they are or bytes, which are divided by 255;
    ``y_train`` and ``y_test`` [n], classes numbered from 0 without a gap; and, if it likes, ``task_train`` and
    ``task_test`` [n], whole numbers that put the tasks in their order.

    Raises:
        InvalidData: The file cannot be read, or an array is missing or not as it should be; it is named.
    """
    arrays = _arrays(path)
    train, test = (
        (_inputs(path, f"x_{part}", arrays[f"x_{part}"]), _whole(path, f"y_{part}", arrays[f"y_{part}"]))
        for part in ("train", "test")
    )
    kinds = [arrays[f"x_{part}"].dtype for part in ("train", "test")]
    if (kinds[0] == np.uint8) != (kinds[1] == np.uint8):
        raise InvalidData(
            f"x_train in {path} is {kinds[0]}, and x_test {kinds[1]}: bytes alone are divided by 255, so save both as "
            "bytes, or both as floats"
        )
    try:
        check_examples(train, test)
    except InvalidData as error:
        raise InvalidData(f"{path}: {error}") from None
    present = torch.unique(train[1])
    if len(present) != int(present[-1]) + 1:
        lacking = next(c for c in range(len(present) + 1) if c not in present)
        raise InvalidData(f"y_train in {path} lacks class {lacking}: number the classes from 0 without a gap")
    if not bool(torch.isin(test[1], present).all()):
        raise InvalidData(f"y_test in {path} holds class {int(test[1].max())}, which y_train lacks")
    if "task_train" not in arrays:
        return train, test, None
    ids = [_whole(path, name, arrays[name]) for name in _TASKS]
    for name, own, (_, y) in zip(_TASKS, ids, (train, test), strict=True):
        if own.shape != y.shape:
            raise InvalidData(f"{name} in {path} has shape {tuple(own.shape)}; expected one for each of {len(y)}")
    return train, test, (ids[0], ids[1])


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    arrays = load_arrays(path)
    for name in (*_ARRAYS, *(_TASKS if set(_TASKS) & set(arrays) else ())):
        if name not in arrays:
            others = arrays.keys() - {*_ARRAYS, *_TASKS}  # what has its own place is no slip for another
            raise InvalidData(
                f"{path} lacks the array '{name}'{nearest(name, sorted(others))}: it should hold "
                f"{', '.join(_ARRAYS)}, and both or neither of {' and '.join(_TASKS)}"
            )
    return arrays


def load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an ``.npz`` file, by name; nothing in it is ever run.

    Raises:
        InvalidData: The file cannot be read, or holds something else than plain arrays.
    """
    broken = (ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError)
    try:
        with path.open("rb") as handle:
            file = np.load(handle, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise InvalidData(f"{path} is a single array: save all with numpy.savez")
            arrays = {}
            for name in file.files:
                try:
                    arrays[name] = file[name]
                except broken as error:
                    why = _reason(error, "it holds Python objects; give numbers only")
                    raise InvalidData(f"{name} in {path} is no plain array, or is damaged: {why}") from error
            return arrays
    except InvalidData:
        raise
    except broken as error:
        why = _reason(error, "it begins like no such file; save the arrays with numpy.savez")
        raise InvalidData(f"{path} is no .npz file, or is damaged: {why}") from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _reason(error: Exception, words: str) -> str:
    """NumPy's reason, or our words where NumPy advises to unpickle, which would run whatever a file holds."""
    return words if "pickle" in str(error) else str(error)


def _unreadable(path: Path | str, error: OSError) -> InvalidData:
    return InvalidData(f"cannot read {path}: {error.strerror or error}. Check that it is there and may be read")


def _inputs(path: Path, name: str, values: NDArray[Any]) -> Tensor:
    if values.dtype != np.uint8 and not np.issubdtype(values.dtype, np.floating):
        raise InvalidData(f"{name} in {path} is {values.dtype}: give floats, or bytes (uint8) from 0 to 255")
    if values.ndim < 2:
        raise InvalidData(f"{name} in {path} has shape {values.shape}; expected [examples, ...]")
    if 0 in values.shape[1:]:
        raise InvalidData(f"{name} in {path} has shape {values.shape}: its examples are empty; give each some numbers")
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused as that
        x = torch.from_numpy(values.astype(np.float32))
    return x.div_(255) if values.dtype == np.uint8 else x


def _whole(path: Path, name: str, values: NDArray[Any]) -> Tensor:
    if not np.issubdtype(values.dtype, np.integer):
        raise InvalidData(f"{name} in {path} is {values.dtype}; expected whole numbers")
    return torch.from_numpy(values.astype(np.int64))


def read_folder(path: Path) -> tuple[Pair, Pair, tuple[str, ...]]:
    """Train and test images, x [n, channels, height, width] in [0, 1], and the names of the classes, in order.

    Images lie in ``train/CLASS/`` and ``test/CLASS/``, or all in ``CLASS/``: then every fifth of a class, by name, is
    for testing. All have one size. Grey images have one channel, unless others have colours.

    Raises:
        InvalidData: A file cannot be read as an image or has another size, or a class has too few; it is named.
    """
    parts = [path / "train", path / "test"]
    if all(part.is_dir() for part in parts):
        train, test = (_listed(part) for part in parts)
        if train.keys() != test.keys():
            odd = min(train.keys() ^ test.keys())
            raise InvalidData(f"class '{odd}' is in only one of {parts[0]} and {parts[1]}: give it a folder in both")
    else:
        files = _listed(path)
        test = {name: own[4::5] for name, own in files.items()}
        train = {name: [file for file in own if file not in test[name]] for name, own in files.items()}
        few = [name for name, own in test.items() if not own]
        if few:
            raise InvalidData(f"{path / few[0]} holds fewer than five images: add some, or make folders train and test")
    images = _images([file for part in (train, test) for own in part.values() for file in own])
    labels = [torch.repeat_interleave(torch.tensor([len(own) for own in part.values()])) for part in (train, test)]
    count = len(labels[0])
    x = torch.from_numpy(images.astype(np.float32)).div_(255)
    return (x[:count], labels[0]), (x[count:], labels[1]), tuple(train)


def read_images(path: Path) -> Pair:
    """All images of a folder that holds one folder for each class: x [n, channels, height, width] in [0, 1], y [n]."""
    files = _listed(path)
    images = _images([file for own in files.values() for file in own])
    labels = torch.repeat_interleave(torch.tensor([len(own) for own in files.values()]))
    return torch.from_numpy(images.astype(np.float32)).div_(255), labels


def _listed(folder: Path) -> dict[str, list[Path]]:
    """The image files of each class, both in the order of their names; files whose names begin with a dot are not."""
    try:
        classes = sorted(own for own in folder.iterdir() if own.is_dir() and not own.name.startswith("."))
        files = {own.name: sorted(f for f in own.iterdir() if not f.name.startswith(".")) for own in classes}
    except OSError as error:
        raise _unreadable(error.filename or folder, error) from error
    if not files:
        raise InvalidData(f"{folder} holds no folders: make one for each class, with its images inside")
    for name, own in files.items():
        if not own:
            raise InvalidData(f"{folder / name} holds no images: add some, or remove it")
        for file in own:
            if file.suffix.lower() not in SUFFIXES:
                raise InvalidData(f"{file} is none of {', '.join(SUFFIXES)}: convert it, or move it elsewhere")
    return files


def _images(paths: Sequence[Path]) -> Bytes:
    """Images as bytes [n, channels, height, width]."""
    arrays = [_image(path) for path in paths]
    for path, array in zip(paths, arrays, strict=True):
        if array.shape[1:] != arrays[0].shape[1:]:
            size, first = ("{1} x {0}".format(*a.shape[1:]) for a in (array, arrays[0]))
            raise InvalidData(f"{path} is {size} pixels and {paths[0]} is {first}: give all images one size")
    channels = max(len(array) for array in arrays)
    return np.stack([np.broadcast_to(array, (channels, *array.shape[1:])) for array in arrays])


def _image(path: Path) -> Bytes:
    try:
        from PIL import Image
    except ImportError:
        raise InvalidSetting("a folder of images needs Pillow: pip install 'intercontinet[cli]'") from None
    try:
        with Image.open(path) as image:
            if image.mode.startswith(("I", "F")):
                raise InvalidData(f"{path} has more than 8 bits a channel: convert it")
            array = np.asarray(image.convert("L" if image.mode in ("1", "L") else "RGB"))
    except InvalidData:
        raise
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InvalidData(f"{path} cannot be read as an image: {error}") from error
    return array[None] if array.ndim == 2 else np.moveaxis(array, 2, 0)
