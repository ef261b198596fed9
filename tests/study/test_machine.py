"""What a run says of the machine and the source it ran on."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from intercontinet.errors import InvalidSetting
from intercontinet.study import machine
from intercontinet.version import __version__


def test_the_device_is_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [machine.chosen_device(name).type for name in ("auto", "cpu")] == ["cpu", "cpu"]
    with pytest.raises(InvalidSetting, match="--device cpu"):
        machine.chosen_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [machine.chosen_device(name).type for name in ("auto", "cpu", "cuda")] == ["cuda", "cpu", "cuda"]
    with pytest.raises(InvalidSetting, match="there is no device 'gpu': choose one of auto, cpu, cuda"):
        machine.chosen_device("gpu")


def test_versions_and_hardware_are_named() -> None:
    assert machine.versions()["intercontinet"] == __version__
    assert machine.versions()["python"] == platform.python_version()
    assert set(machine.versions()) == {"intercontinet", "python", "torch", "numpy"}
    found = machine.hardware(torch.device("cpu"))
    assert set(found) == {"device", "name", "cores", "threads", "memory_gib"}
    assert found["device"] == "cpu" and found["name"]
    assert found["threads"] == torch.get_num_threads()
    assert isinstance(found["memory_gib"], float) and found["memory_gib"] > 0.1


@pytest.mark.parametrize("content", [None, "processor : 0\n", "model name\t: Fine CPU: 3 GHz\nmodel name: Other\n"])
def test_the_cpu_has_a_name_on_every_system(content: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: Path) -> str:
        if content is None:
            raise FileNotFoundError
        return content

    monkeypatch.setattr(Path, "read_text", read)
    name = machine.hardware(torch.device("cpu"))["name"]
    assert name == "Fine CPU: 3 GHz" if content and "Fine" in content else name


# The commit.


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package in a repository of its own, whose machine.py is asked."""
    if shutil.which("git") is None:
        pytest.skip("there is no git here: what it says of the source was not read")
    monkeypatch.delenv("INTERCONTINET_COMMIT", raising=False)
    for name in ("pack/__init__.py", "pack/learners/ewc.py", "pack/study/machine.py", "notes.md"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1\n")
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "pack" / "study" / "machine.py"))
    git(tmp_path, "init", "-q")
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_says_whether_anything_of_the_package_was_edited(repository: Path) -> None:
    assert machine.commit() == "", "nothing is committed yet"
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "First")
    head = git(repository, "rev-parse", "HEAD")
    assert machine.commit() == head
    (repository / "notes.md").write_text("edited")
    assert machine.commit() == head, "only the package counts"
    (repository / "pack" / "learners" / "ewc.py").write_text("edited")
    assert machine.commit() == f"{head}+changes"


def test_a_package_installed_inside_somebody_elses_repository_has_no_commit(repository: Path) -> None:
    (repository / ".gitignore").write_text("pack\n")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "Not the package")
    assert machine.commit() == ""


def test_without_git_there_is_no_commit_and_it_can_be_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERCONTINET_COMMIT", "stated")
    assert machine.commit() == "stated"
    monkeypatch.delenv("INTERCONTINET_COMMIT")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.commit() == ""
