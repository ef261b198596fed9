"""The methods that runs know: the class of each one's settings, what is fixed in it, and what it has by default."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from intercontinet.errors import InvalidSetting
from intercontinet.learners.ewc import EWC
from intercontinet.learners.exact_settings import ExactSettings
from intercontinet.learners.l2 import L2
from intercontinet.learners.lwf import LwF
from intercontinet.learners.mas import MAS
from intercontinet.learners.plain import Offline, Plain
from intercontinet.learners.settings import Settings
from intercontinet.learners.si import SI

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """A method: the class of its settings, and what sets it apart from others of that class."""

    settings: type[Any]
    fixed: Values


METHODS: dict[str, Kind] = {
    "sgd": Kind(Plain, {"optimizer": "sgd"}),
    "adam": Kind(Plain, {"optimizer": "adam"}),
    "l2": Kind(L2, {}),
    "ewc": Kind(EWC, {"online": False}),
    "oewc": Kind(EWC, {"online": True}),
    "si": Kind(SI, {}),
    "mas": Kind(MAS, {}),
    "lwf": Kind(LwF, {}),
    "intercontinet": Kind(Settings, {"enforce": True}),
    "intercontinet-published": Kind(Settings, {"enforce": False}),
    "exact": Kind(ExactSettings, {}),
    "offline": Kind(Offline, {"heads": ()}),
}
PROMISING = (Settings, ExactSettings)  # what keeps a share of the accuracy


def plain(settings: Values) -> dict[str, Any]:
    """Settings as JSON has them: lists for tuples."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}


def defaults_of(method: str) -> dict[str, Any]:
    """A method's own defaults, as a record has them: what a setting that is younger than a record was then."""
    kind = METHODS.get(method)
    if kind is None:
        return {}
    return plain({f.name: f.default for f in fields(kind.settings) if f.default is not MISSING} | dict(kind.fixed))


def check_type(name: str, value: Any, kind: str) -> None:
    """Refuse what is not of a kind, named as in an annotation; kinds that are not known here are let through."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and -math.inf < value < math.inf
    whole = number and isinstance(value, int)
    wanted = {
        "int": (whole, "a whole number"),
        "float": (number, "a number"),
        "float | None": (number or value is None, "a number"),
        "bool": (isinstance(value, bool), "true or false"),
        "str": (isinstance(value, str), "a word"),
        "tuple[int, ...]": (_all_of(int, value), "a list of whole numbers"),
        "tuple[float, ...]": (_all_of((int, float), value), "a list of numbers"),
    }
    fits, what = wanted.get(kind, (True, ""))
    if not fits:
        raise InvalidSetting(f"{name} is {value!r}; it must be {what}")


def _all_of(kinds: type | tuple[type, ...], values: object) -> bool:
    return isinstance(values, tuple) and all(isinstance(v, kinds) and not isinstance(v, bool) for v in values)
