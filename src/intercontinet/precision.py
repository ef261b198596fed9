"""How float32 products are computed: torch's settings for it, of which there are older and newer ones.

The older ones (``set_float32_matmul_precision``, ``cudnn.allow_tf32``) and the newer ones (``fp32_precision`` of each
backend and kind of product) are meant to agree: where they do not, torch raises as soon as an older one is read, in
its kernels too. Both are therefore set here, and both are restored.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

import torch

TRUE, TF32, BF16 = "ieee", "tf32", "bf16"
INHERITED = "none"  # what a newer setting is set to that follows the setting above it
# The strings of the newer settings of GPU and CPU at each older precision.
_MATMUL = {"highest": (TRUE, TRUE), "high": (TF32, TF32), "medium": (TF32, BF16)}
_LOCK = RLock()  # torch's settings are those of all threads


@contextmanager
def products(precision: str, *, fast_convolutions: bool = True, tf32_convolutions: bool = False) -> Iterator[None]:
    """How float32 products are computed inside; torch's settings are restored. One thread at a time.

    Args:
        precision: "highest" for true float32 products, "high" where a GPU may round factors to TF32.
        fast_convolutions: Whether cuDNN may be used, with its Winograd and FFT algorithms.
        tf32_convolutions: Whether it may round factors to TF32.
    """
    with _LOCK:
        newer = [(setting, setting.fp32_precision) for setting in _newer_settings()]
        try:
            older = _older_precision()
            _agree_with_older_convolutions()
            with torch.backends.cudnn.flags(enabled=fast_convolutions, allow_tf32=tf32_convolutions):
                try:
                    torch.set_float32_matmul_precision(precision)
                    _set_newer(_MATMUL[precision], TF32 if tf32_convolutions else TRUE)
                    yield
                finally:
                    torch.set_float32_matmul_precision(older)
        finally:
            for setting, value in newer:
                _restore(setting, value)


def _newer_settings() -> list[Any]:
    """The newer settings that matter here, those that others inherit first; none in a torch that lacks them."""
    backends: Any = torch.backends
    if not hasattr(backends, "fp32_precision"):
        return []
    cudnn, mkldnn = backends.cudnn, backends.mkldnn
    return [cudnn, cudnn.conv, cudnn.rnn, backends.cuda.matmul, mkldnn.matmul, mkldnn.conv, mkldnn.rnn]


def _set_newer(matmul: tuple[str, str], convolutions: str) -> None:
    settings = _newer_settings()[1:]
    for setting, value in zip(settings, (convolutions, convolutions, *matmul, TRUE, TRUE), strict=bool(settings)):
        setting.fp32_precision = value


def _older_precision() -> str:
    """The older precision of matrix products; where it cannot be read, the newer settings are changed to agree."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        for precision, matmul in _MATMUL.items():
            _set_newer(matmul, TRUE)
            try:
                if torch.get_float32_matmul_precision() == precision:
                    return precision
            except RuntimeError:
                continue
        raise


def _agree_with_older_convolutions() -> None:
    """Change the newer settings to agree with ``cudnn.allow_tf32``, so that it can be read."""
    settings = _newer_settings()[1:3]
    for value in (TF32, TRUE):
        for setting in settings:
            setting.fp32_precision = value
        try:
            _ = torch.backends.cudnn.allow_tf32
            return
        except RuntimeError:
            continue


def _restore(setting: Any, value: str) -> None:
    setting.fp32_precision = INHERITED
    if setting.fp32_precision != value:
        setting.fp32_precision = value
