"""Starting the command line, with and without what it needs."""

from __future__ import annotations

import sys

import pytest

from intercontinet import __version__
from intercontinet.__main__ import main


def test_it_runs_the_command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["intercontinet", "--version"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    assert __version__ in capsys.readouterr().out


def test_without_the_extra_it_says_so_and_does_not_claim_a_violation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.delitem(sys.modules, "intercontinet.cli", raising=False)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "needs 'typer'" in (said := capsys.readouterr().err)
    assert "pip install 'intercontinet[cli]'" in said


def test_a_fault_of_our_own_is_not_taken_for_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "intercontinet.cli", None)
    with pytest.raises(ModuleNotFoundError, match="cli"):
        main()
