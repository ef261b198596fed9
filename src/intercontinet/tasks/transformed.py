"""Permuted and rotated MNIST: the same ten digits, every task seen through another, fixed change of the image."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from intercontinet.tasks.catalogue import about
from intercontinet.tasks.datasets import image_set
from intercontinet.tasks.scenario import Pair, Scenario, Stream, asked_anew


def permuted_mnist(scenario: Scenario, tasks: int = 10, seed: int = 0) -> Stream:
    """MNIST with its pixels in another order in every task but the first.

    A task's order depends on ``seed`` and on its place alone, not on how many tasks there are.
    """
    names = [f"permutation {place}" for place in range(1, tasks + 1)]
    return _changed(names, lambda x, place: permuted(x, seed, place), scenario)


def rotated_mnist(scenario: Scenario, tasks: int = 10) -> Stream:
    """MNIST turned counter-clockwise, by angles evenly spread from 0 to 180 degrees, 180 left out."""
    angles = [180 * place / tasks for place in range(tasks)]
    names = [f"rotation {round(angle, 2):g}°" for angle in angles]
    return _changed(names, lambda x, place: rotated(x, angles[place]), scenario)


def permuted(x: Tensor, seed: int, place: int) -> Tensor:
    """The pixels of every image in one fixed order: as they are at place zero, drawn at random at any other.

    Args:
        x: Images [n, ...].
        seed: Fixes all orders.
        place: Which of them.

    >>> x = torch.arange(8.0).reshape(2, 1, 2, 2)
    >>> torch.equal(permuted(x, 0, 0), x), permuted(x, 0, 3).flatten(1).sort(1).values.tolist()
    (True, [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]])
    """
    if place == 0:
        return x
    order = torch.from_numpy(np.random.default_rng((seed, place)).permutation(x[0].numel()))
    return x.flatten(1)[:, order].view_as(x)


def rotated(x: Tensor, angle: float) -> Tensor:
    """Images turned counter-clockwise about their centre, bilinear, zero where nothing was.

    Args:
        x: Square images [n, channels, side, side] in [0, 1].
        angle: In degrees.

    >>> x = torch.rand(2, 1, 4, 4)
    >>> torch.allclose(rotated(x, 90), torch.rot90(x, dims=(2, 3)), atol=1e-5)
    True
    """
    if angle == 0:
        return x
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    turn = torch.tensor([[[cos, -sin, 0.0], [sin, cos, 0.0]]])
    stack = x.flatten(0, 1)[None]  # all images as channels of one, which needs the grid only once
    grid = affine_grid(turn, list(stack.shape), align_corners=False)
    return grid_sample(stack, grid, align_corners=False).view_as(x).clamp_(0, 1)


def _changed(names: list[str], change: Callable[[Tensor, int], Tensor], scenario: Scenario) -> Stream:
    train, test = image_set("mnist")

    def build(place: int) -> tuple[Pair, Pair]:
        return (change(train[0], place), train[1]), (change(test[0], place), test[1])

    return asked_anew(names, [about("mnist").classes] * len(names), build, scenario)
