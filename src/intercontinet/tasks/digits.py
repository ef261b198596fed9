"""Split Digits: scikit-learn's bundled 8 x 8 handwritten digits, 1,797 of them. No download."""

from __future__ import annotations

import torch

from intercontinet.errors import InvalidSetting
from intercontinet.tasks.scenario import Pair, Scenario, Stream, split

PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))


def digits() -> tuple[Pair, Pair]:
    """Train and test examples: x [n, 64] in [0, 1], y [n]. Every fifth example of a class is for testing."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise InvalidSetting("Split Digits needs scikit-learn: pip install 'intercontinet[cli]'") from None
    bunch = load_digits()
    x = torch.tensor(bunch.data, dtype=torch.float32) / 16
    y = torch.tensor(bunch.target, dtype=torch.int64)
    turn = torch.stack([(y[: i + 1] == y[i]).sum() for i in range(len(y))]) % 5 == 0
    return (x[~turn], y[~turn]), (x[turn], y[turn])


def split_digits(scenario: Scenario) -> Stream:
    """Five tasks of two digits each.

    >>> stream = split_digits("class")
    >>> [task.name for task in stream.tasks], stream.outputs
    (['0/1', '2/3', '4/5', '6/7', '8/9'], 10)
    """
    return split(*digits(), PAIRS, scenario)
