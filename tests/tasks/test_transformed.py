"""Permuted and rotated MNIST: what a task shows, under which labels, and that tasks are built one at a time."""

from __future__ import annotations

import pytest
import torch

from intercontinet.tasks import IMAGE_SETS, Scenario, data_folder, image_set, stream
from intercontinet.tasks.transformed import permuted, rotated

X = torch.rand(5, 1, 28, 28, generator=torch.Generator().manual_seed(0))


def test_a_permutation_moves_every_image_the_same_way_and_loses_nothing() -> None:
    places = torch.arange(784.0).reshape(1, 1, 28, 28)
    order = permuted(places, seed=3, place=2).flatten().long()
    assert sorted(order.tolist()) == list(range(784)) and order.tolist() != list(range(784))
    assert torch.equal(permuted(X, seed=3, place=2), X.flatten(1)[:, order].view_as(X))
    others = [permuted(places, *other).flatten().long().tolist() for other in ((3, 1), (2, 3), (2, 2))]
    assert order.tolist() not in others


def test_the_first_permutation_and_the_first_rotation_change_nothing() -> None:
    assert torch.equal(permuted(X, seed=7, place=0), X) and torch.equal(rotated(X, 0.0), X)


def test_quarter_turns_are_exact_and_counter_clockwise() -> None:
    for turns in (1, 2, 3):
        assert torch.allclose(rotated(X, 90.0 * turns), torch.rot90(X, turns, dims=(2, 3)), atol=1e-4)


def test_a_rotation_interpolates_and_leaves_black_corners() -> None:
    turned = rotated(torch.ones(2, 1, 28, 28), 45.0)
    assert torch.allclose(turned[:, :, 10:18, 10:18], torch.ones(2, 1, 8, 8))
    assert float(turned[:, :, 0, 0].max()) == 0
    assert float(turned.min()) >= 0 and float(turned.max()) <= 1
    point = torch.zeros(1, 1, 5, 5)
    point[0, 0, 2, 4] = 1  # in the middle of the right edge; after 30 degrees: 2 cos 30 right, 2 sin 30 = 1 up
    near = rotated(point, 30.0)[0, 0]
    assert divmod(int(near.argmax()), 5) == (1, 4) and 0 < float(near.max()) < 1


@pytest.mark.usefixtures("tiny_mnist")
@pytest.mark.parametrize("name", ["permuted-mnist", "rotated-mnist"])
@pytest.mark.parametrize(
    ("scenario", "outputs", "labels", "classes"),
    [
        ("domain", 10, list(range(10)), None),
        ("task", 30, list(range(10, 20)), tuple(range(10, 20))),
        ("class", 30, list(range(10, 20)), None),
    ],
)
def test_each_scenario_has_its_labels_and_outputs(
    name: str, scenario: Scenario, outputs: int, labels: list[int], classes: tuple[int, ...] | None
) -> None:
    made = stream(name, scenario, tasks=3)
    task = made.tasks[1]
    assert len(made.tasks) == 3 and made.outputs == outputs and made.shape == (1, 28, 28)
    assert task.test[1].tolist() == labels and task.train[1].tolist() == labels * 2 and task.classes == classes
    (x, _), (x_test, _) = image_set("mnist")
    assert torch.equal(made.tasks[0].train[0], x) and torch.equal(made.tasks[0].test[0], x_test)
    assert task.train[0].shape == x.shape and not torch.equal(task.train[0], x)


@pytest.mark.usefixtures("tiny_mnist")
def test_tasks_are_named_for_what_was_done() -> None:
    assert stream("permuted-mnist", "domain", tasks=2).names == ("permutation 1", "permutation 2")
    names = stream("rotated-mnist", "domain").names
    assert names[:2] == ("rotation 0°", "rotation 18°") and names[-1] == "rotation 162°" and len(names) == 10
    assert stream("rotated-mnist", "domain", tasks=7).names[1] == "rotation 25.71°"


@pytest.mark.usefixtures("tiny_mnist")
def test_a_permutation_depends_on_the_seed_and_the_place_alone() -> None:
    few, many, other = (
        stream("permuted-mnist", "domain", tasks=tasks, seed=seed).tasks[2].train[0]
        for tasks, seed in ((3, 1), (100, 1), (3, 2))
    )
    assert torch.equal(few, many) and not torch.equal(few, other)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["permuted-mnist", "rotated-mnist"])
def test_the_real_ones_can_be_walked_through(name: str) -> None:
    if IMAGE_SETS["mnist"].missing():
        pytest.skip(f"mnist is not in {data_folder()}")
    means = [float(task.train[0].mean()) for task in stream(name, "domain").tasks]
    assert max(means) - min(means) < 0.01
