"""Where settings are written down: the presets that come with the package, and a user's YAML files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intercontinet.complaints import nearest
from intercontinet.errors import InvalidSetting
from intercontinet.learners.catalogue import METHODS, Values, check_type
from intercontinet.report.record import FORMAT as RECORD
from intercontinet.tasks import SCENARIOS

if TYPE_CHECKING:
    from yaml import Node

PRESETS = ("digits", "mnist", "fashion-mnist", "cifar-10", "cifar-100")
SAME_IMAGES = ("permuted-mnist", "rotated-mnist")  # in all of whose tasks
MERGE = "tag:yaml.org,2002:merge"  # of "<<", which may stand twice
RUN_FOLDER = "intercontinet run folder"  # the format of a run's config.json
RUN_KEYS = {  # of a run's file, and the kind of each
    "dataset": "str",
    "scenario": "str",
    "method": "str",
    "seeds": "int | str | list[int]",
    "keep": "float",
    "epochs": "int",
    "tasks": "int",
    "net": "str",
    "augment": "bool",
    "device": "str",
    "out": "str",
}


@dataclass(frozen=True)
class Preset:
    """Settings for a data set, as a YAML file has them.

    Attributes:
        name: The data set.
        net: Which network.
        augment: Whether training images are flipped and cropped.
        shared: Settings of all methods that have them.
        methods: Of each method; under "task", "domain" and "class", those of one scenario. A "net" among them is the
            method's own.
    """

    name: str
    net: str
    augment: bool
    shared: Values
    methods: Mapping[str, Values]

    def settings(self, method: str, scenario: str) -> dict[str, Any]:
        known = {item.name for item in fields(METHODS[method].settings)}
        own = dict(self.methods.get(method, {}))
        special = own.get(scenario) or {}
        own = {name: value for name, value in own.items() if name not in SCENARIOS}
        return {**{name: value for name, value in self.shared.items() if name in known}, **own, **special}


def load_preset(name: str) -> Preset:
    """One of the presets that come with the package."""
    if name not in PRESETS:
        raise InvalidSetting(f"there is no preset '{name}'{nearest(name, PRESETS)}: they are {', '.join(PRESETS)}")
    content = resources.files("intercontinet.study").joinpath("presets").joinpath(f"{name}.yaml").read_text()
    return read_preset(name, read_yaml(content, f"the preset {name}"))


def read_preset(name: str, values: Values) -> Preset:
    """A preset, checked: every key must be known."""
    own = {"net", "augment", "shared", "methods"}
    _check_keys(values, own, f"preset '{name}'")
    methods = values.get("methods") or {}
    _check_keys(methods, METHODS, f"preset '{name}', methods")
    every = {item.name for kind in METHODS.values() for item in fields(kind.settings)}
    _check_keys(values.get("shared") or {}, every, f"preset '{name}', shared")
    for method, settings in methods.items():
        known = {item.name for item in fields(METHODS[method].settings)} | {"net"}
        where = f"preset '{name}', method '{method}'"
        _check_keys(settings or {}, known | set(SCENARIOS), where)
        for scenario in SCENARIOS:
            _check_keys((settings or {}).get(scenario) or {}, known, f"{where}, scenario '{scenario}'")
    net, augment = values.get("net", "mlp-400-400"), values.get("augment", False)
    check_type(f"preset '{name}': net", net, "str")
    check_type(f"preset '{name}': augment", augment, "bool")
    return Preset(
        name,
        net,
        augment,
        values.get("shared") or {},
        {method: settings or {} for method, settings in methods.items()},
    )


def read_yaml(content: str, where: str) -> Values:
    """A YAML mapping, read safely."""
    try:
        import yaml
    except ImportError:
        raise InvalidSetting("reading YAML needs PyYAML: pip install 'intercontinet[cli]'") from None
    try:
        twice = _twice(yaml.compose(content, Loader=yaml.SafeLoader))
        values = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # of dates that are none, and of deep nests
        raise InvalidSetting(f"{where} is no valid YAML: {' '.join(str(error).split())}") from None
    if twice:
        raise InvalidSetting(f"{where} has '{twice[0]}' twice, in lines {twice[1]} and {twice[2]}: keep one of them")
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise InvalidSetting(f"{where} must be a mapping of names to values")
    return values


def _twice(top: Node | None) -> tuple[str, int, int] | None:
    """A name that one mapping has twice, of which YAML would silently take the last, and its lines; None without."""
    waiting, known = [] if top is None else [top], set()
    while waiting:
        node = waiting.pop()
        if id(node) in known or not isinstance(node.value, list):  # anchors make nodes come again
            continue
        known.add(id(node))
        lines: dict[tuple[str, str], int] = {}
        for part in node.value:
            if not isinstance(part, tuple):
                waiting.append(part)
                continue
            name, value = part
            line, what = name.start_mark.line + 1, (name.tag, name.value)
            if isinstance(name.value, str) and name.tag != MERGE:
                if what in lines:
                    return name.value, lines[what], line
                lines[what] = line
            waiting.append(value)
    return None


def read_config(path: Path) -> Values:
    """A run's YAML file: keys are those of ``intercontinet run``, and "settings" for the method's own."""
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"cannot read {path}: {error}") from None
    values = read_yaml(content, str(path))
    if values.get("format") in (RUN_FOLDER, RECORD):
        raise InvalidSetting(
            f"{path} is what a run noted of itself, and no file of options: --out {path.parent} --resume goes on with "
            "that run, and one like it is asked for by its options"
        )
    _check_place(values, str(path))
    _check_keys(values, {*RUN_KEYS, "settings"}, str(path))
    values = {name: value for name, value in values.items() if value is not None}
    for name, kind in RUN_KEYS.items():
        if name in values:
            check_type(f"{path}: {name}", values[name], kind)
    if not isinstance(values.get("settings", {}), dict):
        raise InvalidSetting(f"{path}: 'settings' must be a mapping of names to values")
    return values


def _check_place(values: Values, where: str) -> None:
    """Refuse a method's setting, or what is most like one, that stands beside "settings" rather than under it."""
    top = {*RUN_KEYS, "settings"}
    own = {item.name for kind in METHODS.values() for item in fields(kind.settings)} - top
    for name in values:
        hint = nearest(name, sorted(own | top))
        if name in own or (name not in top and hint != nearest(name, sorted(top))):
            meant = "" if name in own else hint
            raise InvalidSetting(
                f"{where}: there is no '{name}'{meant} at the top: settings of the method belong under 'settings', as "
                "in settings: {rate: 0.1}"
            )


def _check_keys(values: Any, known: Any, where: str) -> None:
    if not isinstance(values, Mapping):
        raise InvalidSetting(f"{where} must be a mapping of names to values, not {values!r}")
    for name in values:
        if name not in known:
            raise InvalidSetting(f"{where}: there is no '{name}'{nearest(str(name), known)}; known are "
                                 f"{', '.join(sorted(known))}")  # fmt: skip


def preset_of(dataset: str) -> str:
    """The preset that serves a data set: its own, or one for data like it."""
    if dataset in PRESETS:
        return dataset
    return "mnist" if dataset in SAME_IMAGES else "digits"
