"""A step as one CUDA graph: recorded once, then replayed without Python and without waiting for the launches."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable, Sequence
from threading import Lock, local

import torch
from torch import Tensor

from intercontinet.errors import memory_gave_out
from intercontinet.precision import products

_ONE_AT_A_TIME = Lock()  # threads may train side by side, but CUDA does not let them record side by side
_OF_THREAD = local()


def stream_of_thread(device: torch.device, use: str) -> torch.cuda.Stream:
    """This thread's own stream for some use, always the same one.

    torch hands out 32 streams in turn; a new one for every use would sooner or later be one that another thread is
    recording on.
    """
    streams: dict[tuple[torch.device, str], torch.cuda.Stream] = _OF_THREAD.__dict__.setdefault("streams", {})
    if (device, use) not in streams:
        streams[device, use] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return streams[device, use]


def recorded(
    step: Callable[[], None], changing: Sequence[Tensor], device: torch.device, coarse: bool = False
) -> Callable[[], object]:
    """On a GPU, a call that replays ``step``; elsewhere ``step`` itself.

    Args:
        step: Reads and writes tensors that stay where they are, and never looks at a value.
        changing: What it writes and reads again: recording takes one trial step, which is undone.
        device: Where those tensors are.
        coarse: Whether the GPU may round the factors of its products to TF32, which is faster.
    """
    if device.type != "cuda":
        return step
    before = [tensor.clone() for tensor in changing]
    aside = stream_of_thread(device, "recording")
    aside.wait_stream(torch.cuda.current_stream(device))
    settings = products("high" if coarse else "highest", tf32_convolutions=coarse)
    try:
        with _ONE_AT_A_TIME, settings, torch.cuda.stream(aside):
            step()  # libraries set themselves up in the first call, which a graph must not hold
            free, total = torch.cuda.mem_get_info(device)
            if free < total / 2:  # else what graphs that are gone have held is kept until the device is full
                torch.cuda.empty_cache()
            graph, error = _captured(step, device)
    finally:  # of a step that failed, too: parts of it may still write to memory that is about to be used again
        torch.cuda.current_stream(device).wait_stream(aside)
    for tensor, value in zip(changing, before, strict=True):
        tensor.copy_(value)
    if graph is not None:
        return graph.replay
    warnings.warn(f"a step cannot be recorded as a CUDA graph, and runs slower without: {error}", stacklevel=4)
    return step


def give_back_memory(alone: bool = False) -> None:
    """Let go of GPU memory that nothing uses any more, while no thread records.

    Where nothing else runs (``alone``), that of cuBLAS, too, which keeps some for every stream that it was used on. No
    step that is recorded already may be replayed after that: it would write to memory that is no longer its own.
    """
    with _ONE_AT_A_TIME:
        if alone and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch._C._cuda_clearCublasWorkspaces()
        _give_back()


def _give_back() -> None:
    gc.collect()  # the first vmap leaves its frames in a cycle, and with them every tensor of an attempt that failed
    torch.cuda.empty_cache()


def _captured(
    step: Callable[[], None], device: torch.device, again: bool = True
) -> tuple[torch.cuda.CUDAGraph | None, str]:
    """The step as a graph, or None and the reason why it cannot be one.

    A recording has memory of its own, and cannot take what torch keeps of tensors that are gone, as a step otherwise
    would: where it finds too little (or is allowed too little, of which a device knows nothing), that is given back,
    and it begins ``again``.
    """
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        step()
        graph.capture_end()
        return graph, ""
    except BaseException as error:  # an interrupt, too: nothing may leave the stream recording
        _abandon(graph, pool, device)
        gave_out = memory_gave_out(error)
        if not isinstance(error, Exception) or (gave_out and not again):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
    if not gave_out:
        return None, reason
    del graph
    _give_back()  # and out of the clause above, where the error would keep the step's tensors alive
    return _captured(step, device, again=False)


def _abandon(graph: torch.cuda.CUDAGraph, pool: tuple[int, int], device: torch.device) -> None:
    """End a recording that failed. Where torch cannot, its allocator must be told, or it fills that pool for ever."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the graph is empty, where it failed at once
            graph.capture_end()
    except RuntimeError:  # which says again that the recording failed
        index = torch.cuda.current_device() if device.index is None else device.index
        with contextlib.suppress(RuntimeError):  # where torch had told it after all
            torch._C._cuda_endAllocateToPool(index, pool)
            torch._C._cuda_releasePool(index, pool)
