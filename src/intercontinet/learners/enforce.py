"""Make a promise true, and no more than true: draw a region in, or let it out, until just enough is certain."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from intercontinet.floor import certain_examples
from intercontinet.region import Region, State

WIDEST = 1024.0  # times a radius


@torch.no_grad()
def shrunk_to_keep(
    model: nn.Module,
    weights: State,
    region: Region,
    data: tuple[Tensor, Tensor],
    classes: Tensor | None,
    wanted: float,
    joint: bool = True,
) -> tuple[Region, int]:
    """The region, drawn in towards the weights until so many examples are certain.

    The factor is found by bisection on quick float32 bounds and then confirmed, and lowered if need be, with sound
    ones. Smaller boxes have tighter bounds, so the count only grows as the factor falls. At zero the region is a
    single point, which is as much as can be done.

    Returns:
        The region, and how many examples are certain in it.
    """
    x, labels = data

    def count(box: Region, quick: bool = False) -> int:
        return int(certain_examples(model, box, x, labels, classes, joint, quick).sum())

    def enough(factor: float) -> bool:
        return count(region.scaled(factor, weights), quick=True) >= wanted

    certified = count(region)
    if certified >= wanted:
        return region, certified
    point = region.scaled(0.0, weights)
    certified = count(point)
    if certified < wanted:  # rounding alone may be too much: no region can do better
        return point, certified
    good, bad = 1.0, 1.0
    while good > 1e-12 and not enough(good):
        good, bad = good / 2, good
    for _ in range(8 if good < bad else 0):
        middle = (good + bad) / 2
        good, bad = (middle, bad) if enough(middle) else (good, middle)
    for margin in (1.0, 0.999, 0.99, 0.95, 0.8, 0.5, 0.1, 0.01, 0.0):
        box = region.scaled(good * margin, weights)
        certified = count(box)
        if certified >= wanted:
            break
    return box, certified


@torch.no_grad()
def widened_to_keep(
    model: nn.Module,
    weights: State,
    region: Region,
    parent: Region,
    data: tuple[Tensor, Tensor],
    classes: Tensor | None,
    wanted: float,
    joint: bool = True,
) -> tuple[Region, int]:
    """The region, let out from the weights, but never out of its parent, while so many examples stay certain.

    Every edge's distance from its weight grows by one factor, found as in :func:`shrunk_to_keep`.

    Args:
        region: One in which so many examples are certain.
    """
    x, labels = data

    def wide(factor: float) -> Region:
        lower, upper = {}, {}
        for name, weight in weights.items():
            low, up = region.lower[name], region.upper[name]
            lower[name] = torch.minimum(low, torch.maximum(weight - factor * (weight - low), parent.lower[name]))
            upper[name] = torch.maximum(up, torch.minimum(weight + factor * (up - weight), parent.upper[name]))
        return Region(lower, upper)

    def enough(factor: float) -> bool:
        return int(certain_examples(model, wide(factor), x, labels, classes, joint, quick=True).sum()) >= wanted

    good, bad = 1.0, 2.0
    while bad < WIDEST and enough(bad):
        good, bad = bad, 2 * bad
    for _ in range(8):
        middle = (good + bad) / 2
        good, bad = (middle, bad) if enough(middle) else (good, middle)
    for margin in (1.0, 0.999, 0.99, 0.95, 0.9):
        if good * margin <= 1:
            break
        box = wide(good * margin)
        certified = int(certain_examples(model, box, x, labels, classes, joint).sum())
        if certified >= wanted:
            return box, certified
    return region, int(certain_examples(model, region, x, labels, classes, joint).sum())
