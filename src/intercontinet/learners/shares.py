"""Which of a task's examples shape what, and whether enough of them are certain."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from intercontinet.certificate import Certificate
from intercontinet.data import copied, digests
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

    Those that are ``known``, [examples], from elsewhere are not watched, but learned from. Unseen they may be: without
    them the others would no longer be drawn as new examples are (see :meth:`Shares.of_unseen`).

    >>> [int(part.sum()) for part in divided(0.1, 0.2, 50, 0, torch.device("cpu"))]
    [35, 5, 10]
    """
    order = orders(torch.tensor([key]), examples)[0].to(device)
    watched, hidden = (torch.zeros(examples, dtype=torch.bool, device=device) for _ in range(2))
    first, second = int(held_out * examples), int(unseen * examples)
    watched[order[:first]] = True
    hidden[order[first : first + second]] = True
    if known is not None:
        watched &= ~known.to(device)
    return ~(watched | hidden), watched, hidden


@final
@dataclass(frozen=True)
class Past:
    """What a learner was given before, by which it knows examples that come again.

    Attributes:
        digests: Of all examples so far, [examples].
        whole: Whether these are all there were: not after going on from a certificate, which does not have them.
        asked: Whether anything is held back, so that it matters.
    """

    digests: Tensor
    whole: bool
    asked: bool

    @staticmethod
    def of(certificate: Certificate | None, held_out: float, unseen: float) -> Past:
        whole = certificate is None or not certificate.tasks
        return Past(torch.zeros(0, dtype=torch.int64), whole, held_out > 0 or unseen > 0)

    def given(self, x: Tensor) -> tuple[Tensor | None, Past]:
        """Which examples came before, or come more than once, [examples], None where it does not matter; and the past
        with these, too."""
        if not self.asked:
            return None, self
        own = digests(x)
        return copied(own, self.digests), replace(self, digests=torch.cat([self.digests, own]))


@final
@dataclass(frozen=True)
class Shares:
    """Which examples stand for what, and whether enough of them are certain.

    Attributes:
        keep: Share of the accuracy that must be certain.
        sure: Examples whose way into the net no rounding could change, [examples].
        watched: Those that decide nothing but the size of the region, [examples].
        unseen: Those that decide nothing, [examples].
        known: Those of which there are copies that may have decided something, [examples]; None for none.
    """

    keep: float
    sure: Tensor
    watched: Tensor
    unseen: Tensor
    known: Tensor | None = None

    def enough(self, certain: Tensor, hits: Tensor) -> bool:
        """Whether ``keep`` of the accuracy is certain among what was not unseen, and among what was watched."""
        kept = [int(certain[some].sum()) >= self.keep * int(hits[some].sum()) for some in (~self.unseen, self.watched)]
        return all(kept)

    def of_unseen(self, certain: Tensor) -> tuple[int, int]:
        """How many of the unseen examples are certain, and how many there are.

        Of copies none counts as certain: with a count that is too low, a lower bound holds all the same.
        """
        counted = certain & self.unseen
        if self.known is not None:
            counted = counted & ~self.known.to(counted.device)
        return int(counted.sum()), int(self.unseen.sum())
