"""What makes two models the same function of their weights: layers, their settings and constants, names and shapes."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

_INTERNAL = set(vars(nn.Module()))
_IRRELEVANT = {"inplace"}  # no influence on an evaluated output


def describe(model: nn.Module) -> list[str]:
    """One line a module and one a parameter or buffer, in order.

    Buffers that no region holds, whole numbers and those that are not saved, are constants: their values count.

    >>> print("\\n".join(describe(nn.Sequential(nn.Linear(2, 1), nn.ReLU()))))
    Sequential()
    0 Linear(in_features=2, out_features=1)
    0.weight [1, 2]
    0.bias [1]
    1 ReLU()
    """
    lines, saved = [], model.state_dict().keys()
    for path, module in model.named_modules(remove_duplicate=False):
        settings = ", ".join(f"{key}={value}" for key, value in _settings(module))
        lines.append(f"{path} {type(module).__qualname__}({settings})".lstrip())
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            full = f"{path}.{name}".lstrip(".")
            constant = not tensor.is_floating_point() or full not in saved
            values = f" {_text(tensor)}" if constant and name != "num_batches_tracked" else ""
            lines.append(f"{full} {list(tensor.shape)}{values}")
    return lines


def architecture_hash(model: nn.Module) -> str:
    """SHA-256 of :func:`describe`."""
    return hashlib.sha256("\n".join(describe(model)).encode()).hexdigest()


def _settings(module: nn.Module) -> list[tuple[str, str]]:
    known = vars(module)
    declared = getattr(module, "__constants__", None)
    torchs_own = type(module).__module__.startswith("torch.nn.")  # others may have settings that they do not declare
    keys = [key for key in declared if key in known] if declared and torchs_own else sorted(known.keys() - _INTERNAL)
    skipped = _IRRELEVANT | _irrelevant_to(module)
    return [(key, _text(known[key])) for key in keys if key not in skipped]


def _irrelevant_to(module: nn.Module) -> set[str]:
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return {"p"}
    return {"momentum"} if isinstance(module, nn.modules.batchnorm._NormBase) else set()


def _text(value: object) -> str:
    """A setting in words that depend on its value alone: not on list or tuple, NumPy or Python, or where it lies."""
    if isinstance(value, (bool, int, float, str)) or value is None:
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(_text, value))})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_text(k)}: {_text(v)}' for k, v in value.items())}}}"
    if isinstance(value, Tensor) and value.dim():
        bits = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return f"{value.dtype} {hashlib.sha256(bits.numpy().tobytes()).hexdigest()}"
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "ndim", 1) == 0:
        return _text(item())
    return str(getattr(value, "__qualname__", type(value).__qualname__))
