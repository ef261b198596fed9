"""Settings of the exact learner: what is out of range is named."""

from __future__ import annotations

import math
from typing import Any

import pytest

from intercontinet.errors import InvalidSetting
from intercontinet.learners.exact_settings import ExactSettings


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"keep": 0.0}, "keep is 0.0"), ({"keep": 1.1}, "keep is 1.1"), ({"keep": math.nan}, "keep is nan"),
        ({"cap": 0.0}, "cap is 0.0"), ({"cap": math.inf}, "cap is inf"), ({"depth": -1.0}, "depth is -1.0"),
        ({"parts": 0}, "parts is 0"), ({"parts": 1.5}, "parts is 1.5"), ({"held_out": 0.5}, "held_out is 0.5"),
        ({"held_out": -0.1}, "held_out is -0.1"), ({"unseen": 0.5}, "unseen is 0.5"), 
        ({"head": "two"}, "head is 'two'"), ({"fit_rate": 0.0}, "fit_rate is 0.0"), ({"mirror": 1}, "mirror is 1"),
        ({"at_ceiling": 1.0}, "at_ceiling is 1.0"), ({"typical": -1.0}, "typical is -1.0"),
        ({"tuning": "louder"}, "tuning is 'louder'; choose one of 'multiplied', 'shifted'"),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_named(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSetting, match=words):
        ExactSettings(**wrong)
