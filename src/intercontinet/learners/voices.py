r"""Classes learned by training, under a ceiling on their sums: whatever comes later cannot be louder than that.

In a capped net column k says :math:`s_k(x) = \sum_{b \in B(x)} W_{b,k}`, and its voice is :math:`\min(s_k(x), c_k)`,
where the ceiling :math:`c_k` is the sum of a second column, the same in every row. Each of a task's columns is trained
by logistic regression to tell its class from the task's others, and nothing else limits its weights: it is the sum that
is limited. A voice is loud only where its class is told clearly from the others, which examples of classes that were
never seen seldom bring about. To that is added how typical an example is of the class, by counts.

What is learned stays as it is. All free columns have one ceiling, and whatever weights below it. After each task it
falls to the highest c for which ``keep`` of the examples that are right have an own voice above c: a quantile. Voices
of later tasks are multiplied or shifted so that a share ``at_ceiling`` of their examples reaches the ceiling that they
find. What is multiplied cannot be heard below zero, and the task is left out.

Where there are strangers, examples of no task, every column is trained to be low on them as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from intercontinet.errors import InvalidData, InvalidSetting
from intercontinet.inference import right
from intercontinet.learners.ceiling import kept_for_all, lowered, own_sums, rounding_of
from intercontinet.learners.exact_settings import ExactSettings
from intercontinet.learners.method import Lesson
from intercontinet.learners.outcome import Outcome
from intercontinet.learners.regression import regressed, training_rows
from intercontinet.learners.shares import Shares
from intercontinet.learners.table import WEIGHT, Box, Table, sums, typical
from intercontinet.noise import key_of, orders

SPARE = 2.0  # standard deviations by which the unseen examples may fall short of the others without breaking a promise
HEADROOM = 0.3  # where voices are shifted: about what a row adds in the first task
LOWEST = -3.0  # ... and the lowest ceiling
LEAST = 0.01  # of a ceiling, where it is nearly zero: two voices at it must differ all the same
LOWER = (1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0)  # by how much, where rounding made too few certain


def learn_voices(
    settings: ExactSettings, table: Table, box: Box, lesson: Lesson, counted: Tensor, shares: Shares, key: int
) -> Outcome:
    """Train the outputs of one task, then lower the ceiling of all free columns until the task is certain.

    Args:
        settings: How.
        table: A capped one.
        box: Where the tasks before have left it; not changed.
        lesson: The task; its examples are rows, [examples, chosen].
        counted: Which of them are trained on, [examples].
        shares: Which are watched and unseen.
        key: Fixes the order of training.
    """
    if settings.parts > 1:
        raise InvalidSetting(f"parts is {settings.parts}, but columns of a capped net are trained: leave it out")
    trained, guides = _guided(settings.guides, counted, key)
    made, heard = _with_voices(settings, table, box, lesson, trained, guides, key)
    done = kept_for_all(lambda some: _under_a_ceiling(settings, table, made, lesson, some), shares)
    return done if heard else replace(done, left_out=tuple(torch.unique(lesson.y).tolist()))


def _guided(share: float, counted: Tensor, key: int) -> tuple[Tensor, Tensor]:
    """Which examples columns are trained on, and which tell how loud they are to be: others, or, without a share, the
    same, [examples] each."""
    number = int(share * len(counted))
    if not number:
        return counted, counted
    order = orders(torch.tensor([key_of(key, 1)]), len(counted))[0].to(counted.device)
    guides = torch.zeros_like(counted)
    guides[order[counted[order]][:number]] = True
    return counted & ~guides, guides


def _with_voices(
    settings: ExactSettings, table: Table, box: Box, lesson: Lesson, trained: Tensor, guides: Tensor, key: int
) -> tuple[Box, bool]:
    """The task's columns trained and made points, if they can be heard under the ceiling there is, and whether they
    are; all edges finite."""
    free = box.free.view(-1, 2)[:, 0]
    outputs = torch.unique(lesson.y)
    if len(outputs) < 2:
        raise InvalidData(
            f"task '{lesson.name}' has one class only, and a capped net learns to tell classes apart: give at least "
            "two, or build the net without capped"
        )
    taken = [table.free_columns(free, output)[0] for output in outputs.tolist()]
    labels = (lesson.y[:, None] == outputs).int().argmax(1)
    if len(torch.unique(labels[trained])) < len(outputs):
        raise InvalidData(f"task '{lesson.name}': a class has no example left to train on: give more, hold out fewer")
    values = _trained(settings, table.bag.num_embeddings, lesson, labels, trained, guides, key)
    lowest, highest = (float(edge[0, 2 * taken[0] + 1]) for edge in (box.lower, box.upper))  # all free ones are alike
    ceiling = min(highest, settings.depth)
    level = _level(values, lesson.x[guides], labels[guides], settings.at_ceiling)
    first, shifted = bool(box.free.all()), settings.tuning == "shifted"
    if shifted:
        values = values + ((HEADROOM if first else ceiling) - level)
    elif not first and min(ceiling, level) > 0:
        values = values * (ceiling / level)
    heard = first or shifted or (ceiling > 0 and level > 0)  # a shifted voice may be negative, as ceilings then are
    taken = taken if heard else []
    apart = 8 * (lesson.x.shape[1] + 4) * 2.0**-24  # more than rounding: no two voices at the ceiling are the same
    made = box.clone()
    made.weight[:, box.free] = made.lower[:, box.free] = box.lower[:, box.free].clamp(min=-settings.depth)
    made.upper[:, box.free] = made.upper[:, box.free].clamp(max=settings.depth)
    for place, column in enumerate(taken):
        for tensor in (made.weight, made.lower, made.upper):
            tensor[:, 2 * column] = values[:, place].clamp(-settings.depth, settings.depth)
            tensor[:, 2 * column + 1] = max(ceiling - place * apart * max(abs(ceiling), LEAST), lowest)
    return made, heard


def _trained(
    settings: ExactSettings, size: int, lesson: Lesson, labels: Tensor, trained: Tensor, guides: Tensor, key: int
) -> Tensor:
    """What each class's column says, [size, classes]: a lead over the others, and how typical an example is."""
    classes = int(labels.max()) + 1
    shown, own = training_rows(lesson, trained, labels[trained])
    if lesson.strangers is not None:
        shown = torch.cat([shown, lesson.strangers])
        own = torch.cat([own, own.new_full((len(lesson.strangers),), classes)])
    values = regressed(shown, own, size, classes, settings.fit_rate, key, each=True)
    rows = lesson.x
    guiding = rows[guides], labels[guides]
    level, before = (_level(values, *guiding, share) for share in (settings.at_ceiling, settings.keep))
    for place in range(classes):
        counts = typical(rows[trained & (labels == place)], size, settings.cap, settings.depth).to(values.dtype)
        own = rows[guides & (labels == place)]
        usual = sums(own, counts[:, None]).mean() / rows.shape[1] if len(own) else 0.0
        values[:, place] += settings.typical * max(level, 0.0) * (counts - usual)
    return values + (before - _level(values, *guiding, settings.keep))  # how loud they are on the whole stays the same


