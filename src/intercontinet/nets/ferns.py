"""Random ferns: groups of simple tests, of pixels or features, whose outcomes, read as a binary number, choose a bin.

Nothing is trained: the tests are drawn once. Each group puts an example into exactly one of its bins, so the encoding
is sparse and non-negative, one 1 a group, and a linear layer above it is a sum of chosen rows (EmbeddingBag).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn

from intercontinet.bounds.arithmetic import Arithmetic
from intercontinet.bounds.registry import rule
from intercontinet.errors import InvalidData, InvalidSetting
from intercontinet.interval import Interval

Kind = Literal["threshold", "pair"]
THRESHOLDS = (0.1, 0.7)  # pixels lie in [0, 1]
QUANTILES = (0.1, 0.9)  # between which the levels of features are drawn
STEP = 0.02  # by how much a pixel must be brighter than the other of its pair


class Ferns(nn.Module):
    """[batch, channels, height, width] -> [batch, groups], numbers of bins, all groups' bins counted through.

    Args:
        shape: Of one image, (channels, height, width); or (features,) for examples that are [batch, features].
        groups: How many.
        tests: Tests a group has; it has two to that power bins.
        window: Side of the square in which all tests of a group lie. Features lie in no square: leave it out.
        kind: "threshold" asks whether a pixel is brighter than a number, "pair" than another pixel.
        seed: Fixes the tests.
        levels: The numbers to be brighter than, [groups, tests], instead of drawn ones: see :func:`feature_ferns`.
            They are saved with the model; to load one, build it with levels of any value.

    >>> ferns = Ferns((1, 8, 8), groups=3, tests=2, window=4, seed=0)
    >>> ferns(torch.zeros(1, 1, 8, 8))  # nothing is bright: every group's first bin
    tensor([[0, 4, 8]])
    """

    first: Tensor
    second: Tensor
    level: Tensor

    def __init__(
        self,
        shape: Sequence[int],
        groups: int,
        tests: int,
        window: int | None = None,
        kind: Kind = "threshold",
        seed: int = 0,
        levels: Tensor | None = None,
    ) -> None:
        super().__init__()
        if min(groups, tests) < 1 or tests > 20:
            raise InvalidSetting(f"ferns need at least one group and 1 to 20 tests, not {groups} and {tests}")
        if kind not in ("threshold", "pair"):
            raise InvalidSetting(f"kind is {kind!r}; choose one of 'threshold', 'pair'")
        if levels is not None and (kind == "pair" or levels.shape != (groups, tests)):
            raise InvalidSetting(
                f"levels are for kind='threshold', of shape {(groups, tests)}: not {tuple(levels.shape)} for {kind!r}"
            )
        generator = torch.Generator().manual_seed(seed)
        choose = _chooser(shape, (groups, tests), window, generator)
        self.shape, self.kind, self.bins = tuple(shape), kind, groups << tests
        low, high = THRESHOLDS
        drawn = low + (high - low) * torch.rand(groups, tests, generator=generator)
        for name in ("first", "second"):
            self.register_buffer(name, choose(), persistent=False)  # part of the architecture, drawn from its seed
        level = drawn if levels is None else levels.detach().to("cpu", torch.float32, copy=True)
        self.register_buffer("level", level, persistent=levels is not None)  # no seed gives fitted ones back

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        if flat.shape[1] != prod(self.shape):
            raise InvalidData(f"these ferns are for examples of shape {self.shape}, not {tuple(x.shape[1:])}")
        return self.numbers(flat[:, self.first] > self.rivals(flat, self.level))

    def rivals(self, flat: Tensor, level: Tensor) -> Tensor:
        """What the tests' first values must exceed, [groups, tests] or [batch, groups, tests]."""
        return level if self.kind == "threshold" else flat[:, self.second] + STEP

    def numbers(self, passed: Tensor) -> Tensor:
        """Outcomes of all tests, [batch, groups, tests] -> numbers of bins, [batch, groups]."""
        groups, tests = self.first.shape
        powers = 1 << torch.arange(tests, device=passed.device)
        return (passed * powers).sum(-1) + (torch.arange(groups, device=passed.device) << tests)

    def extra_repr(self) -> str:
        groups, tests = self.first.shape
        return f"{self.shape}, groups={groups}, tests={tests}, kind={self.kind}"


def _chooser(
    shape: Sequence[int], size: tuple[int, int], window: int | None, generator: torch.Generator
) -> Callable[[], Tensor]:
    """What draws the places that tests look at, [groups, tests], as positions in a flattened example."""

    def draw(size: tuple[int, ...], below: int) -> Tensor:
        return torch.randint(below, size, generator=generator)

    if len(shape) == 1:
        (features,) = shape
        if window is not None or features < 1:
            raise InvalidSetting(f"ferns of {features} feature(s) need at least one, and window=None, not {window}")
        return lambda: draw(size, features)
    if len(shape) != 3:
        raise InvalidSetting(f"shape is {tuple(shape)}; give (channels, height, width), or (features,)")
    channels, height, width = shape
    if window is None or not 1 <= window <= min(height, width):
        raise InvalidSetting(f"ferns of images need a window of 1 to {min(height, width)} pixels, not {window}")
    groups = size[0]
    top, left = draw((groups, 1), height - window + 1), draw((groups, 1), width - window + 1)
    return lambda: (draw(size, channels) * height + top + draw(size, window)) * width + left + draw(size, window)


