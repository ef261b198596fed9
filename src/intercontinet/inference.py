"""Run a model the way certificates speak of it: evaluated, in plain float32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call

from intercontinet.criterion import Criterion
from intercontinet.data import Inputs, parts, rows
from intercontinet.errors import (
    InterContiNetError,
    InvalidData,
    InvalidModel,
    TrainingMode,
    UnsupportedLayer,
    memory_gave_out,
)
from intercontinet.interval import Interval
from intercontinet.precision import products

EXAMPLES_AT_ONCE = 512
FEWEST_AT_ONCE = 8
FEATURES_AT_ONCE = 8 << 20  # inputs in one go: a GPU is kept busy by large pieces of work only, and memory ends
BYTES_AT_ONCE = 1 << 30  # of bounds in one go; four times that on a GPU
BYTES_A_BOUND = 32  # of one number: two edges in float64, and as much again on the way
ROUNDING = 1e-4  # by how much an output may differ in another batch, relative to its largest entry


def examples_at_once(x: Inputs, recorded: int | None = None) -> int:
    """How many examples to push through a net at a time; ``recorded``: how many numbers one puts out on its way."""
    first = parts(x)[0]
    on_gpu = first.device.type != "cpu"
    fitting = FEATURES_AT_ONCE // max(1, first[0].numel())
    size = max(EXAMPLES_AT_ONCE, fitting) if on_gpu else min(EXAMPLES_AT_ONCE, fitting)
    if recorded:
        size = min(size, (4 if on_gpu else 1) * BYTES_AT_ONCE // (BYTES_A_BOUND * recorded))
    return max(FEWEST_AT_ONCE, size)


@contextmanager
def evaluated(model: nn.Module, exact: bool = True) -> Iterator[None]:
    """Evaluation mode and true float32 products inside; every module's mode and torch's settings are restored.

    Where not ``exact``, a GPU's fast convolutions are let in (cuDNN's, in float32), of which no promise speaks.

    Raises:
        TrainingMode: Some module goes on training, as Dropout does that is meant to stay on.
    """
    modes = [(module, module.training) for module in model.modules()]
    device = next((tensor.device.type for tensor in model.parameters()), "cpu")
    try:
        model.eval()
        _check_evaluated(model)
        with products("highest", fast_convolutions=not exact), torch.autocast(device, enabled=False):
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def _check_evaluated(model: nn.Module) -> None:
    for path, module in model.named_modules():
        if module.training:
            where = f"layer '{path}'" if path else "the model itself"
            raise TrainingMode(
                f"{where} ({type(module).__name__}) goes on training after model.eval(): promises speak of evaluated "
                "models, so let its train() pass on what it is told"
            )


def uncast(device: torch.device) -> AbstractContextManager[object]:
    """Without autocast inside: rules that run a layer itself must run it in float32, wherever they are asked."""
    on = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if on else nullcontext()


def check_evaluates(model: nn.Module) -> None:
    """Raise :class:`~.errors.TrainingMode` where ``model.eval()`` leaves something training; modes stay as they are."""
    if any(module.training for module in model.modules()):
        with evaluated(model):
            pass


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
        except InterContiNetError:
            raise
        except (RuntimeError, ValueError, IndexError) as error:
            if memory_gave_out(error):
                raise
            shapes = ", ".join(str(tuple(part.shape[1:])) for part in parts(x))
            raise InvalidData(f"the model cannot take examples of shape {shapes}: {error}") from error


@torch.no_grad()
def all_outputs(model: nn.Module, state: Mapping[str, Tensor], x: Inputs) -> Tensor:
    """The outputs of all examples, in true float32, [examples, ...]."""
    size, examples = examples_at_once(x), len(parts(x)[0])
    with evaluated(model):
        return torch.cat([outputs(model, state, rows(x, slice(i, i + size))) for i in range(0, examples, size)])


@torch.no_grad()
def check_alone(model: nn.Module, x: Inputs) -> None:
    """Refuse models that answer otherwise when asked again, or when an example comes by itself: tried on a few.

    Args:
        model: The module; unchanged.
        x: Some examples, as many as run together.
    """
    count = len(parts(x)[0])
    with evaluated(model):
        out, again = outputs(model, {}, x), outputs(model, {}, x)
        same = torch.equal(out.nan_to_num(), again.nan_to_num()) if out.device.type == "cpu" else _close(out, again)
        if not same:
            raise UnsupportedLayer(
                "the model gives other outputs for the same inputs when it runs again: something in it is random, or "
                "remembers earlier calls, and nothing can be promised about that. Remove it"
            )
        for place in sorted({0, count // 3, 2 * count // 3, count - 1}):
            alone = outputs(model, {}, rows(x, slice(place, place + 1)))
            if not _close(alone, out[place : place + 1]):
                raise UnsupportedLayer(
                    f"the model gives another output for example {place} by itself than in a batch of {count}: it "
                    "mixes examples, so that a promise would hold for one batch only. Compute each by itself"
                )


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    size = max(float(out.nan_to_num(0, 0, 0).abs().max()) if out.numel() else 0.0 for out in (one, other))
    return torch.allclose(one, other, rtol=0.0, atol=ROUNDING * size + 1e-7, equal_nan=True)


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
