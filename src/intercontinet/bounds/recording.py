"""Follow a forward pass, in whatever Python it is written, and write down what bounds have to be pushed through.

The model runs once, as it is, on real inputs; every torch function and every layer that meets a value of interest is
noted, with what it was given. Playing the notes pushes intervals through the same operations, as often as wanted. Since
the pass is real, anything that depends on shapes alone (loops, branches, reshaping) just happens. A branch that depends
on values could go another way for other weights, so it is refused, with its file and line.

Of interest are, by default, all floating-point values but constants. With ``movable``, only those that depend on
parameters that may move: everything else is then taken as computed here (see :class:`~.tape.Tape` on drift).

Nothing may pass by unseen. A tensor that is neither a parameter, nor a buffer, nor an input, nor the outcome of a
function seen here, is refused: it could be a stale copy of weights, or come from code that runs out of sight.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from intercontinet.bounds.plain import Snapshot, check_plain
from intercontinet.bounds.recorder import Recorder, where
from intercontinet.bounds.tape import Tape
from intercontinet.errors import InterContiNetError, InvalidData, InvalidModel, UnsupportedLayer, memory_gave_out
from intercontinet.inference import evaluated


def record(
    model: nn.Module,
    x: Sequence[Tensor],
    names: Collection[str],
    movable: Collection[str] | None = None,
    drift: float = 0.0,
) -> Tape:
    """Run the model once, evaluated, and note what bounds must be pushed through.

    Args:
        model: The module; unchanged.
        x: Its inputs, each [batch, ...].
        names: The parameters and buffers that a region speaks of.
        movable: Those that may move, where everything else is to be taken as computed here; else None.
        drift: See :class:`~.tape.Tape`; only with ``movable``.
    """
    check_plain(model)
    with torch.inference_mode(False), torch.no_grad(), evaluated(model):  # one thread at a time
        recorder = Recorder(model, names, movable, movable is not None and drift > 0)
        inputs = [part.clone() for part in x]
        slots = [recorder.begin(part) for part in inputs]
        before = Snapshot(model)
        try:
            recorder.wrap(model)
            with recorder, _Watch(recorder):
                out = model(*inputs)
        except (InterContiNetError, RuntimeError, ValueError, IndexError, TypeError) as error:
            if memory_gave_out(error):
                raise
            if recorder.refusal is not None:
                raise recorder.refusal from None
            if isinstance(error, InterContiNetError):
                raise
            shapes = ", ".join(str(tuple(part.shape)) for part in x)
            raise InvalidData(f"the model cannot take an input of shape {shapes}: {error}") from error
        finally:
            changed = before.restore()
    if recorder.refusal is not None:  # which the model, or torch itself, caught and went on
        raise recorder.refusal
    if changed:
        raise UnsupportedLayer(f"the forward pass changes {changed} of the model: write to a copy")
    if not isinstance(out, Tensor) or out.dtype != torch.float32:
        kind = str(out.dtype).removeprefix("torch.") if isinstance(out, Tensor) else type(out).__name__
        raise InvalidModel(
            f"the model returns {kind}; promises are made about one float32 tensor: wrap the model in a module that "
            "returns it"
        )
    recorder.check_origin([out], "what the model returns")
    return Tape(recorder.notes, slots, recorder.reference(out), drift if movable is not None else 0.0, len(x[0]))


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees what torch computes below its functions, and refuses what no function or layer that was seen asked for."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if not self.recorder.busy:
            self.recorder.refuse(
                f"{where(str(func))} runs out of sight, in a script or in compiled code: write it in plain Python"
            )
        return func(*args, **(kwargs or {}))
