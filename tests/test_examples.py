"""The story of a shipped model, as its example tells it: each step a process of its own, files all that passes on."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import intercontinet as icn
from intercontinet.files import load_weights

EXAMPLE = Path(__file__).parent.parent / "examples" / "protect_update_verify.py"


def example() -> Any:
    spec = importlib.util.spec_from_file_location("protect_update_verify", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_protect_update_verify(tmp_path: Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}

    def run(step: str) -> str:
        command = [sys.executable, str(EXAMPLE), step]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    files = tmp_path / "shipping"
    assert "old sensor" in run("protect")
    assert {path.name for path in files.iterdir()} == {"v1.icn", "v1.safetensors"}, "no data is passed on"
    run("update")
    said = run("verify")
    assert said.count("every floor holds") == 1 and "exit code 0" in said and "exit code 1" in said
    assert "outside the certified region; so do" in said and "and 3 more" in said
    assert "new sensor" in run("extend")

    first, second = (icn.Certificate.load(files / name) for name in ("v1.icn", "v2.icn"))
    assert [floor.task for floor in second.tasks] == ["old sensor", "old sensor (unseen)", "new sensor"]
    assert second.tasks[:2] == first.tasks and all(floor.kept for floor in second.tasks)
    assert second.region.within(first.region)
    for certificate in (first, second):
        assert icn.verify(files / "v2.safetensors", files / "v1.icn") and icn.verify(
            files / "v2.safetensors", certificate
        )
    with pytest.raises(icn.Violation):
        icn.verify(files / "plain.safetensors", first)

    story = example()
    model, (x, y) = story.Net(), story.readings("old", 1000, seed=1)
    model.load_state_dict(load_weights(files / "v2.safetensors"))
    assert int((model(x).argmax(1) == y).sum()) >= first.tasks[0].certified, "the old data, which the update never saw"
    x, y = story.readings("new", 1000, seed=4)
    after = float((model(x).argmax(1) == y).double().mean())
    model.load_state_dict(load_weights(files / "v1.safetensors"))
    assert after > float((model(x).argmax(1) == y).double().mean()) + 0.1, "there was room to learn"
