"""Which of a task's examples shape what, and whether enough of them are certain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from intercontinet.errors import InvalidSetting
from intercontinet.noise import orders


def check_shares(**shares: float) -> None:
    """Refuse what is no share of the examples, or leaves too few to learn from."""
    for name, share in shares.items():
        if not 0 <= share < 0.5:
            raise InvalidSetting(f"{name} is {share}; it is a share of the examples: at least 0, and below 0.5")
    if sum(shares.values()) >= 1:
        told = ", ".join(f"{name} {share}" for name, share in shares.items())
        raise InvalidSetting(f"{told}: together these leave nothing to learn from")


def divided(
    held_out: float, unseen: float, examples: int, key: int, device: torch.device, known: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Which examples are learned from, watched, and unseen, by a random order that the key fixes: [examples] each.

    Those that are ``known``, [examples], from elsewhere are learned from, and so no bound stands on them.

    >>> [int(part.sum()) for part in divided(0.1, 0.2, 50, 0, torch.device("cpu"))]
    [35, 5, 10]
    """
    order = orders(torch.tensor([key]), examples)[0].to(device)
    watched, hidden = (torch.zeros(examples, dtype=torch.bool, device=device) for _ in range(2))
    first, second = int(held_out * examples), int(unseen * examples)
    watched[order[:first]] = True
    hidden[order[first : first + second]] = True
    if known is not None:
        watched, hidden = watched & ~known.to(device), hidden & ~known.to(device)
    return ~(watched | hidden), watched, hidden


@final
@dataclass(frozen=True)
class Shares:
    """Which examples stand for what, and whether enough of them are certain.

    Attributes:
        keep: Share of the accuracy that must be certain.
        sure: Examples whose way into the net no rounding could change, [examples].
        watched: Those that decide nothing but the size of the region, [examples].
        unseen: Those that decide nothing, [examples].
    """

    keep: float
    sure: Tensor
    watched: Tensor
    unseen: Tensor

    def enough(self, certain: Tensor, hits: Tensor) -> bool:
        """Whether ``keep`` of the accuracy is certain among what was not unseen, and among what was watched."""
        kept = [int(certain[some].sum()) >= self.keep * int(hits[some].sum()) for some in (~self.unseen, self.watched)]
        return all(kept)
