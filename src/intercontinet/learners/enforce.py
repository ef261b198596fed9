"""Make a promise true, and no more than true: draw a region in, or let it out, until just enough is certain."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from intercontinet.floor import certain_examples
from intercontinet.region import Region
from intercontinet.state import State

WIDEST = 1024.0  # times a distance
NARROWEST = 1e-12
MARGINS = (1.0, 0.999, 0.99, 0.95, 0.8, 0.5, 0.1, 0.01, 0.0)  # what sound bounds may cost beside quick ones


@torch.no_grad()
def fitted_to_keep(
    model: nn.Module,
    weights: State,
    region: Region,
    parent: Region | None,
    data: tuple[Tensor, Tensor],
    classes: Tensor | None,
    wanted: float,
    joint: bool = True,
) -> tuple[Region, int]:
    """The region, drawn in towards the weights until so many examples are certain, or let out while they are.

    Every edge's distance from its weight is multiplied by one factor, found by bisection on quick float32 bounds and
    then confirmed, and lowered if need be, with sound ones. Smaller boxes have tighter bounds, so the count only grows
    as the factor falls. At zero the region is a single point, which is as much as can be done.

    Args:
        parent: How far edges may go out; None leaves a region in which enough is certain as it is.

    Returns:
        The region, and how many examples are certain in it.
    """
    x, labels = data

    def count(box: Region, quick: bool = False) -> int:
        return int(certain_examples(model, box, x, labels, classes, joint, quick).sum())

    def scaled(factor: float) -> Region:
        if factor <= 1 or parent is None:
            return region.scaled(factor, weights)
        return _let_out(region, parent, weights, factor)

    def enough(factor: float) -> bool:
        return count(scaled(factor), quick=True) >= wanted

    certified = count(region)
    kept = certified >= wanted
    if kept:
        if parent is None:
            return region, certified
        good, bad = 1.0, 2.0
        while bad < WIDEST and enough(bad):
            good, bad = bad, 2 * bad
    else:
        point = scaled(0.0)
        at_point = count(point)
        if at_point < wanted:  # rounding alone may be too much: no region can do better
            return point, at_point
        good, bad = 0.5, 1.0
        while good > NARROWEST and not enough(good):
            good, bad = good / 2, good
    for _ in range(8):
        middle = (good + bad) / 2
        good, bad = (middle, bad) if enough(middle) else (good, middle)
    for margin in MARGINS:
        factor = good * margin
        if kept and factor <= 1:
            return region, certified
        box = scaled(factor)
        found = count(box)
        if found >= wanted:
            break
    return box, found


def _let_out(region: Region, parent: Region, weights: State, factor: float) -> Region:
    """Every edge at ``factor`` times its distance from its weight, but never out of the parent, nor further in."""
    lower, upper = {}, {}
    for name, weight in weights.items():
        low, up = region.lower[name], region.upper[name]
        lower[name] = torch.minimum(low, torch.maximum(weight - factor * (weight - low), parent.lower[name]))
        upper[name] = torch.maximum(up, torch.minimum(weight + factor * (up - weight), parent.upper[name]))
    return Region(lower, upper)
