"""The Clopper-Pearson bound against scipy, closed forms and exact fractions; never too high."""

from __future__ import annotations

import math
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intercontinet.errors import InvalidSetting
from intercontinet.statistics import lowest_share

steadily = settings(derandomize=True, deadline=None, max_examples=100)
confidences = st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.999999])


@st.composite
def counts(draw: st.DrawFn, largest: int) -> tuple[int, int]:
    total = draw(st.integers(1, largest))
    return draw(st.integers(1, total)), total


@given(counts(100_000), confidences)
@steadily
def test_it_is_scipys_and_never_higher(count: tuple[int, int], confidence: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    successes, total = count
    reference = float(stats.beta.ppf(1 - confidence, successes, total - successes + 1))
    assert reference - 1e-9 < lowest_share(successes, total, confidence) <= reference + 1e-13  # scipy rounds too


@given(counts(40), confidences)
@steadily
def test_in_exact_arithmetic_the_tail_is_as_small_as_asked_and_hardly_smaller(
    count: tuple[int, int], confidence: float
) -> None:
    def tail(p: Fraction) -> Fraction:
        return sum(
            (math.comb(total, k) * p**k * (1 - p) ** (total - k) for k in range(successes, total + 1)), Fraction()
        )

    successes, total = count
    found = Fraction(lowest_share(successes, total, confidence))
    assert tail(found) <= 1 - Fraction(confidence) < tail(found + Fraction(1, 10**9))


@pytest.mark.parametrize("total", [1, 2, 59, 1000, 100_000])
def test_closed_forms(total: int) -> None:
    assert lowest_share(0, total) == 0.0
    assert lowest_share(total, total) == pytest.approx(0.05 ** (1 / total), rel=0, abs=1e-9)
    assert lowest_share(1, total) == pytest.approx(1 - 0.95 ** (1 / total), rel=0, abs=1e-9)
    assert lowest_share(total, total, 0.99) == pytest.approx(0.01 ** (1 / total), rel=0, abs=1e-9)


def test_nothing_looked_at_says_nothing() -> None:
    assert lowest_share(0, 0) == 0.0


@given(counts(2000), confidences)
@steadily
def test_it_grows_with_successes_and_lies_below_their_share(count: tuple[int, int], confidence: float) -> None:
    successes, total = count
    bound = lowest_share(successes, total, confidence)
    assert lowest_share(successes - 1, total, confidence) < bound <= successes / total


def test_it_is_quick() -> None:
    began = time.perf_counter()
    lowest_share(50_000, 100_000)
    assert time.perf_counter() - began < 0.5, "milliseconds, on a machine that is not busy"


@pytest.mark.parametrize(("successes", "total"), [(-1, 10), (11, 10), (0, -1), (1, 0)])
def test_counts_that_make_no_sense_are_refused(successes: int, total: int) -> None:
    with pytest.raises(InvalidSetting, match=f"{successes} successes of {total} examples make no sense"):
        lowest_share(successes, total)


@pytest.mark.parametrize("confidence", [0.0, 0.49, 1.0, 95, math.nan])
def test_a_confidence_that_makes_no_sense_is_refused(confidence: float) -> None:
    with pytest.raises(InvalidSetting, match=rf"confidence is {confidence} and should be from 0\.5 to below 1"):
        lowest_share(1, 2, confidence)
