"""A run's folder: what was asked, how far it came, and what it made. It survives being killed at any moment.

``checkpoint.safetensors`` is the truth, replaced whole after every task; everything else is made from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from intercontinet.errors import CertificateError, InterContiNetError, InvalidData, InvalidSetting, WriteError
from intercontinet.files import read_header, save_weights, seal, unseal, write_atomically
from intercontinet.learners.catalogue import defaults_of
from intercontinet.report.record import METRICS, SUMMARY
from intercontinet.study.config import Config, configure
from intercontinet.study.run import Run
from intercontinet.study.sources import RUN_FOLDER
from intercontinet.study.state import State
from intercontinet.study.store import listed
from intercontinet.version import __version__

FORMAT, VERSION = RUN_FOLDER, 1
CONFIG, CHECKPOINT, LOCK = "config.json", "checkpoint.safetensors", ".lock"
WEIGHTS, CERTIFICATE = "model.safetensors", "model.icn"


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """The folder, made if need be, for this process alone.

    Raises:
        InvalidSetting: Another process is at work in it.
        WriteError: It cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK)
        lock.acquire(timeout=0)
    except Timeout:
        raise InvalidSetting(f"another process is at work in {folder}: wait for it, or choose another --out") from None
    except OSError as error:
        raise WriteError(f"cannot use the folder {folder}: {error.strerror or error}. Choose another --out") from error
    try:
        yield
    finally:
        lock.release()


def start(folder: Path, run: Run) -> None:
    """Note what is being run, in a folder that holds no run yet, nor anything that could be taken for one's."""
    if (folder / CONFIG).exists():
        raise InvalidSetting(f"{folder} already holds a run: go on with it by --resume, or choose another --out")
    for path in listed(folder):
        if path.suffix == ".json" or path.name == CHECKPOINT or path.name.startswith("seed-"):
            raise InvalidSetting(f"{folder} holds {path.name}, which is of something else: choose another --out")
    content = {"format": FORMAT, "version": VERSION, "intercontinet": __version__, "config": run.config.record()}
    write_atomically(folder / CONFIG, _json(content))


def resume(folder: Path, run: Run) -> State | None:
    """The state that a run was left in, or None where it had not finished its first task.

    Raises:
        InvalidSetting: The folder holds no run, one of another version, or one of something else.
        InvalidData: Its checkpoint is damaged.
    """
    stored = read_config(folder)
    asked = json.loads(json.dumps(run.config.record()))
    if odd := _first_difference(stored, asked):
        raise InvalidSetting(f"{folder} holds a run with {odd}: ask for the same, or choose another --out")
    _sweep(folder)
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    try:
        content = path.read_bytes()
        header = read_header(path, content)
        tensors = unseal(path, content)
        lines = json.loads(tensors.pop("lines").numpy().tobytes())
        memory = {key.removeprefix("memory/"): tensor for key, tensor in tensors.items() if key.startswith("memory/")}
        state = State(tensors["weights"], memory, lines=lines, **json.loads(header["state"]))
        if "digests" in tensors:
            state = replace(state, digests=tensors["digests"])
        left = _with_younger(json.loads(header.get("config", "null")) or asked)
    except CertificateError as error:  # which would speak of a certificate
        raise InvalidData(f"the checkpoint {path} was cut short or altered. Start afresh in another --out") from error
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InvalidData(f"the checkpoint {path} cannot be used: {error}. Start afresh in another --out") from error
    if odd := _first_difference(left, asked):
        raise InvalidData(f"{path} was left by a run with {odd}: {CONFIG} is not its own. Put that back, or start "
                          "afresh in another --out")  # fmt: skip
    return run.taken_up(state)


def read_config(folder: Path) -> Mapping[str, Any]:
    """What the folder's run was asked to do. A setting that is younger than the folder had its default then."""
    path = folder / CONFIG
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise InvalidSetting(f"{folder} holds no run to go on with: leave --resume out to start one") from None
    except (OSError, ValueError) as error:
        raise _unusable(path, str(error)) from error
    if not isinstance(content, dict):
        raise _unusable(path, "it is no JSON object")
    for name in ("format", "version", "config"):
        if name not in content:
            raise _unusable(path, f"it lacks '{name}'")
    found, version, config = content["format"], content["version"], content["config"]
    if found != FORMAT or version != VERSION or not isinstance(config, dict):
        raise InvalidSetting(
            f"{folder} holds a run of another version ({found}, version {version}; written by intercontinet "
            f"{content.get('intercontinet', 'unknown')}): this release goes on with version {VERSION} only. Go on "
            "with the release that wrote it, or start afresh in another --out"
        )
    if not isinstance(config.get("settings"), dict):
        raise _unusable(path, "its settings are no JSON object")
    return _with_younger(config)


