"""A step as one CUDA graph: recorded once, then replayed without Python and without waiting for the launches."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def recorded(step: Callable[[], None], changing: Sequence[Tensor], device: torch.device) -> Callable[[], object]:
    """On a GPU, a call that replays ``step``; elsewhere ``step`` itself.

    Args:
        step: Reads and writes tensors that stay where they are, and never looks at a value.
        changing: What it writes and reads again: recording takes one trial step, which is undone.
        device: Where those tensors are.
    """
    if device.type != "cuda":
        return step
    before = [tensor.clone() for tensor in changing]
    aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(aside):
        step()  # libraries set themselves up in the first call, which a graph must not hold
    torch.cuda.current_stream(device).wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=aside, capture_error_mode="thread_local"):  # other threads may be at work
            step()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        warnings.warn(f"a step cannot be recorded as a CUDA graph, and runs slower without: {error}", stacklevel=3)
        torch.cuda.synchronize(device)
        _restore(changing, before)
        return step
    _restore(changing, before)
    return graph.replay


def _restore(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)
