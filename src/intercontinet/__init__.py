"""InterContiNet: teach a network new tasks while proving how much of the old ones it keeps."""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from intercontinet.version import __version__

if TYPE_CHECKING:
    from intercontinet import errors
    from intercontinet.attack import Attack, attack
    from intercontinet.bounds import bounds, rule
    from intercontinet.certificate import Certificate, Verdict, verify
    from intercontinet.criterion import Criterion, multi_label, regression
    from intercontinet.errors import InterContiNetError, Violation
    from intercontinet.floor import TaskFloor, certify
    from intercontinet.interval import Interval
    from intercontinet.keep_inside import keep_inside
    from intercontinet.learners.exact import ExactInterContiNet
    from intercontinet.learners.intercontinet import InterContiNet
    from intercontinet.learners.settings import Settings
    from intercontinet.protect import Protecting, protect
    from intercontinet.region import Region

_HOMES = {
    "attack": ("Attack", "attack"),
    "bounds": ("bounds", "rule"),
    "certificate": ("Certificate", "verify"),
    "criterion": ("Criterion", "multi_label", "regression"),
    "errors": ("InterContiNetError", "Violation"),
    "floor": ("certify",),
    "interval": ("Interval",),
    "keep_inside": ("keep_inside",),
    "learners.exact": ("ExactInterContiNet",),
    "learners.intercontinet": ("InterContiNet",),
    "learners.settings": ("Settings",),
    "protect": ("Protecting", "protect"),
    "record": ("Verdict",),
    "region": ("Region",),
    "taskfloor": ("TaskFloor",),
}  # where each name lives: imported when first asked for, so that `intercontinet verify` starts without torch
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Attack",
    "Certificate",
    "Criterion",
    "ExactInterContiNet",
    "InterContiNet",
    "InterContiNetError",
    "Interval",
    "Protecting",
    "Region",
    "Settings",
    "TaskFloor",
    "Verdict",
    "Violation",
    "attack",
    "bounds",
    "certify",
    "errors",
    "keep_inside",
    "multi_label",
    "protect",
    "regression",
    "rule",
    "verify",
    "__version__",
]


class _Surface(ModuleType):
    """This package, in which a function goes before the module of the same name that importing would put here."""

    def __getattr__(self, name: str) -> object:
        if name == "errors":
            return import_module(f"{__name__}.errors")
        if name not in _HOME:
            raise AttributeError(f"module '{__name__}' has no attribute '{name}'", name=name, obj=self)
        value = self.__dict__[name] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        return value

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Surface
