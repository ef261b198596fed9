"""What a model consists of: the tensors that shape its output, by which names they go, and digests of their bits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from intercontinet.complaints import no_parameters, not_finite, wrong_precision
from intercontinet.errors import InvalidModel
from intercontinet.record import Frozen

State = Mapping[str, Tensor]


def state_of(model: nn.Module | State) -> dict[str, Tensor]:
    """The floating-point parameters and saved buffers that shape a model's output, by name, checked for use.

    Raises:
        InvalidModel: A tensor is not float32, or is not finite.
    """
    if isinstance(model, nn.Module):
        saved = model.state_dict(keep_vars=True)
        tensors: dict[str, Tensor] = dict(model.named_parameters())
        tensors.update({name: buffer for name, buffer in model.named_buffers() if name in saved})
    else:
        tensors = dict(model)
    state = {name: tensor.detach() for name, tensor in tensors.items() if tensor.is_floating_point()}
    if not state:
        raise no_parameters()
    for name, tensor in state.items():
        if tensor.dtype != torch.float32:
            raise wrong_precision(name, str(tensor.dtype).removeprefix("torch."))
        if tensor.device.type != "meta" and not bool(torch.isfinite(tensor).all()):
            raise not_finite(name)
    return state


def second_names(model: nn.Module) -> dict[str, str]:
    """Further names of parameters and buffers that occur more than once, each with the first, by which regions go."""
    first: dict[int, str] = {}
    names = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {name: first[id(tensor)] for name, tensor in names if first.setdefault(id(tensor), name) != name}


def constants_of(model: nn.Module | State) -> dict[str, Tensor]:
    """The saved tensors that are not of floating point, by name: no region holds them, and none may change.

    Second names are left out, and so are the numbers of batches that normalising layers have seen.
    """
    if not isinstance(model, nn.Module):
        return {name: tensor for name, tensor in model.items() if not tensor.is_floating_point()}
    skipped = second_names(model).keys() | {
        f"{path}.num_batches_tracked".lstrip(".")
        for path, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, nn.modules.batchnorm._NormBase)
    }
    tensors = {n: t for n, t in model.state_dict().items() if isinstance(t, Tensor) and n not in skipped}
    return {name: tensor for name, tensor in tensors.items() if not tensor.is_floating_point()}


def kind_of(tensor: Tensor) -> tuple[str, tuple[int, ...]]:
    """A tensor's type, as safetensors calls it, and its shape.

    >>> kind_of(torch.arange(6))
    ('I64', (6,))
    """
    word = str(tensor.dtype).removeprefix("torch.")
    for long, short in (("uint", "U"), ("int", "I"), ("bool", "BOOL"), ("complex", "C")):
        if word.startswith(long):
            return short + word.removeprefix(long), tuple(tensor.shape)
    return word, tuple(tensor.shape)


def frozen_constants(model: nn.Module | State) -> dict[str, Frozen]:
    """Digests of all constants, by name."""
    constants = {}
    for name, tensor in sorted(constants_of(model).items()):
        dtype, shape = kind_of(tensor)
        constants[name] = Frozen(shape, digest(tensor), dtype)
    return constants


def digest(tensor: Tensor) -> str:
    """SHA-256 of a tensor's bits, little-endian, in row-major order, wherever and however it lies in memory.

    >>> digest(torch.zeros(2)) == digest(torch.zeros(2, 1)), digest(torch.zeros(2)) == digest(-torch.zeros(2))
    (True, False)
    """
    if tensor.device.type == "meta":
        raise InvalidModel("a tensor on the meta device has no values: load the weights first")
    values = tensor.detach().cpu().resolve_conj().contiguous().reshape(-1).numpy()
    values = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return hashlib.sha256(values.data if values.size else b"").hexdigest()
