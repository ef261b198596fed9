"""One batch on its way through a model: a chain of layers with rules where the model is one, else a recorded pass."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from torch import Tensor, nn

from intercontinet.bounds.arithmetic import Arithmetic
from intercontinet.bounds.network import Network
from intercontinet.bounds.plain import check_bare, check_unhooked, check_unshared
from intercontinet.bounds.recording import record
from intercontinet.bounds.tape import Tape
from intercontinet.errors import InvalidData, UnsupportedLayer
from intercontinet.inference import check_evaluates
from intercontinet.interval import Interval

Boxes = Mapping[str, Interval]


class Forward(Protocol):
    """What can be asked of a model about one batch, for any box of weights."""

    def outputs(self, boxes: Boxes, arithmetic: Arithmetic) -> Interval:
        """Bounds of the output."""
        ...

    @property
    def ends_linear(self) -> bool:
        """Whether the output is that of a linear layer."""
        ...

    @property
    def head_names(self) -> tuple[str, ...]:
        """The names of that layer's weight and bias."""
        ...

    def head(self, boxes: Boxes, arithmetic: Arithmetic) -> tuple[Interval, Interval, Interval | None]:
        """That layer's input, weight and bias."""
        ...

    def baked(self, boxes: Boxes, arithmetic: Arithmetic, movable: Collection[str]) -> Forward:
        """What is left once everything below the first movable parameter was computed for good."""
        ...

    @property
    def held(self) -> int:
        """Bytes of what was computed for good."""
        ...

    @property
    def recorded(self) -> int | None:
        """Numbers that all operations of a recorded pass put out; None for a chain."""
        ...


class Chain:
    """A batch before a chain of layers."""

    def __init__(self, network: Network, x: Interval) -> None:
        self.network, self.x = network, x

    def outputs(self, boxes: Boxes, arithmetic: Arithmetic) -> Interval:
        return self.network.propagate(boxes, self.x, arithmetic)

    @property
    def ends_linear(self) -> bool:
        return self.network.head is not None

    @property
    def head_names(self) -> tuple[str, ...]:
        return () if self.network.head is None else tuple(self.network.head.names.values())

    def head(self, boxes: Boxes, arithmetic: Arithmetic) -> tuple[Interval, Interval, Interval | None]:
        step = self.network.head
        assert step is not None
        bias = boxes[step.names["bias"]] if "bias" in step.names else None
        return self.network.before_last(boxes, self.x, arithmetic), boxes[step.names["weight"]], bias

    def baked(self, boxes: Boxes, arithmetic: Arithmetic, movable: Collection[str]) -> Forward:
        still = [set(step.names.values()).isdisjoint(movable) for step in self.network.steps]
        last = len(still) - 1 if self.ends_linear else len(still)  # which stays, for the sake of margins
        count = still.index(False) if False in still else last
        before, after = self.network.cut(count)
        return Chain(after, before.propagate(boxes, self.x, arithmetic))

    @property
    def held(self) -> int:
        return sum(t.numel() * t.element_size() for t in {id(t): t for t in (self.x.lower, self.x.upper)}.values())

    @property
    def recorded(self) -> int | None:
        return None


class Pass:
    """A batch whose pass through the model was recorded."""

    def __init__(self, tape: Tape, x: Sequence[Interval]) -> None:
        self.tape, self.x = tape, x

    def outputs(self, boxes: Boxes, arithmetic: Arithmetic) -> Interval:
        return self.tape.propagate(boxes, self.x, arithmetic)

    @property
    def ends_linear(self) -> bool:
        return self.tape.ends_linear

    @property
    def head_names(self) -> tuple[str, ...]:
        return self.tape.head_names

    def head(self, boxes: Boxes, arithmetic: Arithmetic) -> tuple[Interval, Interval, Interval | None]:
        return self.tape.before_last(boxes, self.x, arithmetic)

    def baked(self, boxes: Boxes, arithmetic: Arithmetic, movable: Collection[str]) -> Forward:
        tape = self.tape.baked(boxes, self.x, arithmetic, movable)
        return Pass(tape, self.x)

    @property
    def held(self) -> int:
        return self.tape.held

    @property
    def recorded(self) -> int | None:
        return self.tape.elements


def forward(
    model: nn.Module,
    names: Collection[str],
    x: Sequence[Interval],
    movable: Collection[str] | None = None,
    drift: float = 0.0,
) -> Forward:
    """One batch on its way through a model.

    Args:
        model: The module; unchanged.
        names: The parameters and buffers that a region speaks of.
        x: Its inputs, each [batch, ...].
        movable: The parameters that may move, where all that does not depend on them is taken as computed here, give or
            take ``drift`` (relative to an example's largest entry); None to bound everything, in any summation order.
        drift: See above.
    """
    check_bare(model)
    check_unshared(model, names)
    check_evaluates(model)
    if movable is None and len(x) == 1 and (network := chain(model)) is not None:
        return Chain(network, x[0])
    for box in x:
        if not box.is_point and (movable is not None or not box.lower.is_floating_point()):
            raise InvalidData("whole numbers, and all inputs where drift is given, must be known exactly: give points")
    middle = [_middle(box) for box in x]
    return Pass(record(model, middle, names, movable, drift), x)


def chain(model: nn.Module) -> Network | None:
    """The model as a chain of layers that have rules, or None where it is not one."""
    try:
        return Network(model)
    except UnsupportedLayer:
        check_unhooked(model)
        return None


def _middle(box: Interval) -> Tensor:
    """Real inputs to run the model on."""
    value = box.lower if box.is_point else box.centre
    return value.float() if value.is_floating_point() else value
