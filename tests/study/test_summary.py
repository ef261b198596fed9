"""A seed's part of the record: what was noted of floors is passed on."""

from __future__ import annotations

from typing import Any

import pytest

from intercontinet.study.summary import seed_record

FLOOR = {"task": "0/1", "certified": 90, "total": 100, "correct": 95, "accuracy": 0.95, "kept": True}
STORED = {"task": "0/1", "certified": 90, "total": 100, "accuracy": 0.95, "kept": True}
UNSEEN = {"unseen_certified": 17, "unseen_total": 20, "unseen_floor": 0.656}


def floors(floor: dict[str, Any] | None) -> Any:
    line = {
        "event": "task",
        "task": "0/1",
        "index": 0,
        "accuracy": [0.9],
        "train_accuracy": 0.95,
        "learned": [{"task": "0/1", "total": 100, "accuracy": 0.95}],
        "floor": floor,
        "region": None,
        "negative_flips": 0.0,
        "seconds": 1.0,
    }
    return seed_record(3, [0.5], [line], curves=False)["floors"]


def test_a_floor_for_unseen_data_is_passed_on() -> None:
    assert floors(FLOOR | UNSEEN) == [STORED | UNSEEN]


@pytest.mark.parametrize("unseen", [{}, dict.fromkeys(UNSEEN)], ids=["missing", "null"])
def test_where_none_were_held_back_nothing_is_said_of_them(unseen: dict[str, Any]) -> None:
    assert floors(FLOOR | unseen) == [STORED]


def test_without_a_promise_nothing_is_certain() -> None:
    assert floors(None) == [STORED | {"certified": 0, "kept": None}]
