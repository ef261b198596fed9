r"""Classes learned by counting, under a ceiling that falls: intervals on one layer of sums, and no gradients.

The net is an EmbeddingBag that sums, and above it, where an output has several columns, their maximum. An example is
the set of rows B(x) that a frozen encoder chooses for it. Column k gives :math:`z_k(x) = \sum_{b \in B(x)} W_{b,k}`.
Columns share no weight, so over a box of W the bounds of every output are reached: nothing is lost to looseness.

Learning an output takes one of its free columns for each part of its examples. With :math:`P(b)` the share of the
part's examples that choose row b, and K the rows there are for each that an example chooses,

.. math:: W_b = \min\bigl(\log K P(b),\; U_b\bigr), \quad \text{at least} -\text{depth},

where U, the ceiling of all free columns, starts at ``cap``. What is learned stays as it is. After each task the ceiling
falls where the new columns are at home, :math:`U \leftarrow U - e \max(0, \max_k W_{\cdot,k})`, by the smallest e at
which ``keep`` of the accuracy is certain. A small cap and a great depth make a class known by the rows it never
chooses; rows at which no class is at home keep their full width for the classes to come.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast, final

import torch
from torch import Tensor

from intercontinet.engine.loop import Listener
from intercontinet.errors import InvalidData, InvalidSetting
from intercontinet.floor import certain_examples
from intercontinet.inference import right
from intercontinet.learners.method import Lesson, Memory, Nets
from intercontinet.learners.outcome import Counted, Shares, progress_of
from intercontinet.learners.regression import regressed, training_rows
from intercontinet.learners.table import WEIGHT, Box, Table, sums, typical
from intercontinet.learners.voices import learn_voices
from intercontinet.noise import key_of, orders

LARGEST_FALL = 1e6
ROUNDS = 8  # of dividing a class into parts
HOPELESS = 0.5  # accuracy of a class under which it is rather not learned than that others lose room for it
WIDER = 0.003  # of the cap: how much the ceiling falls where no new class is at home, if it must


@final
@dataclass(frozen=True)
class Counting:
    """How to learn by counting, or, in a capped net, by training: see :mod:`intercontinet.learners.voices`.

    Attributes:
        keep: Share of each task's accuracy that must stay certain, on its training set and on the part held out.
        cap: What a row's count can add for a class, at most.
        depth: What it can take away, at most.
        parts: Columns an output takes in each task: its examples are divided among them, like with like. A head of its
            own takes all that its outputs have.
        held_out: Share of a task's examples that are not counted in P, but watched when the ceiling falls.
        unseen: Share that shapes nothing at all: how much of it is certain tells what to expect of new examples. An
            encoder that is fitted must not see it either (:meth:`shaping`), nor may an earlier task hold the same
            examples in another form: there, set it to 0.
        head: "shared", where all outputs compete, or "per-task", where only those of one task do.
        fit_rate: Step size where columns are trained: heads of their own, and all columns of a capped net.
        at_ceiling: In a capped net, share of a task's examples whose own voice is as loud as its ceiling lets it be.
        mirror: Whether trained columns are trained on mirrored images, too. Floors speak of the images as they are.
        typical: In a capped net, how much a voice also tells how typical an example is of its class, by counts.
    """

    keep: float = 0.8
    cap: float = 0.1
    depth: float = 8.0
    parts: int = 1
    held_out: float = 0.1
    unseen: float = 0.1
    head: Literal["shared", "per-task"] = "shared"
    fit_rate: float = 0.02
    at_ceiling: float = 0.7
    typical: float = 1.0
    mirror: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise InvalidSetting(f"keep is {self.keep}; it is a share of the accuracy: above 0, at most 1")
        for name in ("cap", "depth", "parts", "fit_rate"):
            if not 0 < getattr(self, name) < math.inf:
                raise InvalidSetting(f"{name} is {getattr(self, name)}; it must be positive")
        if not isinstance(self.parts, int):
            raise InvalidSetting(f"parts is {self.parts}; it must be a whole number")
        for name in ("held_out", "unseen"):
            if not 0 <= getattr(self, name) < 0.5:
                raise InvalidSetting(f"{name} is {getattr(self, name)}; it is a share of the examples: from 0 to 0.5")
        if not 0 < self.at_ceiling < 1:
            raise InvalidSetting(f"at_ceiling is {self.at_ceiling}; it is a share of the examples: between 0 and 1")
        if not 0 <= self.typical < math.inf:
            raise InvalidSetting(f"typical is {self.typical}; it must not be negative")
        if not isinstance(self.mirror, bool):
            raise InvalidSetting(f"mirror is {self.mirror!r}; it is true or false")
        if self.head not in ("shared", "per-task"):
            raise InvalidSetting(f"head is {self.head!r}; choose one of 'shared', 'per-task'")

    def shaping(self, examples: int, seed: int) -> Tensor:
        """Which examples of the first task may shape an encoder, [examples]: all but those that are to stay unseen."""
        return ~_divided(examples, self, key_of(seed, 0), torch.device("cpu"))[2]

    def learn(
        self, nets: Nets, weights: Tensor, memory: Memory, lesson: Lesson, listen: Listener | None = None
    ) -> tuple[Tensor, Memory]:
        """One task for each seed in turn, whose examples are rows already.

        Memory: "lower", "upper" [seeds, entries]; "certified", "correct", "unseen_certified", "unseen_total", and in
        "left_out" whether an output was not learned, [seeds, tasks, outputs].
        """
        table = Table.of(nets.model)
        upper = memory["upper"] if memory else torch.full_like(weights, math.inf)
        lower = memory["lower"] if memory else -upper
        sure = torch.ones(len(lesson.x), dtype=torch.bool, device=weights.device)
        made = []
        for row, key in enumerate(nets.keys(lesson.index)):
            box = Box(*(edge[row].view(-1, table.columns) for edge in (weights, lower, upper)))
            made.append(learn_by_counting(self, table, box, lesson, sure, key))
        out = {"lower": torch.stack([one.box.lower.flatten() for one in made])}
        out["upper"] = torch.stack([one.box.upper.flatten() for one in made])
        for name in ("certified", "correct", "unseen_certified", "unseen_total"):
            out[name] = torch.tensor([[getattr(one, name)] for one in made], device=weights.device)
        outputs = range(table.columns // (2 * table.slots if table.capped else table.slots))
        out["left_out"] = torch.tensor([[[o in one.left_out for o in outputs]] for one in made], device=weights.device)
        for name in out.keys() & memory.keys() - {"lower", "upper"}:
            out[name] = torch.cat([memory[name], out[name]], dim=1)
        learned = torch.stack([one.box.weight.flatten() for one in made])
        if listen is not None:
            listen(progress_of(made, lesson))
        return learned, out


@torch.no_grad()
def learn_by_counting(settings: Counting, table: Table, box: Box, lesson: Lesson, sure: Tensor, key: int) -> Counted:
    """Learn the outputs of one task, then lower the ceiling of all free columns until the task is certain.

    Args:
        settings: How.
        table: The net.
        box: Where the tasks before have left it; not changed.
        lesson: The task; its examples are rows, [examples, chosen].
        sure: Examples whose rows no rounding could change, [examples].
        key: Fixes which examples are held out, and how classes are divided.
    """
    if settings.parts > table.slots:
        raise InvalidSetting(
            f"parts is {settings.parts}, but an output has {table.slots} column(s): build the net with more slots"
        )
    counted, watched, unseen = _divided(len(lesson.y), settings, key, lesson.y.device)
    shares = Shares(settings.keep, sure, watched, unseen)
    if settings.head == "per-task":
        return _alone(settings, table, box, lesson, counted, shares, key)
    step = 2 if table.capped else 1  # ceilings are not meant
    deepest = box.lower[:, ::step][:, box.free[::step]]
    if bool((deepest.isfinite() & (deepest > -settings.depth)).any()):
        raise InvalidSetting(
            f"depth is {settings.depth}, deeper than the {-float(deepest.max()):g} of the tasks before: use theirs"
        )
    if settings.mirror and not table.capped:
        raise InvalidSetting("mirror is for columns that are trained, and these are counted: leave it out")
    if table.capped:
        return learn_voices(settings, table, box, lesson, counted, shares, key)
    fits = _typical_columns(settings, table, box, lesson, counted, key)
    made = _under_a_ceiling(settings, table, box, lesson, fits, shares)
    if made.certified < settings.keep * made.correct and made.unseen_total:
        # The promise is for all examples: where the unseen ones break it, they must be watched, and are unseen no more.
        made = _under_a_ceiling(settings, table, box, lesson, fits, replace(shares, unseen=torch.zeros_like(unseen)))
    return made


def _alone(
    settings: Counting, table: Table, box: Box, lesson: Lesson, counted: Tensor, shares: Shares, key: int
) -> Counted:
    """A head of its own: nothing else competes, so that logistic regression trains its columns."""
    if table.capped:
        raise InvalidSetting("head is 'per-task', where nothing competes, but the net is capped: build one that is not")
    made = box.clone()
    labels, index = lesson.labels()
    heads = sorted({*torch.unique(lesson.y).tolist(), *(lesson.classes or ())})
    taken = [column for output in heads for column in table.free_columns(box.free, output)]  # none may stay free
    outputs = torch.tensor([column // table.slots for column in taken], device=lesson.y.device)
    own = (lesson.y[counted].long()[:, None] == outputs).int().argmax(1)
    size = table.bag.num_embeddings
    rows, own = training_rows(lesson, counted, own)
    trained = regressed(rows, own, size, len(taken), settings.fit_rate, key)
    for tensor in (made.weight, made.lower, made.upper):
        tensor[:, taken] = trained
    hits = right(table.net, {WEIGHT: made.weight}, lesson.x, labels, index)
    return shares.counted(made, certain_examples(table.net, made.region, lesson.x, labels, index, False), hits)


def _under_a_ceiling(
    settings: Counting,
    table: Table,
    box: Box,
    lesson: Lesson,
    fits: Mapping[int, tuple[list[int], Tensor]],
    shares: Shares,
) -> Counted:
    """Columns taken and the ceiling lowered; a class that could be had only at others' expense is left out."""
    left_out: list[int] = []
    while True:
        learned = {output: fit for output, fit in fits.items() if output not in left_out}
        attempt = _Attempt(settings, table, box, lesson, list(learned.values()))
        done = attempt.certain_enough(shares, ways=1)
        if done is not None:
            return replace(done, left_out=tuple(left_out))
        seen = {output: (lesson.y == output) & ~shares.unseen for output in learned}
        accuracy = {output: float(attempt.hits[mine].double().mean()) for output, mine in seen.items()}
        worst = min(accuracy, key=lambda output: accuracy[output], default=None)
        if worst is None or accuracy[worst] >= HOPELESS:
            break
        left_out.append(worst)
    everything = _Attempt(settings, table, box, lesson, list(fits.values()))
    return cast(Counted, everything.certain_enough(shares, ways=3))


