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

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from intercontinet.errors import InvalidData, InvalidSetting
from intercontinet.inference import right
from intercontinet.learners.ceiling import kept_for_all, lowered, own_sums, rounding_of
from intercontinet.learners.exact_settings import ExactSettings
from intercontinet.learners.method import Lesson
from intercontinet.learners.outcome import Outcome
from intercontinet.learners.shares import Shares
from intercontinet.learners.table import WEIGHT, Box, Table, sums, typical
from intercontinet.noise import key_of, orders

LARGEST_FALL = 1e6
ROUNDS = 8  # of dividing a class into parts
HOPELESS = 0.5  # accuracy of a class under which it is rather not learned than that others lose room for it
WIDER = 0.003  # of the cap: how much the ceiling falls where no new class is at home, if it must


def learn_counts(
    settings: ExactSettings, table: Table, box: Box, lesson: Lesson, counted: Tensor, shares: Shares, key: int
) -> Outcome:
    """Count the outputs of one task, then lower the ceiling of all free columns until the task is certain.

    Args:
        settings: How.
        table: One that is not capped.
        box: Where the tasks before have left it; not changed.
        lesson: The task; its examples are rows, [examples, chosen].
        counted: Which of them are counted, [examples].
        shares: Which are watched and unseen.
        key: Fixes how classes are divided into parts.
    """
    if settings.mirror:
        raise InvalidSetting("mirror is for columns that are trained, and these are counted: leave it out")
    fits = _typical_columns(settings, table, box, lesson, counted, key)
    return kept_for_all(lambda some: _under_a_ceiling(settings, table, box, lesson, fits, counted, some), shares)


def _under_a_ceiling(
    settings: ExactSettings,
    table: Table,
    box: Box,
    lesson: Lesson,
    fits: Mapping[int, tuple[list[int], Tensor]],
    counted: Tensor,
    shares: Shares,
) -> Outcome:
    """Columns taken and the ceiling lowered; a class that could be had only at others' expense is left out."""
    left_out: list[int] = []
    while True:
        learned = {output: fit for output, fit in fits.items() if output not in left_out}
        attempt = _Attempt(settings, table, box, lesson, list(learned.values()))
        done = attempt.lowered(shares, ways=1)
        if done.enough:
            return replace(done, left_out=tuple(left_out))
        # What is watched decides how far the ceiling falls, and no more.
        own = {output: (lesson.y == output) & counted for output in learned}
        accuracy = {output: float(attempt.hits[mine].double().mean()) for output, mine in own.items()}
        worst = min(accuracy, key=lambda output: accuracy[output], default=None)
        if worst is None or accuracy[worst] >= HOPELESS:
            break
        left_out.append(worst)
    everything = _Attempt(settings, table, box, lesson, list(fits.values()))
    return everything.lowered(shares, ways=3)  # the last way always ends: kept or not


def _typical_columns(
    settings: ExactSettings, table: Table, box: Box, lesson: Lesson, counted: Tensor, key: int
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
        self, settings: ExactSettings, table: Table, box: Box, lesson: Lesson, fits: Sequence[tuple[list[int], Tensor]]
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

    def lowered(self, shares: Shares, ways: int) -> Outcome:
        """What comes of the highest ceiling under which enough is certain, if the first ``ways`` down lead there; where
        they do not, what comes of the lowest."""
        return lowered(self._boxes(shares, ways), self._table, self._lesson, self.hits, shares)

    def _boxes(self, shares: Shares, ways: int) -> Iterator[Box]:
        for ceiling in self._lower_and_lower(shares, ways):
            self._box.upper[:, self._free] = ceiling[:, None]
            yield self._box

    def _lower_and_lower(self, shares: Shares, ways: int) -> Iterator[Tensor]:
        """Ceilings [rows]: along each way down the highest that is enough but for rounding, and a little lower."""
        if not bool(self._free.any()):
            yield self._ceiling
            return
        lesson, table = self._lesson, self._table
        own, size = (own_sums(table, weight, lesson) for weight in (self._box.weight, self._box.weight.abs()))
        chosen = lesson.x.shape[1]
        rounding = rounding_of(chosen) * (size + chosen * self._settings.depth)
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
