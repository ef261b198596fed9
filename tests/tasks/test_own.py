"""A user's own arrays and images: taken as they are, or refused with the names of file and array."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from intercontinet.errors import InvalidData, InvalidSetting
from intercontinet.tasks import Scenario, stream
from intercontinet.tasks.own import read_folder

Arrays = dict[str, Any]


def arrays(**others: object) -> Arrays:
    """Four classes, eight training and four test examples of two numbers each; None leaves an array out."""
    y = np.arange(8) % 4
    plain: Arrays = {"x_train": np.ones((8, 2)) * y[:, None], "y_train": y, "x_test": np.zeros((4, 2)), "y_test": y[:4]}
    return {name: value for name, value in {**plain, **others}.items() if value is not None}


def saved(folder: Path, **others: object) -> Path:
    path = folder / "own.npz"
    np.savez(path, **arrays(**others))
    return path


def test_arrays_become_a_stream_of_pairs_of_classes(tmp_path: Path) -> None:
    made = stream(str(saved(tmp_path)), "domain")
    assert made.names == ("0/1", "2/3") and made.outputs == 2 and made.shape == (2,)
    assert made.tasks[1].train[0].tolist() == [[2, 2], [3, 3]] * 2 and made.tasks[1].train[0].dtype == torch.float32
    assert made.tasks[1].train[1].tolist() == [0, 1, 0, 1] and len(made.tasks[0].test[1]) == 2
    assert stream(saved(tmp_path), "class", tasks=1).names == ("0/1/2/3",)


def test_bytes_are_divided_by_255(tmp_path: Path) -> None:
    images = np.full((8, 1, 3, 3), 51, np.uint8)
    made = stream(saved(tmp_path, x_train=images, x_test=images[:4]), "class")
    assert made.shape == (1, 3, 3) and torch.allclose(made.tasks[0].train[0], torch.tensor(0.2))


@pytest.mark.parametrize(
    ("scenario", "labels", "classes", "outputs"),
    [
        ("domain", [[0, 1], [0, 1, 2]], [None, None], 3),
        ("task", [[0, 1], [2, 3, 4]], [(0, 1), (2, 3, 4)], 5),
        ("class", [[0, 1], [2, 3, 4]], [None, None], 5),
    ],
)
def test_a_file_may_say_which_example_is_of_which_task(
    tmp_path: Path, scenario: Scenario, labels: list[list[int]], classes: list[tuple[int, ...] | None], outputs: int
) -> None:
    y, tasks = np.array([0, 2, 0, 1, 2]), np.array([7, 7, 9, 9, 9])
    x = np.arange(5.0)[:, None]
    path = saved(tmp_path, x_train=x, y_train=y, task_train=tasks, x_test=x, y_test=y, task_test=tasks)
    made = stream(path, scenario)
    assert made.names == ("task 7", "task 9") and made.outputs == outputs
    for task, own, choice, rows in zip(made.tasks, labels, classes, ([0, 1], [2, 3, 4]), strict=True):
        assert task.train[0].flatten().tolist() == rows
        assert task.train[1].tolist() == own and task.test[1].tolist() == own and task.classes == choice


@pytest.mark.parametrize("scenario", ["task", "domain"])
def test_a_task_of_one_class_is_refused_but_where_all_classes_compete(tmp_path: Path, scenario: Scenario) -> None:
    y, tasks = np.array([0, 1, 2]), np.array([0, 0, 1])
    x = np.arange(3.0)[:, None]
    path = saved(tmp_path, x_train=x, y_train=y, task_train=tasks, x_test=x, y_test=y, task_test=tasks)
    with pytest.raises(InvalidData, match=r"task 1 in .* has one class, 2, .* or take the scenario class"):
        stream(path, scenario)
    assert [task.test[1].tolist() for task in stream(path, "class").tasks] == [[0, 1], [2]]


BAD_ARRAYS: dict[str, tuple[Arrays, str]] = {
    "an array is missing": ({"y_test": None}, r"lacks the array 'y_test'.*: it should hold x_train, y_train, x_test"),
    "half of the tasks": ({"task_train": np.zeros(8, int)}, r"lacks the array 'task_test': it should hold"),
    "a slip": (
        {"x_train": None, "x_trian": np.zeros((8, 2))},
        r"lacks the array 'x_train' \(did you mean 'x_trian'\?\)",
    ),
    "bytes beside floats": (
        {"x_train": np.zeros((8, 2), np.uint8)},
        "x_train in .* is uint8, and x_test float64: bytes alone are divided by 255",
    ),
    "empty examples": ({"x_train": np.zeros((8, 0))}, r"x_train in .* has shape \(8, 0\): its examples are empty"),
    "empty images": ({"x_test": np.zeros((4, 1, 0, 3))}, r"x_test in .* has shape \(4, 1, 0, 3\): its examples"),
    "objects": (
        {"x_train": np.array([[None]] * 8)},
        "x_train in .* is no plain array.* Python objects; give numbers only$",
    ),
    "text": ({"x_train": np.array([["a"]] * 8)}, r"x_train in .*own\.npz is <U1: give floats"),
    "whole numbers": ({"x_test": np.zeros((4, 2), int)}, "x_test in .* is int64: give floats, or bytes"),
    "no dimension": ({"x_train": np.zeros(8)}, r"x_train in .* has shape \(8,\); expected \[examples"),
    "no examples": ({"x_train": np.zeros((0, 2)), "y_train": np.zeros(0, int)}, "training examples: the data is empty"),
    "not finite": ({"x_test": np.full((4, 2), np.nan)}, "test examples: example 0 holds NaN"),
    "too large": ({"x_train": np.full((8, 2), 1e300)}, "training examples: example 0 holds NaN or infinite"),
    "float labels": ({"y_train": np.zeros(8)}, "y_train in .* is float64; expected whole numbers"),
    "too few labels": ({"y_train": np.zeros(7, int)}, r"training labels have shape \(7,\); expected one for each of 8"),
    "one-hot labels": ({"y_test": np.eye(4, dtype=int)}, r"test labels have shape \(4, 4\)"),
    "negative labels": ({"y_train": np.arange(8) - 1}, "training label -1 is negative"),
    "a gap": ({"y_train": np.arange(8) * 2}, "y_train in .* lacks class 1: number the classes from 0"),
    "an unknown class": ({"y_test": np.arange(4) + 1}, "y_test in .* holds class 4, which y_train lacks"),
    "other shapes": ({"x_test": np.zeros((4, 3))}, r"training examples have shape \(2,\) and test examples \(3,\)"),
    "too few tasks": (
        {"task_train": np.zeros(7, int), "task_test": np.zeros(4, int)},
        r"task_train in .* has shape \(7,\); expected one for each of 8",
    ),
    "a task without tests": (
        {"task_train": np.arange(8) // 4, "task_test": np.zeros(4, int)},
        "task 1 is in only one of task_train and task_test",
    ),
    "a class that is only tested": (
        {"task_train": np.arange(8) % 2, "task_test": np.array([0, 0, 1, 1])},
        "task 0 in .* tests class 1, on which it does not train",
    ),
}


@pytest.mark.parametrize("what", BAD_ARRAYS)
def test_bad_arrays_are_refused_by_name(tmp_path: Path, what: str) -> None:
    others, complaint = BAD_ARRAYS[what]
    path = saved(tmp_path, **others)
    with pytest.raises(InvalidData, match=complaint) as error:
        stream(path, "class")
    assert str(path) in str(error.value)


def test_a_file_that_names_its_tasks_cannot_be_told_how_many(tmp_path: Path) -> None:
    path = saved(tmp_path, task_train=np.zeros(8, int), task_test=np.zeros(4, int))
    with pytest.raises(InvalidSetting, match="says itself of which task"):
        stream(path, "class", tasks=2)


def test_files_that_are_no_arrays_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match=r"cannot read .*none\.npz: No such file.*\. Check that it is there"):
        stream(tmp_path / "none.npz", "class")
    whole = saved(tmp_path).read_bytes()
    path = tmp_path / "bad.npz"
    flipped = whole[:200] + bytes([whole[200] ^ 255]) + whole[201:]
    for content in (b"", b"hello", b"\x80\x04]\x94.", whole[: len(whole) // 2], flipped):
        path.write_bytes(content)
        with pytest.raises(InvalidData, match=r"bad\.npz") as error:
            stream(path, "class")
        assert "pickle" not in str(error.value)
    with (tmp_path / "one.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(InvalidData, match=r"one\.npz is a single array"):
        stream(tmp_path / "one.npz", "class")


# Images.


def draw(path: Path, shade: int | tuple[int, ...] = 0, mode: str = "L", size: tuple[int, int] = (3, 2)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, shade).save(path)


@pytest.fixture
def animals(tmp_path: Path) -> Path:
    """Cats of shades 0 to 9 and dogs of shades 100 to 109, not divided."""
    for i in range(10):
        draw(tmp_path / "cat" / f"{i}.png", i)
        draw(tmp_path / "dog" / f"{i}.png", 100 + i)
    (tmp_path / "notes.txt").touch()
    (tmp_path / "cat" / ".hidden").touch()
    return tmp_path


def shades(x: torch.Tensor) -> list[int]:
    return [round(value * 255) for value in x[:, 0, 0, 0].tolist()]


def test_every_fifth_image_of_a_class_is_for_testing(animals: Path) -> None:
    (x, y), (x_test, y_test), classes = read_folder(animals)
    assert classes == ("cat", "dog") and x.shape == (16, 1, 2, 3)
    assert shades(x) == [0, 1, 2, 3, 5, 6, 7, 8, 100, 101, 102, 103, 105, 106, 107, 108]
    assert shades(x_test) == [4, 9, 104, 109]
    assert y.tolist() == [0] * 8 + [1] * 8 and y_test.tolist() == [0, 0, 1, 1]


def test_a_folder_that_is_divided_is_taken_as_it_is(tmp_path: Path) -> None:
    for shade, name in enumerate(["ant", "bee", "cow", "doe"]):
        draw(tmp_path / "train" / name / "a.png", shade)
        draw(tmp_path / "train" / name / "b.bmp", 10 + shade)
        draw(tmp_path / "test" / name / "c.PNG", 20 + shade)
    made = stream(str(tmp_path), "class")
    assert made.names == ("ant/bee", "cow/doe") and made.outputs == 4 and made.shape == (1, 2, 3)
    task = made.tasks[1]
    assert shades(task.train[0]) == [2, 12, 3, 13] and task.train[1].tolist() == [2, 2, 3, 3]
    assert shades(task.test[0]) == [22, 23] and task.test[1].tolist() == [2, 3]


def test_grey_images_get_three_channels_among_coloured_ones(animals: Path) -> None:
    draw(animals / "dog" / "a.png", (10, 20, 30, 255), "RGBA")
    (x, _), _, _ = read_folder(animals)
    assert x.shape == (17, 3, 2, 3)
    assert (x[-1, :, 0, 0] * 255).round().tolist() == [10, 20, 30] and torch.equal(x[0, 0], x[0, 2])


def test_images_that_cannot_be_used_are_named(animals: Path) -> None:
    odd = animals / "dog" / "odd.png"
    draw(odd, size=(2, 2))
    with pytest.raises(InvalidData, match=r"odd\.png is 2 x 2 pixels and .*0\.png is 3 x 2: give all images one size"):
        stream(animals, "class")
    draw(odd, 1000, "I;16")
    with pytest.raises(InvalidData, match=r"odd\.png has more than 8 bits a channel"):
        stream(animals, "class")
    whole = (animals / "dog" / "0.png").read_bytes()
    for content in (b"", b"hello", whole[:40]):
        odd.write_bytes(content)
        with pytest.raises(InvalidData, match=r"odd\.png cannot be read as an image"):
            stream(animals, "class")
    odd.rename(odd.with_suffix(".tiff"))
    with pytest.raises(InvalidData, match=r"odd\.tiff is none of \.png, \.jpg"):
        stream(animals, "class")


def test_folders_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match="holds no folders: make one for each class"):
        stream(tmp_path, "class")
    (tmp_path / "cat").mkdir()
    with pytest.raises(InvalidData, match="cat holds no images"):
        stream(tmp_path, "class")
    for i in range(4):
        draw(tmp_path / "cat" / f"{i}.png")
    with pytest.raises(InvalidData, match="cat holds fewer than five images"):
        stream(tmp_path, "class")
    draw(tmp_path / "cat" / "4.png")
    with pytest.raises(InvalidSetting, match=r"has 1 classes, too few for 1 task"):
        stream(tmp_path, "class")


def test_a_class_without_tests_is_named(tmp_path: Path) -> None:
    draw(tmp_path / "train" / "cat" / "a.png")
    draw(tmp_path / "train" / "dog" / "a.png")
    draw(tmp_path / "test" / "cat" / "a.png")
    with pytest.raises(InvalidData, match="class 'dog' is in only one of"):
        stream(tmp_path, "class")


def test_without_pillow_the_error_says_how_to_install_it(animals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InvalidSetting, match=r"pip install 'intercontinet\[cli\]'"):
        stream(animals, "class")
