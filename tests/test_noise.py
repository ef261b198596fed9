"""Random numbers by key, against SplitMix64 written out in Python's whole numbers."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from intercontinet.noise import counted, key_of, mixed, orders, uniform

steadily = settings(derandomize=True, deadline=None, max_examples=60)
words = st.integers(-(1 << 63), (1 << 63) - 1)
WORD = (1 << 64) - 1
REFERENCE = (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC, 0x1B39896A51A8749B)


def splitmix(key: int) -> int:
    """The output of SplitMix64, seeded with 0, after ``key`` others."""
    z = ((key + 1) * 0x9E3779B97F4A7C15) & WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


def unsigned(values: Tensor) -> list[int]:
    return [value & WORD for value in values.tolist()]


def unevenness(counts: list[int]) -> float:
    """Chi-square of counts that should be alike; about as large as there are counts."""
    expected = sum(counts) / len(counts)
    return sum((count - expected) ** 2 for count in counts) / expected


# The numbers themselves: a change here would change every seed's results.


def test_the_first_outputs_are_those_of_splitmix64() -> None:
    assert unsigned(mixed(torch.arange(5))) == list(REFERENCE)


@steadily
@given(words)
def test_mixing_is_splitmix64_for_every_key(key: int) -> None:
    assert unsigned(mixed(torch.tensor([key]))) == [splitmix(key)]


@steadily
@given(st.lists(st.integers(-(1 << 40), 1 << 40), max_size=4))
def test_a_key_mixes_its_parts_one_after_the_other(parts: list[int]) -> None:
    expected = 0
    for part in parts:
        expected = splitmix(expected + part)
    assert key_of(*parts) & WORD == expected
    assert -(1 << 63) <= key_of(*parts) < 1 << 63, "it must fit into int64"


@steadily
@given(words, st.integers(1, 40))
def test_further_keys_orders_and_numbers_follow_from_the_mixing(key: int, count: int) -> None:
    expected = [splitmix(splitmix(key) + place) for place in range(count)]
    keys = torch.tensor([key])
    assert unsigned(counted(keys, count)[0]) == expected
    assert uniform(keys, count)[0].tolist() == [(value >> 40) / (1 << 24) for value in expected]
    signed = [value - (1 << 64) if value >> 63 else value for value in expected]
    assert orders(keys, count)[0].tolist() == sorted(range(count), key=signed.__getitem__)


def test_keys_and_orders_never_change_silently() -> None:
    key = key_of(3, 1, 0)
    assert key == -6600884900790028653
    assert orders(torch.tensor([key]), 12)[0].tolist() == [10, 8, 9, 11, 0, 7, 4, 1, 2, 6, 3, 5]
    assert (uniform(torch.tensor([key]), 3)[0] * (1 << 24)).tolist() == [16381655, 6109076, 6266621]


# Keys.


def test_the_order_and_the_number_of_parts_matter() -> None:
    parts = [(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1), (0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (1, 1, 1)]
    assert len({key_of(*some) for some in parts}) == len(parts)


def test_neighbouring_places_of_a_run_share_no_key() -> None:
    """Seeds, tasks, phases and epochs as the loop combines them."""
    keys = torch.tensor([key_of(s, t, p) for s in range(8) for t in range(8) for p in range(2)])
    epochs = mixed(keys[:, None] + torch.arange(1, 31))
    assert len(torch.unique(epochs)) == epochs.numel()


# Orders.


@steadily
@given(st.lists(words, min_size=1, max_size=5), st.integers(1, 300))
def test_every_order_holds_every_example_once(keys: list[int], examples: int) -> None:
    shuffled = orders(torch.tensor(keys), examples)
    assert shuffled.shape == (len(keys), examples)
    assert torch.equal(shuffled.sort(dim=1).values, torch.arange(examples).expand(len(keys), -1))


@steadily
@given(st.lists(words, min_size=2, max_size=6), st.integers(1, 50))
def test_a_row_depends_on_its_own_key_alone(keys: list[int], count: int) -> None:
    together = torch.tensor(keys)
    for row, key in enumerate(keys):
        alone = torch.tensor([key])
        assert torch.equal(orders(together, count)[row], orders(alone, count)[0])
        assert torch.equal(uniform(together, count)[row], uniform(alone, count)[0])
        assert torch.equal(uniform(torch.tensor(key), count), uniform(alone, count)[0]), "one key needs no axis"


def test_all_orders_are_equally_likely() -> None:
    """24 of them, 400 times each on average; one chi-square in a million exceeds 71."""
    found = Counter(tuple(row) for row in orders(torch.arange(9600), 4).tolist())
    assert set(found) == set(permutations(range(4)))
    assert unevenness(list(found.values())) < 71


# Uniform numbers.


@pytest.mark.parametrize("by", ["place", "key"])
def test_numbers_fill_the_unit_interval_evenly(by: str) -> None:
    """Many of one key, and the first of many keys; one chi-square in a million exceeds 57."""
    count = 16000
    numbers = uniform(torch.tensor([5]), count)[0] if by == "place" else uniform(torch.arange(count), 1)[:, 0]
    assert numbers.dtype == torch.float32 and bool(((numbers >= 0) & (numbers < 1)).all())
    assert unevenness(torch.bincount((16 * numbers).long(), minlength=16).tolist()) < 57


@pytest.mark.parametrize(("keys", "places"), [(1, 0), (0, 1), (1, 1), (1, -1)])
def test_neighbours_know_nothing_of_each_other(keys: int, places: int) -> None:
    """Neighbouring keys, neighbouring places: pairs fill the unit square evenly."""
    numbers = uniform(torch.arange(101), 101)
    others = numbers.roll((-keys, -places), (0, 1))
    cells = (4 * numbers[:-1, 1:-1]).long() * 4 + (4 * others[:-1, 1:-1]).long()
    assert unevenness(torch.bincount(cells.reshape(-1), minlength=16).tolist()) < 57