def _divided(examples: int, settings: Counting, key: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Which examples are counted, watched, and unseen: [examples] each."""
    order = orders(torch.tensor([key]), examples)[0].to(device)
    watched, unseen = (torch.zeros(examples, dtype=torch.bool, device=device) for _ in range(2))
    first, second = int(settings.held_out * examples), int(settings.unseen * examples)
    watched[order[:first]] = True
    unseen[order[first : first + second]] = True
    return ~(watched | unseen), watched, unseen


def _typical_columns(
    settings: Counting, table: Table, box: Box, lesson: Lesson, counted: Tensor, key: int
) -> dict[int, tuple[list[int], Tensor]]:
    """For each output of the task the columns it takes, and what they would hold if there were no ceiling."""
    free, size = box.free, table.bag.num_embeddings
    fits = {}
    for output in torch.unique(lesson.y).tolist():
        columns = table.free_columns(free, output)[: settings.parts]
        rows = lesson.x[counted & (lesson.y == output)]
        if not len(rows):
            raise InvalidData(f"output {output} has no example left to count: give more, or hold out fewer")
        parts = _parted(rows, len(columns), size, key_of(key, output))
        values = [typical(rows[parts == part], size, settings.cap, settings.depth) for part in range(len(columns))]
        fits[output] = (columns, torch.stack(values, 1).to(box.weight.dtype))
    return fits


def _parted(rows: Tensor, parts: int, size: int, key: int) -> Tensor:
    """Divide examples into parts, like with like, [examples]: a mixture of products, fitted by hard assignment."""
    if parts == 1:
        return torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    chosen = orders(torch.tensor([key]), len(rows))[0, :parts].to(rows.device)
    of = torch.stack([(rows == rows[example]).sum(1) for example in chosen], 1).argmax(1)
    for _ in range(ROUNDS):
        counts = [torch.bincount(rows[of == part].flatten(), minlength=size) for part in range(parts)]
        sizes = torch.bincount(of, minlength=parts).float()
        logs = ((torch.stack(counts, 1) + 0.05) / (sizes + 0.05 * size / rows.shape[1])).log()
        before, of = of, (sums(rows, logs) + sizes.clamp(min=1).log()).argmax(1)
        if bool((before == of).all()):
            break
    return of


@final
class _Attempt:
    """Some outputs' columns put under the ceiling, and the ways down from there."""

    def __init__(
        self, settings: Counting, table: Table, box: Box, lesson: Lesson, fits: Sequence[tuple[list[int], Tensor]]
    ) -> None:
        self._settings, self._table, self._lesson = settings, table, lesson
        free = box.free
        self._ceiling = box.upper[:, free].amax(1).clamp(max=settings.cap)  # all free columns are alike
        made = box.clone()
        made.weight[:, free] = made.lower[:, free] = -settings.depth
        self._home = torch.zeros_like(self._ceiling)
        for columns, values in fits:
            under = torch.minimum(values, self._ceiling[:, None])
            for tensor in (made.weight, made.lower, made.upper):
                tensor[:, columns] = under
            free[columns] = False
            self._home = torch.maximum(self._home, under.amax(1))
        self._box, self._free = made, free
        self.hits = right(table.net, {WEIGHT: made.weight}, lesson.x, lesson.y.long())

    def certain_enough(self, shares: Shares, ways: int) -> Counted | None:
        """The highest ceiling under which enough is certain; None where the first ``ways`` down do not lead there.

        The last way always ends: what it leads to is returned, kept or not.
        """
        box, lesson = self._box, self._lesson
        for ceiling in self._lower_and_lower(shares, ways):
            box.upper[:, self._free] = ceiling[:, None]
            certain = certain_examples(self._table.net, box.region, lesson.x, lesson.y.long(), None, False)
            if shares.enough(certain & shares.sure, self.hits):
                return shares.counted(box, certain, self.hits)
        return shares.counted(box, certain, self.hits) if ways == 3 else None

    def _lower_and_lower(self, shares: Shares, ways: int) -> Iterator[Tensor]:
        """Ceilings [rows]: along each way down the highest that is enough but for rounding, and a little lower."""
        if not bool(self._free.any()):
            yield self._ceiling
            return
        lesson, table = self._lesson, self._table
        labels = lesson.y.long()[:, None]
        own = table.outputs(sums(lesson.x, self._box.weight)).gather(1, labels).squeeze(1)
        chosen = lesson.x.shape[1]
        size = table.outputs(sums(lesson.x, self._box.weight.abs())).gather(1, labels).squeeze(1)
        rounding = (
            1.5 * (chosen + 4) * 2.0**-24 * (size + chosen * self._settings.depth)
        )  # of sound bounds and this sum
        free = self._free.view(-1, table.slots).any(1)  # outputs that have a free column
        rivalled = (free.sum() - free[lesson.y.long()].long()) > 0  # examples that some other output may still claim

        def fallen(direction: Tensor, by: float) -> Tensor:
            return (self._ceiling - by * direction).clamp(min=-self._settings.depth)

        def quickly(direction: Tensor) -> Callable[[float], bool]:
            def enough(by: float) -> bool:
                above = own - sums(lesson.x, fallen(direction, by)[:, None]).squeeze(1) > rounding
                return shares.enough(self.hits & shares.sure & (above | ~rivalled), self.hits)

            return enough

        little = WIDER * self._settings.cap
        seen = torch.zeros_like(self._home).index_fill_(0, torch.unique(lesson.x[~shares.unseen]), little)
        for direction in (self._home, self._home + seen, self._home + little)[:ways]:
            least = _least(quickly(direction))
            for more in (1.0, 1.001, 1.01, 1.1, 2.0, 10.0):
                yield fallen(direction, least * more)


def _least(enough: Callable[[float], bool]) -> float:
    """The smallest number from which on enough is enough."""
    if enough(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while not enough(high) and high < LARGEST_FALL:
        low, high = high, 2 * high
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
