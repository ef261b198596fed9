"""Data sets: found where they should be, refused when they are others, and, where they are at hand, the real ones."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from intercontinet.errors import InvalidData, InvalidSetting
from intercontinet.tasks import IMAGE_SETS, data_folder, describe_sets, image_set
from tests.tasks.samples import idx


@pytest.mark.usefixtures("tiny_mnist")
def test_pixels_lie_between_zero_and_one_and_labels_are_whole() -> None:
    (x, y), (x_test, y_test) = image_set("mnist")
    assert x.shape == (20, 1, 28, 28) and x_test.shape == (10, 1, 28, 28)
    assert float(x.min()) == 0 and float(x.max()) == 1 and y.dtype == torch.int64
    assert y_test.tolist() == list(range(10))


def test_a_missing_file_is_named_with_its_folder(tiny_mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
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


def test_files_that_have_the_shape_of_others_are_told_by_their_counts_of_classes(
    tiny_mnist: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counts(train: int, test: int) -> None:
        own = replace(IMAGE_SETS["mnist"], counts=((2,) * 9 + (train,), (1,) * 9 + (test,)))
        monkeypatch.setitem(IMAGE_SETS, "mnist", own)

    counts(2, 1)
    image_set("mnist")
    counts(3, 1)
    alone = (
        r"^the training files of mnist in .*mnist have 2 examples of class 9 where 3 belong: these are other files\. D"
    )
    with pytest.raises(InvalidData, match=alone):
        image_set("mnist")
    counts(2, 4)
    fashion = replace(IMAGE_SETS["fashion-mnist"], counts=((2,) * 10, (1,) * 10))
    monkeypatch.setitem(IMAGE_SETS, "fashion-mnist", fashion)
    with pytest.raises(
        InvalidData, match=r"test files .* 1 examples of class 9 .* \(perhaps of fashion-mnist\)\. Delete"
    ):
        image_set("mnist")
    assert describe_sets()[0].damage.startswith(f"the test files of mnist in {tiny_mnist} have 1 ")


def test_the_counts_of_classes_add_up() -> None:
    for known in IMAGE_SETS.values():
        assert known.counts is not None
        assert [len(part) for part in known.counts] == [known.classes] * 2
        assert [sum(part) for part in known.counts] == [known.train, known.test]
    assert len({known.counts for known in IMAGE_SETS.values()}) == 4


def test_a_cifar_file_that_lacks_whole_records_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = IMAGE_SETS["cifar-10"]
    monkeypatch.setitem(IMAGE_SETS, "cifar-10", replace(known, train=10, test=2, counts=None))
    place = folder / known.folder
    place.mkdir(parents=True)
    for file in known.files:
        (place / file).write_bytes(bytes(2 * 3073))
    (x, y), (_, y_test) = image_set("cifar-10")
    assert x.shape == (10, 3, 32, 32) and len(y) == 10 and len(y_test) == 2
    for count in (1, 4):
        (place / "data_batch_3.bin").write_bytes(bytes(count * 3073))
        with pytest.raises(InvalidData, match=rf"data_batch_3\.bin holds {count} images, and the others .* 2 each"):
            image_set("cifar-10")
    for file in known.files:
        (place / file).write_bytes(bytes(3073))
    with pytest.raises(InvalidData, match=r"expected 10 images .* these are cut short, or other files"):
        image_set("cifar-10")


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(
        InvalidSetting, match="no image data set 'imagenet': choose one of mnist, fashion-mnist, cifar-10, cifar-100"
    ):
        image_set("imagenet")


def test_the_folder_is_the_users_cache_unless_they_say_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INTERCONTINET_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert data_folder() == Path("/cache/intercontinet")
    monkeypatch.setenv("INTERCONTINET_DATA", "~/sets")
    assert data_folder() == Path.home() / "sets", "where no shell has put it in"
    monkeypatch.setenv("INTERCONTINET_DATA", "~nobody-of-that-name/sets")
    assert data_folder() == Path("~nobody-of-that-name/sets")


@pytest.mark.usefixtures("tiny_mnist")
def test_the_list_of_data_sets_says_which_are_there() -> None:
    lines = describe_sets()
    assert [(line.name, line.present) for line in lines] == [(name, name == "mnist") for name in IMAGE_SETS]
    for line in lines:
        assert line.folder == data_folder() / IMAGE_SETS[line.name].folder
    assert [round(line.download / 1e6) for line in lines] == [12, 31, 170, 169]
    assert (lines[3].classes, lines[3].shape, lines[3].train, lines[3].test) == (100, (3, 32, 32), 50_000, 10_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", IMAGE_SETS)
def test_the_real_data_sets_have_every_class_in_equal_or_nearly_equal_numbers(name: str) -> None:
    if IMAGE_SETS[name].missing():
        pytest.skip(f"{name} is not in {data_folder()}")
    about = IMAGE_SETS[name]
    for x, y in image_set(name):
        counts = torch.bincount(y, minlength=about.classes)
        assert int(counts.min()) > 0.8 * len(y) / about.classes
        assert 0.1 < float(x[:1000].mean()) < 0.6
