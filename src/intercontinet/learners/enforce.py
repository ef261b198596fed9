"""Make a promise true, and no more than true: draw a region in, or let it out, until just enough is certain."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from intercontinet.region import Region
from intercontinet.state import State

Certain = Callable[[Region, bool, Tensor], Tensor]
Enough = Callable[[Tensor], bool]

WIDEST = 1024.0  # times a distance
NARROWEST = 1e-12
MARGINS = (1.0, 0.999, 0.99, 0.95, 0.8, 0.5, 0.1, 0.01, 0.0)  # what sound bounds may cost beside quick ones


@torch.no_grad()
def fitted_to_keep(
    certain: Certain, enough: Enough, weights: State, region: Region, parent: Region | None, examples: int
) -> tuple[Region, Tensor]:
    """The region, drawn in towards the weights until enough examples are certain, or let out while they are.

    Every edge's distance from its weight is multiplied by one factor, found by bisection on quick float32 bounds and
    then confirmed, and lowered if need be, with sound ones. What is certain in a box is certain in every part of it: as
    the factor falls, examples are won and none is lost, so that each look is at those alone that are still in doubt.
    At zero the region is a single point, which is as much as can be done.

    Args:
        certain: (region, quick, some) -> which of some examples are certain in it, [examples]: soundly, or by a quick
            guess.
        enough: Whether those are enough; more always are.
        weights: What the region is drawn in to.
        region: Where to start.
        parent: How far edges may go out; None leaves a region in which enough is certain as it is.
        examples: How many there are.

    Returns:
        The region, and which examples are certain in it.
    """

    def scaled(factor: float) -> Region:
        if factor <= 1 or parent is None:
            return region.scaled(factor, weights)
        return _let_out(region, parent, weights, factor)

    everything = torch.ones(examples, dtype=torch.bool, device=next(iter(weights.values())).device)
    found = certain(region, False, everything)
    kept = enough(found)
    if kept:
        if parent is None:
            return region, found
        likely, sure = found, torch.zeros_like(found)  # in the smallest box so far that is enough, and the largest not
        good, bad = 1.0, 2.0
    else:
        at_point = found | certain(scaled(0.0), False, ~found)
        if not enough(at_point):  # rounding alone may be too much: no region can do better
            return scaled(0.0), at_point
        likely, sure = at_point, found
        good, bad = 0.5, 1.0
    possible = likely

    def fits(factor: float) -> bool:
        nonlocal likely, sure
        now = sure | certain(scaled(factor), True, likely & ~sure)
        if enough(now):
            likely = now
            return True
        sure = now
        return False

    if kept:
        while bad < WIDEST and fits(bad):
            good, bad = bad, 2 * bad
    else:
        while good > NARROWEST and not fits(good):
            good, bad = good / 2, good
    for _ in range(8):
        middle = (good + bad) / 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    proved = torch.zeros_like(found) if kept else found  # drawn in, a box lies in the first one
    for margin in MARGINS:
        factor = good * margin
        if kept and factor <= 1:
            return region, found
        box = scaled(factor)
        inside = proved | certain(box, False, possible & ~proved)
        if enough(inside):
            break
    return box, inside


def _let_out(region: Region, parent: Region, weights: State, factor: float) -> Region:
    """Every edge at ``factor`` times its distance from its weight, but never out of the parent, nor further in."""
    lower, upper = {}, {}
    for name, weight in weights.items():
        low, up = region.lower[name], region.upper[name]
        lower[name] = torch.minimum(low, torch.maximum(weight - factor * (weight - low), parent.lower[name]))
        upper[name] = torch.maximum(up, torch.minimum(weight + factor * (up - weight), parent.upper[name]))
    return Region(lower, upper)
