"""What a run ran on, and with which versions."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import numpy as np
import torch

from intercontinet.errors import InvalidSetting
from intercontinet.version import __version__

DEVICES = ("auto", "cpu", "cuda")


def chosen_device(name: str) -> torch.device:
    """ "auto" is a GPU where there is one."""
    if name not in DEVICES:
        raise InvalidSetting(f"there is no device '{name}': choose one of {', '.join(DEVICES)}")
    if name == "cuda" and not torch.cuda.is_available():
        raise InvalidSetting("no CUDA device is at hand: use --device cpu, or auto")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")


def versions() -> dict[str, str]:
    """Of this package, Python, torch and numpy."""
    return {
        "intercontinet": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": str(np.__version__),
    }


def hardware(device: torch.device) -> dict[str, object]:
    """The device by name, and the machine around it."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return {
        "device": device.type,
        "name": name,
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "memory_gib": round(memory / 2**30, 1),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def commit() -> str:
    """The commit of this package's source, with "+changes" where it was edited; ``INTERCONTINET_COMMIT`` overrides it.

    Empty for an installed package.
    """
    stated = os.environ.get("INTERCONTINET_COMMIT")
    if stated is not None:
        return stated
    package = Path(__file__).parent.parent
    try:
        _git(
            package, "ls-files", "--error-unmatch", "__init__.py"
        )  # an installed package may lie in another's repository
        head = _git(package, "rev-parse", "HEAD")
        edited = _git(package, "status", "--porcelain", "--untracked-files=no", "--", ".")
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{head}+changes" if edited else head


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
