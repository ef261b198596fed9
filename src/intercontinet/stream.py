"""Two files held against each other piece by piece: in little memory, at the speed of hashing, and without torch."""

from __future__ import annotations

import hashlib
import math
import os
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import BinaryIO, final

import numpy as np
import numpy.typing as npt

from intercontinet.complaints import (
    check_constants,
    check_names,
    check_tied,
    crossed,
    no_parameters,
    not_finite,
    unreachable,
    wrong_precision,
)
from intercontinet.errors import CertificateError, Violation
from intercontinet.header import BLOCK, Header, Stored, blanked, certificate_header, opened, unreadable, weights_header
from intercontinet.record import (
    NO_FLOORS,
    Frozen,
    Record,
    Verdict,
    altered,
    check_kind,
    check_weights,
    edge_of,
    senseless,
)

PIECE = 2**20  # bytes read at once: few enough to be hashed and compared while they are in the cache
THREADS = 8  # at most
FLOATS = {
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
}
Values = npt.NDArray[np.float32]
Job = Callable[["_Reader"], set[str]]


def verify_files(weights: str | Path, certificate: str | Path) -> Verdict:
    """Hold a state dict in a file against a certificate in a file: ``verify`` without loading either.

    Both are read in pieces of 1 MiB by a few threads, and every byte of the certificate is hashed as it is compared.
    What is decided, and said, is what would be of the same state dict in memory.

    Args:
        weights: A state dict as ``.safetensors``.
        certificate: An ``.icn`` file.

    Raises:
        Violation: A parameter lies outside the region; all are named, the worst first, and by how much.
        CertificateError: A file cannot be read, was damaged or makes no sense, or the certificate holds no floors.
        InvalidModel: The weights are not float32, or not finite.
        RegionMismatch: Names, shapes or, of what is not of floating point, types differ.
    """
    model = weights_header(weights)
    check_weights(weights, model.metadata)
    promise = _certificate_header(certificate)
    check_kind(certificate, promise.metadata)
    try:
        record, flaw = Record.read(certificate, promise), None
    except CertificateError as error:  # of a damaged file, the damage is what counts
        record, flaw = None, error
    pair = _Pair(str(weights), str(certificate), model, promise, record.frozen if record else {}, record is not None)
    suspects, digests = pair.scan()
    if record is None:
        raise flaw or altered(certificate)
    with pair.reader() as reader:
        facts = {name: pair.look_closer(reader, name) for name in sorted(suspects)}
        for name, fact in facts.items():
            if fact.crossed:
                raise senseless(certificate, crossed(name))
            if fact.unreachable:
                raise senseless(certificate, unreachable(name))
        if not record.tasks:
            raise CertificateError(NO_FLOORS)
        _check_values(model, facts)
        shapes = {name: place.shape for name, place in model.tensors.items() if place.dtype in FLOATS}
        tied = check_tied(shapes, record.tied)
        own = {name: shape for name, shape in shapes.items() if name not in tied}
        check_names(own, pair.bounded() | {name: frozen.shape for name, frozen in record.frozen.items()})
        outside = {name: fact.excess for name, fact in facts.items()}
        outside |= {name: math.inf for name, frozen in record.frozen.items() if digests[name] != frozen.sha256}
        outside |= {name: pair.distance(reader, name, first) for name, first in tied.items()}
        outside |= dict.fromkeys(pair.changed_constants(reader, record), math.inf)
    if outside := {name: excess for name, excess in outside.items() if excess > 0}:
        raise Violation(outside)
    return Verdict(record.tasks, weights_alone=True)


def _certificate_header(path: str | Path) -> Header:
    try:
        with opened(path) as file:
            return certificate_header(path, file)
    except OSError as error:
        raise unreadable(path, error) from error


@final
@dataclass(frozen=True)
class _Facts:
    """What a closer look at one tensor found."""

    finite: bool = True
    crossed: bool = False
    unreachable: bool = False
    excess: float = 0.0


def _check_values(model: Header, facts: dict[str, _Facts]) -> None:
    floats = {name: FLOATS[place.dtype] for name, place in model.tensors.items() if place.dtype in FLOATS}
    if not floats:
        raise no_parameters()
    for name, dtype in floats.items():
        if dtype != "float32":
            raise wrong_precision(name, dtype)
        if name in facts and not facts[name].finite:
            raise not_finite(name)


