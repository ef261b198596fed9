"""The one entry to all streams of tasks: by a data set's name, or from a user's own files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from intercontinet.complaints import nearest
from intercontinet.errors import InvalidData, InvalidSetting
from intercontinet.tasks.catalogue import IMAGE_SETS
from intercontinet.tasks.datasets import image_set
from intercontinet.tasks.digits import digits
from intercontinet.tasks.own import read_folder, read_npz
from intercontinet.tasks.scenario import Pair, Scenario, Stream, asked_anew, split
from intercontinet.tasks.transformed import permuted_mnist, rotated_mnist

STREAMS = ("digits", *IMAGE_SETS, "permuted-mnist", "rotated-mnist")
_TRANSFORMED_TASKS = 10


def stream(dataset: str | Path, scenario: Scenario, *, tasks: int | None = None, seed: int = 0) -> Stream:
    """A stream of tasks, by name or from a user's own files.

    * A name of ``STREAMS``. The classes of a data set are dealt out evenly, in order: two a task, and five in
      CIFAR-100, unless ``tasks`` says otherwise. Permuted and rotated MNIST have ten tasks of ten digits.
    * An ``.npz`` file with the arrays x_train, y_train, x_test and y_test; its classes are dealt out two a task. With
      task_train and task_test, which give every example's task, the tasks may also ask for the same classes: then
      "domain" has one output for each class of a task, "task" and "class" one for each class of every task.
    * A folder of images, in CLASS/ or in train/CLASS/ and test/CLASS/; its classes are dealt out two a task.

    Args:
        dataset: A name, or a path.
        scenario: "task", "domain" or "class"; see ``split``.
        tasks: How many tasks, if not as many as usual.
        seed: Fixes the permutations of permuted MNIST. There is no chance in the others.

    Raises:
        InvalidSetting: There is no such data set or scenario, or it cannot have so many tasks.
        InvalidData: A file is missing and cannot be downloaded, is damaged, or is not as it should be.

    >>> stream("digits", "class", tasks=2).names
    ('0/1/2/3/4', '5/6/7/8/9')
    """
    name = str(dataset)
    if tasks is not None and tasks < 1:
        raise InvalidSetting(f"tasks is {tasks}; it must be at least 1")
    if seed < 0:
        raise InvalidSetting(f"seed is {seed}; it must not be negative")
    if name == "permuted-mnist":
        return permuted_mnist(scenario, tasks or _TRANSFORMED_TASKS, seed)
    if name == "rotated-mnist":
        return rotated_mnist(scenario, tasks or _TRANSFORMED_TASKS)
    if name in STREAMS:
        train, test = digits() if name == "digits" else image_set(name)
        return _dealt(name, train, test, scenario, tasks or (20 if name == "cifar-100" else None))
    path = Path(dataset).expanduser()
    if path.suffix == ".npz":
        train, test, ids = read_npz(path)
        if ids is None:
            return _dealt(name, train, test, scenario, tasks)
        if tasks is not None:
            raise InvalidSetting(f"tasks is {tasks}, but {path} says itself of which task an example is: leave it out")
        return _by_task(path, train, test, ids, scenario)
    if path.is_dir():
        train, test, classes = read_folder(path)
        return _dealt(name, train, test, scenario, tasks, classes)
    raise InvalidSetting(
        f"there is no data set '{name}'{nearest(name, STREAMS)}: choose one of {', '.join(STREAMS)}, or give a file "
        "of arrays that ends in .npz, or a folder of images"
    )


def _dealt(
    dataset: str, train: Pair, test: Pair, scenario: Scenario, tasks: int | None, names: Sequence[str] | None = None
) -> Stream:
    """Classes dealt out in order, as evenly as can be, and at least two a task."""
    count = int(train[1].max()) + 1
    tasks = max(count // 2, 1) if tasks is None else tasks
    if count < 2 * tasks:
        raise InvalidSetting(
            f"{dataset} has {count} classes, too few for {tasks} task(s): a task needs at least two, so that there is "
            "something to tell apart"
        )
    groups = [part.tolist() for part in np.array_split(np.arange(count), tasks)]
    cut = split(train, test, groups, scenario)
    if names is None:
        return cut
    titles = ["/".join(names[member] for member in group) for group in groups]
    return replace(cut, tasks=tuple(replace(t, name=title) for t, title in zip(cut.tasks, titles, strict=True)))


def _by_task(path: Path, train: Pair, test: Pair, ids: tuple[Tensor, Tensor], scenario: Scenario) -> Stream:
    """Tasks as the file gives them; a label becomes its place among the classes that the task trains on."""
    order = torch.unique(ids[0])
    names = [f"task {number}" for number in order.tolist()]
    classes = [torch.unique(train[1][ids[0] == number]) for number in order]
    if not torch.equal(order, torch.unique(ids[1])):
        odd = sorted(set(order.tolist()) ^ set(ids[1].tolist()))[0]
        raise InvalidData(f"task {odd} is in only one of task_train and task_test in {path}: give it both")
    for number, own in zip(order, classes, strict=True):
        if len(own) < 2 and scenario != "class":
            raise InvalidData(
                f"task {int(number)} in {path} has one class, {int(own[0])}, and so nothing to tell apart: give it "
                "another, or take the scenario class"
            )
        strange = test[1][(ids[1] == number) & ~torch.isin(test[1], own)]
        if len(strange):
            raise InvalidData(f"task {int(number)} in {path} tests class {int(strange[0])}, on which it does not train")

    def part(data: Pair, own: Tensor, place: int) -> Pair:
        rows = own == order[place]
        return data[0][rows], torch.searchsorted(classes[place], data[1][rows])

    return asked_anew(
        names,
        [len(own) for own in classes],
        lambda place: (part(train, ids[0], place), part(test, ids[1], place)),
        scenario,
    )
