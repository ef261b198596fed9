"""Which parameters may move: a user's choice, by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from fnmatch import fnmatchcase
from typing import Literal

from torch import nn

from intercontinet.complaints import nearest
from intercontinet.errors import InvalidSetting

Plastic = Literal["all", "head"] | str | Sequence[str] | Callable[[str], bool]


def chosen(model: nn.Module, plastic: Plastic, head: Callable[[], Collection[str]]) -> list[str]:
    """The names of the parameters that may move.

    Args:
        model: The module.
        plastic: "all"; "head", the last linear layer; a pattern such as "layer4.*"; several of these; or a function
            that is asked about each name.
        head: Finds the names of the last linear layer's parameters, none where the model does not end in one.

    >>> chosen(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)), "2.*", tuple)
    ['2.weight', '2.bias']
    """
    names = [name for name, parameter in model.named_parameters() if parameter.is_floating_point()]
    if callable(plastic):
        found = {name for name in names if plastic(name)}
    else:
        patterns = [plastic] if isinstance(plastic, str) else list(plastic)
        found = {name for pattern in patterns for name in _named(pattern, names, head)}
    if not found:
        raise InvalidSetting("nothing may move: let plastic name at least one parameter")
    return [name for name in names if name in found]


def _named(pattern: str, names: list[str], head: Callable[[], Collection[str]]) -> Collection[str]:
    """The names that one word means."""
    if pattern == "all":
        return names
    if pattern == "head":
        if not (last := head()):
            raise InvalidSetting(
                "plastic='head' means the last linear layer, and this model does not end in one: name what may move "
                "with a pattern, such as plastic='classifier.*'"
            )
        return last
    found = [name for name in names if fnmatchcase(name, pattern)]
    if not found:
        raise InvalidSetting(
            f"no parameter is called '{pattern}'{nearest(pattern, names)}: plastic takes names or patterns such as "
            "'layer4.*'; buffers never move"
        )
    return found
