"""Certificates: a region and the floors that hold in it, as a record, as a file, and held against weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from intercontinet.architecture import architecture_hash
from intercontinet.bounds import Network
from intercontinet.errors import CertificateError, InvalidRegion, Violation
from intercontinet.files import read_header, seal, unseal, write_atomically
from intercontinet.floor import TaskFloor, sensible
from intercontinet.region import Region, State, second_names, state_of
from intercontinet.version import __version__

ALONE = "Checked: names, shapes and edges. Which layers they belong to, weights alone cannot tell."
FORMAT = "intercontinet certificate"
FORMAT_VERSION = 1
PROMISE = (
    "For every float32 weight vector inside the region, evaluated in float32 in any summation order, at least "
    "'certified' of the 'total' examples of each task are classified right. TF32, half precision, Winograd and FFT "
    "convolutions are not covered."
)


def _versions() -> dict[str, str]:
    return {"intercontinet": __version__, "torch": str(torch.__version__)}


@final
@dataclass(frozen=True)
class Certificate:
    """A region and the floors that hold everywhere inside it, oldest first.

    Attributes:
        region: The current region, inside all earlier ones.
        tasks: One floor per task.
        architecture: Hash of the model's layers, settings, names and shapes.
        method: What made it.
        tied: Second names of parameters that occur twice in the model, each with the first name.
    """

    region: Region
    tasks: tuple[TaskFloor, ...]
    architecture: str
    method: str = ""
    tied: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=_versions)

    @classmethod
    def of(cls, model: nn.Module, region: Region, tasks: Sequence[TaskFloor] = (), method: str = "") -> Certificate:
        """A certificate for this architecture. The floors must have been counted in regions that hold this one."""
        return cls(region, tuple(tasks), architecture_hash(model), method, second_names(model))

    def extended(self, region: Region, floor: TaskFloor) -> Certificate:
        """The certificate after one more task, whose region must lie within this one's."""
        if not region.within(self.region):
            raise InvalidRegion(
                "a certificate's regions must nest: the new one reaches outside, where old floors do not hold"
            )
        return replace(self, region=region, tasks=(*self.tasks, floor))

    def save(self, path: str | Path) -> None:
        """Write the ``.icn`` file, whole or not at all."""
        record = {
            "architecture": self.architecture,
            "method": self.method,
            "promise": PROMISE,
            "tasks": [asdict(floor) for floor in self.tasks],
            "tied": self.tied,
            "versions": self.versions,
        }
        tensors = {}
        for name, lower in self.region.lower.items():
            upper = self.region.upper[name]
            if torch.equal(lower.view(torch.int32), upper.view(torch.int32)):  # bits, since -0 equals 0
                tensors[f"point/{name}"] = lower
            else:
                tensors[f"lower/{name}"], tensors[f"upper/{name}"] = lower, upper
        metadata = {"format": FORMAT, "version": str(FORMAT_VERSION), "record": json.dumps(record, sort_keys=True)}
        write_atomically(path, seal(tensors, metadata))

    @classmethod
    def load(cls, path: str | Path) -> Certificate:
        """Read an ``.icn`` file.

        Raises:
            CertificateError: It is truncated, altered, foreign, or of a newer version.
        """
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise CertificateError(f"cannot read {path}: {error.strerror or error}") from error
        metadata = read_header(path, content)
        if metadata.get("format") != FORMAT:
            raise CertificateError(f"{path} is a safetensors file, but no certificate of this package")
        if metadata.get("version") != str(FORMAT_VERSION):
            raise CertificateError(
                f"{path} is of format version {metadata.get('version')!r}; this release reads {FORMAT_VERSION}: "
                "upgrade intercontinet"
            )
        tensors = unseal(path, content)
        try:
            return cls._from_parts(tensors, json.loads(metadata["record"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CertificateError(f"{path} has a record that makes no sense: {error}") from error

    @classmethod
    def _from_parts(cls, tensors: dict[str, Tensor], record: dict[str, Any]) -> Certificate:
        lower, upper = {}, {}
        for key, tensor in tensors.items():
            kind, name = key.split("/", 1)
            if kind not in ("lower", "upper", "point"):
                raise ValueError(f"'{key}' is no edge of a region")
            if kind in ("lower", "point"):
                lower[name] = tensor
            if kind in ("upper", "point"):
                upper[name] = tensor
        floors = [
            TaskFloor(**{**floor, "classes": None if floor["classes"] is None else tuple(floor["classes"])})
            for floor in record["tasks"]
        ]
        for floor in floors:
            if not sensible(floor):
                raise ValueError(f"the counts of task '{floor.task}' make no sense")
        return cls(
            Region(lower, upper),
            tuple(floors),
            str(record["architecture"]),
            str(record["method"]),
            dict(record["tied"]),
            dict(record["versions"]),
        )


@final
@dataclass(frozen=True)
class Verdict:
    """Weights lie inside a certified region, so that every floor of its certificate holds for them.

    Always true, so that ``assert verify(...)`` reads well: weights that left the region raise :class:`Violation`.

    Attributes:
        floors: What holds.
        weights_alone: Whether only a state dict was looked at. Layers, their settings and their constants, such as the
            tests of an encoder, are then taken on trust.
    """

    floors: tuple[TaskFloor, ...]
    weights_alone: bool = False

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        missed = sum(not floor.kept for floor in self.floors)
        note = f" ({missed} of {len(self.floors)} lower than was asked for)" if missed else ""
        lines = [f"every floor holds{note}:", *(f"  {floor}" for floor in self.floors)]
        return "\n".join([*lines, ALONE] if self.weights_alone else lines)


def _untied(state: State, tied: Mapping[str, str]) -> State:
    """A state dict without the second names of tied parameters, which must equal the first."""
    state = dict(state)
    for alias, first in tied.items():
        copy = state.pop(alias, None)
        if copy is not None and first in state and not torch.equal(copy, state[first]):
            raise Violation(alias, float((copy.double() - state[first].double()).abs().max()))
    return state


def verify(model: nn.Module | State, certificate: Certificate | str | Path) -> Verdict:
    """Hold weights against a certificate: no data is needed.

    Args:
        model: A module, or a state dict, of which only names and shapes can be compared.
        certificate: What was promised, or the path of its file.

    Raises:
        Violation: A parameter lies outside the region; it is named, and by how much.
        CertificateError: The module is of another architecture, or the certificate holds no floors.
        RegionMismatch: Names or shapes differ.
    """
    if isinstance(certificate, (str, Path)):
        certificate = Certificate.load(certificate)
    if not certificate.tasks:
        raise CertificateError(
            "the certificate holds no floors, so there is nothing to verify: learn or certify a task"
        )
    check_inside(model, certificate)
    return Verdict(certificate.tasks, weights_alone=not isinstance(model, nn.Module))


def check_inside(model: nn.Module | State, certificate: Certificate) -> None:
    """Raise what :func:`verify` raises, unless the weights lie in the certificate's region."""
    if isinstance(model, nn.Module):
        if architecture_hash(model) != certificate.architecture:
            certificate.region.check_fits(model)
            raise CertificateError("the certificate is for another architecture: layers, settings or constants differ")
        Network(model)  # refuses hooks and replaced methods, which no hash shows
    else:
        model = _untied(model, certificate.tied)
    device = next(iter(state_of(model).values())).device
    outside = certificate.region.to(device).excess(model)
    if outside:
        first, *others = outside
        raise Violation(first, outside[first], tuple(others))
