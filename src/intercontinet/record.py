"""What a certificate records beside its edges, and what comes of holding weights against it. Free of torch."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, final

from intercontinet.complaints import one_edge
from intercontinet.errors import CertificateError
from intercontinet.header import Header, Stored, is_size
from intercontinet.taskfloor import TaskFloor, sensible

ALONE = "Checked: names, shapes and edges. Which layers they belong to, weights alone cannot tell."
MODEL = (
    "Checked: architecture (layers, settings, constants and the code of their classes; functions they call elsewhere "
    "are taken on trust), names, shapes and edges."
)
FORMAT = "intercontinet certificate"
FORMAT_VERSION = 2
PROMISE = (
    "For every float32 weight vector inside the region, evaluated in float32 in any summation order, at least "
    "'certified' of the 'total' examples of each task are right by the task's criterion. Where a task's 'drift' is a "
    "number, that holds as long as the outputs of layers that cannot move differ from those computed when it was "
    "certified by no more than that share of an example's largest entry. TF32, half precision, Winograd and FFT "
    "convolutions are not covered."
)
KINDS = ("lower", "upper", "point")  # the last in files of version 1 only
NO_FLOORS = "the certificate holds no floors, so there is nothing to verify: learn or certify a task"


@final
@dataclass(frozen=True)
class Frozen:
    """A tensor that may not change, known by a digest of its bits, of which 0 and -0 have different ones.

    Attributes:
        shape: Its shape.
        sha256: SHA-256 of its values, little-endian, in row-major order; 64 hexadecimal digits.
        dtype: Its type, as safetensors calls it.
    """

    shape: tuple[int, ...]
    sha256: str
    dtype: str = "F32"


@final
@dataclass(frozen=True)
class Record:
    """All of a certificate but its edges. See :class:`~intercontinet.certificate.Certificate`.

    Attributes:
        constants: Saved tensors that are not of floating point, by name; None in files that say nothing of them.
    """

    architecture: str
    method: str
    tasks: tuple[TaskFloor, ...]
    tied: dict[str, str]
    versions: dict[str, str]
    frozen: dict[str, Frozen] = field(default_factory=dict)
    constants: dict[str, Frozen] | None = None

    def metadata(self) -> dict[str, str]:
        """What the header of a certificate's file says."""
        content = {**asdict(self), "promise": PROMISE}
        for entry in content["frozen"].values():
            del entry["dtype"]  # which is float32, always
        if self.constants is None:
            del content["constants"]
        return {"format": FORMAT, "version": str(FORMAT_VERSION), "record": json.dumps(content, sort_keys=True)}

    @classmethod
    def read(cls, path: str | Path, header: Header) -> Record:
        """The record in a header that was found intact.

        Raises:
            CertificateError: It makes no sense.
        """
        try:
            content = json.loads(header.metadata["record"])
            json.dumps(content, ensure_ascii=False).encode()  # half characters could not be shown
            return cls._of(content, int(header.metadata["version"]), header.tensors)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise senseless(path, error) from error

    @classmethod
    def _of(cls, content: dict[str, Any], version: int, edges: dict[str, Stored]) -> Record:
        floors = [
            TaskFloor(**{**floor, "classes": None if floor["classes"] is None else tuple(floor["classes"])})
            for floor in content["tasks"]
        ]
        for floor in floors:
            if not sensible(floor):
                raise ValueError(f"the counts of task '{floor.task}' make no sense")
        frozen = (
            {name: _frozen(name, entry) for name, entry in sorted(content["frozen"].items())} if version > 1 else {}
        )
        constants = None
        if version > 1 and "constants" in content:
            constants = {name: _constant(name, entry) for name, entry in sorted(content["constants"].items())}
        bounded = _bounded(edges, KINDS if version == 1 else KINDS[:2])
        if not bounded and not frozen:
            raise ValueError("a region needs at least one parameter")
        for name in frozen:
            if name in bounded:
                raise ValueError(f"'{name}' is frozen and has edges too")
        for name, first in content["tied"].items():
            if not isinstance(first, str) or name in bounded or name in frozen:
                raise ValueError(f"'{name}' cannot be the second name of a parameter")
        for name in constants or {}:
            if name in bounded or name in frozen:
                raise ValueError(f"'{name}' is a constant and has edges or is frozen too")
        architecture, method, versions = content["architecture"], content["method"], dict(content["versions"])
        if not all(isinstance(word, str) for word in (architecture, method, *versions.values())):
            raise ValueError("the architecture, the method or a version is not a word")
        return cls(architecture, method, tuple(floors), dict(content["tied"]), versions, frozen, constants)


