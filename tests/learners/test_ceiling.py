"""Bounds for unseen examples: when what was counted of them before a ceiling fell still stands, and when none does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from intercontinet.learners.ceiling import kept_for_all
from intercontinet.learners.outcome import Outcome
from intercontinet.learners.shares import Shares
from intercontinet.learners.table import Box

NONE = torch.zeros(10, dtype=torch.bool)
SHARES = Shares(0.8, ~NONE, NONE, torch.arange(10) < 4)


def box(upper: float) -> Box:
    return Box(torch.zeros(2, 2), torch.zeros(2, 2), torch.full((2, 2), upper))


@pytest.mark.parametrize(("second", "counted"), [(0.5, (1, 4)), (1.0, (1, 4)), (2.0, (0, 4))])
def test_a_count_stands_only_where_the_new_box_lies_in_that_it_was_made_in(
    second: float, counted: tuple[int, int]
) -> None:
    asked: list[Shares] = []

    def under_a_ceiling(shares: Shares) -> Outcome:
        asked.append(shares)
        broken = bool(shares.unseen.any())
        return Outcome(box(1.0 if broken else second), 5 if broken else 9, 10, 1 if broken else 0, 4 if broken else 0)

    made = kept_for_all(under_a_ceiling, SHARES)
    assert [bool(shares.unseen.any()) for shares in asked] == [True, False], "where they break it, they are watched"
    assert (made.certified, made.unseen_certified, made.unseen_total) == (9, *counted)


def test_where_the_promise_holds_nothing_is_asked_twice() -> None:
    outcome = Outcome(box(1.0), 8, 10, 3, 4)
    calls = iter([outcome])
    assert kept_for_all(lambda shares: next(calls), SHARES) is outcome
    nobody = replace(SHARES, unseen=NONE)
    calls = iter([replace(outcome, certified=1, unseen_certified=0, unseen_total=0)])
    assert kept_for_all(lambda shares: next(calls), nobody).certified == 1
