"""How the paper's method trains."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal, final

from intercontinet.errors import InvalidSetting
from intercontinet.floor import Margins
from intercontinet.learners.hyperrectangle import Shift
from intercontinet.learners.shares import check_shares


@final
@dataclass(frozen=True)
class Settings:
    """How :class:`~intercontinet.InterContiNet` trains.

    Attributes:
        keep: Share of a task's training accuracy that must be certain ever after (the paper's acc_thresh).
        radius: Largest radius in the first task.
        enforce: Whether ``keep`` is made true on the whole training set, by shrinking the region where the radii phase
            left it short. Without it this is the method as published, and the floor is whatever it is.
        widen: Whether a region in which more than ``keep`` is certain is let out until just enough is.
        head: "shared", one head for all tasks; or "per-task", where the rows of the last linear layer that belong to a
            task's classes are points, trained with the task and frozen after it.
        margins: "joint", the tighter form, or "separate", the paper's, for the worst-case loss and for the floors.
        rigid: How many layers, from the input on, become points once the first task's centres are trained.
        drift: By default every rounding is bounded, which leaves nothing certain above deep layers. A number instead
            takes what rigid layers put out as computed here, give or take that share of an example's largest entry: a
            weaker promise, which the certificate states.
        held_out: Share of a task's examples that are not trained on, but watched when the region is fitted to ``keep``.
        unseen: Share that shapes nothing at all: how much of it is certain tells what to expect of new examples. No
            earlier task may hold the same examples in another form, nor may the weights have been trained on them
            before.
        shift: How centres move inside their parent: "scaled" by tanh(mu / eps*), "plain" by tanh(mu), no further than
            the nearer edge; or "clamped", anywhere in it.
        edges: "symmetric", one radius for each weight, or "asymmetric", a distance below and one above.
        aim: What the radii phase minimises: "loss", the worst-case loss while too little is certain, as in the paper;
            or "volume", that loss less a reward for the logarithm of every distance, steered so that just enough is.
        worst: The worst-case loss: "entropy", cross-entropy, or "lost", a soft count of the examples that are not
            certain, which gives up on those that cannot be kept anyway.
        budgets: How much each layer's room counts, from the input on, where volume is the aim; one for those left out.
        optimizer: "sgd" or "adam", for both phases.
        rate: Learning rate of the centres in the first task.
        later_rate: The same in later tasks; None for the same rate.
        radii_rate: Learning rate of the radii in the first task; with volume as the aim, of logarithms: 0.06, say.
        later_radii_rate: The same in later tasks; None for the same rate.
        centre_epochs: Passes over the data for the centres.
        radii_epochs: Passes for the radii.
        batch_size: Examples a step.
        radii_start: Value that nu is set to before every task's radii phase.
        milestones: Epochs of the centres after which their rate falls to a tenth.
    """

    keep: float = 0.9
    radius: float = 1.0
    enforce: bool = True
    widen: bool = False
    head: Literal["shared", "per-task"] = "shared"
    margins: Margins = "joint"
    rigid: int = 0
    drift: float | None = None
    held_out: float = 0.0
    unseen: float = 0.0
    shift: Shift = "scaled"
    edges: Literal["symmetric", "asymmetric"] = "symmetric"
    aim: Literal["loss", "volume"] = "loss"
    worst: Literal["entropy", "lost"] = "entropy"
    budgets: tuple[float, ...] = ()
    optimizer: Literal["sgd", "adam"] = "sgd"
    rate: float = 0.1
    later_rate: float | None = None
    radii_rate: float = 100.0
    later_radii_rate: float | None = None
    centre_epochs: int = 20
    radii_epochs: int = 10
    batch_size: int = 128
    radii_start: float = 5.0
    milestones: tuple[int, ...] = ()

    def centre_rate(self, task: int) -> float:
        """The learning rate of the centres in a task, counted from 0."""
        return self.rate if task == 0 or self.later_rate is None else self.later_rate

    def rate_of_radii(self, task: int) -> float:
        """That of the radii."""
        return self.radii_rate if task == 0 or self.later_radii_rate is None else self.later_radii_rate

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            whole, number = item.type == "int", item.type in ("int", "float", "float | None")
            left_out = value is None and item.type == "float | None"
            fits = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
            if number and not left_out and not fits:
                raise InvalidSetting(f"{item.name} is {value!r}; it must be a {'whole ' if whole else ''}number")
        choices = {
            "head": ("shared", "per-task"),
            "margins": ("joint", "separate"),
            "shift": ("scaled", "plain", "clamped"),
            "edges": ("symmetric", "asymmetric"),
            "aim": ("loss", "volume"),
            "worst": ("entropy", "lost"),
            "optimizer": ("sgd", "adam"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise InvalidSetting(
                    f"{name} is {getattr(self, name)!r}; choose one of {', '.join(map(repr, allowed))}"
                )
        if not 0 < self.keep <= 1:
            raise InvalidSetting(f"keep is {self.keep}; it is a share of the accuracy: above 0, at most 1")
        positive = {"radius": self.radius, "rate": self.rate, "radii_rate": self.radii_rate}
        later = {"later_rate": self.later_rate, "later_radii_rate": self.later_radii_rate}
        positive |= {name: value for name, value in later.items() if value is not None}
        for name, value in positive.items():
            if not 0 < value < math.inf:
                raise InvalidSetting(f"{name} is {value}; it must be a positive number")
        if self.batch_size < 1 or min(self.centre_epochs, self.radii_epochs, self.rigid) < 0:
            raise InvalidSetting("batch_size must be at least 1, and epochs and rigid not negative")
        if self.drift is not None and not (0 <= self.drift < 1 and self.rigid):
            raise InvalidSetting(
                f"drift is {self.drift}, with {self.rigid} rigid layer(s): it is a share, such as 1e-5, by which the "
                "outputs of rigid layers may differ"
            )
        check_shares(held_out=self.held_out, unseen=self.unseen)
        numbers = isinstance(self.budgets, tuple) and all(isinstance(budget, (int, float)) for budget in self.budgets)
        if not numbers or not all(0 <= budget < math.inf for budget in self.budgets):
            raise InvalidSetting(
                f"budgets is {self.budgets!r}; it must be a tuple of numbers (in YAML, a list), none of them negative"
            )
        if self.aim == "volume" and self.optimizer != "adam":
            raise InvalidSetting("aim='volume' learns logarithms, which plain gradient steps do not: optimizer='adam'")
        if not math.isfinite(self.radii_start):
            raise InvalidSetting(f"radii_start is {self.radii_start}; it must be a finite number")
