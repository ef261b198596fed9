"""Which batch of an epoch training is at, and the statistics of the last ones.

Counted in Python where Python takes the steps, which is quicker on a CPU; in tensors where a step is recorded and
replayed, since a number of Python would be recorded, too, and never change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, final

import torch
from torch import Tensor

WINDOW = 10  # batches over which statistics are averaged


class Place(Protocol):
    """A place in an epoch, from batch to batch."""

    @property
    def position(self) -> int | Tensor:
        """Of the batch's first example in the epoch's order; a tensor has shape [1]."""
        ...

    @property
    def changing(self) -> list[Tensor]:
        """What a step writes and later steps read."""
        ...

    def begin(self) -> None:
        """An epoch."""
        ...

    def rows(self, order: Tensor) -> Tensor:
        """The batch's part of an order, [seeds, examples] -> [seeds, batch]."""
        ...

    def step(self, statistics: Callable[[], Tensor]) -> None:
        """On to the next batch; the statistics of this one, [seeds, k], are asked for where they will be looked at."""
        ...

    def means(self) -> Tensor:
        """Statistics averaged over the last batches, [seeds, k]."""
        ...


@final
class InPython:
    """Counts in Python.

    Args:
        recent: Room for statistics, [WINDOW, seeds, k].
        count: Batches of an epoch.
        size: Examples of a batch.
        watched: Whether every batch's statistics matter, or only the average at the end of an epoch.
    """

    def __init__(self, recent: Tensor, count: int, size: int, watched: bool) -> None:
        self.position = 0
        self._recent, self._size, self._noted = recent, size, 0
        self._from = 0 if watched else size * (count - WINDOW)

    @property
    def changing(self) -> list[Tensor]:
        return [self._recent]

    def begin(self) -> None:
        self.position = 0

    def rows(self, order: Tensor) -> Tensor:
        return order[:, self.position : self.position + self._size]

    def step(self, statistics: Callable[[], Tensor]) -> None:
        if self.position >= self._from:
            self._recent[self._noted % WINDOW] = statistics()
            self._noted += 1
        self.position += self._size

    def means(self) -> Tensor:
        return self._recent.sum(0) / min(self._noted, WINDOW)


@final
class InTensors:
    """Counts in tensors that stay where they are.

    Args:
        recent: Room for statistics, [WINDOW, seeds, k].
        size: Examples of a batch.
    """

    def __init__(self, recent: Tensor, size: int) -> None:
        self.position = torch.zeros(1, dtype=torch.int64, device=recent.device)
        self._recent, self._noted = recent, torch.zeros_like(self.position)
        self._within = torch.arange(size, device=recent.device)

    @property
    def changing(self) -> list[Tensor]:
        return [self._recent, self.position, self._noted]

    def begin(self) -> None:
        self.position.zero_()

    def rows(self, order: Tensor) -> Tensor:
        return order.index_select(1, self._within + self.position)

    def step(self, statistics: Callable[[], Tensor]) -> None:
        self._recent.index_copy_(0, self._noted % WINDOW, statistics()[None])
        self._noted += 1
        self.position += len(self._within)

    def means(self) -> Tensor:
        return self._recent.sum(0) / self._noted.clamp(max=WINDOW)