def _bounded(edges: dict[str, Stored], kinds: tuple[str, ...]) -> set[str]:
    """The parameters that have edges in a file, which must come in pairs."""
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for key, place in edges.items():
        kind, name = edge_of(key)
        if "/" not in key or kind not in kinds or place.dtype != "F32":
            raise ValueError(f"'{key}' is no float32 edge of a region")
        found.setdefault(name, {})[kind] = place.shape
    for name, shapes in found.items():
        if shapes.keys() != {"lower", "upper"} and shapes.keys() != {"point"}:
            raise one_edge(name)
        if len(set(shapes.values())) > 1:
            raise ValueError(f"the edges of '{name}' must be of one shape")
    return set(found)


def _frozen(name: str, entry: dict[str, Any]) -> Frozen:
    shape, digest = entry["shape"], entry["sha256"]
    if not isinstance(shape, list) or not all(map(is_size, shape)) or not re.fullmatch("[0-9a-f]{64}", digest):
        raise ValueError(f"the digest of '{name}' makes no sense")
    return Frozen(tuple(shape), digest)


def _constant(name: str, entry: dict[str, Any]) -> Frozen:
    if not isinstance(entry["dtype"], str):
        raise ValueError(f"the type of '{name}' makes no sense")
    return replace(_frozen(name, entry), dtype=entry["dtype"])


def edge_of(key: str) -> tuple[str, str]:
    """What a tensor in a certificate's file is ("lower", "upper", or "point" for both), and of which parameter."""
    kind, _, name = key.partition("/")
    return kind, name


def check_kind(path: str | Path, metadata: dict[str, str]) -> None:
    """Raise CertificateError unless a file's metadata are those of a certificate that this release reads."""
    if metadata.get("format") != FORMAT:
        raise CertificateError(f"{path} is a safetensors file, but no certificate of this package")
    if metadata.get("version") not in [str(number) for number in range(1, FORMAT_VERSION + 1)]:
        raise CertificateError(
            f"{path} is of format version {metadata.get('version')!r}; this release reads 1 to {FORMAT_VERSION}: "
            "upgrade intercontinet"
        )


def check_weights(path: str | Path, metadata: dict[str, str]) -> None:
    """Raise CertificateError if a file's metadata are those of a certificate, where weights were asked for."""
    if metadata.get("format") == FORMAT:
        raise CertificateError(f"{path} is a certificate, not weights: give the model's .safetensors file here")


def altered(path: str | Path) -> CertificateError:
    return CertificateError(f"{path} was altered or damaged: its bytes do not fit their SHA-256. Take a fresh copy")


def senseless(path: str | Path, why: object) -> CertificateError:
    return CertificateError(f"{path} has a record that makes no sense: {why}")


@final
@dataclass(frozen=True)
class Verdict:
    """Weights lie inside a certified region, so that every floor of its certificate holds for them.

    Always true, so that ``assert verify(...)`` reads well: weights that left the region raise
    :class:`~intercontinet.errors.Violation`.

    Attributes:
        floors: What holds.
        weights_alone: Whether only a state dict was looked at. Layers, their settings, their code and constants that
            are not saved, such as the tests of an encoder, are then taken on trust. Functions outside the layers'
            classes always are.
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