@rule(Ferns)
def ferns(layer: Ferns, parameters: Mapping[str, Interval], x: Interval, arithmetic: Arithmetic) -> Interval:
    """The very bins that a float32 evaluation finds: comparisons do not round, and the one sum has two terms.

    Features of a frozen network are known up to its rounding only. An example is in the bins of its lower edges if no
    test can go either way; otherwise, and where an edge is NaN, all its bins are -1, of which nothing is certain.

    >>> from intercontinet.bounds.arithmetic import Float32
    >>> layer = Ferns((1,), groups=1, tests=1, levels=torch.tensor([[0.5]]))
    >>> x = Interval(torch.tensor([[0.1], [0.4], [0.6]]), torch.tensor([[0.2], [0.6], [0.7]]))
    >>> ferns(layer, {}, x, Float32()).lower.flatten()
    tensor([ 0, -1,  1])
    """
    if not x.is_point and len(layer.shape) == 3:
        raise InvalidData("ferns compare pixels, which must be known exactly: pass a tensor, not an interval")
    level = parameters.get("level", Interval.point(layer.level))
    plain = x.is_point and level.is_point and not (_subnormal(x.lower) or _subnormal(level.lower))
    # An edge rounded to the nearest float32 still bounds every float32 number, and so does a rounded sum of edges.
    known = x if plain else arithmetic.function(x, x, ulps=0)  # hardware may take subnormal numbers for zero
    level = level if plain else arithmetic.function(level, level, ulps=0)
    low = known.lower.float().flatten(1)
    high = low if plain else known.upper.float().flatten(1)
    passes = low[:, layer.first] > layer.rivals(high, level.upper.float())
    bins = layer.numbers(passes)
    if plain:
        return Interval.point(bins)
    fails = high[:, layer.first] <= layer.rivals(low, level.lower.float())
    decided = (passes | fails).flatten(1).all(1) & (low <= high).all(1)  # false of NaN
    return Interval.point(torch.where(decided[:, None], bins, -1))


def _subnormal(values: Tensor) -> bool:
    """Whether some number is so small that hardware may take it for zero."""
    return bool(((values != 0) & (values.abs() < torch.finfo(torch.float32).tiny)).any())


def feature_ferns(features: Tensor, groups: int, tests: int, kind: Kind = "threshold", seed: int = 0) -> Ferns:
    """Ferns whose levels suit the features they test: each is a random quantile, of 10 % to 90 %, of its feature.

    A level lies halfway to the next larger value that occurs, since examples at a level itself have no certain bin
    where features are known up to rounding. No labels are needed.

    Args:
        features: [examples, features].
        groups: How many.
        tests: Tests a group has.
        kind: "threshold"; or "pair", which has no levels to fit.
        seed: Fixes features and quantiles.

    >>> layer = feature_ferns(torch.tensor([[0.0], [2.0]]), groups=3, tests=1)
    >>> layer.level.flatten(), layer(torch.tensor([[0.5], [1.5]]))
    (tensor([1., 1., 1.]), tensor([[0, 2, 4],
            [1, 3, 5]]))
    """
    if features.dim() != 2 or not len(features) or not bool(features.isfinite().all()):
        raise InvalidData(f"features must be finite numbers, [examples, features], not {tuple(features.shape)}")
    drawn = Ferns((features.shape[1],), groups, tests, kind=kind, seed=seed)
    if kind == "pair":
        return drawn.to(features.device)
    (dark, bright), (low, high) = THRESHOLDS, QUANTILES
    share = low + (high - low) * (drawn.level - dark) / (bright - dark)  # the levels for pixels are drawn evenly
    ranks = (share * (len(features) - 1)).long().to(features.device)
    places = drawn.first.to(features.device)
    levels = torch.stack([_halfway(features[:, own], rank) for own, rank in zip(places, ranks, strict=True)])
    return Ferns((features.shape[1],), groups, tests, seed=seed, levels=levels).to(features.device)


def _halfway(values: Tensor, rank: Tensor) -> Tensor:
    """[examples, tests], [tests] -> [tests]: between the value of this rank and the next larger one that occurs."""
    at = values.sort(0).values.gather(0, rank[None]).squeeze(0)
    above = torch.where(values > at, values, torch.inf).amin(0)
    below = torch.where(values < at, values, -torch.inf).amax(0)
    other = torch.where(above.isinf(), below, above)  # many examples may share the largest value
    return torch.where(other.isinf(), at + at.abs() + 1, at / 2 + other / 2)  # a constant feature passes no test
