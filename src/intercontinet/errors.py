"""Every error this package raises on purpose. Each message names the culprit and the way out."""

from __future__ import annotations

import math
from collections.abc import Mapping


class InterContiNetError(Exception):
    """The common ancestor: catch this to catch them all."""


class InvalidData(InterContiNetError, ValueError):
    """The examples cannot be used: empty, not finite, labels out of range, of the wrong type."""


class InvalidSetting(InterContiNetError, ValueError):
    """An option has a value that makes no sense."""


class OutOfMemory(InvalidSetting):
    """What was asked for needs more memory than there is."""


class InvalidRegion(InterContiNetError, ValueError):
    """The edges do not make a box: a negative radius, a lower edge above its upper one, NaN."""


class RegionMismatch(InterContiNetError, ValueError):
    """The region and the weights speak of different parameters, or of different shapes."""


class InvalidModel(InterContiNetError, ValueError):
    """The weights cannot be used: NaN or infinite, or of a precision that no promise covers."""


class UnsupportedLayer(InterContiNetError, TypeError):
    """A layer has no rule, or is used in a way that its rule does not cover."""


class TrainingMode(InterContiNetError, RuntimeError):
    """A layer behaves differently while training, so nothing can be promised about it."""


class DeviceMismatch(InterContiNetError, ValueError):
    """Model, region and data are not on one device."""


class CertificateError(InterContiNetError, ValueError):
    """A certificate file is truncated, altered, foreign, too new, or of another architecture."""


class NotCertified(InterContiNetError, RuntimeError):
    """Too little is certain even where nothing moves, so that no region can make the promise."""


class WriteError(InterContiNetError, OSError):
    """A file could not be written; what was there before is untouched."""


class Violation(InterContiNetError):
    """Weights lie outside a certified region: no floor of its certificate holds for them.

    The worst comes first: the parameter of which some entry lies farthest outside, as a plain distance, before which
    come frozen tensors that changed, of which no distance is known.

    Args:
        outside: How far each parameter that left is outside (the largest distance of any of its entries); infinite for
            a tensor that is known by its digest alone and has changed.

    Attributes:
        outside: The same, worst first.
        parameter: Name of the worst.
        excess: How far it is outside.
        others: Names of all further parameters that left.

    >>> print(str(Violation({"0.bias": 0.25, "2.bias": 1.5})).split(". ")[0])
    '2.bias' lies 1.5 outside the certified region; so does '0.bias' (0.25)
    """

    def __init__(self, outside: Mapping[str, float]) -> None:
        self.outside = dict(sorted(outside.items(), key=lambda item: (-item[1], item[0])))
        self.parameter, *others = self.outside
        self.excess, self.others = self.outside[self.parameter], tuple(others)
        changed = math.isinf(self.excess)
        words = f"'{self.parameter}' " + (
            "is frozen and has changed" if changed else f"lies {self.excess:.6g} outside the certified region"
        )
        listed = [f"'{name}' ({_distance(self.outside[name])})" for name in others[:4]]
        if len(others) > 4:
            listed.append(f"{len(others) - 4} more")
        if listed:
            left = "outside the certified region lie also" if changed else "so do"
            words += f"; {left if changed or len(others) > 1 else 'so does'} {_listed(listed)}"
        way_out = "train inside the region, or move back with region.clamp_(model)"
        if changed:
            way_out += "; frozen tensors come back from the weights that were certified"
        super().__init__(f"{words}. No floor holds for these weights: {way_out}.")


WORDS_FOR_NO_MEMORY = (
    "DefaultCPUAllocator",
    "out of memory",  # CUDA itself, where torch did not ask for the memory: recording a graph, setting up a context
    "_ALLOC_FAILED",  # cuBLAS and cuDNN
    "_ALLOCATION_FAILED",  # cuDNN
)


def memory_gave_out(error: BaseException) -> bool:
    """Whether an error says that there is too little memory: this package's, Python's, or torch's, of a GPU or the CPU.

    >>> memory_gave_out(RuntimeError("DefaultCPUAllocator: can't allocate memory")), memory_gave_out(RuntimeError("no"))
    (True, False)
    >>> memory_gave_out(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    True
    """
    if isinstance(error, (OutOfMemory, MemoryError)) or type(error).__name__ == "OutOfMemoryError":
        return True  # the last by its name, for torch need not be imported here
    return isinstance(error, RuntimeError) and any(words in str(error) for words in WORDS_FOR_NO_MEMORY)


def _distance(excess: float) -> str:
    return "frozen, changed" if math.isinf(excess) else f"{excess:.6g}"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
