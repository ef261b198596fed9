"""Certificates: a region and the floors that hold in it, as a record, as a file, and held against weights."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn

from intercontinet.architecture import architecture_hash
from intercontinet.bounds import check_unhooked
from intercontinet.complaints import check_constants, check_tied
from intercontinet.errors import CertificateError, InvalidRegion, Violation
from intercontinet.files import load_weights, seal, unseal, write_atomically
from intercontinet.header import certificate_header, opened, unreadable
from intercontinet.record import NO_FLOORS, Frozen, Record, Verdict, check_kind, edge_of, senseless
from intercontinet.region import Region
from intercontinet.state import State, constants_of, digest, frozen_constants, kind_of, second_names, state_of
from intercontinet.stream import verify_files
from intercontinet.taskfloor import TaskFloor
from intercontinet.version import __version__

__all__ = ["Certificate", "Verdict", "check_inside", "verify"]


def _versions() -> dict[str, str]:
    return {"intercontinet": __version__, "torch": str(torch.__version__)}


@final
@dataclass(frozen=True)
class Certificate:
    """A region and the floors that hold everywhere inside it, oldest first.

    Attributes:
        region: The current region, inside all earlier ones.
        tasks: One floor per task.
        architecture: Hash of the model's layers, settings, constants, names and shapes, and of its classes' code.
        method: What made it.
        tied: Second names of parameters that occur twice in the model, each with the first name.
        constants: Digests of the saved tensors that are not of floating point, which may not change; None where, as in
            older files, nothing is known of them.
    """

    region: Region
    tasks: tuple[TaskFloor, ...]
    architecture: str
    method: str = ""
    tied: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=_versions)
    constants: dict[str, Frozen] | None = None

    @classmethod
    def of(cls, model: nn.Module, region: Region, tasks: Sequence[TaskFloor] = (), method: str = "") -> Certificate:
        """A certificate for this architecture. The floors must have been counted in regions that hold this one."""
        tied, constants = second_names(model), frozen_constants(model)
        return cls(region, tuple(tasks), architecture_hash(model), method, tied, constants=constants)

    def extended(self, region: Region, floor: TaskFloor) -> Certificate:
        """The certificate after one more task, whose region must lie within this one's."""
        if not region.within(self.region):
            raise InvalidRegion(
                "a certificate's regions must nest: the new one reaches outside, where old floors do not hold"
            )
        return replace(self, region=region, tasks=(*self.tasks, floor))

    def save(self, path: str | Path) -> None:
        """Write the ``.icn`` file, whole or not at all. Of tensors that may not move it holds digests only."""
        region = self.region.without_values()
        edges = {f"lower/{name}": lower for name, lower in region.lower.items()}
        edges |= {f"upper/{name}": upper for name, upper in region.upper.items()}
        words = self.architecture, self.method, self.tasks, self.tied, self.versions
        record = Record(*words, dict(region.frozen), self.constants)
        write_atomically(path, seal(edges, record.metadata()))

    @classmethod
    def load(cls, path: str | Path) -> Certificate:
        """Read an ``.icn`` file.

        Raises:
            CertificateError: It is truncated, altered, foreign, or of a newer version.
        """
        try:
            with opened(path) as file:
                content = file.read()
        except OSError as error:
            raise unreadable(path, error) from error
        header = certificate_header(path, io.BytesIO(content))
        check_kind(path, header.metadata)
        tensors = unseal(path, content)
        record = Record.read(path, header)
        try:
            region = _region(tensors, record)
        except InvalidRegion as error:
            raise senseless(path, error) from error
        words = record.tasks, record.architecture, record.method, record.tied, record.versions
        return cls(region, *words, record.constants)


def _region(tensors: Mapping[str, Tensor], record: Record) -> Region:
    lower, upper = {}, {}
    for key in sorted(tensors):
        kind, name = edge_of(key)
        if kind != "upper":
            lower[name] = tensors[key]
        if kind != "lower":
            upper[name] = tensors[key]
    return Region(lower, upper, record.frozen)


def verify(model: nn.Module | State | str | Path, certificate: Certificate | str | Path) -> Verdict:
    """Hold weights against a certificate: no data is needed.

    Of a module, the architecture is checked as well: layers, settings, constants and the code of their classes.
    Functions that this code calls elsewhere are taken on trust.

    Args:
        model: A module, or a state dict, of which only names, shapes and values can be compared, or the path of its
            file. Two files are compared piece by piece, and need hardly any memory.
        certificate: What was promised, or the path of its file.

    Raises:
        Violation: A parameter lies outside the region; all are named, the worst first, and by how much.
        CertificateError: The module is of another architecture, or the certificate holds no floors.
        RegionMismatch: Names or shapes differ.
    """
    if isinstance(model, (str, Path)):
        if isinstance(certificate, (str, Path)):
            return verify_files(model, certificate)
        model = load_weights(model)
    if isinstance(certificate, (str, Path)):
        certificate = Certificate.load(certificate)
    if not certificate.tasks:
        raise CertificateError(NO_FLOORS)
    check_inside(model, certificate)
    return Verdict(certificate.tasks, weights_alone=not isinstance(model, nn.Module))


def check_inside(model: nn.Module | State, certificate: Certificate) -> None:
    """Raise what :func:`verify` raises, unless the weights lie in the certificate's region."""
    state = state_of(model)
    apart = {}
    if isinstance(model, nn.Module):
        if architecture_hash(model) != certificate.architecture:
            certificate.region.check_fits(model)
            raise CertificateError(
                "the certificate is for another architecture: layers, settings, constants or the code of a class differ"
            )
        check_unhooked(model)
    else:
        for name, first in check_tied({n: tuple(t.shape) for n, t in state.items()}, certificate.tied).items():
            apart[name] = _distance(state[name], state[first])
        state = {name: tensor for name, tensor in state.items() if name not in apart}
    device = next(iter(state.values())).device
    outside = certificate.region.to(device).excess(state)
    outside |= {name: distance for name, distance in apart.items() if distance > 0}
    outside |= dict.fromkeys(_changed_constants(model, certificate), math.inf)
    if outside:
        raise Violation(outside)


def _changed_constants(model: nn.Module | State, certificate: Certificate) -> list[str]:
    """The names of constants that are not what they were."""
    known = certificate.constants
    if known is None:
        return []
    own, kinds = constants_of(model), {name: (entry.dtype, entry.shape) for name, entry in known.items()}
    pairs = check_constants({name: kind_of(tensor) for name, tensor in own.items()}, kinds, certificate.tied)
    return [name for name, first in pairs.items() if digest(own[name]) != known[first].sha256]


def _distance(one: Tensor, other: Tensor) -> float:
    """The largest difference between entries of two tensors that should be the same."""
    return float((one.double() - other.double()).abs().max()) if one.numel() else 0.0
