"""Run a model the way certificates speak of it: evaluated, in plain float32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import RLock

import torch
from torch import Tensor, nn
from torch.func import functional_call

from intercontinet.criterion import Criterion
from intercontinet.data import Inputs, parts, rows
from intercontinet.errors import InterContiNetError, InvalidData, InvalidModel
from intercontinet.interval import Interval

EXAMPLES_AT_ONCE = 512
FEATURES_ON_GPU = 8 << 20  # inputs in one go on a GPU, which only large pieces of work keep busy


def examples_at_once(x: Inputs) -> int:
    """How many examples to push through a net at a time."""
    first = parts(x)[0]
    if first.device.type == "cpu":
        return EXAMPLES_AT_ONCE
    return max(EXAMPLES_AT_ONCE, FEATURES_ON_GPU // max(1, first[0].numel()))


_SETTINGS = RLock()  # of torch, which all threads share


@contextmanager
def products(precision: str, *, fast_convolutions: bool = True, tf32_convolutions: bool = False) -> Iterator[None]:
    """How float32 products are computed inside; torch's settings are restored. One thread at a time.

    Args:
        precision: "highest" for true float32 products, "high" where a GPU may round factors to TF32.
        fast_convolutions: Whether cuDNN may be used, with its Winograd and FFT algorithms.
        tf32_convolutions: Whether it may round factors to TF32.
    """
    with _SETTINGS:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(precision)
        try:
            with torch.backends.cudnn.flags(enabled=fast_convolutions, allow_tf32=tf32_convolutions):
                yield
        finally:
            torch.set_float32_matmul_precision(before)


@contextmanager
def evaluated(model: nn.Module, exact: bool = True) -> Iterator[None]:
    """Evaluation mode and true float32 products inside; every module's mode and torch's settings are restored.

    Where not ``exact``, a GPU's fast convolutions are let in (cuDNN's, in float32), of which no promise speaks.
    """
    modes = [(module, module.training) for module in model.modules()]
    device = next((tensor.device.type for tensor in model.parameters()), "cpu")
    try:
        model.eval()
        with products("highest", fast_convolutions=not exact), torch.autocast(device, enabled=False):
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def outputs(model: nn.Module, state: Mapping[str, Tensor], x: Inputs) -> Tensor:
    """The model's output with these weights, [batch, ...]."""
    out = functional_call(model, dict(state), tuple(part.clone() for part in parts(x)))  # layers may work in place
    examples = len(parts(x)[0])
    if not isinstance(out, Tensor) or out.dim() == 0 or len(out) != examples:
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise InvalidModel(f"for {examples} example(s) the model gives {shape}; it must give one tensor, [batch, ...]")
    return out


def logits(model: nn.Module, state: Mapping[str, Tensor], x: Inputs, classes: Tensor | None = None) -> Tensor:
    """The model's output with these weights, restricted to some classes: [batch, classes]."""
    out = outputs(model, state, x)
    if out.dim() != 2:
        raise InvalidModel(
            f"for {len(out)} example(s) the model gives {tuple(out.shape)}; a classifier must give [batch, classes]"
        )
    return out if classes is None else out[:, classes]


@torch.no_grad()
def outputs_of(model: nn.Module, x: Inputs) -> int:
    """How many classes the model tells apart."""
    with evaluated(model):
        try:
            return logits(model, {}, rows(x, slice(1))).shape[1]
        except (InterContiNetError, torch.OutOfMemoryError):
            raise
        except (RuntimeError, ValueError, IndexError) as error:
            shapes = ", ".join(str(tuple(part.shape[1:])) for part in parts(x))
            raise InvalidData(f"the model cannot take examples of shape {shapes}: {error}") from error


@torch.no_grad()
def all_outputs(model: nn.Module, state: Mapping[str, Tensor], x: Inputs) -> Tensor:
    """The outputs of all examples, in true float32, [examples, ...]."""
    size, examples = examples_at_once(x), len(parts(x)[0])
    with evaluated(model):
        return torch.cat([outputs(model, state, rows(x, slice(i, i + size))) for i in range(0, examples, size)])


def meets(criterion: Criterion, out: Tensor, y: Tensor) -> Tensor:
    """Which outputs are right by a criterion, [examples]."""
    return criterion.holds(Interval.point(out.double()), y)


@torch.no_grad()
def right(
    model: nn.Module, state: Mapping[str, Tensor], x: Inputs, labels: Tensor, classes: Tensor | None = None
) -> Tensor:
    """Which examples these weights get right, [examples]; ``labels`` are positions in ``classes``."""
    return _right(model, state, x, labels, classes, exact=True)


@torch.no_grad()
def answered(
    model: nn.Module, state: Mapping[str, Tensor], x: Inputs, labels: Tensor, classes: Tensor | None = None
) -> Tensor:
    """:func:`right` for measuring, not for promises: on a GPU with its fast convolutions."""
    return _right(model, state, x, labels, classes, exact=False)


def _right(
    model: nn.Module, state: Mapping[str, Tensor], x: Inputs, labels: Tensor, classes: Tensor | None, exact: bool
) -> Tensor:
    size = examples_at_once(x)
    with evaluated(model, exact):
        parts = [
            logits(model, state, rows(x, slice(i, i + size)), classes).argmax(1) == labels[i : i + size]
            for i in range(0, len(labels), size)
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
