"""Random numbers that are a function of a key: no generator, no state, the same on every device.

Shuffling, dropout and augmentation draw from here. A seed therefore sees the same examples in the same order alone or
beside others, on a CPU or a GPU, in an unbroken run or one taken up again. The mixing function is SplitMix64's.
"""

from __future__ import annotations

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = (1 << 64) - 1


def _signed(value: int) -> int:
    value &= _WORD
    return value - (1 << 64) if value >> 63 else value


def key_of(*parts: int) -> int:
    """One 64-bit key for a few numbers, such as (seed, task, phase).

    >>> key_of(0, 1) == key_of(0, 1), key_of(0, 1) == key_of(1, 0)
    (True, False)
    """
    key = 0
    for part in parts:
        key = int(mixed(torch.tensor(_signed(key + part))))
    return key


def mixed(keys: Tensor) -> Tensor:
    """Integers with no visible relation to their keys, elementwise, int64 (products wrap round).

    >>> mixed(torch.tensor([0, 1])) >> 60
    tensor([-2,  6])
    """
    bits = keys * _signed(_GOLDEN) + _signed(_GOLDEN)
    bits = (bits ^ _shifted(bits, 30)) * _signed(_FIRST)
    bits = (bits ^ _shifted(bits, 27)) * _signed(_SECOND)
    return bits ^ _shifted(bits, 31)


def _shifted(bits: Tensor, by: int) -> Tensor:
    """A shift to the right that brings in zeros, as for unsigned numbers."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def counted(keys: Tensor, count: int) -> Tensor:
    """[...] keys -> [..., count] further keys."""
    return mixed(mixed(keys)[..., None] + torch.arange(count, device=keys.device))


def orders(keys: Tensor, examples: int) -> Tensor:
    """A random order of the examples for each key: [seeds] -> [seeds, examples].

    >>> orders(torch.tensor([5]), 4).sort().values
    tensor([[0, 1, 2, 3]])
    """
    return counted(keys, examples).argsort(dim=-1, stable=True)


def uniform(keys: Tensor, count: int) -> Tensor:
    """[...] keys -> [..., count] numbers in [0, 1), float32."""
    return _shifted(counted(keys, count), 40).to(torch.float32) / (1 << 24)
