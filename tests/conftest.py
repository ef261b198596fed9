"""What all tests share: one thread, and the command line called in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from intercontinet import cli

torch.set_num_threads(1)  # models here are tiny: more threads only wait for each other
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """``intercontinet`` in this process, in an empty folder: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INTERCONTINET_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("INTERCONTINET_COMMIT", "0123abcd")
    monkeypatch.setenv("COLUMNS", "200")

    def invoke(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["intercontinet", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return (int(ended.value.code or 0), *capsys.readouterr())

    return invoke
