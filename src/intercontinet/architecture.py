"""What makes two models the same function of their weights: layers, settings, constants, code, names and shapes."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import numbers
import os
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from intercontinet.syntax import code_digest

_INTERNAL = {*vars(nn.Module()), "_compiled_call_impl"}
_TRUSTED = {"torch", "intercontinet", "builtins", "abc", "typing"}  # packages whose classes go by their names
_OUTSIDE = {"logging", "lightning", "pytorch_lightning"}  # packages whose objects accompany a model
_PLAIN = (bool, int, float, complex, str, bytes)
_HELD = (*_PLAIN, type(None), Enum, range, slice, type, torch.dtype, Tensor, np.generic, functools.partial)
_CALLS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)


def describe(model: nn.Module) -> list[str]:
    """One line a module and one a parameter or buffer, in order.

    Buffers that no region holds, whole numbers and those that are not saved, are constants: their values count. A
    module whose class is neither torch's nor this package's has a hash of its class's code in its line. Functions
    elsewhere, which that code calls by a global name, are taken on trust.

    >>> print("\\n".join(describe(nn.Sequential(nn.Linear(2, 1), nn.ReLU()))))
    Sequential()
    0 Linear(in_features=2, out_features=1)
    0.weight [1, 2]
    0.bias [1]
    1 ReLU()
    """
    lines, saved, words = [], model.state_dict().keys(), _Words(model)
    for path, module in model.named_modules(remove_duplicate=False):
        lines.append(f"{path} {words.of_module(module)}".lstrip())
        counts = isinstance(module, nn.modules.batchnorm._NormBase)  # batches, which no evaluated output depends on
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            full = f"{path}.{name}".lstrip(".")
            constant = not tensor.is_floating_point() or full not in saved
            values = f" {_tensor(tensor)}" if constant and not (counts and name == "num_batches_tracked") else ""
            lines.append(f"{full} {list(tensor.shape)}{values}")
    return lines


def architecture_hash(model: nn.Module) -> str:
    """SHA-256 of :func:`describe`: layers, settings, constants and the code of their classes."""
    return hashlib.sha256("\n".join(describe(model)).encode()).hexdigest()


def _settings(module: nn.Module) -> dict[str, object]:
    if isinstance(module, (torch.fx.GraphModule, torch.jit.ScriptModule)):
        return {"code": getattr(module, "code", None)}  # of which their classes tell nothing
    known = vars(module)
    skipped = _irrelevant_to(module) if _package(type(module).forward) == "torch" else set()
    return {key: known[key] for key in sorted(known.keys() - _INTERNAL - skipped)}


def _irrelevant_to(module: nn.Module) -> set[str]:
    """Settings without influence on what torch's own forward pass computes once it is evaluated."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return {"p", "inplace"}
    if isinstance(module, nn.modules.batchnorm._NormBase):
        return {"momentum"}
    if isinstance(module, nn.RNNBase):
        return {"dropout", "_flat_weights", "_flat_weight_refs"}
    return {"dropout", "inplace"} if isinstance(module, nn.MultiheadAttention) else {"inplace"}


