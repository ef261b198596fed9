"""Floors and certificates: count what no weight in a region gets wrong, record it, save it, hold weights against it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from intercontinet.architecture import architecture_hash
from intercontinet.bounds import Float32, Network, Real, certain, in_float64, worst_margins
from intercontinet.data import Data, check_inputs, check_labels, collect, fingerprint
from intercontinet.errors import CertificateError, InvalidRegion, Violation
from intercontinet.files import read_header, seal, unseal, write_atomically
from intercontinet.inference import evaluated, examples_at_once, outputs_of, positions, right
from intercontinet.interval import Interval
from intercontinet.region import Region, State, second_names, state_of
from intercontinet.statistics import lowest_share
from intercontinet.version import __version__

Margins = Literal["joint", "separate"]
ALONE = "Checked: names, shapes and edges. Which layers they belong to, weights alone cannot tell."
FORMAT = "intercontinet certificate"
FORMAT_VERSION = 1
CONFIDENCE = 0.95  # of floors for unseen examples
PROMISE = (
    "For every float32 weight vector inside the region, evaluated in float32 in any summation order, at least "
    "'certified' of the 'total' examples of each task are classified right. TF32, half precision, Winograd and FFT "
    "convolutions are not covered."
)


@final
@dataclass(frozen=True)
class TaskFloor:
    """How much of one task is certain.

    Attributes:
        task: The task's name.
        certified: Number of examples that no weight in the region can get wrong.
        total: Number of examples counted.
        correct: Number of examples that the model got right when it was certified.
        classes: The outputs that took part, or None for all.
        keep: The share of ``correct`` that was asked for, or None.
        data: Hash of the examples, whatever their order.
        unseen_certified: How many of the unseen examples are certain, or None where none were held back.
        unseen_total: How many examples of ``total`` shaped nothing, neither weights nor region, or None.

    >>> print(TaskFloor("0/1", certified=880, total=1000, correct=960, unseen_certified=85, unseen_total=100))
    0/1: 880 of 1000 certain (88.0%), accuracy 96.0%; of unseen examples at least 77.8% (95% confidence)
    """

    task: str
    certified: int
    total: int
    correct: int
    classes: tuple[int, ...] | None = None
    keep: float | None = None
    data: str = ""
    unseen_certified: int | None = None
    unseen_total: int | None = None

    @property
    def floor(self) -> float:
        """Accuracy on these examples that no weight in the region falls below."""
        return self.certified / self.total

    @property
    def accuracy(self) -> float:
        """Accuracy of the model's own weights on these examples, when it was certified."""
        return self.correct / self.total

    @property
    def unseen_floor(self) -> float | None:
        """The share of unseen examples that is certain, at 95 % confidence: a bound from those that were held back."""
        if self.unseen_certified is None or self.unseen_total is None:
            return None
        return lowest_share(self.unseen_certified, self.unseen_total, CONFIDENCE)

    @property
    def kept(self) -> bool:
        """Whether the floor is as high as was asked for."""
        return self.keep is None or self.certified >= self.keep * self.correct

    def __str__(self) -> str:
        words = "" if self.kept else f" - NOT the {self.keep:.0%} of its accuracy that was asked for"
        if (share := self.unseen_floor) is not None:
            down = math.floor(1000 * share) / 10
            words += f"; of unseen examples at least {down:.1f}% ({CONFIDENCE:.0%} confidence)"
        count = f"{self.certified} of {self.total} certain ({self.floor:.1%})"
        return f"{self.task or 'data'}: {count}, accuracy {self.accuracy:.1%}{words}"


