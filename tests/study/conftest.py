"""What tests of runs and studies share: records name a commit without asking git."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_asking_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERCONTINET_COMMIT", "0123abcd")