def _package(thing: object) -> str:
    return str(getattr(thing, "__module__", None) or "").partition(".")[0]


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class _Words:
    """Settings in words that depend on their values alone: not on list or tuple, NumPy or Python, or where they lie.

    Parameters, buffers and modules of the model have lines of their own, and go by their names here.
    """

    def __init__(self, model: nn.Module) -> None:
        own: Iterable[tuple[str, object]] = (
            *model.named_parameters(),
            *model.named_buffers(),
            *model.named_modules(),
        )
        self._names = {id(thing): name for name, thing in own}
        self._open: set[int] = set()  # what is being put into words, so that nothing that holds itself goes on for ever
        self._classes: dict[type, str] = {}
        self._told: dict[int, tuple[object, str]] = {}

    def of_module(self, module: nn.Module) -> str:
        words = f"{type(module).__qualname__}({self._named(_settings(module))})"
        return f"{words} {code}" if (code := self._code(type(module))) else words

    def text(self, value: object) -> str:
        if isinstance(value, Enum):
            return f"{type(value).__qualname__}.{value.name}"
        for plain in _PLAIN:
            if isinstance(value, plain):
                return plain.__repr__(value)
        if value is None or id(value) in self._names:
            return f"<{self._names.get(id(value))}>" if value is not None else "None"
        if isinstance(value, (Tensor, np.ndarray, np.generic)):
            return self._array(value)
        if isinstance(value, torch.device):
            return "device"  # wherever a model lies, it is the same one
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format, numbers.Number)):
            return str(value)
        if id(value) in self._open:
            return "..."
        self._open.add(id(value))
        try:
            return self._compound(value)
        finally:
            self._open.discard(id(value))

    def _array(self, value: Any) -> str:
        if value.ndim == 0 and not getattr(value, "is_meta", False):
            return self.text(value.item())
        if isinstance(value, Tensor):
            return _tensor(value)
        if value.dtype.hasobject:
            return self.text(value.tolist())
        bits = np.ascontiguousarray(value, value.dtype.newbyteorder("<")).tobytes()
        return f"{value.dtype.name} {list(value.shape)} {hashlib.sha256(bits).hexdigest()}"

    def _compound(self, value: Any) -> str:
        if isinstance(value, (list, tuple, deque)):
            return f"({', '.join(map(self.text, value))})"
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{self.text(k)}: {self.text(v)}' for k, v in value.items())}}}"
        if isinstance(value, AbstractSet):
            return f"{{{', '.join(sorted(map(self.text, value)))}}}"
        if isinstance(value, (slice, range)):
            return f"{type(value).__name__}{self.text((value.start, value.stop, value.step))}"
        if isinstance(value, type):
            return f"{value.__qualname__} {self._code(value) if issubclass(value, nn.Module) else ''}".rstrip()
        if isinstance(value, functools.partial):
            return f"partial({self.text(value.func)}, {self.text(value.args)}, {self.text(value.keywords)})"
        if isinstance(value, types.MethodType):
            return f"{self.text(value.__func__)} of {self.text(value.__self__)}"
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.ModuleType):
            return value.__name__
        if isinstance(value, os.PathLike):
            return self.text(os.fspath(value))
        if isinstance(value, nn.Module):
            return self._unregistered(value)
        if callable(value) and hasattr(value, "__qualname__"):
            return f"{_package(value)}.{value.__qualname__} {self.text(getattr(value, '__wrapped__', None))}"
        return self._object(value)

    def _unregistered(self, module: nn.Module) -> str:
        """A module that the model does not know as its own, so that no region holds its weights: constants."""
        lines = [f"{path} {self.of_module(part)}" for path, part in module.named_modules()]
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return f"[{', '.join(lines)} {self.text(tensors)}]"

    def _object(self, value: object) -> str:
        if _package(type(value)) in _OUTSIDE:
            return type(value).__qualname__
        if id(value) not in self._told:
            words = f"{type(value).__qualname__}({self._named(_attributes(value))})"
            self._told[id(value)] = value, words
        return self._told[id(value)][1]

    def _named(self, values: Mapping[str, object]) -> str:
        return ", ".join(f"{key}={self.text(value)}" for key, value in values.items())

    def _function(self, function: types.FunctionType) -> str:
        """Its name and code, and what it holds: defaults, and the plain values and functions that it closes over."""
        inner = getattr(function, "__wrapped__", None)
        wrapped = f" of {self.text(inner)}" if inner is not None else ""
        if _package(function) in _TRUSTED:
            return f"{_package(function)}.{function.__qualname__}{wrapped}"
        held = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        held += [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
        words = ", ".join(self._held(value) for value in held)
        return f"{function.__qualname__} {code_digest(function)} ({words}){wrapped}"

    def _held(self, value: object) -> str:
        """A value that a function holds; of containers and objects, which may fill as it runs, the type alone."""
        if isinstance(value, tuple):
            return f"({', '.join(map(self._held, value))})"
        if isinstance(value, type):
            return value.__qualname__
        return self.text(value) if isinstance(value, (*_HELD, *_CALLS)) else type(value).__qualname__

    def _code(self, kind: type) -> str:
        """A hash of all code and values in the body of a class and of its bases; nothing for those that are trusted."""
        if kind not in self._classes:
            self._classes[kind] = ""  # while it is under way
            bodies = [self._body(base) for base in kind.__mro__ if _package(base) not in _TRUSTED]
            self._classes[kind] = _sha("\n".join(bodies)) if bodies else ""
        return self._classes[kind]

    def _body(self, kind: type) -> str:
        lines = []
        for name, value in sorted(vars(kind).items()):
            parts = _functions(value)
            if parts or not (name.startswith("__") or name == "_abc_impl"):
                words = [self.text(part) for part in parts] if parts else [self._member(kind, value)]
                lines.append(f"{name} {type(value).__name__ if parts else ''} {' '.join(words)}")
        return "\n".join(lines)

    def _member(self, kind: type, value: object) -> str:
        inner = isinstance(value, type) and value.__qualname__.startswith(f"{kind.__qualname__}.")
        return self._body(value) if inner and isinstance(value, type) else self.text(value)


def _tensor(value: Tensor) -> str:
    words = f"{value.dtype} {list(value.shape)}"
    if value.is_meta:
        return words
    bits = value.detach().cpu().resolve_conj().contiguous().reshape(-1).view(torch.uint8)
    return f"{words} {hashlib.sha256(bits.numpy().tobytes()).hexdigest()}"


def _functions(value: object) -> list[Callable[..., Any]]:
    """The functions in what a class's body may hold: a method, a property, ..."""
    if isinstance(value, types.FunctionType):
        return [value]
    if isinstance(value, (staticmethod, classmethod)):
        return [value.__func__]
    if isinstance(value, property):
        return [part for part in (value.fget, value.fset, value.fdel) if part is not None]
    return [value.func] if isinstance(value, functools.cached_property) else []


def _attributes(value: object) -> dict[str, object]:
    """What an object consists of: a dataclass's fields, or all of its attributes, in the order of names."""
    if dataclasses.is_dataclass(value):
        names = {field.name for field in dataclasses.fields(value)}
    else:
        slots = (vars(kind).get("__slots__", ()) for kind in type(value).__mro__)
        names = {name for slot in slots for name in ((slot,) if isinstance(slot, str) else slot)}
        names |= getattr(value, "__dict__", {}).keys()
    return {name: getattr(value, name) for name in sorted(names - {"__dict__", "__weakref__"}) if hasattr(value, name)}


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
