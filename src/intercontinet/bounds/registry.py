"""Which layer has which rule: a pure function from parameter intervals and an input interval to an output interval."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

Rule = Callable[..., Any]  # (layer, parameters, x, arithmetic, *further inputs, **options) -> Interval, or several
RuleT = TypeVar("RuleT", bound=Rule)

_COMPUTING = ("forward", "_conv_forward", "__call__", "_call_impl")  # methods that decide what a layer puts out
_RULES: dict[type[nn.Module], Rule] = {}


def rule(*layers: type[nn.Module]) -> Callable[[RuleT], RuleT]:
    """Register how bounds pass through layers of these types; the last one registered for a type counts.

    The rule gets the layer, its parameters and saved buffers as intervals by name, the input, and the arithmetic, to
    which it reports how much a float32 evaluation may round.

    >>> import torch
    >>> class Halve(nn.Module):
    ...     def forward(self, x):
    ...         return x / 2
    >>> @rule(Halve)
    ... def halve(layer, parameters, x, arithmetic):
    ...     return arithmetic.function(Interval(x.lower / 2, x.upper / 2, x.nonnegative), x, ulps=1)
    """

    def register(function: RuleT) -> RuleT:
        for layer in layers:
            _RULES[layer] = function
        return function

    return register


def rule_for(layer: nn.Module) -> Rule | None:
    """The rule of the layer's type, or of a base type whose computation it has not changed."""
    for base in type(layer).__mro__:
        if base in _RULES:
            return _RULES[base] if computes_like(layer, base) else None
    return None


def computes_like(layer: nn.Module, base: type[nn.Module]) -> bool:
    """Whether neither the layer's type nor the layer itself replaces what ``base`` computes."""
    return not any(
        name in vars(layer) or getattr(type(layer), name, None) is not getattr(base, name, None) for name in _COMPUTING
    )


def known_layers() -> list[str]:
    """Names of the types that have a rule."""
    return sorted({layer.__name__ for layer in _RULES})
