"""The one entry: every name gives its stream."""

from __future__ import annotations

import pytest
import torch

from intercontinet.errors import InvalidSetting
from intercontinet.tasks import IMAGE_SETS, STREAMS, data_folder, stream


@pytest.mark.parametrize(("tasks", "sizes"), [(None, [2] * 5), (5, [2] * 5), (3, [4, 3, 3]), (1, [10])])
def test_classes_are_dealt_out_evenly_and_in_order(tasks: int | None, sizes: list[int]) -> None:
    made = stream("digits", "task", tasks=tasks)
    classes = [task.classes or () for task in made.tasks]
    assert [len(own) for own in classes] == sizes and sum(classes, ()) == tuple(range(10))
    assert made.outputs == 10 and made.shape == (64,)


@pytest.mark.usefixtures("tiny_mnist")
def test_mnist_has_five_tasks_of_two() -> None:
    assert stream("mnist", "class").names == ("0/1", "2/3", "4/5", "6/7", "8/9")


@pytest.mark.usefixtures("mirror")
def test_cifar_100_has_twenty_tasks_of_five(monkeypatch: pytest.MonkeyPatch) -> None:
    every = torch.arange(100)
    pair = (torch.zeros(100, 3, 1, 1), every)
    monkeypatch.setattr("intercontinet.tasks.streams.image_set", lambda name: (pair, pair))
    made = stream("cifar-100", "domain")
    assert len(made.tasks) == 20 and made.outputs == 5 and made.names[-1] == "95/96/97/98/99"
    assert len(stream("cifar-100", "class", tasks=10).tasks) == 10


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("cifar10", {}, r"no data set 'cifar10' \(did you mean 'cifar-10'\?\): choose one of digits, mnist, .*\.npz"),
        ("permuted-minst", {}, "did you mean 'permuted-mnist'"),
        ("digits", {"tasks": 6}, r"digits has 10 classes, too few for 6 task\(s\)"),
        ("digits", {"tasks": 0}, "tasks is 0"),
        ("permuted-mnist", {"seed": -1}, "seed is -1"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, options: dict[str, int], complaint: str) -> None:
    with pytest.raises(InvalidSetting, match=complaint):
        stream(name, "task", **options)


@pytest.mark.usefixtures("tiny_mnist")
@pytest.mark.parametrize("name", ["digits", "permuted-mnist"])
def test_an_unknown_scenario_is_refused(name: str) -> None:
    with pytest.raises(InvalidSetting, match="choose one of task, domain, class"):
        stream(name, "lifelong")  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMS)
def test_the_real_streams_have_their_tasks(name: str) -> None:
    base = name.removeprefix("permuted-").removeprefix("rotated-")
    if base in IMAGE_SETS and IMAGE_SETS[base].missing():
        pytest.skip(f"{base} is not in {data_folder()}")
    made = stream(name, "class")
    assert len(made.tasks) == {"cifar-100": 20, "permuted-mnist": 10, "rotated-mnist": 10}.get(name, 5)
    assert all(int(task.test[1].max()) < made.outputs for task in made.tasks)
