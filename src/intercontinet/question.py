"""What is asked of a model about some examples: are they right, are they certain, and by how much?"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from intercontinet.bounds import Arithmetic, Float32, Forward, Real, check_bare, forward, in_float64, leads
from intercontinet.criterion import Criterion
from intercontinet.data import Inputs, check_inputs, check_labels, parts, rows
from intercontinet.errors import InvalidData
from intercontinet.inference import all_outputs, check_alone, examples_at_once, meets, outputs_of, positions, right
from intercontinet.interval import Interval
from intercontinet.region import Region

Boxes = Mapping[str, Interval]
HELD_AT_MOST = 2 << 30  # bytes of bounds that are computed for good


@dataclass(frozen=True)
class Question:
    """Examples, and what counts as right.

    Attributes:
        x: Inputs, [examples, ...], or several of them.
        y: Right classes, [examples], as positions in ``classes``; or a criterion's targets, [examples, ...].
        classes: Outputs that take part, [classes]; all of them by default.
        criterion: What counts as right, where it is not a class.
        joint: Whether margins are bounded as one expression where the last layer is linear.
    """

    x: Inputs
    y: Tensor
    classes: Tensor | None = None
    criterion: Criterion | None = None
    joint: bool = True

    @classmethod
    def of(
        cls,
        model: nn.Module,
        data: tuple[Inputs, Tensor],
        device: torch.device,
        classes: Sequence[int] | None,
        criterion: Criterion | None,
        joint: bool = True,
    ) -> Question:
        """The question, once its parts were found to fit each other and the model."""
        x, y = data
        check_bare(model)
        check_inputs(x, device)
        if criterion is None:
            check_labels(y, len(parts(x)[0]), outputs_of(model, x), classes)
            labels, index = positions(y, classes)
            return cls(x, labels, index, None, joint)
        if classes is not None:
            raise InvalidData(f"classes= belongs to classification, and the criterion is '{criterion.name}'")
        if y.dim() == 0 or len(y) != len(parts(x)[0]):
            raise InvalidData(
                f"targets have shape {tuple(y.shape)}; expected one for each of {len(parts(x)[0])} examples"
            )
        if y.is_floating_point() and not bool(torch.isfinite(y).all()):
            raise InvalidData("a target is NaN or infinite: remove or repair it")
        out = all_outputs(model, {}, rows(x, slice(1)))
        meets(criterion, out, y[:1])  # complains of shapes now
        if not criterion.slack(Interval.point(out.double()), y[:1]).is_floating_point():
            raise InvalidData(
                f"the slack of criterion '{criterion.name}' is no real number: true and false are both 'not negative'. "
                "Give how far an output is from being wrong, below zero where it is"
            )
        return cls(x, y, None, criterion, joint)

    @property
    def examples(self) -> int:
        return len(self.y)

    def some(self, index: Tensor | slice) -> Question:
        return replace(self, x=rows(self.x, index), y=self.y[index])

    def right(self, model: nn.Module, state: Mapping[str, Tensor]) -> Tensor:
        """Which examples these weights get right, [examples]."""
        if self.criterion is None:
            return right(model, state, self.x, self.y, self.classes)
        return meets(self.criterion, all_outputs(model, state, self.x), self.y)

    def today(self, model: nn.Module) -> tuple[Tensor, Tensor | None]:
        """Which examples the model gets right, [examples], and its predictions, in the form of ``y``; None where the
        criterion knows of none."""
        out = all_outputs(model, {}, self.x)
        if self.criterion is None:
            predicted = (out if self.classes is None else out[:, self.classes]).argmax(1)
            return predicted == self.y, predicted
        right = meets(self.criterion, out, self.y)
        return right, None if self.criterion.predicted is None else self.criterion.predicted(out)

    def slack(self, batch: Forward, boxes: Boxes, arithmetic: Arithmetic) -> Tensor:
        """How far each example is from being wrong, over all weights of the box, [examples]; positive: certain."""
        if self.criterion is not None:
            return self.criterion.slack(batch.outputs(boxes, arithmetic), self.y)
        margins = leads(batch, boxes, self.y, arithmetic, self.classes, self.joint)
        return -margins.scatter(1, self.y[:, None], -torch.inf).amax(1)

    def certain(self, batch: Forward, boxes: Boxes, arithmetic: Arithmetic) -> Tensor:
        """Which examples no weight of the box gets wrong, [examples]. A tie is wrong, and so is NaN."""
        if self.criterion is not None:
            return self.criterion.holds(batch.outputs(boxes, arithmetic), self.y)
        return self.slack(batch, boxes, arithmetic) > 0


class Tally(NamedTuple):
    """Counts over all examples.

    Attributes:
        certain: Those that no weight of a region gets wrong.
        stable: Those whose prediction no weight of it changes; None where the criterion has no predictions, or such
            that do not decide what is right, so that fewer of them than of right answers stay.
    """

    certain: int
    stable: int | None


class Passes:
    """Inputs on their way through a model, in pieces, ready to be asked about one box of weights after another.

    Args:
        x: The inputs.
        model: The module; unchanged.
        region: Names, and values of what does not move; later boxes may differ in what does.
        movable: Names of what may move.
        drift: None to bound every rounding; else frozen layers are taken as computed here, give or take so much.
        quick: Whether to compute in float32 and to ignore rounding: a fast guess, never a promise.
        size: Examples in a piece, at most; as many as fit by default.

    Raises:
        UnsupportedLayer: The model cannot be followed, is random, or mixes the examples of a batch; that is tried on a
            few of them, unless ``quick``.
    """

    def __init__(
        self,
        x: Inputs,
        model: nn.Module,
        region: Region,
        movable: Collection[str],
        drift: float | None,
        quick: bool,
        size: int | None = None,
    ) -> None:
        self.x, self.model, self.region, self.movable = x, model, region, movable
        self.drift, self.quick = drift, quick
        self.arithmetic: Arithmetic = Real(exact=True) if quick else Float32()
        self._kept: list[tuple[slice, Forward]] | None = None
        recorded = self._through(slice(1)).recorded
        fitting = examples_at_once(x, recorded)
        self.size = fitting if size is None else min(size, fitting)
        if recorded is not None and not quick:
            check_alone(model, rows(x, slice(self.size)))

    def boxes(self, region: Region) -> dict[str, Interval]:
        return region.intervals(torch.float32 if self.quick else torch.float64)

    def keep(self) -> Passes:
        """Compute for good what lies below the first movable parameter, unless that takes too much memory."""
        held, kept = 0, []
        boxes = self.boxes(self.region)
        for where, batch in self._fresh():
            baked = batch.baked(boxes, self.arithmetic, self.movable)
            held += baked.held
            if held > HELD_AT_MOST:
                return self
            kept.append((where, baked))
        self._kept = kept
        return self

    def __iter__(self) -> Iterator[tuple[slice, Forward]]:
        return iter(self._kept) if self._kept is not None else self._fresh()

    def one(self, generator: torch.Generator) -> tuple[slice, Forward]:
        """A piece, drawn at random."""
        count = -(-len(parts(self.x)[0]) // self.size)
        which = int(torch.randint(count, (), generator=generator))
        return self._kept[which] if self._kept is not None else self._piece(which * self.size)

    def _fresh(self) -> Iterator[tuple[slice, Forward]]:
        return (self._piece(start) for start in range(0, len(parts(self.x)[0]), self.size))

    def _piece(self, start: int) -> tuple[slice, Forward]:
        where = slice(start, start + self.size)
        return where, self._through(where)

    def _through(self, where: slice) -> Forward:
        points = [Interval.point(part[where]) for part in parts(self.x)]
        x = points if self.quick else [in_float64(point) for point in points]
        movable = None if self.drift is None else self.movable
        return forward(self.model, self.region.lower, x, movable, self.drift or 0.0)

    def certain(self, region: Region, question: Question) -> Tensor:
        """Which examples no weight of the region gets wrong, [examples]."""
        boxes = self.boxes(region)
        return torch.cat([question.some(where).certain(batch, boxes, self.arithmetic) for where, batch in self])

    def tally(self, region: Region, question: Question, right: Tensor, predicted: Tensor | None) -> Tally:
        """How many examples are certain, and how many predictions: one pass tells both.

        Args:
            region: A box of weights that holds the model.
            question: The examples that this was made for.
            right: Which of them the model gets right, [examples].
            predicted: What it predicts, in the form of the question's ``y``, if it does.
        """
        boxes = self.boxes(region)
        certain = settled = 0
        for where, batch in self:
            asked = question.some(where)
            if question.criterion is None:
                assert predicted is not None
                still = replace(asked, y=predicted[where]).certain(batch, boxes, self.arithmetic)
                certain += int((still & right[where]).sum())  # a prediction that is right and cannot change
                settled += int(still.sum())
                continue
            out = batch.outputs(boxes, self.arithmetic)
            certain += int((question.criterion.holds(out, asked.y) & right[where]).sum())
            if predicted is not None:
                settled += int(question.criterion.holds(out, predicted[where]).sum())
        return Tally(certain, None if predicted is None or settled < certain else settled)


def movable_in(region: Region) -> list[str]:
    """Names of the parameters that a region lets move."""
    return [name for name, low in region.lower.items() if not torch.equal(low, region.upper[name])]