@final
class _Reader:
    """Both files, open, and room for one piece of each."""

    def __init__(self, model: BinaryIO, promise: BinaryIO) -> None:
        self.model, self.promise = model, promise
        self._room = {model: memoryview(bytearray(PIECE)), promise: memoryview(bytearray(PIECE))}
        self._flags = np.empty(PIECE // 4, dtype=np.bool_)

    def piece(self, file: BinaryIO, start: int, end: int) -> memoryview:
        """Some bytes, at most a piece, which stay until the next are read from this file."""
        view = self._room[file][: end - start]
        file.seek(start)
        filled = 0
        while filled < len(view):
            count = file.readinto(view[filled:])  # type: ignore[attr-defined]
            if not count:
                raise CertificateError(f"{file.name} was cut short while it was read: take a fresh copy")
            filled += count
        return view

    def arrays(self, file: BinaryIO, place: Stored) -> Iterator[Values]:
        """A float32 tensor, piece by piece, to keep."""
        for start in range(place.start, place.end, PIECE):
            yield np.frombuffer(self.piece(file, start, min(start + PIECE, place.end)).tobytes(), "<f4")

    def digest(self, place: Stored) -> str:
        """SHA-256 of some of the weights' bytes."""
        whole = hashlib.sha256()
        for start in range(place.start, place.end, PIECE):
            whole.update(self.piece(self.model, start, min(start + PIECE, place.end)))
        return whole.hexdigest()

    def ordered(self, one: Values, other: Values) -> bool:
        """Whether all of one are at most the other, and no NaN."""
        return bool(np.less_equal(one, other, out=self._flags[: len(one)]).all())

    def finite(self, values: Values) -> bool:
        return bool(np.isfinite(values, out=self._flags[: len(values)]).all())


@final
@dataclass(frozen=True)
class _Pair:
    """A file of weights, a certificate's, their headers, and what the record, if it makes sense, holds as frozen."""

    weights: str
    certificate: str
    model: Header
    promise: Header
    frozen: dict[str, Frozen]
    readable: bool

    @cached_property
    def layout(self) -> tuple[list[str], list[int]]:
        """The edges that have entries, and where they start, in the order in which they lie in the file."""
        places = self.promise.tensors if self.readable else {}
        inner = sorted((place.start, key) for key, place in places.items() if place.end > place.start)
        return [key for _, key in inner], [start for start, _ in inner]

    @contextmanager
    def reader(self) -> Iterator[_Reader]:
        with opened(self.weights) as model, opened(self.certificate) as promise:
            yield _Reader(model, promise)

    def bounded(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the parameters that have edges."""
        shapes = {edge_of(key)[1]: place.shape for key, place in self.promise.tensors.items()}
        return dict(sorted(shapes.items()))

    def _counterpart(self, name: str, shape: tuple[int, ...]) -> Stored | None:
        """The weights of this name, if they are fit to be compared."""
        place = self.model.tensors.get(name)
        return place if place is not None and (place.dtype, place.shape) == ("F32", shape) else None

    def scan(self) -> tuple[set[str], dict[str, str]]:
        """One pass over all bytes: the tensors that need a closer look, and the digests of those that are frozen.

        Raises:
            CertificateError: The certificate does not fit its hashes.
        """
        try:
            blocks = self.promise.blocks()
        except ValueError:
            raise altered(self.certificate) from None
        digests: dict[str, str] = {}
        jobs: deque[Job] = deque()
        if blocks is None:
            jobs.append(self._hash_whole)
            starts = range(len(self.promise.raw), self.promise.end, BLOCK)
            jobs.extend(partial(self._compare, at, min(at + BLOCK, self.promise.end), None) for at in starts)
        elif not self.promise.sealed():
            raise altered(self.certificate)
        else:
            jobs.extend(partial(self._compare, *block) for block in blocks)
        regular = self._compared()
        for name, frozen in self.frozen.items():
            if (place := self._counterpart(name, frozen.shape)) is not None:
                jobs.append(partial(self._digest, name, place, digests))
                regular.add(name)
        found = self._done(jobs) if jobs else set()
        others = {name for name, place in self.model.tensors.items() if place.dtype == "F32"} | self.bounded().keys()
        return found | (others - regular if self.readable else set()), digests

    def _compared(self) -> set[str]:
        """The parameters with edges that weights can be compared with, byte for byte."""
        return {name for name, shape in self.bounded().items() if self._counterpart(name, shape) is not None}

    def _done(self, jobs: deque[Job]) -> set[str]:
        """All that the jobs find, done side by side: hashing and comparing let other threads run."""

        def next_job() -> Job | None:
            try:
                return jobs.popleft()
            except IndexError:
                return None

        def work() -> set[str]:
            found: set[str] = set()
            try:
                with self.reader() as reader:
                    while (job := next_job()) is not None:
                        found |= job(reader)
            except BaseException:
                jobs.clear()
                raise
            return found

        count = min(THREADS, os.cpu_count() or 1, len(jobs))
        with ThreadPoolExecutor(count) as threads:
            found: set[str] = set()
            return found.union(*[done.result() for done in [threads.submit(work) for _ in range(count)]])

    def _hash_whole(self, reader: _Reader) -> set[str]:
        """Check the one hash of a file of format version 1."""
        whole = hashlib.sha256(blanked(self.promise.raw))
        for start in range(len(self.promise.raw), self.promise.end, PIECE):
            whole.update(reader.piece(reader.promise, start, min(start + PIECE, self.promise.end)))
        if whole.hexdigest() != self.promise.claimed:
            raise altered(self.certificate)
        return set()

    def _compare(self, start: int, end: int, known: bytes | None, reader: _Reader) -> set[str]:
        """Check the hash of a block of edges, if it has one; the parameters that lie on the wrong side of one."""
        block, found = hashlib.sha256(), set()
        for at in range(start, end, PIECE):
            piece = reader.piece(reader.promise, at, min(at + PIECE, end))
            if known is not None:
                block.update(piece)
            found |= {name for name, inside in self._sides(reader, at, piece) if not inside}
        if known is not None and block.digest() != known:
            raise altered(self.certificate)
        return found

    def _sides(self, reader: _Reader, at: int, piece: memoryview) -> Iterator[tuple[str, bool]]:
        """For each edge that a piece holds some of, whether finite weights lie on the right side of it."""
        keys, starts = self.layout
        index = max(bisect_right(starts, at) - 1, 0)
        while index < len(keys) and starts[index] < at + len(piece):
            key, index = keys[index], index + 1
            kind, name = edge_of(key)
            place = self.promise.tensors[key]
            own = self._counterpart(name, place.shape)
            if own is None:
                continue
            first, last = max(place.start, at), min(place.end, at + len(piece))
            shift = own.start - place.start
            edge = np.frombuffer(piece[first - at : last - at], "<f4")
            values = np.frombuffer(reader.piece(reader.model, first + shift, last + shift), "<f4")
            below = kind == "upper" or (reader.ordered(edge, values) and reader.finite(values))
            yield name, below and (kind == "lower" or reader.ordered(values, edge))

    def _digest(self, name: str, place: Stored, digests: dict[str, str], reader: _Reader) -> set[str]:
        """Note the digest of a frozen tensor; its name, if not all of it is finite."""
        whole, finite = hashlib.sha256(), True
        for start in range(place.start, place.end, PIECE):
            piece = reader.piece(reader.model, start, min(start + PIECE, place.end))
            whole.update(piece)
            finite &= reader.finite(np.frombuffer(piece, "<f4"))
        digests[name] = whole.hexdigest()
        return set() if finite else {name}

    def look_closer(self, reader: _Reader, name: str) -> _Facts:
        """Whether a tensor's weights are finite, its edges make a box, and how far it lies outside."""
        tensors, own = self.promise.tensors, self.model.tensors.get(name)
        lower = tensors.get(f"lower/{name}") or tensors.get(f"point/{name}")
        upper = tensors.get(f"upper/{name}") or lower
        finite, ordered, reachable, excess = True, True, True, 0.0
        if own is not None and own.dtype == "F32":
            finite = all(bool(np.isfinite(values).all()) for values in reader.arrays(reader.model, own))
        if lower is not None and upper is not None:
            edges = reader.arrays(reader.promise, lower), reader.arrays(reader.promise, upper)
            for low, up in zip(*edges, strict=True):
                ordered &= bool((low <= up).all())
                reachable &= bool(((low < math.inf) & (up > -math.inf)).all())
            if finite and ordered and reachable and self._counterpart(name, lower.shape) is not None:
                assert own is not None
                edges = reader.arrays(reader.promise, lower), reader.arrays(reader.promise, upper)
                for low, up, values in zip(*edges, reader.arrays(reader.model, own), strict=True):
                    at = values.astype(
                        np.float64
                    )  # in which differences of float32 numbers neither overflow nor vanish
                    excess = max(excess, float(np.maximum(low - at, at - up).max()))
        return _Facts(finite, not ordered, not reachable, excess)

    def changed_constants(self, reader: _Reader, record: Record) -> list[str]:
        """The names of tensors that are not of floating point and not what they were."""
        known = record.constants
        if known is None:
            return []
        places = {name: place for name, place in self.model.tensors.items() if place.dtype not in FLOATS}
        kinds = {name: (entry.dtype, entry.shape) for name, entry in known.items()}
        own = {name: (place.dtype, place.shape) for name, place in places.items()}
        pairs = check_constants(own, kinds, record.tied)
        return [name for name, first in pairs.items() if reader.digest(places[name]) != known[first].sha256]

    def distance(self, reader: _Reader, one: str, other: str) -> float:
        """The largest difference between entries of two tensors that should be the same."""
        pieces = [reader.arrays(reader.model, self.model.tensors[name]) for name in (one, other)]
        return max((float(np.abs(a.astype(np.float64) - b).max()) for a, b in zip(*pieces, strict=True)), default=0.0)
