"""Data sets: found where they should be, refused when they are others, and, where they are at hand, the real ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from intercontinet.errors import InvalidData, InvalidSetting
from intercontinet.tasks import IMAGE_SETS, data_folder, datasets, image_set, split_images
from tests.tasks.test_formats import idx


def at_hand(name: str) -> bool:
    return (data_folder() / IMAGE_SETS[name].folder).is_dir()


@pytest.fixture
def tiny_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set of twenty and ten images under MNIST's name."""
    monkeypatch.setenv("INTERCONTINET_DATA", str(tmp_path))
    monkeypatch.setattr(datasets, "IMAGE_SETS", {"mnist": replace(IMAGE_SETS["mnist"], train=20, test=10)})
    folder = tmp_path / "mnist"
    folder.mkdir()
    for file, count in zip(IMAGE_SETS["mnist"].files, (20, 20, 10, 10), strict=True):
        images = np.full((count, 28, 28), 255, np.uint8)
        (folder / file).write_bytes(idx(images if "images" in file else np.arange(count, dtype=np.uint8) % 10))
    return folder


@pytest.mark.usefixtures("tiny_mnist")
def test_pixels_lie_between_zero_and_one_and_labels_are_whole() -> None:
    (x, y), (x_test, y_test) = image_set("mnist")
    assert x.shape == (20, 1, 28, 28) and x_test.shape == (10, 1, 28, 28)
    assert bool((x == 1).all()) and y.dtype == torch.int64
    assert y_test.tolist() == list(range(10))


@pytest.mark.usefixtures("tiny_mnist")
def test_the_stream_has_five_tasks_of_two() -> None:
    stream = split_images("mnist", "class")
    assert [task.name for task in stream.tasks] == ["0/1", "2/3", "4/5", "6/7", "8/9"]


def test_a_missing_file_is_named_with_its_folder(tiny_mnist: Path) -> None:
    (tiny_mnist / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(InvalidData, match=r"^t10k-labels-idx1-ubyte .*should be in .*mnist.*INTERCONTINET_DATA"):
        image_set("mnist")


@pytest.mark.parametrize("labels", [np.arange(19), np.full(20, 10)])
def test_files_of_another_data_set_are_refused(
    tiny_mnist: Path, labels: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> None:
    (tiny_mnist / "train-labels-idx1-ubyte").write_bytes(idx(labels.astype(np.uint8)))
    with pytest.raises(InvalidData, match=r"the training files of mnist .* these are other files"):
        image_set("mnist")


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="choose one of mnist, fashion-mnist, cifar-10, cifar-100"):
        image_set("imagenet")


def test_the_folder_is_the_users_cache_unless_they_say_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INTERCONTINET_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert data_folder() == Path("/cache/intercontinet")


@pytest.mark.slow
@pytest.mark.parametrize("name", IMAGE_SETS)
def test_the_real_data_sets_have_every_class_in_equal_or_nearly_equal_numbers(name: str) -> None:
    if not at_hand(name):
        pytest.skip(f"{name} is not in {data_folder()}")
    about = IMAGE_SETS[name]
    for x, y in image_set(name):
        counts = torch.bincount(y, minlength=about.classes)
        assert int(counts.min()) > 0.8 * len(y) / about.classes
        assert 0.1 < float(x[:1000].mean()) < 0.6
