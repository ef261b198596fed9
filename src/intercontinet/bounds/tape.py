"""The notes of one forward pass, and how they are played with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from intercontinet.bounds.arithmetic import Arithmetic
from intercontinet.errors import InterContiNetError, InvalidData, UnsupportedLayer, memory_gave_out
from intercontinet.inference import uncast
from intercontinet.interval import Interval

Boxes = Mapping[str, Interval]


@dataclass(frozen=True)
class Slot:
    """A value that an earlier note puts out, and the shape it had when the notes were taken."""

    index: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Named:
    """A parameter or saved buffer, by its first name."""

    name: str


@dataclass(frozen=True)
class Known:
    """A tensor that no movable parameter has a part in; ``computed`` where it is the outcome of arithmetic."""

    value: Tensor
    computed: bool


@dataclass(frozen=True)
class Baked:
    """Bounds that were computed before, since nothing that moves has a part in them."""

    value: Interval


@dataclass(frozen=True)
class Note:
    """One operation: where it is, how bounds pass through it, what it is given, and which slots it fills."""

    place: str
    apply: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: Any
    head: tuple[Any, Named, Named | None] | None = None  # input, weight and bias, where it is a linear layer


class Tape:
    """The notes of one forward pass, to be played with any box of weights.

    Args:
        notes: In order.
        inputs: The slots of the model's inputs, None for those that are known as they are (whole numbers).
        output: What the model returned.
        drift: By how much a computed value that is taken as known may differ elsewhere, relative to the largest entry
            of its example (of the tensor, where its first dimension is not the batch).
        batch: Number of examples.
    """

    def __init__(self, notes: Sequence[Note], inputs: Sequence[Any], output: Any, drift: float, batch: int) -> None:
        self.notes, self.inputs, self.output, self.drift, self.batch = tuple(notes), inputs, output, drift, batch
        last: dict[int, int] = {}
        for at, note in enumerate(self.notes):
            for slot in slots_of((note.outputs, note.args, note.kwargs)):
                last[slot.index] = at
        kept = {slot.index for slot in slots_of(output)}
        self._free: list[list[int]] = [[] for _ in self.notes]  # what no later note asks for
        for index, at in last.items():
            if index not in kept:
                self._free[at].append(index)

    def propagate(self, boxes: Boxes, x: Sequence[Interval], arithmetic: Arithmetic) -> Interval:
        """Bounds of the output, in the dtype of ``boxes``."""
        values = self._played(len(self.notes), boxes, x, arithmetic)
        return cast(Interval, self._resolved(self.output, values, boxes))

    @property
    def ends_linear(self) -> bool:
        """Whether the output is that of a linear layer: margins are then bounded through it as one expression."""
        return bool(self.notes) and self.notes[-1].head is not None and self.notes[-1].outputs == self.output

    @property
    def head_names(self) -> tuple[str, ...]:
        """The names of that layer's weight and bias."""
        head = self.notes[-1].head if self.ends_linear else None
        return () if head is None else tuple(part.name for part in head[1:] if part is not None)

    def before_last(
        self, boxes: Boxes, x: Sequence[Interval], arithmetic: Arithmetic
    ) -> tuple[Interval, Interval, Interval | None]:
        """The last linear layer's input, weight and bias."""
        head = self.notes[-1].head
        assert head is not None
        values = self._played(len(self.notes) - 1, boxes, x, arithmetic)
        hidden, weight, bias = (self._resolved(part, values, boxes) for part in head)
        return hidden, weight, bias

    def baked(self, boxes: Boxes, x: Sequence[Interval], arithmetic: Arithmetic, movable: Collection[str]) -> Tape:
        """The rest of the tape, once everything that no movable parameter has a part in was played for good.

        A linear layer at the end stays, for the sake of margins.
        """
        free, moving = set(movable), set[int]()
        values = self._given(x)
        rest: list[Note] = []

        def fixed(leaf: Any) -> Any:
            return Baked(values[leaf.index]) if isinstance(leaf, Slot) and leaf.index not in moving else leaf

        for at, note in enumerate(self.notes):
            parts = list(leaves((note.args, note.kwargs)))
            moves = any(part.name in free if isinstance(part, Named) else False for part in parts)
            moves = moves or any(part.index in moving for part in parts if isinstance(part, Slot))
            if moves or (self.ends_linear and note is self.notes[-1]):
                moving.update(slot.index for slot in slots_of(note.outputs))
                args, kwargs = mapped(fixed, note.args), mapped(fixed, note.kwargs)
                head = None if note.head is None else mapped(fixed, note.head)
                rest.append(replace(note, args=args, kwargs=kwargs, head=head))
            else:
                self._play(note, values, boxes, arithmetic)
            for index in self._free[at]:
                values.pop(index, None)
        return Tape(rest, [None] * len(self.inputs), mapped(fixed, self.output), self.drift, self.batch)

    @property
    def elements(self) -> int:
        """Numbers that all operations together put out."""
        return sum(math.prod(slot.shape) for note in self.notes for slot in slots_of(note.outputs))

    @property
    def held(self) -> int:
        """Bytes of what was baked."""
        parts = [part for note in self.notes for part in leaves((note.args, note.kwargs))]
        boxes = [part.value for part in (*parts, *leaves(self.output)) if isinstance(part, Baked)]
        tensors = {id(t): t for box in boxes for t in (box.lower, box.upper)}
        return sum(t.numel() * t.element_size() for t in tensors.values())

    def _given(self, x: Sequence[Interval]) -> dict[int, Interval]:
        return {slot.index: box for slot, box in zip(self.inputs, x, strict=True) if slot is not None}

    def _play(self, note: Note, values: dict[int, Interval], boxes: Boxes, arithmetic: Arithmetic) -> None:
        args = self._resolved(note.args, values, boxes)
        kwargs = self._resolved(note.kwargs, values, boxes)
        try:
            with uncast(next(iter(boxes.values())).lower.device):
                _fill(note.outputs, note.apply(arithmetic, *args, **kwargs), values)
        except InterContiNetError as error:
            raise type(error)(f"{note.place}: {error}") from None
        except (RuntimeError, ValueError, LookupError) as error:
            if memory_gave_out(error):
                raise
            raise InvalidData(f"{note.place} cannot be bounded: {error}") from error
        except (TypeError, AttributeError, AssertionError) as error:
            raise UnsupportedLayer(
                f"{note.place} is called in a way that its rule does not cover ({error}): give the module round it a "
                "rule (@intercontinet.rule), or freeze that part and all before it and give drift="
            ) from error

    def _played(self, until: int, boxes: Boxes, x: Sequence[Interval], arithmetic: Arithmetic) -> dict[int, Interval]:
        values = self._given(x)
        for note, free in zip(self.notes[:until], self._free, strict=False):
            self._play(note, values, boxes, arithmetic)
            for index in free:
                values.pop(index, None)
        return values

    def _resolved(self, template: Any, values: Mapping[int, Interval], boxes: Boxes) -> Any:
        dtype = next(iter(boxes.values())).lower.dtype

        def one(leaf: Any) -> Any:
            if isinstance(leaf, Slot):
                return values[leaf.index]
            if isinstance(leaf, Named):
                return boxes[leaf.name]
            if isinstance(leaf, Known):
                return self._known(leaf, dtype)
            return leaf.value if isinstance(leaf, Baked) else leaf

        return mapped(one, template)

    def _known(self, leaf: Known, dtype: torch.dtype) -> Interval | Tensor:
        if not leaf.value.is_floating_point():
            return leaf.value
        value = leaf.value.float().to(dtype)  # a float64 constant is rounded where it meets float32
        if not leaf.computed or not self.drift or not value.numel():
            return Interval.point(value)
        size = value.abs()
        if value.dim() and len(value) == self.batch:
            size = size.flatten(1).amax(1).reshape(-1, *[1] * (value.dim() - 1)) if value.dim() > 1 else size
        else:
            size = size.amax()
        return Interval(value - self.drift * size, value + self.drift * size)


