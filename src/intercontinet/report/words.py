"""Words for the numbers of a page: shares, differences, spreads and times, as people read them."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable


def percent(share: float | None) -> str:
    """A share in words.

    >>> percent(0.9871), percent(None)
    ('98.7%', '-')
    """
    return "-" if share is None else f"{share:.1%}"


def down(share: float | None) -> str:
    """A floor in words, never rounded up: it must not look higher than it is.

    >>> down(0.94999), down(0.95), down(None)
    ('94.9%', '95.0%', '-')
    """
    return "-" if share is None else f"{math.floor(share * 1000 + 1e-9) / 10:.1f}%"


def points(difference: float | None) -> str:
    """A difference of accuracies, with its sign.

    >>> points(-0.0123), points(0.004), points(-0.00001)
    ('-1.2%', '+0.4%', '0.0%')
    """
    return f"{difference:+.1%}" if difference and round(difference, 3) else percent(difference and 0.0)


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of what is known, or None of nothing.

    >>> mean([0.5, None, 1.0]), mean([None])
    (0.75, None)
    """
    kept = [value for value in values if value is not None]
    return math.fsum(kept) / len(kept) if kept else None


def spread(values: Iterable[float | None]) -> str:
    """Mean and sample standard deviation.

    >>> spread([0.98, 0.96]), spread([0.98]), spread([None])
    ('97.0% ± 1.4', '98.0%', '-')
    """
    kept = [value for value in values if value is not None]
    return percent(mean(kept)) + (f" ± {100 * statistics.stdev(kept):.1f}" if len(kept) > 1 else "")


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(12.34), duration(252), duration(7500)
    ('12.3 s', '4 min 12 s', '2 h 5 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{seconds:.1f} s"
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def plain(value: object) -> str:
    """A setting without the quotes of JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