def _with_younger(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A configuration with the defaults of settings that are younger than it."""
    return {**config, "settings": {**defaults_of(str(config.get("method"))), **config["settings"]}}


def _unusable(path: Path, why: str) -> InvalidData:
    return InvalidData(f"{path} is not the configuration of a run: {why}. Start afresh in another --out")


def stored_config(folder: Path) -> Config:
    """The configuration of the folder's run, ready to go on with."""
    stored = read_config(folder)
    names = [item.name for item in fields(Config)]
    if sorted(stored) != sorted(names):
        raise _unusable(folder / CONFIG, f"it should hold {', '.join(names)}")
    asked = {name: stored[name] for name in ("dataset", "scenario", "method", "tasks", "net", "augment", "settings")}
    try:
        return configure(**asked, seeds=tuple(stored["seeds"]))
    except InterContiNetError:
        raise
    except (AttributeError, TypeError, ValueError) as error:
        raise _unusable(folder / CONFIG, str(error)) from error


def _sweep(folder: Path) -> None:
    """Away with what a process that was killed left half-written of a run's files."""
    own = [f".{name}.*.part" for name in (CONFIG, CHECKPOINT, SUMMARY)]
    own += [f"seed-*/.{name}.*.part" for name in (WEIGHTS, CERTIFICATE, METRICS)]
    for left in (path for pattern in own for path in folder.glob(pattern)):
        with suppress(OSError):
            left.unlink()


def leave(folder: Path, run: Run, state: State) -> None:
    """Write the state, then everything that people look at, each file whole."""
    hashes = [run.hash_of(index) for index in range(len(state.data), state.done)]
    state = replace(state, data=[*state.data, *hashes], tests=state.tests or run.hashes_of_tests())
    apart = ("weights", "memory", "lines", "digests")  # what grows: headers of files must stay short
    record = {item.name: getattr(state, item.name) for item in fields(state) if item.name not in apart}
    lines = torch.frombuffer(bytearray(json.dumps(state.lines).encode()), dtype=torch.uint8)
    tensors = {"weights": state.weights, "lines": lines, "digests": state.digests}
    tensors |= {f"memory/{name}": tensor for name, tensor in state.memory.items()}
    write_atomically(
        folder / CHECKPOINT, seal(tensors, {"state": json.dumps(record), "config": json.dumps(run.config.record())})
    )
    export(folder, run, state)


def export(folder: Path, run: Run, state: State) -> None:
    """Weights, certificates, metrics and summary of a state."""
    for row, seed in enumerate(run.config.seeds):
        own = folder / f"seed-{seed}"
        try:
            own.mkdir(exist_ok=True)
        except OSError as error:
            raise WriteError(f"cannot make the folder {own}: {error.strerror}") from error
        save_weights(run.model(state, row), own / WEIGHTS)
        certificate = run.certificate(state, row)
        if certificate is not None:
            certificate.save(own / CERTIFICATE)
        lines = "".join(json.dumps(line) + "\n" for line in state.lines[row])
        write_atomically(own / METRICS, lines.encode())
    write_atomically(folder / SUMMARY, _json(run.summary(state)))


def _json(content: object) -> bytes:
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def _first_difference(stored: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """ "rate 0.1, not 0.2", or "" where two configurations are the same."""
    for name, value in asked.items():
        if stored.get(name) != value:
            theirs, ours = _difference(stored.get(name), value)
            return f"{name} {theirs}, not {ours}"
    return ""


def _difference(stored: object, asked: object) -> tuple[object, object]:
    """What two values differ in: of two mappings, only the entries that do."""
    if not isinstance(stored, dict) or not isinstance(asked, dict):
        return stored, asked
    odd = [key for key in {**stored, **asked} if stored.get(key) != asked.get(key)]
    return {key: stored.get(key) for key in odd}, {key: asked.get(key) for key in odd}