def leaves(template: Any) -> Iterator[Any]:
    """The entries of a nest of lists, tuples, mappings and slices."""
    if isinstance(template, (list, tuple)):
        for part in template:
            yield from leaves(part)
    elif isinstance(template, Mapping):
        for part in template.values():
            yield from leaves(part)
    elif isinstance(template, slice):
        yield from (template.start, template.stop, template.step)
    else:
        yield template


def slots_of(template: Any) -> Iterator[Slot]:
    """The slots in a nest."""
    return (leaf for leaf in leaves(template) if isinstance(leaf, Slot))


def mapped(f: Callable[[Any], Any], template: Any) -> Any:
    """The same nest with ``f`` applied to its entries."""
    if isinstance(template, torch.Size):
        return template
    if isinstance(template, list):
        return [mapped(f, part) for part in template]
    if isinstance(template, tuple):
        return tuple(mapped(f, part) for part in template)
    if isinstance(template, Mapping):
        return {key: mapped(f, part) for key, part in template.items()}
    if isinstance(template, slice):
        return slice(*(mapped(f, part) for part in (template.start, template.stop, template.step)))
    return f(template)


def _fill(slots: Any, out: Any, values: dict[int, Interval]) -> None:
    """Put what a rule gives where it belongs; it must be of the shape that the operation itself gave."""
    if isinstance(slots, Slot):
        if not isinstance(out, Interval) or tuple(out.shape) != slots.shape:
            shape = list(out.shape) if isinstance(out, Interval) else type(out).__name__
            raise UnsupportedLayer(f"its rule gives {shape}, and the model {list(slots.shape)}: mend the rule")
        values[slots.index] = out
    elif isinstance(slots, Mapping):
        for key, slot in slots.items():
            _fill(slot, None if slot is None else out[key], values)
    elif isinstance(slots, (list, tuple)):
        for slot, part in zip(slots, out, strict=True):
            _fill(slot, part, values)
