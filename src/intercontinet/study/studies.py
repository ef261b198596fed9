"""The studies: which cells each table or figure consists of, the paper's and ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from intercontinet.complaints import nearest
from intercontinet.errors import InvalidSetting
from intercontinet.learners.catalogue import Values
from intercontinet.report.record import CellKey
from intercontinet.tasks import SCENARIOS

ANCHORED = ("l2", "ewc", "oewc", "si", "mas")
INTERVALS = ("intercontinet-published", "intercontinet")
FIGURE4_EPOCHS = 20  # where the paper has 100
KEEPS = (0.05, 0.5, 0.8, 0.9, 0.95)  # of the acc_thresh study
SHARES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)  # of the study of what a promise costs


@dataclass(frozen=True)
class Plan:
    """One cell: what to run for it."""

    dataset: str
    scenario: str
    method: str
    variant: str = ""
    settings: Values = field(default_factory=dict)
    net: str | None = None  # the preset's by default
    epochs: int | None = None  # the study's by default

    @property
    def key(self) -> CellKey:
        return CellKey(self.dataset, self.scenario, self.method, self.variant)


@dataclass(frozen=True)
class Study:
    """A table or figure, of the paper or ours.

    Attributes:
        plans: Its cells.
        seeds: How many it takes.
        curves: Whether curves are drawn from it.
        epochs: Of a task, where ours are fewer than the paper's.
        argue: With how many examples of every task its promise is argued with; 0 for not at all.
    """

    plans: tuple[Plan, ...]
    seeds: int
    curves: bool = False
    epochs: int | None = None
    argue: int = 0

    @property
    def several(self) -> bool:
        """Whether it is of more than one data set."""
        return len({plan.dataset for plan in self.plans}) > 1


def _grid(dataset: str, scenarios: Sequence[str], methods: Sequence[str]) -> tuple[Plan, ...]:
    return tuple(Plan(dataset, scenario, method) for scenario in scenarios for method in methods)


# The paper's method on the paper's network, with all that was found to leave it more room (docs/method.md).
VOLUME: Values = {
    "margins": "joint",
    "widen": True,
    "edges": "asymmetric",
    "shift": "clamped",
    "aim": "volume",
    "worst": "lost",
    "optimizer": "adam",
    "rate": 0.001,
    "later_rate": 0.002,
    "centre_epochs": 25,  # with a fifth held back, as many steps as 20 of all
    "radii_epochs": 26,
    "radii_rate": 0.03,
    "radius": 0.3,
    "held_out": 0.1,
    "unseen": 0.1,
}
# Classes told from the images of another data set, too.
STRANGE: Values = {
    "fit_rate": 0.1,
    "strangers_from": "cifar-100",
    "tuning": "shifted",
    "typical": 1.0,
}
# Encoders that were fitted to the first task's images and no others, where presets have one that was trained elsewhere.
_ALONE = "dictionary-400-3-10-0.1-4000-5"
_TRAINED: Values = {"fit_rate": 0.1, "mirror": True}
_EXACT = ("exact",)
_ALL = ("sgd", "adam", *ANCHORED, "lwf", *INTERVALS, "offline")
_ON_CIFAR_10 = ("sgd", *ANCHORED[1:], "lwf", *INTERVALS, "offline")
# With the preset's rate, which is the paper's, InterContiNet learns nothing in so few epochs.
_ON_CIFAR_100 = (
    *_grid("cifar-100", ("task",), ("sgd", *ANCHORED, "lwf")),
    Plan("cifar-100", "task", "intercontinet-published", settings={"rate": 0.1}),
)
# What was tried for cells that lie far from the paper's: each is as in its table, but for the settings here.
_TRIED = (
    *(
        Plan("mnist", "domain", "intercontinet-published", variant, settings)
        for variant, settings in (
            ("first-radii-slower", {"radii_rate": 100.0, "later_radii_rate": 1000.0}),
            ("radii-slower", {"radii_rate": 10.0}),
        )
    ),
    Plan("mnist", "class", "intercontinet-published", "shift-plain", {"shift": "plain"}),
    Plan("fashion-mnist", "class", "intercontinet-published", "shift-scaled", {"shift": "scaled"}),
    *(
        Plan("cifar-10", scenario, method, "fewer-epochs", epochs=20)
        for scenario, method in (
            *((scenario, "offline") for scenario in SCENARIOS),
            ("domain", "sgd"),
            ("domain", "ewc"),
        )
    ),
    *(
        Plan("cifar-10", scenario, method, "epochs-75", epochs=75)
        for scenario, method in (
            ("task", "mas"),
            ("task", "lwf"),
            ("task", "offline"),
            ("domain", "sgd"),
            ("domain", "ewc"),
            ("domain", "lwf"),
            ("class", "oewc"),
            ("class", "si"),
            ("class", "mas"),
            ("class", "lwf"),
            ("class", "offline"),
        )
    ),
    *(
        Plan("cifar-10", scenario, method, variant, settings, epochs=75)
        for scenario, method, variant, settings in (
            ("task", "offline", "larger-batches", {"batch_size": 640}),
            ("task", "offline", "larger-batches-and-steps", {"batch_size": 640, "rate": 0.3}),
            ("task", "lwf", "old-net-whole", {"old_drops": False}),
            ("domain", "lwf", "old-net-whole", {"old_drops": False}),
            ("task", "mas", "one-penalty", {"online": True}),
            ("task", "mas", "importances-augmented", {"augmented": True}),
            ("domain", "ewc", "importances-augmented", {"augmented": True}),
            ("domain", "sgd", "rate-of-the-text", {"rate": 0.01}),
        )
    ),
    *(
        Plan("cifar-10", "task", "offline", f"larger-batches-rate-{rate:g}", {"batch_size": 640, "rate": rate})
        for rate in (0.2, 0.3, 0.5)
    ),
    *(
        replace(plan, variant="more-epochs", epochs=100)
        for plan in _ON_CIFAR_100
        if plan.method in ("sgd", "lwf", "intercontinet-published")
    ),
    *(
        Plan("cifar-100", "task", method, variant, settings, epochs=FIGURE4_EPOCHS)
        for method, variant, settings in (
            ("lwf", "old-net-drops", {"old_drops": True}),
            ("mas", "a-penalty-a-task", {"online": False}),
            ("intercontinet-published", "rate-of-the-paper", {"rate": 0.001}),
        )
    ),
)
STUDIES: dict[str, Study] = {
    "table1": Study(_grid("mnist", SCENARIOS, _ALL), 5),
    "table2": Study(_grid("fashion-mnist", SCENARIOS, _ALL), 5),
    "table3": Study(_grid("cifar-10", SCENARIOS, _ON_CIFAR_10), 5),
    "figure3": Study(
        tuple(
            Plan("fashion-mnist", "domain", "intercontinet-published", f"keep-{keep:g}", {"keep": keep})
            for keep in KEEPS
        ),
        5,
        curves=True,
    ),
    "figure4": Study(_ON_CIFAR_100, 3, epochs=FIGURE4_EPOCHS),
    "guarantee": Study(
        (
            *(plan for dataset in ("mnist", "fashion-mnist", "cifar-10") for plan in _grid(dataset, SCENARIOS, _EXACT)),
            *_grid("cifar-100", ("task",), _EXACT),
            *(
                Plan("cifar-10", scenario, "exact", "strangers", STRANGE, net="capped-sight-4-4000-5")
                for scenario in ("domain", "class")
            ),
            *(
                Plan(dataset, scenario, "exact", "dictionary", settings, net)
                for dataset, scenario, settings, net in (
                    ("cifar-10", "task", _TRAINED, _ALONE),
                    ("cifar-10", "domain", {**_TRAINED, "at_ceiling": 0.7, "typical": 1.0}, f"capped-{_ALONE}"),
                    ("cifar-10", "class", {**_TRAINED, "at_ceiling": 0.75, "typical": 2.0}, f"capped-{_ALONE}"),
                    (
                        "fashion-mnist",
                        "class",
                        {"fit_rate": 0.1, "at_ceiling": 0.8, "typical": 1.5, "tuning": "multiplied"},
                        "capped-dictionary-150-4-40-30-600-9",
                    ),
                )
            ),
            *(
                Plan(dataset, scenario, "intercontinet", "volume", {**VOLUME, "keep": keep})
                for dataset in ("mnist", "fashion-mnist")
                for scenario, keep in (("task", 0.9), ("domain", 0.8), ("class", 0.8))
            ),
        ),
        5,
        argue=1000,
    ),
    "trials": Study(_TRIED, 1),
    "tradeoff": Study(
        tuple(
            Plan("mnist", scenario, method, f"keep-{keep:g}", {"keep": keep})
            for scenario in ("domain", "class")
            for method in ("intercontinet", *_EXACT)
            for keep in SHARES
        ),
        5,
    ),
}


def named(study: str) -> Study:
    """A study by its name."""
    if study not in STUDIES:
        known = (*STUDIES, "docs")  # which is none, but goes where studies go
        raise InvalidSetting(f"there is no study '{study}'{nearest(study, known)}: choose one of {', '.join(known)}")
    return STUDIES[study]


def chosen(study: str, only: Sequence[str]) -> list[Plan]:
    """The cells of a study that bear one of some names, "class/ewc", "domain", "mas", "mnist"; without any, all.

    Raises:
        InvalidSetting: There is no such study, or a name is no cell's.
    """
    plans = named(study).plans
    for part in only:
        if not any(bears(plan.key, part) for plan in plans):
            words = {
                what: list(dict.fromkeys(name for plan in plans if (name := getattr(plan, what))))
                for what in ("dataset", "scenario", "method", "variant")
            }
            known = [name for names in words.values() for name in names]
            told = "; ".join(f"{what} {', '.join(names)}" for what, names in words.items() if names)
            raise InvalidSetting(
                f"no cell of {study} is called '{part}'{nearest(part, known)}: its cells are named by {told}; or by "
                f"several, as in {plans[0].key}"
            )
    return [plan for plan in plans if not only or any(bears(plan.key, part) for part in only)]


def bears(key: CellKey, part: str) -> bool:
    """Whether consecutive words of a cell's name are these.

    >>> bears(CellKey("mnist", "class", "ewc"), "class/ewc"), bears(CellKey("mnist", "class", "ewc"), "mnist/ewc")
    (True, False)
    """
    name = f"/{key.dataset}/{key}/"
    return f"/{part}/" in name
