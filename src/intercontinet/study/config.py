"""What to run: a method with its settings on a stream of tasks, from flags, a YAML file, and the paper's presets."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from intercontinet.complaints import nearest
from intercontinet.errors import InvalidSetting
from intercontinet.learners.catalogue import METHODS, PROMISING, Kind, Values, check_type, plain
from intercontinet.learners.exact_method import ExactMethod
from intercontinet.learners.exact_settings import ExactSettings
from intercontinet.learners.intercontinet import Hyperrectangles
from intercontinet.learners.method import Method
from intercontinet.learners.settings import Settings
from intercontinet.nets.table import CAPPED
from intercontinet.study.sources import RUN_KEYS, SAME_IMAGES, load_preset, preset_of
from intercontinet.tasks import SCENARIOS, Scenario

_EXPONENT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")  # "1e-4", which YAML takes for a word
MOST_SEEDS = 10_000  # in one run


@dataclass(frozen=True)
class Config:
    """One run.

    Attributes:
        dataset: A name, or the path of an .npz file or an image folder.
        scenario: "task", "domain" or "class".
        method: A key of ``METHODS``.
        seeds: One net each.
        tasks: How many tasks to cut the data into; None for the usual number.
        net: "mlp-400-400" (widths of hidden layers) or "alexnet"; for method "exact" an encoder (docs/runs.md).
        augment: Whether training images are flipped and cropped at random.
        settings: Of the method, complete.
    """

    dataset: str
    scenario: Scenario
    method: str
    seeds: tuple[int, ...]
    tasks: int | None
    net: str
    augment: bool
    settings: Values = field(default_factory=dict)

    @property
    def keep(self) -> float | None:
        """The promised share, or None for a method that promises nothing."""
        return float(self.settings["keep"]) if METHODS[self.method].settings in PROMISING else None

    def record(self) -> dict[str, Any]:
        """As JSON, to be compared when a run is taken up again."""
        return {**asdict(self), "seeds": list(self.seeds), "settings": plain(self.settings)}


def settings_of(config: Config) -> dict[str, Any]:
    """All settings of a run, as its record has them."""
    return {"augment": config.augment, **plain(config.settings)}


def check_count(seeds: int) -> None:
    """Refuse a number of seeds that is no number of nets to train."""
    if seeds < 1:
        raise InvalidSetting(f"seeds is {seeds}: give at least one")
    if seeds > MOST_SEEDS:
        raise InvalidSetting(
            f"seeds is {seeds}, and one run takes at most {MOST_SEEDS:,}: give fewer, or which ones, 3,7,9"
        )


def configure(
    dataset: str = "digits",
    scenario: str = "task",
    method: str = "intercontinet",
    seeds: tuple[int, ...] = (0,),
    tasks: int | None = None,
    net: str | None = None,
    augment: bool | None = None,
    settings: Values | None = None,
    epochs: int | None = None,
) -> Config:
    """A complete configuration: the data set's preset, and over it what is given here.

    Args:
        settings: Of the method; those left out are the preset's, or else the method's own defaults.
        epochs: All epochs of a task; milestones move with them, and InterContiNet's are divided as in the preset.

    Raises:
        InvalidSetting: Something is misspelt or makes no sense; it is named, with the nearest right one.

    >>> configure("mnist", "domain", "ewc").settings["strength"]
    2048
    """
    if scenario not in SCENARIOS:
        raise InvalidSetting(f"there is no scenario '{scenario}'{nearest(scenario, SCENARIOS)}: choose one of "
                             f"{', '.join(SCENARIOS)}")  # fmt: skip
    if method not in METHODS:
        raise InvalidSetting(f"there is no method '{method}'{nearest(method, METHODS)}: choose one of "
                             f"{', '.join(METHODS)}")  # fmt: skip
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0 or max(seeds) >= 2**63:
        raise InvalidSetting(f"seeds are {list(seeds)}: give at least one, none negative, none twice, all below 2^63")
    check_count(len(seeds))
    preset = load_preset(preset_of(dataset))
    kind = METHODS[method]
    known = [item.name for item in fields(kind.settings)]
    given = preset.settings(method, scenario)
    net = net or given.pop("net", preset.net)
    values = {**{name: value for name, value in given.items() if name != "net"}, **(settings or {})}
    values = {name: _from_yaml(value) for name, value in values.items()}
    for name in values:
        if name not in known:
            if name in RUN_KEYS and name != "keep":  # which is a setting of the methods that promise
                raise InvalidSetting(
                    f"method '{method}' has no setting '{name}': it is an option of its own, --{name}, or {name} at "
                    "the top of a --config file"
                )
            own_names = [own for own in known if own not in kind.fixed]
            raise InvalidSetting(f"method '{method}' has no setting '{name}'{nearest(str(name), own_names)}: they are "
                                 f"{', '.join(own_names)}")  # fmt: skip
    for name, value in kind.fixed.items():
        if values.get(name, value) != value:
            others = [own for own, other in METHODS.items() if other.settings is kind.settings and own != method]
            raise InvalidSetting(f"method '{method}' has {name} {value!r}: leave it out"
                                 f"{', or choose ' + ' or '.join(others) if others else ''}")  # fmt: skip
    if kind.settings in PROMISING:
        values.setdefault("head", "per-task" if scenario == "task" else "shared")
        if values["head"] == "per-task" and scenario != "task":
            raise InvalidSetting(
                f"head is 'per-task', but scenario {scenario} has one head for all tasks: leave it out"
            )
    if kind.settings in PROMISING and dataset in SAME_IMAGES and values.setdefault("unseen", 0.0) != 0:
        raise InvalidSetting(
            f"unseen is {values['unseen']}, but {dataset} shows the same images in every task: none stays unseen"
        )
    if values.get("strangers_from") == dataset:
        raise InvalidSetting(f"strangers_from is '{dataset}', the data set itself: no example of it is a stranger")
    if "sight-" in str(net) and dataset == "cifar-100":
        raise InvalidSetting("sight was trained on the images of cifar-100, later tasks' too: choose another net")
    whole = _checked(kind, {**values, **kind.fixed})
    if isinstance(whole, ExactSettings):
        _check_columns(whole, str(net))
    elif min(whole.milestones, default=1) < 1:
        raise InvalidSetting(f"milestones is {whole.milestones}: epochs are counted from 1, and none comes before")
    if epochs is not None:
        asked_for = {"milestones": whole.milestones} if "milestones" in (settings or {}) else {}
        whole = replace(whole, **{**_shared_out(whole, epochs), **asked_for})
    own = {item.name: getattr(whole, item.name) for item in fields(whole)}
    if kind.settings is ExactSettings and augment:
        raise InvalidSetting(
            "augment makes no sense for method 'exact', whose encoder sees every image once: leave it out. Columns "
            "that are trained can see mirrored images, too: --set mirror=true"
        )
    if augment is None:
        augment = preset.augment and kind.settings is not ExactSettings
    if own.get("augmented") and not augment:
        raise InvalidSetting("augmented is for images that are flipped and cropped while training: add --augment")
    return Config(dataset, scenario, method, tuple(seeds), tasks, str(net), augment, own)


def epochs_in(settings: Values) -> int:
    """How many epochs a task takes, all phases together; 0 for a method that does not count them."""
    found = (settings.get(name) for name in ("epochs", "centre_epochs", "radii_epochs"))
    return sum(number for number in found if isinstance(number, int))


def build_method(config: Config) -> Method:
    """The method that a configuration speaks of."""
    settings = METHODS[config.method].settings(**config.settings)
    if isinstance(settings, Settings):
        return Hyperrectangles(settings)
    return ExactMethod(settings) if isinstance(settings, ExactSettings) else settings


def _check_columns(settings: ExactSettings, net: str) -> None:
    """Refuse what makes no sense for the columns of a net: trained in heads and under ceilings, or else counted."""
    capped, heads = net.startswith(CAPPED), settings.head == "per-task"
    if capped and heads:
        raise InvalidSetting(
            f"net is '{net}', but with a head for each task nothing competes, and nothing needs a ceiling: use "
            f"'{net.removeprefix(CAPPED)}'"
        )
    for name in ("strangers_from", "tuning"):
        if getattr(settings, name) != getattr(ExactSettings, name) and not capped:
            raise InvalidSetting(f"{name} is for outputs under a ceiling: use a capped net, or leave it out")
    if settings.parts > 1 and capped:
        raise InvalidSetting(
            f"parts is {settings.parts}, but columns of a capped net are trained, and are not divided: set parts=1, or "
            f"use '{net.removeprefix(CAPPED)}'"
        )
    if settings.mirror and not (capped or heads):
        raise InvalidSetting(
            f"mirror is for columns that are trained, and those of '{net}' are counted: set mirror=false, or use "
            f"'{CAPPED}{net}'"
        )


def _from_yaml(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_from_yaml, value))
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


def _checked(kind: Kind, values: Values) -> Any:
    for item in fields(kind.settings):
        if item.name in values:
            check_type(item.name, values[item.name], str(item.type))
    return kind.settings(**values)


def _shared_out(settings: Any, epochs: int) -> dict[str, Any]:
    """A total of epochs, with all that is counted in epochs in the same proportion."""
    if epochs < 1:
        raise InvalidSetting(f"epochs is {epochs}; it must be at least 1")
    if isinstance(settings, ExactSettings):
        raise InvalidSetting("epochs makes no sense for method 'exact', whose number of passes is fixed: leave it out")
    intervals = isinstance(settings, Settings)
    before = settings.centre_epochs + settings.radii_epochs if intervals else settings.epochs
    ratio = epochs / max(before, 1)
    milestones = tuple(max(1, round(milestone * ratio)) for milestone in settings.milestones)
    if not intervals:
        return {"epochs": epochs, "milestones": milestones}
    if epochs < 2:
        raise InvalidSetting("epochs is 1, but this method needs two phases: give at least 2")
    radii = min(max(1, round(settings.radii_epochs * ratio)), epochs - 1)
    return {"centre_epochs": epochs - radii, "radii_epochs": radii, "milestones": milestones}
