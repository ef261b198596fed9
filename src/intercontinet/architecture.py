"""What makes two models the same function of their weights: layers, their settings, names and shapes."""

from __future__ import annotations

import hashlib

from torch import nn

_IRRELEVANT = {"inplace", "training"}  # no influence on an evaluated output


def describe(model: nn.Module) -> list[str]:
    """One line a module and one a parameter or buffer, in order.

    >>> print("\\n".join(describe(nn.Sequential(nn.Linear(2, 1), nn.ReLU()))))
    Sequential()
    0 Linear(in_features=2, out_features=1)
    0.weight [1, 2]
    0.bias [1]
    1 ReLU()
    """
    lines = []
    for path, module in model.named_modules(remove_duplicate=False):
        settings = ", ".join(f"{key}={value!r}" for key, value in _settings(module))
        lines.append(f"{path} {type(module).__name__}({settings})".lstrip())
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        lines.extend(f"{path}.{name} {list(tensor.shape)}".lstrip(".") for name, tensor in own)
    return lines


def architecture_hash(model: nn.Module) -> str:
    """SHA-256 of :func:`describe`."""
    return hashlib.sha256("\n".join(describe(model)).encode()).hexdigest()


def _settings(module: nn.Module) -> list[tuple[str, object]]:
    declared = getattr(module, "__constants__", None)
    known = vars(module)
    torchs_own = type(module).__module__.startswith("torch.nn.")  # others may add settings that they do not declare
    keys = [key for key in declared if key in known] if declared and torchs_own else sorted(known)
    plain = (bool, int, float, str, tuple, type(None))
    skipped = _IRRELEVANT | _irrelevant_to(module)
    return [(k, known[k]) for k in keys if not k.startswith("_") and k not in skipped and isinstance(known[k], plain)]


def _irrelevant_to(module: nn.Module) -> set[str]:
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return {"p"}
    return {"momentum"} if isinstance(module, nn.modules.batchnorm._NormBase) else set()
