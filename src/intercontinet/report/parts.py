"""JSON from files that may be damaged or foreign: values are asked for by name and kind, and a wrong one is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar

from intercontinet.errors import InvalidData

_LARGEST = 1e300  # what is larger is no number
T = TypeVar("T")


def read_bytes(path: Path) -> bytes:
    """What a file holds."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidData(f"cannot read {path}: {error.strerror}. Check that it is there and may be read") from error


def damaged(source: str, words: str) -> InvalidData:
    """The error for a file that is not as it was written."""
    return InvalidData(f"{source} is damaged: {words}. Take a fresh copy, or run again")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"it holds {constant}")


def parse_object(content: bytes | str, source: str, place: str = "", nan: Callable[[str], object] = _refuse) -> Part:
    """A JSON object; ``source`` and ``place`` name it in errors, ``nan`` says what to make of NaN and the like."""
    try:
        value = json.loads(content, parse_constant=nan)
    except (ValueError, RecursionError) as error:
        raise damaged(source, f"{place}not whole JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidData(f"{source} is foreign: {place}not a JSON object. Move it elsewhere")
    return Part(source, place, value)


@dataclass(frozen=True)
class Part:
    """A JSON object, or a list by its places, that knows where it is from, for errors to name.

    >>> part = Part("summary.json", "seeds.0.", {"seed": 3, "seconds": "many"})
    >>> part.whole("seed")
    3
    >>> print(part.unlike("seconds", "a number"))
    summary.json is damaged: seeds.0.seconds is 'many' and should be a number. Take a fresh copy, or run again
    """

    source: str
    place: str
    content: Mapping[str, object]

    def wrong(self, words: str) -> InvalidData:
        """The error for a part that does not make sense."""
        return damaged(self.source, f"{self.place.rstrip('., ')}: {words}" if self.place else words)

    def unlike(self, key: str, wanted: str) -> InvalidData:
        """The error for a field of the wrong kind."""
        found = f"is {self.content[key]!r:.60}" if key in self.content else "is missing"
        return damaged(self.source, f"{self.place}{key} {found} and should be {wanted}")

    def text(self, key: str) -> str:
        value = self.content.get(key)
        if not isinstance(value, str):
            raise self.unlike(key, "text")
        return value

    def flag(self, key: str) -> bool:
        value = self.content.get(key)
        if not isinstance(value, bool):
            raise self.unlike(key, "true or false")
        return value

    def whole(self, key: str) -> int:
        value = self.content.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.unlike(key, "a whole number")
        return value

    def number(self, key: str, low: float = -_LARGEST, high: float = _LARGEST) -> float:
        value = self.content.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.unlike(key, "a number" if high == _LARGEST else f"a number from {low} to {high}")
        return float(value)

    def maybe(self, key: str, low: float = -_LARGEST, high: float = _LARGEST) -> float | None:
        """A number, or None for null."""
        return None if self.content.get(key, self) is None else self.number(key, low, high)

    def inside(self, key: str, kind: type[dict[str, object]] | type[list[object]]) -> Part:
        value = self.content.get(key)
        if not isinstance(value, kind):
            raise self.unlike(key, "a list" if kind is list else "an object")
        items = value if isinstance(value, dict) else {str(i): item for i, item in enumerate(value)}
        return Part(self.source, f"{self.place}{key}.", items)

    def each(self, key: str, read: Callable[[Part, str], T]) -> tuple[T, ...]:
        """Every entry of a list, read by one of these methods."""
        part = self.inside(key, list)
        return tuple(read(part, place) for place in part.content)

    def shares(self, key: str) -> tuple[float, ...]:
        return self.each(key, lambda part, place: part.number(place, 0, 1))

    def objects(self, key: str) -> tuple[Part, ...]:
        return self.each(key, lambda part, place: part.inside(place, dict))