@torch.no_grad()
def certify(
    model: nn.Module,
    region: Region,
    data: Data,
    *,
    task: str = "",
    classes: Sequence[int] | None = None,
    keep: float | None = None,
    margins: Margins = "joint",
) -> TaskFloor:
    """Count the examples that every weight in the region classifies right, in float32, in any summation order.

    Args:
        model: The module; its own weights give ``accuracy``, the region gives ``certified``.
        region: The box of weights.
        data: Examples.
        task: A name for the record.
        classes: The outputs that take part, where each task has a head of its own; labels name outputs.
        keep: A share of today's accuracy to hold the result against (see :attr:`TaskFloor.kept`).
        margins: "joint", bounded as one expression, or "separate", the paper's looser definition.

    Raises:
        InvalidRegion: The model lies outside the region, or the region leaves a class that takes part unbounded.

    >>> model = nn.Linear(2, 2)
    >>> data = torch.randn(8, 2), torch.randint(2, (8,))
    >>> floor = certify(model, Region.around(model, 0.01), data)
    >>> floor.certified <= floor.correct <= floor.total
    True
    """
    outside = region.excess(model)
    if outside:
        name, excess = next(iter(outside.items()))
        raise InvalidRegion(
            f"the model's '{name}' lies {excess:.6g} outside the region: certify a model in its own region"
        )
    x, y = collect(data)
    check_inputs(x, next(iter(region.lower.values())).device)
    check_labels(y, len(x), outputs_of(model, x), classes)
    if classes is None:
        _check_bounded(region)
    labels, index = positions(y, classes)
    certified = int(certain_examples(model, region, x, labels, index, margins == "joint").sum())
    correct = int(right(model, {}, x, labels, index).sum())
    return floor_of((x, y), certified, correct, task, classes, keep)


def _check_bounded(region: Region) -> None:
    for name, lower in region.lower.items():
        if bool(lower.isinf().any() or region.upper[name].isinf().any()):
            raise InvalidRegion(
                f"'{name}' has infinite edges, as heads of tasks to come do: say which outputs take part, with classes="
            )


def floor_of(
    data: tuple[Tensor, Tensor],
    certified: int,
    correct: int,
    task: str,
    classes: Sequence[int] | None,
    keep: float | None,
    *,
    unseen_certified: int | None = None,
    unseen_total: int | None = None,
) -> TaskFloor:
    """The record of a count: :func:`certify` for those who have counted already, those held back (unseen) too."""
    x, y = data
    return TaskFloor(
        task=str(task),
        certified=certified,
        total=len(x),
        correct=correct,
        classes=None if classes is None else tuple(int(c) for c in classes),
        keep=None if keep is None else float(keep),
        data=fingerprint(x, y),
        unseen_certified=unseen_certified,
        unseen_total=unseen_total,
    )


def _sensible(floor: TaskFloor) -> bool:
    """Whether all counts can be of one set of examples, of which some may have been held back."""
    unseen = floor.unseen_certified, floor.unseen_total
    certain, held_back = (0, 0) if unseen == (None, None) else unseen
    if not isinstance(certain, int) or not isinstance(held_back, int):
        return False
    seen_certified, seen = floor.certified - certain, floor.total - held_back
    return (
        floor.total > 0
        and 0 <= floor.correct <= floor.total
        and 0 <= certain <= held_back
        and 0 <= seen_certified <= seen
    )


@torch.no_grad()
def certain_examples(
    model: nn.Module,
    region: Region,
    x: Tensor,
    labels: Tensor,
    classes: Tensor | None,
    joint: bool = True,
    quick: bool = False,
) -> Tensor:
    """Which examples are certain, [examples]: :func:`certify` without its checks, for those who call it often.

    ``quick`` computes in float32 and ignores rounding: a fast guess, never a promise.
    """
    network = Network(model)
    boxes = region.intervals(torch.float32 if quick else torch.float64)
    arithmetic = Real(exact=True) if quick else Float32()
    parts = []
    with evaluated(model, exact=False) if quick else nullcontext():  # sound arithmetic ignores Dropout by itself
        at_once = examples_at_once(x)
        for start in range(0, len(x), at_once):
            batch = Interval.point(x[start : start + at_once])
            batch = batch if quick else in_float64(batch)
            own = labels[start : start + at_once]
            parts.append(certain(worst_margins(network, boxes, batch, own, arithmetic, classes, joint), own))
    return torch.cat(parts)


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
            if not _sensible(floor):
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
