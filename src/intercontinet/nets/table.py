"""Nets for the exact learner: a frozen encoder, and a table of one row for each number it may choose."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from intercontinet.errors import InvalidData, InvalidSetting
from intercontinet.nets.dictionary import PatchDictionary, TriangleDictionary
from intercontinet.nets.ferns import Ferns, Kind, feature_ferns
from intercontinet.nets.lesser import Lesser
from intercontinet.nets.sight import sight
from intercontinet.nets.winners import KWinners

_WHOLE, _SHARE = r"[1-9][0-9]*", r"0\.[0-9]*[1-9]|[1-9][0-9]*(?:\.[0-9]+)?"
_SIZES = {
    "ferns": (_WHOLE,) * 3,
    "pairs": (_WHOLE,) * 3,
    "levels": (_WHOLE,) * 2,
    "winners": (_WHOLE,) * 2,
    "dictionary": (_WHOLE, _WHOLE, _SHARE, _SHARE, _WHOLE, _WHOLE),
    "triangle": (_WHOLE, _WHOLE, _SHARE, _WHOLE, _WHOLE),
    "sight": (_WHOLE,) * 3,
}
SAMPLE = 5000  # images whose features fix the levels of ferns
CAPPED = "capped-"
NAMES = (
    "ferns-GROUPS-TESTS-WINDOW, pairs-GROUPS-TESTS-WINDOW, dictionary-ATOMS-POOL-ACTIVE-SPREAD-GROUPS-TESTS (ACTIVE "
    "in percent), triangle-ATOMS-POOL-SPREAD-GROUPS-TESTS or sight-POOL-GROUPS-TESTS for images, levels-GROUPS-TESTS "
    "or winners-UNITS-WINNERS for anything; with capped- before it, outputs are trained and kept under a ceiling"
)


def with_table(encoder: nn.Module, rows: int, outputs: int, slots: int = 1, capped: bool = False) -> nn.Sequential:
    """The encoder, a table whose chosen rows are summed, and the maximum over each output's columns.

    Args:
        encoder: Chooses rows: [batch, ...] -> whole numbers below ``rows``, [batch, chosen]. A Sequential is taken
            apart, so that what it is made of lies side by side with the table.
        rows: Of the table.
        outputs: Classes.
        slots: Columns an output has: one for every part of its examples, and for every task that brings it again.
        capped: Whether each column has a second one beside it whose sum it may not rise above. Outputs of such a net
            are trained, not counted.

    >>> with_table(KWinners(4, units=8, winners=2), 8, outputs=3, slots=2)(torch.rand(5, 4)).shape
    torch.Size([5, 3])
    """
    columns = outputs * slots * (2 if capped else 1)
    layers = list(encoder) if isinstance(encoder, nn.Sequential) else [encoder]
    bag = nn.EmbeddingBag(rows, columns, mode="sum", _weight=torch.zeros(rows, columns))
    return nn.Sequential(*layers, bag, *([Lesser()] if capped else []), *([nn.MaxPool1d(slots)] if slots > 1 else []))


def fern_net(
    shape: Sequence[int],
    outputs: int,
    groups: int = 500,
    tests: int = 10,
    window: int | None = 10,
    kind: Kind = "threshold",
    seed: int = 0,
    slots: int = 1,
    capped: bool = False,
) -> nn.Sequential:
    """Ferns below a table (see :func:`with_table`). All weights start at zero.

    >>> fern_net((1, 28, 28), outputs=10, groups=4)(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    encoder = Ferns(shape, groups, tests, window, kind, seed)
    return with_table(encoder, encoder.bins, outputs, slots, capped)


def dictionary_net(
    images: Tensor,
    outputs: int,
    atoms: int = 100,
    groups: int = 300,
    tests: int = 8,
    seed: int = 0,
    slots: int = 1,
    capped: bool = False,
    **options: Any,
) -> nn.Sequential:
    """A patch dictionary and ferns on its features, both fitted to images without their labels, below a table.

    Args:
        images: [examples, channels, height, width], of the first task.
        outputs: Classes.
        atoms: Of the dictionary.
        groups: Of the ferns.
        tests: Of a group.
        seed: Fixes everything that is drawn.
        slots: Columns an output has.
        capped: Whether outputs are trained under a ceiling, see :func:`with_table`.
        options: Of :meth:`~intercontinet.nets.PatchDictionary.fitted`: patch, pool, active, spread, patches.
    """
    encoder, rows = _dictionary(images, atoms, groups, tests, seed, **options)
    return with_table(encoder, rows, outputs, slots, capped)


def build_exact_net(name: str, images: Tensor, outputs: int, slots: int, seed: int) -> nn.Sequential:
    """A net by its name, as configurations have it; ``images`` are the first task's.

    >>> build_exact_net("pairs-5-3-4", torch.rand(9, 1, 8, 8), outputs=2, slots=1, seed=0)[0].kind
    'pair'
    """
    encoder, rows = _encoder(name.removeprefix(CAPPED), images, seed)
    return with_table(encoder, rows, outputs, slots, name.startswith(CAPPED))


def _encoder(name: str, images: Tensor, seed: int) -> tuple[nn.Module, int]:
    """What chooses rows, by its name, and how many there are to choose from."""
    kind, *numbers = name.split("-")
    wanted = _SIZES.get(kind, ())
    right = [re.fullmatch(*pair) for pair in zip(wanted, numbers, strict=False)]
    if not wanted or len(numbers) != len(wanted) or not all(right):
        raise InvalidSetting(f"there is no net '{name}' for method 'exact': use {NAMES}")
    sizes = [int(float(number)) for number in numbers]
    if kind == "winners":
        units, winners = sizes
        return KWinners(images[0].numel(), units, winners, seed), units
    if kind == "levels":
        groups, tests = sizes
        ferns = feature_ferns(images.flatten(1), groups, tests, seed=seed)
        return nn.Sequential(nn.Flatten(), ferns), ferns.bins
    if images.dim() != 4:
        raise InvalidData(
            f"'{name}' is for images, and examples of shape {tuple(images.shape[1:])} are none: use levels-GROUPS-TESTS"
        )
    if kind == "dictionary":
        atoms, pool, _, _, groups, tests = sizes
        options = {"pool": pool, "active": float(numbers[2]) / 100, "spread": float(numbers[3])}
        return _dictionary(images, atoms, groups, tests, seed, **options)
    if kind == "triangle":
        atoms, pool, _, groups, tests = sizes
        seen = TriangleDictionary.fitted(images, atoms, pool=pool, spread=float(numbers[2]), seed=seed)
        return _with_ferns(seen, images, groups, tests, seed)
    if kind == "sight":
        pool, groups, tests = sizes
        return _with_ferns(sight(pool=pool).to(images.device), images, groups, tests, seed)
    groups, tests, window = sizes
    compared: Kind = "threshold" if kind == "ferns" else "pair"
    ferns = Ferns(tuple(images.shape[1:]), groups, tests, window, compared, seed)
    return ferns, ferns.bins


def _dictionary(
    images: Tensor, atoms: int, groups: int, tests: int, seed: int, **options: Any
) -> tuple[nn.Module, int]:
    return _with_ferns(PatchDictionary.fitted(images, atoms, seed=seed, **options), images, groups, tests, seed)


def _with_ferns(seen: nn.Module, images: Tensor, groups: int, tests: int, seed: int) -> tuple[nn.Module, int]:
    """Ferns on features, whose levels suit those of the images."""
    some = images[:: max(1, len(images) // SAMPLE)]  # which may come in the order of their classes
    ferns = feature_ferns(seen(some[:SAMPLE]), groups, tests, seed=seed)
    return nn.Sequential(seen, ferns), ferns.bins
