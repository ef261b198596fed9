"""The part of an exact net that learns: a table of rows that are summed, and the box that its weights move in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intercontinet.errors import InvalidData, InvalidModel
from intercontinet.nets.lesser import Lesser
from intercontinet.region import Region

WEIGHT = "0.weight"  # the table of a net that is nothing else


@final
@dataclass(frozen=True)
class Table:
    """The part of a net that learns: a table of rows, summed, and the maximum over the columns of each output.

    Attributes:
        net: All of it.
        bag: The table.
        slots: Columns that an output has.
        capped: Whether a second column beside each is the ceiling of its sum.
    """

    net: nn.Sequential
    bag: nn.EmbeddingBag
    slots: int
    capped: bool = False

    @classmethod
    def of(cls, net: nn.Module) -> Table:
        """EmbeddingBag, Lesser where sums have ceilings, and MaxPool1d where outputs have several columns."""
        layers = list(net) if isinstance(net, nn.Sequential) else []
        bag, above = (layers[0], layers[1:]) if layers else (None, [])
        capped = bool(above) and isinstance(above[0], Lesser)
        above = above[1:] if capped else above
        if not isinstance(bag, nn.EmbeddingBag) or bag.mode != "sum" or len(above) > 1:
            raise InvalidModel(
                "this learner needs an EmbeddingBag that sums, and above it at most a Lesser and a MaxPool1d: see "
                "with_table"
            )
        slots, columns = 1, bag.embedding_dim // (2 if capped else 1)
        for pool in above:
            slots = cast(int, pool.kernel_size) if isinstance(pool, nn.MaxPool1d) else 0
            if slots < 1 or pool.stride != slots or pool.padding != 0 or columns % slots:
                raise InvalidModel(f"{pool} must take the maximum over each output's columns, all equally many")
        return cls(cast(nn.Sequential, net), bag, slots, capped)

    @property
    def columns(self) -> int:
        """Of the table. Where it is capped, every second one is the ceiling of the one before."""
        return self.bag.embedding_dim

    def free_columns(self, free: Tensor, output: int) -> list[int]:
        """An output's columns among those that are free, [columns], ceilings not counted."""
        columns = [column for column in range(output * self.slots, (output + 1) * self.slots) if bool(free[column])]
        if not columns:
            raise InvalidData(
                f"output {output} has no free column left, as it was learned before or no room remains: build the net "
                "with more slots"
            )
        return columns

    def outputs(self, sums: Tensor) -> Tensor:
        """[examples, columns] -> [examples, outputs]"""
        lesser = sums.view(len(sums), -1, 2).amin(2) if self.capped else sums
        return lesser.view(len(sums), -1, self.slots).amax(2)


@final
@dataclass(frozen=True)
class Box:
    """Weights and the edges they move between, [rows, columns] each."""

    weight: Tensor
    lower: Tensor
    upper: Tensor

    def clone(self) -> Box:
        return Box(self.weight.clone(), self.lower.clone(), self.upper.clone())

    @property
    def free(self) -> Tensor:
        """Columns that have not been taken yet, [columns]."""
        return (self.lower != self.upper).any(0)

    @property
    def region(self) -> Region:
        return Region({WEIGHT: self.lower}, {WEIGHT: self.upper})


def sums(rows: Tensor, table: Tensor) -> Tensor:
    """[examples, chosen] of row numbers -> sums of the table's rows, [examples, columns]."""
    return F.embedding_bag(rows, table, mode="sum")


def typical(rows: Tensor, size: int, cap: float, depth: float) -> Tensor:
    """log K P(b) for the examples in ``rows`` [examples, chosen], within [-depth, cap]: [size], float64.

    P(b) is the share of examples that choose row b, and K the number of rows over the number chosen.
    """
    share = torch.bincount(rows.flatten(), minlength=size).double() / max(len(rows), 1) * (size / rows.shape[1])
    return share.log().clamp(-depth, cap)