def _level(values: Tensor, rows: Tensor, labels: Tensor, share: float) -> float:
    """What a row adds, on average, to the own voice that so many of the examples that are right reach."""
    said = sums(rows, values)
    loud = said.gather(1, labels[:, None]).squeeze(1)[said.argmax(1) == labels]
    return float(loud.quantile(1 - share)) / rows.shape[1] if len(loud) else 0.0


def _under_a_ceiling(settings: ExactSettings, table: Table, box: Box, lesson: Lesson, shares: Shares) -> Outcome:
    """The highest ceiling of the free columns under which enough is certain."""
    hits = right(table.net, {WEIGHT: box.weight}, lesson.x, lesson.y.long())
    done = lowered(_boxes(settings, table, box, lesson, hits, shares), table, lesson, hits, shares)
    seen = torch.unique(lesson.y[hits & ~shares.unseen]).tolist()
    outputs = torch.unique(lesson.y).tolist()
    return replace(done, left_out=tuple(output for output in outputs if output not in seen))


def _boxes(
    settings: ExactSettings, table: Table, box: Box, lesson: Lesson, hits: Tensor, shares: Shares
) -> Iterator[Box]:
    """The box under lower and lower ceilings of its free columns; where none is free, as it is."""
    ceilings = box.free & (torch.arange(table.columns, device=hits.device) % 2 == 1)
    made = box.clone()
    for ceiling in _lower_and_lower(settings, table, box, lesson, hits, shares):
        made.upper[:, ceilings] = box.upper[:, ceilings].clamp(max=ceiling)
        # What later ceilings need, and no more: sums round by their largest weights.
        lowest = LOWEST if settings.tuning == "shifted" else -ceiling if ceiling > 0 else -math.inf
        made.lower[:, ceilings] = made.weight[:, ceilings] = box.lower[:, ceilings].clamp(min=lowest)
        yield made
        if not bool(ceilings.any()):
            return


def _lower_and_lower(
    settings: ExactSettings, table: Table, box: Box, lesson: Lesson, hits: Tensor, shares: Shares
) -> Iterator[float]:
    """Ceilings of a row: the highest that is enough but for rounding, a little lower, and the lowest there is."""
    labels, chosen = lesson.y.long()[:, None], lesson.x.shape[1]
    known = torch.where(box.free, 0.0, box.weight.abs())[:, ::2]
    size = sums(lesson.x, known).view(len(labels), -1, table.slots).amax(2).gather(1, labels).squeeze(1)
    own = own_sums(table, box.weight, lesson) - rounding_of(chosen) * size
    lowest = float(box.lower[:, 1::2].min())  # of a ceiling; learned ones are no lower
    lowest = max(lowest, LOWEST) if settings.tuning == "shifted" else lowest
    highest = math.inf
    luck = SPARE * math.sqrt(shares.keep * (1 - shares.keep) * int(shares.unseen.sum()))
    for some, spare in ((~shares.unseen, luck), (shares.watched, 0.0)):
        right_ones = int(hits[some].sum())
        needed = min(math.ceil(shares.keep * right_ones + spare), right_ones)
        voices = own[hits & shares.sure & some].sort(descending=True).values
        if needed:
            highest = min(highest, float(voices[needed - 1]) if needed <= len(voices) else -math.inf)
    highest /= chosen
    if abs(highest) < math.inf:
        yield from (max(highest - less * abs(highest), lowest) for less in LOWER)
    yield settings.depth if highest == math.inf else lowest
