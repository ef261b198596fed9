"""Random ferns: groups of simple pixel tests whose outcomes, read as a binary number, choose one of many bins.

Nothing is trained: the tests are drawn once. Each group puts an example into exactly one of its bins, so the encoding
is sparse and non-negative, one 1 a group, and a linear layer above it is a sum of chosen rows (EmbeddingBag).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn

from intercontinet.bounds.arithmetic import Arithmetic
from intercontinet.bounds.registry import rule
from intercontinet.errors import InvalidData, InvalidSetting
from intercontinet.interval import Interval

Kind = Literal["threshold", "pair"]
THRESHOLDS = (0.1, 0.7)  # pixels lie in [0, 1]
STEP = 0.02  # by how much a pixel must be brighter than the other of its pair


class Ferns(nn.Module):
    """[batch, channels, height, width] -> [batch, groups], numbers of bins, all groups' bins counted through.

    Args:
        shape: Of one image: (channels, height, width).
        groups: How many.
        tests: Tests a group has; it has two to that power bins.
        window: Side of the square in which all tests of a group lie.
        kind: "threshold" asks whether a pixel is brighter than a number, "pair" than another pixel.
        seed: Fixes the tests.

    >>> ferns = Ferns((1, 8, 8), groups=3, tests=2, window=4, seed=0)
    >>> ferns(torch.zeros(1, 1, 8, 8))  # nothing is bright: every group's first bin
    tensor([[0, 4, 8]])
    """

    first: Tensor
    second: Tensor
    level: Tensor

    def __init__(
        self, shape: Sequence[int], groups: int, tests: int, window: int, kind: Kind = "threshold", seed: int = 0
    ) -> None:
        super().__init__()
        channels, height, width = shape
        if min(groups, tests) < 1 or not 1 <= window <= min(height, width) or tests > 20:
            raise InvalidSetting(
                f"ferns need at least one group, 1 to 20 tests, and a window of 1 to {min(height, width)} pixels, "
                f"not {groups}, {tests} and {window}"
            )
        if kind not in ("threshold", "pair"):
            raise InvalidSetting(f"kind is {kind!r}; choose one of 'threshold', 'pair'")
        generator = torch.Generator().manual_seed(seed)

        def draw(size: tuple[int, ...], below: int) -> Tensor:
            return torch.randint(below, size, generator=generator)

        top, left = draw((groups, 1), height - window + 1), draw((groups, 1), width - window + 1)

        def pixels() -> Tensor:
            size = (groups, tests)
            return (draw(size, channels) * height + top + draw(size, window)) * width + left + draw(size, window)

        self.shape, self.kind, self.bins = tuple(shape), kind, groups << tests
        low, high = THRESHOLDS
        level = low + (high - low) * torch.rand(groups, tests, generator=generator)
        for name, tensor in {"first": pixels(), "second": pixels(), "level": level}.items():
            self.register_buffer(name, tensor, persistent=False)  # part of the architecture, drawn from its seed

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        bright = flat[:, self.first]  # [batch, groups, tests]
        passed = bright > self.level if self.kind == "threshold" else bright > flat[:, self.second] + STEP
        groups, tests = self.first.shape
        powers = 1 << torch.arange(tests, device=x.device)
        return (passed * powers).sum(-1) + (torch.arange(groups, device=x.device) << tests)

    def extra_repr(self) -> str:
        groups, tests = self.first.shape
        return f"{self.shape}, groups={groups}, tests={tests}, kind={self.kind}"


@rule(Ferns)
def ferns(layer: Ferns, parameters: object, x: Interval, arithmetic: Arithmetic) -> Interval:
    """The very bins that a float32 evaluation finds: comparisons do not round, and the one sum has two terms."""
    if not x.is_point:
        raise InvalidData("ferns compare pixels, which must be known exactly: pass a tensor, not an interval")
    return Interval.point(cast(Tensor, layer(x.lower.float())))


def fern_net(
    shape: Sequence[int],
    outputs: int,
    groups: int = 500,
    tests: int = 10,
    window: int = 10,
    kind: Kind = "threshold",
    seed: int = 0,
) -> nn.Sequential:
    """Ferns below one row of outputs a bin: the logits are sums over groups. All weights start at zero.

    >>> fern_net((1, 28, 28), outputs=10, groups=4)(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    encoder = Ferns(shape, groups, tests, window, kind, seed)
    bag = nn.EmbeddingBag(encoder.bins, outputs, mode="sum", _weight=torch.zeros(encoder.bins, outputs))
    return nn.Sequential(encoder, bag)
