"""Settings of the exact learner, and which of a task's examples they let shape what."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from intercontinet.errors import InvalidSetting
from intercontinet.learners.shares import check_shares, divided
from intercontinet.noise import key_of


@final
@dataclass(frozen=True)
class ExactSettings:
    """How to learn: by counting, or, in a capped net (``intercontinet.learners.voices``) and in heads, by training.

    Attributes:
        keep: Share of each task's accuracy that must stay certain, on its training set and on the part held out.
        cap: What a row's count can add for a class, at most.
        depth: What it can take away, at most.
        parts: Columns an output takes in each task: its examples are divided among them, like with like. A head of its
            own takes all that its outputs have.
        held_out: Share of a task's examples that are not counted or trained on, but watched when the ceiling falls.
        unseen: Share that shapes nothing at all: how much of it is certain tells what to expect of new examples. An
            encoder that is fitted or trained must not see it either (:meth:`shaping`), nor may an earlier task hold the
            same examples in another form: there, set it to 0. Examples that came before, or come more than once, are
            not watched, and where they are unseen count as not certain.
        head: "shared", where all outputs compete, or "per-task", where only those of one task do.
        fit_rate: Step size where columns are trained: heads of their own, and all columns of a capped net.
        guides: In a capped net, share of a task's examples that are not trained on either, but tell how loud columns
            are to be; 0 leaves that to those trained on, which flatter it.
        at_ceiling: In a capped net, share of the guides whose own voice is as loud as its ceiling lets it be.
        mirror: Whether trained columns are trained on mirrored images, too. Floors speak of the images as they are.
        typical: In a capped net, how much a voice also tells how typical an example is of its class, by counts; in
            proportion to how loud the task's own voices are, so that it does nothing where most lie below zero.
        tuning: In a capped net, how the voices of later tasks are brought up to the ceiling that they find:
            "multiplied", so that what says nothing stays silent, or "shifted", as befits voices that were trained
            against strangers.
        strangers_from: For runs, a data set whose images the classes of every task are told from, too, without their
            labels; "" for none.
    """

    keep: float = 0.8
    cap: float = 0.1
    depth: float = 8.0
    parts: int = 1
    held_out: float = 0.1
    unseen: float = 0.1
    head: Literal["shared", "per-task"] = "shared"
    fit_rate: float = 0.02
    guides: float = 0.1
    at_ceiling: float = 0.7
    typical: float = 1.0
    mirror: bool = False
    tuning: Literal["multiplied", "shifted"] = "multiplied"
    strangers_from: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise InvalidSetting(f"keep is {self.keep}; it is a share of the accuracy: above 0, at most 1")
        for name in ("cap", "depth", "parts", "fit_rate"):
            if not 0 < getattr(self, name) < math.inf:
                raise InvalidSetting(f"{name} is {getattr(self, name)}; it must be positive")
        if not isinstance(self.parts, int):
            raise InvalidSetting(f"parts is {self.parts}; it must be a whole number")
        check_shares(held_out=self.held_out, unseen=self.unseen, guides=self.guides)
        if not 0 < self.at_ceiling < 1:
            raise InvalidSetting(f"at_ceiling is {self.at_ceiling}; it is a share of the examples: between 0 and 1")
        if not 0 <= self.typical < math.inf:
            raise InvalidSetting(f"typical is {self.typical}; it must not be negative")
        if not isinstance(self.mirror, bool):
            raise InvalidSetting(f"mirror is {self.mirror!r}; it is true or false")
        if self.tuning not in ("multiplied", "shifted"):
            raise InvalidSetting(f"tuning is {self.tuning!r}; choose one of 'multiplied', 'shifted'")
        if self.head not in ("shared", "per-task"):
            raise InvalidSetting(f"head is {self.head!r}; choose one of 'shared', 'per-task'")

    def divided(
        self, examples: int, key: int, device: torch.device, known: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Which examples are counted or trained on, watched, and unseen: [examples] each.

        Those that are ``known`` from elsewhere are not watched.
        """
        return divided(self.held_out, self.unseen, examples, key, device, known)

    def shaping(self, examples: int, seed: int) -> Tensor:
        """Which examples of the first task may shape an encoder, [examples]: all but those that are held back.

        It goes by their places: give :meth:`~intercontinet.ExactInterContiNet.learn` the examples in the same order.
        """
        return self.divided(examples, key_of(seed, 0), torch.device("cpu"))[0]
