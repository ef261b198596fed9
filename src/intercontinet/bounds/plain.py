"""Models that do what their code says: no hooks, no replaced methods; and, after a look at them, as they were."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import FunctionType

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.nn.utils import parametrize

from intercontinet.errors import UnsupportedLayer

_REGISTERED = ("_parameters", "_buffers", "_modules")
# Under which names torch's own layers look for tensors.
USED = (
    *("weight", "bias", "running_mean", "running_var", "num_batches_tracked", "bias_k", "bias_v"),
    *("in_proj_weight", "in_proj_bias", "q_proj_weight", "k_proj_weight", "v_proj_weight"),
)
_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def check_bare(model: nn.Module) -> None:
    """Refuse a model inside something that runs it in its own way, before anything else is said about it."""
    if isinstance(model, _WRAPPERS):
        raise UnsupportedLayer(
            f"the model is wrapped in {type(model).__name__}, which spreads it over devices: give model.module"
        )
    _check(model, _compiled)


def check_unhooked(model: nn.Module) -> None:
    """Refuse hooks, parametrizations and replaced methods: no architecture's hash shows what they do."""
    if module_hooks._global_forward_hooks or module_hooks._global_forward_pre_hooks:
        raise UnsupportedLayer("torch has global forward hooks, which may change any layer's output: remove them first")
    _check(model, put_on)


def check_plain(model: nn.Module) -> None:
    """:func:`check_unhooked`, and refuse what cannot be followed: compiled code, weights that change in the pass."""
    check_bare(model)
    check_unhooked(model)
    _check(model, _out_of_sight)
    _check(model, mismatched)


def check_unshared(model: nn.Module, names: Collection[str]) -> None:
    """Refuse buffers that a region does not speak of, but which change with weights of which it does."""
    own = (*model.named_parameters(), *model.named_buffers())
    spoken_of = {memory(tensor): name for name, tensor in own if name in names and tensor.numel()}
    for name, tensor in own:
        if name not in names and tensor.numel() and memory(tensor) in spoken_of:
            raise UnsupportedLayer(
                f"buffer '{name}' is not saved, and shares its memory with '{spoken_of[memory(tensor)]}': it would "
                "change with it. Register a copy (tensor.clone())"
            )


def mismatched(module: nn.Module) -> str:
    """What is wrong with how a module holds its tensors, if anything is: names must lead to what is registered."""
    registered = {**module._parameters, **module._buffers}
    for name, tensor in registered.items():
        if tensor is not None and type(tensor) not in (Tensor, nn.Parameter):
            return f"holds '{name}' as a {type(tensor).__name__}, which computes in its own way: give a plain tensor"
        if getattr(module, name, None) is not tensor:
            return f"gives something else for '{name}' than the tensor registered as that: rename one of the two"
    return ""


def unregistered(layer: nn.Module) -> str:
    """What is wrong with the weights of a layer that has a rule, if anything is: all must be registered."""
    for module in layer.modules():
        for name in USED:
            held = module._parameters.get(name, module._buffers.get(name))
            if held is None and isinstance(getattr(module, name, None), Tensor):
                return (
                    f"uses a '{name}' that is neither a parameter nor a buffer, so that no region speaks of it: "
                    "register it, or give the class a forward of its own that computes it"
                )
        if complaint := mismatched(module):
            return complaint
    return ""


def unlike_itself(layer: nn.Module) -> str:
    """What keeps a layer, as the pass has left it, from doing what its rule says, if anything does."""
    if any(module.training for module in layer.modules()):
        return "was put into training mode by the forward pass: leave it as model.eval() does"
    return unregistered(layer)


def _check(model: nn.Module, complain: Callable[[nn.Module], str]) -> None:
    for path, module in model.named_modules():
        if complaint := complain(module):
            where = f"layer '{path}'" if path else "the model itself"
            raise UnsupportedLayer(f"{where} ({type(module).__name__}) {complaint}")


def put_on(module: nn.Module) -> str:
    """What was put on a module from outside that its class does not tell of, if anything was."""
    if module._forward_hooks or module._forward_pre_hooks:
        return "has forward hooks, which may change its output: remove them first"
    for name, own in vars(module).items():
        replaced = isinstance(getattr(type(module), name, None), FunctionType) and not hasattr(own, "notes_for_bounds")
        if replaced and not isinstance(module, torch.jit.ScriptModule):
            return f"has a {name} of its own put on it: give its class that method"
    if parametrize.is_parametrized(module):
        return "is parametrized: call torch.nn.utils.parametrize.remove_parametrizations first"
    return ""


def _compiled(module: nn.Module) -> str:
    if "_orig_mod" in module._modules:
        return "is compiled, so that nobody sees what it does: give the plain module, model._orig_mod"
    if isinstance(module, torch.jit.ScriptModule):
        return "is compiled, so that nobody sees what it does: give the plain module that it was made from"
    return ""


def _out_of_sight(module: nn.Module) -> str:
    if getattr(module, "_compiled_call_impl", None) is not None:
        return "is compiled, so that nobody sees what it does: build it anew, without module.compile()"
    if getattr(module, "max_norm", None) is not None:
        return "has max_norm, with which it changes its weight while it runs: use max_norm=None"
    return ""


class Snapshot:
    """What a model's modules hold, to be restored.

    Args:
        model: The module. Its buffers are copied; of parameters only the edition is remembered.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = [
            (module, dict(vars(module)), [dict(getattr(module, kind)) for kind in _REGISTERED])
            for module in model.modules()
        ]
        self._parameters = [(name, tensor, edition(tensor)) for name, tensor in model.named_parameters()]
        self._buffers = [(name, tensor, tensor.detach().clone()) for name, tensor in model.named_buffers()]

    def restore(self) -> str:
        """Undo every change of attributes and buffers; says which parameter or buffer was changed, if any was."""
        changed = [f"'{name}'" for name, tensor, before in self._parameters if edition(tensor) != before]
        for name, tensor, value in self._buffers:
            if not bool(((tensor == value) | (tensor.isnan() & value.isnan())).all()):  # not every change is counted
                changed.append(f"'{name}'")
                with torch.no_grad():
                    tensor.copy_(value)
        for module, attributes, registered in self._modules:
            here = vars(module)
            for key in [key for key in here if key not in attributes]:
                del here[key]
            for key, value in attributes.items():
                if here.get(key) is not value:
                    here[key] = value
            for kind, held in zip(_REGISTERED, registered, strict=True):
                now = getattr(module, kind)
                if [*now] != [*held] or any(now[key] is not held[key] for key in held):
                    changed.append(f"the {kind[1:-1]}s of {type(module).__name__}")
                    now.clear()
                    now.update(held)
        return changed[0] if changed else ""


def memory(value: Tensor) -> int:
    """Where a tensor's numbers lie: the same for all its views."""
    return value.untyped_storage().data_ptr()


def edition(value: Tensor) -> int:
    """How often a tensor was changed in place; inference tensors do not count."""
    return -1 if value.is_inference() else value._version
