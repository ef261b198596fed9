"""Walk a module layer by layer and push an interval through it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules import module as module_hooks
from torch.nn.utils import parametrize

from intercontinet.bounds.arithmetic import Arithmetic
from intercontinet.bounds.linear import linear
from intercontinet.bounds.plain import USED, put_on, unregistered
from intercontinet.bounds.registry import Rule, computes_like, known_layers, rule_for
from intercontinet.errors import InterContiNetError, InvalidData, UnsupportedLayer, memory_gave_out
from intercontinet.inference import uncast
from intercontinet.interval import Interval
from intercontinet.noise import mixed, uniform

Boxes = Mapping[str, Interval]
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d)


@dataclass(frozen=True)
class Step:
    """One layer of a network: where it is, its rule, and the full name of each of its parameters."""

    path: str
    layer: nn.Module
    rule: Rule
    names: Mapping[str, str]

    def __call__(self, boxes: Boxes, x: Interval, arithmetic: Arithmetic) -> Interval:
        parameters = {local: boxes[name] for local, name in self.names.items() if name in boxes}
        try:
            with uncast(x.lower.device):
                return cast(Interval, self.rule(self.layer, parameters, x, arithmetic))
        except InterContiNetError as error:
            raise type(error)(f"layer '{self.path}' ({type(self.layer).__name__}): {error}") from None
        except (RuntimeError, ValueError, IndexError) as error:
            if memory_gave_out(error):
                raise
            where = f"layer '{self.path}' ({type(self.layer).__name__})"
            raise InvalidData(f"{where} cannot take an input of shape {tuple(x.shape)}: {error}") from error

    def run(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """The layer's output with these weights, by full name; those left out are its own."""
        own = {local: weights[name] for local, name in self.names.items() if name in weights}
        if not own:
            return cast(Tensor, self.layer(x))
        if self.rule is linear and "weight" in own and len(own) == len(self.names):
            return F.linear(x, own["weight"], own.get("bias"))
        return cast(Tensor, functional_call(self.layer, own, (x,)))


class Network:
    """A module as the list of its steps: any nesting of Sequential around layers that have rules.

    Args:
        model: The module; it is read, never changed.

    Raises:
        UnsupportedLayer: Some layer has no rule. The message names it by its path.
    """

    def __init__(self, model: nn.Module) -> None:
        if module_hooks._global_forward_hooks or module_hooks._global_forward_pre_hooks:
            raise UnsupportedLayer(
                "torch has global forward hooks, which may change any layer's output: remove them first"
            )
        tensors = (*model.named_parameters(), *model.named_buffers())  # a tied parameter goes by its first name
        names = {id(tensor): name for name, tensor in tensors}
        self.steps = tuple(_steps(model, "", names))

    def run(self, weights: Mapping[str, Tensor], x: Tensor, noise: Tensor | None = None) -> Tensor:
        """The model's output with these weights: functional_call without its cost, which a small net's step feels.

        Dropout layers in training mode drop what the key ``noise`` [] says, and nothing without one.
        """
        for place, step in enumerate(self.steps, 1):
            if not isinstance(step.layer, DROPOUTS):
                x = step.run(weights, x)
            elif noise is not None and step.layer.training:
                x = _dropped(step.layer, x, mixed(noise + place))
        return x

    @property
    def drops(self) -> bool:
        """Whether some Dropout layer is in training mode."""
        return any(isinstance(step.layer, DROPOUTS) and step.layer.training for step in self.steps)

    def propagate(self, boxes: Boxes, x: Interval, arithmetic: Arithmetic) -> Interval:
        """Bounds of the output, in the dtype of ``boxes`` and ``x``."""
        return _pushed(self.steps, boxes, x, arithmetic)

    def before_last(self, boxes: Boxes, x: Interval, arithmetic: Arithmetic) -> Interval:
        """Bounds of the last step's input."""
        return _pushed(self.steps[:-1], boxes, x, arithmetic)

    def cut(self, count: int) -> tuple[Network, Network]:
        """The first steps and the others."""
        before, after = copy(self), copy(self)
        before.steps, after.steps = self.steps[:count], self.steps[count:]
        return before, after

    @property
    def head(self) -> Step | None:
        """The last step, if it goes by Linear's rule: margins are bounded through it as one expression."""
        last = self.steps[-1] if self.steps else None
        return last if last is not None and last.rule is linear else None


def _pushed(steps: Sequence[Step], boxes: Boxes, x: Interval, arithmetic: Arithmetic) -> Interval:
    for step in steps:
        x = step(boxes, x, arithmetic)
    return x


def _dropped(layer: nn.Module, x: Tensor, key: Tensor) -> Tensor:
    """Zeros where the key says, by the layer's probability; single values, or whole channels in Dropout1d and 2d."""
    share = float(cast(float, layer.p))
    if share >= 1:
        return x * 0
    shape = x.shape if isinstance(layer, nn.Dropout) else (*x.shape[:2], *(1,) * (x.dim() - 2))
    kept = uniform(key, math.prod(shape)).view(shape) >= share
    return x * kept.to(x.dtype) / (1 - share)


def _steps(module: nn.Module, path: str, names: Mapping[int, str]) -> list[Step]:
    where = f"layer '{path}'" if path else "the model itself"
    kind = type(module).__name__
    if module._forward_hooks or module._forward_pre_hooks:
        raise UnsupportedLayer(f"{where} ({kind}) has forward hooks, which may change its output: remove them first")
    if parametrize.is_parametrized(module):
        raise UnsupportedLayer(
            f"{where} ({kind}) is parametrized: call torch.nn.utils.parametrize.remove_parametrizations first"
        )
    found = rule_for(module)
    if found is not None:
        for name, part in module.named_modules():
            if complaint := put_on(part):
                of = f"part '{name}' of " if name else ""
                raise UnsupportedLayer(f"{of}{where} ({kind}) {complaint}")
        if complaint := unregistered(module):
            raise UnsupportedLayer(f"{where} ({kind}) {complaint}")
        if not module._non_persistent_buffers_set.isdisjoint(USED):
            raise UnsupportedLayer(f"{where} ({kind}) has a weight that is not saved: register it as persistent")
        tensors = (*module.named_parameters(), *module.named_buffers())
        return [Step(path, module, found, {local: names[id(tensor)] for local, tensor in tensors})]
    if isinstance(module, nn.Sequential) and computes_like(module, nn.Sequential):
        children = (
            (f"{path}.{name}" if path else name, child) for name, child in module._modules.items() if child is not None
        )
        return [step for name, child in children for step in _steps(child, name, names)]
    raise UnsupportedLayer(
        f"{where} ({kind}) has no rule: add one with @intercontinet.rule({kind}), or build the model from Sequential "
        f"and {', '.join(known_layers())}. Learners take such chains alone; intercontinet.protect takes any model"
    )
