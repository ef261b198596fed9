"""A device that is not the CPU, imagined, so that a mix of devices, which only a GPU refuses, is refused without one.

Its tensors wrap tensors of the CPU, which compute for them. To torch they are of "meta", which has no memory; to those
who ask for ``.device`` they are elsewhere. An operation on tensors of both kinds is an error, but where CUDA allows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

ELSEWHERE = torch.device("xpu", 0)
_TYPES = (ELSEWHERE.type, "meta")
_aten = torch.ops.aten
_MOVES = {_aten.copy_.default, _aten._to_copy.default}
_PICKS = {_aten.index.Tensor, _aten.index_put_.default}
_JOINS = {_aten.cat.default, _aten.stack.default}


class _PassesForTensor(type(Tensor)):  # type: ignore[misc]
    """What passes for a plain tensor's type where types are compared."""

    def __eq__(cls, other: object) -> bool:
        return cls is other or other is Tensor

    def __hash__(cls) -> int:
        return type.__hash__(cls)


class Far(Tensor, metaclass=_PassesForTensor):
    """A tensor elsewhere."""

    held: Tensor

    @staticmethod
    def __new__(cls: type[Far], held: Tensor) -> Far:
        kept: Any = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        made: Far = Tensor._make_wrapper_subclass(cls, held.size(), device=torch.device("meta"), **kept)
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _computed(operation, args, kwargs or {})

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return ELSEWHERE

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        return False

    # What torch does for subclasses, or for "meta", without asking them.

    def tolist(self) -> Any:
        return self.held.tolist()

    def new_tensor(self, data: Any, **options: Any) -> Tensor:  # type: ignore[override]
        return torch.tensor(data, **{"dtype": self.dtype, "device": ELSEWHERE, **options})

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(_moved(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_moved(index), value)


def _moved(index: Any) -> Any:
    """With lists as tensors elsewhere."""
    if isinstance(index, tuple):
        return tuple(map(_moved, index))
    if not isinstance(index, (list, range)):
        return index
    return torch.tensor(list(index), device=ELSEWHERE, dtype=None if len(index) else torch.int64)


def _refused(operation: Any, args: Sequence[Any], near: Sequence[Tensor]) -> bool:
    """Whether CUDA would not have both kinds: a single number may come from anywhere, and so may what picks."""
    if operation in _MOVES:
        return False
    if operation in _JOINS or (operation._schema.is_mutable and not isinstance(args[0], Far)):
        return True
    if operation in _PICKS:
        near = [part for part in (args[0], *args[2:3]) if not isinstance(part, Far)]
        return not isinstance(args[0], Far) or any(part.dim() for part in near)
    return any(part.dim() for part in near)


def _computed(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    flat, form = tree_flatten((args, kwargs))
    far = [part for part in flat if isinstance(part, Far)]
    near = [part for part in flat if isinstance(part, Tensor) and not isinstance(part, Far)]
    asked = kwargs.get("device")
    there = bool(far) if asked is None else torch.device(asked).type in _TYPES
    if not far and not there:
        return operation(*args, **kwargs)
    if far and near and _refused(operation, args, near):
        raise RuntimeError(f"{operation} is asked for tensors of two devices")
    if operation is _aten._local_scalar_dense.default:
        return far[0].held.item()
    args, kwargs = tree_unflatten([part.held if isinstance(part, Far) else part for part in flat], form)
    if asked is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    found = operation(*args, **kwargs)
    if operation is _aten._to_copy.default:
        found = found.clone()
    if operation is _aten.copy_.default:
        there = isinstance(flat[0], Far)
    known = {id(part.held): part for part in far} | {id(part): part for part in near}

    def placed(part: Any) -> Any:
        if not isinstance(part, Tensor):
            return part
        return known.get(id(part), Far(part) if there else part)

    return tree_map(placed, found)


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(operation, args, kwargs or {})


@contextmanager
def elsewhere() -> Iterator[torch.device]:
    """Within it, that device is at hand."""
    enabled, before = torch.is_autocast_enabled, torch._C._only_lift_cpu_tensors()

    def autocast(*of: str) -> bool:
        return not set(of) & set(_TYPES) and enabled(*of)

    with patch("torch.xpu._lazy_init", lambda: None), patch("torch.is_autocast_enabled", autocast), _Mode():  # type: ignore[no-untyped-call]
        torch._C._set_only_lift_cpu_tensors(True)  # so that torch.tensor asks the mode, too
        try:
            yield ELSEWHERE
        finally:
            torch._C._set_only_lift_cpu_tensors(before)
