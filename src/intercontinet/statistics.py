"""What a count on some examples says of examples like them that nobody has seen."""

from __future__ import annotations

import math

from intercontinet.errors import InvalidSetting


def lowest_share(successes: int, total: int, confidence: float = 0.95) -> float:
    """The share of successes that is exceeded with this confidence: the one-sided Clopper-Pearson lower bound.

    It is the largest ``p`` with ``P(Binomial(total, p) >= successes) <= 1 - confidence``: were the true share any
    lower, a count as high as this one would be that unlikely. It assumes nothing but that the examples were drawn
    independently from what they are to speak for, and it errs, by less than 1e-9, on the low side.

    Args:
        successes: How many of the examples were a success.
        total: How many were looked at.
        confidence: From 0.5, below which a bound may lie above the share that was seen, to below 1.

    Raises:
        InvalidSetting: There are more successes than examples, fewer than none, or the confidence is out of range.

    >>> f"{lowest_share(90, 100):.4f}"
    '0.8363'
    >>> abs(lowest_share(100, 100) - 0.05 ** (1 / 100)) < 1e-9  # all of them: the p with p^100 = 5 %
    True
    >>> lowest_share(0, 100)
    0.0
    """
    if not 0 <= successes <= total:
        raise InvalidSetting(f"{successes} successes of {total} examples make no sense: count from 0 to all of them")
    if not 0.5 <= confidence < 1:
        raise InvalidSetting(f"confidence is {confidence} and should be from 0.5 to below 1")
    if successes == 0:
        return 0.0
    choices = math.lgamma(total + 1) - math.lgamma(successes + 1) - math.lgamma(total - successes + 1)
    slack = 4e-15 * (total + 1) * math.log(total + 2)  # far above the rounding of the logarithms, and of the sums
    allowed = math.log(1 - confidence) - slack - choices
    low, high = 0.0, successes / total  # the tail there is at least 1/2, as a whole mean is also the median
    while low < (middle := (low + high) / 2) < high:
        if _log_tail(successes, total, middle) <= allowed:
            low = middle
        else:
            high = middle
    return low


def _log_tail(successes: int, total: int, p: float) -> float:
    """``log P(Binomial(total, p) >= successes)``, less the log of the ways to choose, for ``p < successes / total``.

    Summed upwards from the first term, which is the largest. Each term is the last times a ratio that only falls, so
    that what is left after a term is below a geometric series; the sum ends where that no longer counts.
    """
    odds = p / (1 - p)
    term = terms = 1.0
    for count in range(successes, total):
        ratio = (total - count) / (count + 1) * odds
        term *= ratio
        terms += term
        if term * ratio < 1e-16 * (1 - ratio) * terms:
            break
    return successes * math.log(p) + (total - successes) * math.log1p(-p) + math.log(terms)
