"""Run a model the way certificates speak of it: evaluated, in plain float32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from intercontinet.errors import InterContiNetError, InvalidData, InvalidModel

EXAMPLES_AT_ONCE = 512


@contextmanager
def evaluated(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and true float32 products inside; every module's mode and torch's settings are restored."""
    modes = [(module, module.training) for module in model.modules()]
    precision = torch.get_float32_matmul_precision()
    device = next((tensor.device.type for tensor in model.parameters()), "cpu")
    try:
        model.eval()
        torch.set_float32_matmul_precision("highest")
        with torch.backends.cudnn.flags(enabled=False), torch.autocast(device, enabled=False):  # no Winograd, no TF32
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        for module, mode in modes:
            module.training = mode


def logits(model: nn.Module, state: Mapping[str, Tensor], x: Tensor, classes: Tensor | None = None) -> Tensor:
    """The model's output with these weights, restricted to some classes: [batch, classes]."""
    out = functional_call(model, dict(state), (x.clone(),))  # a copy, since layers may work in place
    if not isinstance(out, Tensor) or out.dim() != 2 or len(out) != len(x):
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise InvalidModel(f"for {len(x)} example(s) the model gives {shape}; a classifier must give [batch, classes]")
    return out if classes is None else out[:, classes]


@torch.no_grad()
def outputs_of(model: nn.Module, x: Tensor) -> int:
    """How many classes the model tells apart."""
    with evaluated(model):
        try:
            return logits(model, {}, x[:1]).shape[1]
        except (InterContiNetError, torch.OutOfMemoryError):
            raise
        except (RuntimeError, ValueError, IndexError) as error:
            raise InvalidData(f"the model cannot take examples of shape {tuple(x.shape[1:])}: {error}") from error


@torch.no_grad()
def right(
    model: nn.Module, state: Mapping[str, Tensor], x: Tensor, labels: Tensor, classes: Tensor | None = None
) -> Tensor:
    """Which examples these weights get right, [examples]; ``labels`` are positions in ``classes``."""
    with evaluated(model):
        parts = [
            logits(model, state, x[i : i + EXAMPLES_AT_ONCE], classes).argmax(1) == labels[i : i + EXAMPLES_AT_ONCE]
            for i in range(0, len(x), EXAMPLES_AT_ONCE)
        ]
    return torch.cat(parts)


def positions(y: Tensor, classes: Sequence[int] | None) -> tuple[Tensor, Tensor | None]:
    """Labels as positions among the task's classes, and those classes as an index.

    >>> positions(torch.tensor([3, 2, 3]), (2, 3))
    (tensor([1, 0, 1]), tensor([2, 3]))
    """
    if classes is None:
        return y.long(), None
    index = torch.tensor(list(classes), device=y.device)
    return (y.long()[:, None] == index).int().argmax(1), index
