"""A model, its data and a first certificate, which the tests of this folder share."""

from __future__ import annotations

import pytest
from torch import nn

import intercontinet as icn
from tests.tiny import Pair, blobs, fitted, mlp


@pytest.fixture(scope="session")
def case() -> tuple[nn.Sequential, Pair]:
    data = blobs((0, 1, 2), examples=60, spread=0.6)
    return fitted(data, mlp(outputs=3)), data


@pytest.fixture(scope="session")
def first(case: tuple[nn.Sequential, Pair]) -> icn.Certificate:
    return icn.protect(*case, keep=0.9, steps=20)
