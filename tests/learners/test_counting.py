"""Learning by counting against naive references in float64: columns, ceilings, counts, and who shapes what."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from intercontinet.engine.loop import Progress
from intercontinet.errors import InvalidData, InvalidModel, InvalidSetting
from intercontinet.learners.counting import HOPELESS, Counting, _divided, _parted, learn_by_counting
from intercontinet.learners.method import Lesson, Memory, Nets
from intercontinet.learners.outcome import Counted
from intercontinet.learners.regression import EPOCHS, SCALE
from intercontinet.learners.table import Box, Table
from intercontinet.noise import key_of, orders
from tests.strategies import points_inside

GROUPS, BINS = 12, 8
SIZE = GROUPS * BINS
Floats = NDArray[np.float64]


def table(outputs: int = 6, slots: int = 1) -> Table:
    bag = nn.EmbeddingBag(SIZE, outputs * slots, mode="sum", _weight=torch.zeros(SIZE, outputs * slots))
    return Table.of(nn.Sequential(bag, *([nn.MaxPool1d(slots)] if slots > 1 else [])))


def everything(of: Table) -> Box:
    upper = torch.full((SIZE, of.columns), math.inf)
    return Box(torch.zeros(SIZE, of.columns), -upper, upper)


def examples(labels: Sequence[int], each: int = 30, sharp: float = 0.8, seed: int = 0, modes: int = 1) -> Lesson:
    """Every class has a bin of its own in each group, or one for each mode; it is chosen with probability ``sharp``."""
    generator = torch.Generator().manual_seed(1000 * seed + min(labels))
    homes = torch.randint(BINS, (max(labels) + 1, modes, GROUPS), generator=torch.Generator().manual_seed(seed))
    y = torch.tensor(list(labels)).repeat_interleave(each)
    mode = torch.randint(modes, (len(y),), generator=generator)
    elsewhere = torch.randint(BINS, (len(y), GROUPS), generator=generator)
    bins = torch.where(torch.rand(len(y), GROUPS, generator=generator) < sharp, homes[y, mode], elsewhere)
    return Lesson("/".join(map(str, labels)), 0, bins + BINS * torch.arange(GROUPS), y)


def learn(how: Counting, of: Table, box: Box, lesson: Lesson, key: int = 0) -> Counted:
    return learn_by_counting(how, of, box, lesson, torch.ones(len(lesson.y), dtype=torch.bool), key)


def in_turn(how: Counting, of: Table, lessons: Sequence[Lesson]) -> list[Counted]:
    made: list[Counted] = []
    for lesson in lessons:
        made.append(learn(how, of, made[-1].box if made else everything(of), lesson, key=len(made)))
    return made


def same_bits(one: Box, other: Box) -> bool:
    pairs = ((one.weight, other.weight), (one.lower, other.lower), (one.upper, other.upper))
    return all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in pairs)


# By hand.


def logs_of_shares(rows: list[list[int]], how: Counting) -> Floats:
    """log K P(b) of every row, K rows being there for each that is chosen."""
    found = np.full(SIZE, -how.depth)
    for row in range(SIZE):
        share = sum(row in chosen for chosen in rows) / len(rows)
        if share:
            found[row] = min(how.cap, max(-how.depth, math.log(BINS * share)))
    return found


def scores(weight: Tensor, rows: Tensor, slots: int) -> Floats:
    """[examples, outputs] in float64: sums of plain columns, and the largest of each output's."""
    plain, chosen = weight.double().numpy(), rows.numpy()
    sums = np.stack([plain[example].sum(0) for example in chosen])
    found: Floats = sums.reshape(len(sums), -1, slots).max(2)
    return found


def worst_margins(box: Box, lesson: Lesson, slots: int) -> Floats:
    """By how much each example's class leads at the corner of the box that is worst for it."""
    low, high = scores(box.lower, lesson.x, slots), scores(box.upper, lesson.x, slots)
    margins = []
    for own, others, label in zip(low, high, lesson.y.tolist(), strict=True):
        margins.append(own[label] - max(other for output, other in enumerate(others) if output != label))
    return np.array(margins)


# Columns.


@pytest.mark.parametrize("how", [Counting(), Counting(cap=0.5, depth=3.0, held_out=0.2, unseen=0.0)])
def test_columns_are_logarithms_of_counts_under_the_ceiling(how: Counting) -> None:
    of = table()
    lessons = [examples((0, 1)), examples((2, 3)), examples((4, 5))]
    ceiling = np.full(SIZE, how.cap)
    for index, (lesson, made) in enumerate(zip(lessons, in_turn(how, of, lessons), strict=True)):
        counted, watched, unseen = _divided(len(lesson.y), how, index, torch.device("cpu"))
        for output in torch.unique(lesson.y).tolist():
            mine = lesson.x[counted & (lesson.y == output)].tolist()
            expected = np.minimum(logs_of_shares(mine, how), ceiling)
            for edge in (made.box.weight, made.box.lower, made.box.upper):
                assert edge[:, output].double().numpy() == pytest.approx(expected, abs=1e-6)
        assert int(watched.sum()) == int(how.held_out * 60) and int(unseen.sum()) == int(how.unseen * 60)
        assert bool((counted.int() + watched.int() + unseen.int() == 1).all())
        ceiling = made.box.upper[:, -1].double().numpy()
    assert float(ceiling.min()) < 0 < float(ceiling.max()), "there was a ceiling to be under"


# The ceiling.

USES = [  # parts, slots, the tasks' outputs
    pytest.param(1, 1, [(0, 1), (2, 3), (4, 5)], id="one column"),
    pytest.param(2, 2, [(0, 1), (2, 3), (4, 5)], id="two parts"),
    pytest.param(1, 3, [(0, 1, 2), (0, 1, 2), (0, 1, 2)], id="the same outputs again"),
    pytest.param(2, 4, [(0, 1), (0, 1), (2, 3)], id="two parts, and two outputs again"),
]


@pytest.mark.parametrize(("parts", "slots", "outputs"), USES)
def test_edges_nest_what_is_learned_stays_and_floors_are_kept(
    parts: int, slots: int, outputs: list[tuple[int, ...]]
) -> None:
    of = table(max(map(max, outputs)) + 2, slots)
    lessons = [examples(labels, seed=seed, modes=parts) for seed, labels in enumerate(outputs)]
    states = in_turn(Counting(parts=parts), of, lessons)
    boxes = [everything(of), *(made.box for made in states)]
    for (before, after), labels in zip(pairwise(boxes), outputs, strict=True):
        assert bool((before.lower <= after.lower).all() and (after.upper <= before.upper).all())
        assert bool((after.lower <= after.weight).all() and (after.weight <= after.upper).all())
        known = ~before.free
        for edges in ((before.weight, after.weight), (before.lower, after.lower), (before.upper, after.upper)):
            assert torch.equal(edges[0][:, known], edges[1][:, known])
        taken = (before.free & ~after.free).nonzero().flatten().tolist()
        assert sorted(column // slots for column in taken) == sorted(labels * parts)
        assert bool((after.upper[:, after.free] == after.upper[:, after.free][:, :1]).all()), "one ceiling for all"
    for made, lesson in zip(states, lessons, strict=True):
        assert 0 < 0.8 * made.correct <= made.certified
        assert made.correct > 0.8 * len(lesson.y), "there was something to learn"
        now = (scores(states[-1].box.weight, lesson.x, slots).argmax(1) == lesson.y.numpy()).sum()
        assert now >= made.certified
        assert (worst_margins(states[-1].box, lesson, slots) > 1e-4).sum() >= made.certified - 1


def test_the_ceiling_falls_in_proportion_to_what_is_at_home() -> None:
    of = table()
    states = in_turn(Counting(), of, [examples((0, 1)), examples((2, 3))])
    ceiling = torch.full((SIZE,), 0.1, dtype=torch.float64)
    for made, outputs in zip(states, ([0, 1], [2, 3]), strict=True):
        home = made.box.weight[:, outputs].double().amax(1).clamp(min=0)
        upper = made.box.upper[:, -1].double()
        falls = (ceiling - upper)[home > 0] / home[home > 0]
        assert float(falls.min()) > 0.01 and float(falls.max() - falls.min()) < 1e-4, "one number for all rows"
        assert torch.equal(upper[home == 0], ceiling[home == 0].float().double()), "not where nobody is at home"
        ceiling = upper


def test_where_nobody_is_at_home_the_ceiling_falls_over_all_rows_that_were_seen() -> None:
    """All bins of a group are chosen equally often, but for the first group's first, and its last, which never is."""
    rows = (torch.arange(80)[:, None] + torch.arange(GROUPS)) % BINS
    rows[:, 0] = torch.tensor([0] * 24 + [1 + i % 6 for i in range(56)])
    lesson = Lesson("", 0, rows + BINS * torch.arange(GROUPS), torch.zeros(80, dtype=torch.int64))
    of, how = table(), Counting(held_out=0.0, unseen=0.0, keep=1.0)
    made = learn(how, of, everything(of), lesson)
    weight, upper = made.box.weight[:, 0], made.box.upper[:, 1]
    assert made.certified == made.correct == 80
    assert (weight > 0).nonzero().flatten().tolist() == [0]
    assert float(upper[BINS - 1]) == float(torch.tensor(how.cap)), "the row that nobody chose keeps its width"
    others = torch.cat([upper[1 : BINS - 1], upper[BINS:]])
    assert bool((others == others[0]).all()) and -1 < float(others[0]) < 0 and float(upper[0]) < float(others[0])


# Counts.


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    keep=st.sampled_from([0.3, 0.8, 1.0]),
    parts=st.sampled_from([1, 2]),
    sharp=st.sampled_from([0.4, 0.7]),
)
def test_counts_are_those_of_a_plain_loop_and_no_weight_in_the_box_breaks_one(
    seed: int, keep: float, parts: int, sharp: float
) -> None:
    of = table(5, parts)
    lessons = [examples(labels, 20, sharp, seed, modes=parts) for labels in ((0, 1), (2, 3))]
    how = Counting(keep=keep, parts=parts)
    generator = torch.Generator().manual_seed(seed)
    for index, (lesson, made) in enumerate(zip(lessons, in_turn(how, of, lessons), strict=True)):
        labels = lesson.y.numpy()
        margins = worst_margins(made.box, lesson, parts)
        certain = margins > 0
        close = int((abs(margins) < 1e-3).sum())  # what rounding may decide
        assert int(certain.sum()) - close <= made.certified <= int(certain.sum())
        answers = scores(made.box.weight, lesson.x, parts)
        gaps = np.sort(answers, 1)
        ties = int((gaps[:, -1] - gaps[:, -2] < 1e-3).sum())
        assert abs(made.correct - int((answers.argmax(1) == labels).sum())) <= ties
        unseen = _divided(len(labels), how, index, torch.device("cpu"))[2].numpy()
        if made.unseen_total:
            assert made.unseen_total == int(unseen.sum())
            assert int((certain & unseen).sum()) - close <= made.unseen_certified <= int((certain & unseen).sum())
        for weight in points_inside(made.box.lower, made.box.upper, 9, generator):
            assert bool((scores(weight, lesson.x, parts).argmax(1) == labels)[certain].all())
        for example in (~certain).nonzero()[0][:5]:  # and for each of the others, one weight in the box is wrong
            own = torch.arange(of.columns) // parts == int(labels[example])
            worst = torch.where(own, made.box.lower, made.box.upper)
            found = scores(worst, lesson.x[example : example + 1], parts)[0]
            assert found[labels[example]] <= np.delete(found, labels[example]).max()


def test_examples_that_rounding_could_change_are_never_counted_as_certain() -> None:
    of, lesson = table(), examples((0, 1))
    sure = torch.arange(len(lesson.y)) % 10 > 0
    made = learn_by_counting(Counting(), of, everything(of), lesson, sure, 0)
    plain = learn(Counting(), of, everything(of), lesson)
    assert made.certified <= int(sure.sum()) < made.correct == plain.correct
    assert made.certified >= 0.8 * made.correct, "the others make up for them"


# Who shapes what.


def altered(lesson: Lesson, which: Tensor, seed: int) -> Lesson:
    """Random rows for some examples, which keep their labels."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randint(BINS, lesson.x.shape, generator=generator) + BINS * torch.arange(GROUPS)
    return replace(lesson, x=torch.where(which[:, None], noise, lesson.x))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), parts=st.sampled_from([1, 2]), sharp=st.sampled_from([0.5, 0.8]))
def test_unseen_examples_shape_nothing_and_the_others_do(seed: int, parts: int, sharp: float) -> None:
    of, how = table(5, parts), Counting(unseen=0.2, parts=parts)
    first, second = (examples(labels, 20, sharp, seed) for labels in ((0, 1), (2, 3)))
    box = learn(how, of, everything(of), first).box
    counted, watched, unseen = _divided(len(second.y), how, 1, torch.device("cpu"))
    made, again = (learn(how, of, box, lesson, 1) for lesson in (second, altered(second, unseen, seed)))
    assume(made.unseen_total and again.unseen_total)
    assert same_bits(made.box, again.box)
    other = learn(how, of, box, altered(second, counted, seed), 1)
    if not (made.left_out or other.left_out):
        assert not torch.equal(other.box.weight, made.box.weight), "what is counted does"
    other = learn(how, of, box, altered(second, watched, seed), 1)
    if other.left_out == made.left_out:
        known = slice(0, 4 * parts)
        assert torch.equal(other.box.weight[:, known], made.box.weight[:, known]), "what is watched moves the ceiling"


def spread(examples: int) -> Tensor:
    """Rows in the upper half of each group's bins, each as seldom as any other."""
    bins = torch.arange(examples)[:, None] + torch.arange(GROUPS)
    return bins % (BINS // 2) + BINS // 2 + BINS * torch.arange(GROUPS)


def typical(label: int, each: int) -> Tensor:
    """Rows in the lower half: nine of ten in the bin that is the class's own."""
    generator = torch.Generator().manual_seed(label)
    strange = torch.rand(each, GROUPS, generator=generator) < 0.1
    bins = torch.where(strange, torch.randint(BINS // 2, (each, GROUPS), generator=generator), label)
    return bins + BINS * torch.arange(GROUPS)


def test_unseen_examples_that_break_the_promise_are_watched_and_unseen_no_more() -> None:
    of, how = table(), Counting(keep=0.9, unseen=0.3, held_out=0.0, depth=1.0)
    unseen = _divided(60, how, 0, torch.device("cpu"))[2]
    plain = BINS * torch.arange(GROUPS).expand(60, -1)
    strange = torch.where(torch.arange(GROUPS) < GROUPS // 2, plain, spread(60))
    rows = [torch.where(unseen[:, None], those, typical(0, 60)) for those in (plain, strange)]
    fine, made = (learn(how, of, everything(of), Lesson("0", 0, x, torch.zeros(60, dtype=torch.int64))) for x in rows)
    assert (fine.unseen_total, made.unseen_total, made.unseen_certified) == (18, 0, 0)
    assert made.correct == 60 and made.certified >= 0.9 * 60
    assert bool((made.box.upper[:, 1] < fine.box.upper[:, 1]).any())
    assert torch.equal(made.box.weight[:, 0], fine.box.weight[:, 0]), "still they are not counted"


# A class for which there is no room.


def no_room(right: int, unseen: Tensor | None = None, unseen_right: int = 0) -> Lesson:
    """Class 2 looks like class 0, but for some examples that look like nothing; class 3 is easy.

    Args:
        right: How many of the 40 examples of class 2 look like nothing, so that nobody else claims them.
        unseen: Where given, ``right`` is of the others, and ``unseen_right`` of these; those of class 3 are no trouble.
    """
    x = torch.cat([typical(0, 40), typical(3, 20)])
    y = torch.tensor([2] * 40 + [3] * 20)
    unseen = torch.zeros(60, dtype=torch.bool) if unseen is None else unseen
    for mine, count in ((~unseen & (y == 2), right), (unseen & (y == 2), unseen_right)):
        which = mine.nonzero().flatten()[:count]
        x[which] = spread(len(which))
    x[unseen & (y == 3)] = 3 + BINS * torch.arange(GROUPS)
    return Lesson("2/3", 1, x, y)


ONE_OF = Counting(held_out=0.0, unseen=0.0, depth=2.0)
FIRST = Lesson("0/1", 0, torch.cat([typical(0, 30), typical(1, 30)]), torch.arange(60) // 30)


def test_a_class_to_be_had_only_at_others_expense_is_left_out_and_they_keep_their_room() -> None:
    of = table()
    first = learn(ONE_OF, of, everything(of), FIRST)
    made = learn(ONE_OF, of, first.box, no_room(15), 1)
    assert made.left_out == (2,)
    assert made.box.free.tolist() == [False, False, True, False, True, True], "it may be learned later"
    alone = no_room(15)
    alone = replace(alone, x=alone.x[40:], y=alone.y[40:])
    expected = learn(ONE_OF, of, first.box, alone, 1)
    assert torch.equal(made.box.upper[:, 4], expected.box.upper[:, 4]), "the ceiling fell for class 3 alone"
    assert made.certified >= 0.8 * made.correct > 0 and made.correct == expected.correct
    taught = learn(ONE_OF, of, first.box, no_room(30), 1)
    assert taught.left_out == () and not bool(taught.box.free[2]), "most of it could be had"
    assert bool((taught.box.upper[:, 4] < made.box.upper[:, 4]).any())


def test_a_run_hears_which_outputs_were_left_out() -> None:
    of = table()
    nets = Nets(of.net, (0,))
    memory: Memory = {}
    weights = everything(of).weight.flatten()[None]
    for lesson in (replace(FIRST, index=0), replace(no_room(15), index=1)):
        weights, memory = ONE_OF.learn(nets, weights, memory, lesson)
    assert memory["left_out"].nonzero().tolist() == [[0, 1, 2]], "seed, task, output"


def test_unseen_examples_have_no_say_in_who_is_left_out() -> None:
    of, how = table(), replace(ONE_OF, unseen=0.45)
    first = learn(ONE_OF, of, everything(of), FIRST)
    unseen = _divided(60, how, 1, torch.device("cpu"))[2]
    few = int((~unseen[:40]).sum() * 0.4)
    others = int(unseen[:40].sum())
    assert few + others >= HOPELESS * 40, "with the unseen it would be learned"
    made = [learn(how, of, first.box, no_room(few, unseen, right), 1) for right in (0, others)]
    assert [(one.left_out, one.unseen_total) for one in made] == [((2,), 27)] * 2
    assert same_bits(made[0].box, made[1].box)


def test_an_output_without_a_free_column_is_named() -> None:
    of = table(4, slots=2)
    made = in_turn(Counting(), of, [examples((0, 1)), examples((1, 2), seed=1)])
    with pytest.raises(InvalidData, match=r"output 1 has no free column left.*more slots"):
        learn(Counting(), of, made[-1].box, examples((1, 3), seed=2))
    assert learn(Counting(), of, made[-1].box, examples((0, 3), seed=2)).certified > 0


def test_an_output_of_which_nothing_is_counted_is_named() -> None:
    lesson = examples((0, 1), 10)
    _, watched, _ = _divided(20, Counting(held_out=0.4), 0, torch.device("cpu"))
    lesson = replace(lesson, y=torch.where(watched, 1, 0))
    with pytest.raises(InvalidData, match=r"output 1 has no example left to count"):
        learn(Counting(held_out=0.4), table(), everything(table()), lesson)


# Parts.


def parted_by_hand(rows: list[list[int]], parts: int, chosen: list[int]) -> list[int]:
    """The same mixture in float64, by loops."""

    def shared(a: list[int], b: list[int]) -> int:
        return sum(x == y for x, y in zip(a, b, strict=True))

    of = [max(range(parts), key=lambda part: (shared(row, rows[chosen[part]]), -part)) for row in rows]
    for _ in range(8):
        sizes = [of.count(part) for part in range(parts)]
        logs = [
            [math.log((sum(b in row for row, p in zip(rows, of, strict=True) if p == part) + 0.05)
                      / (sizes[part] + 0.05 * BINS)) for b in range(SIZE)]
            for part in range(parts)
        ]  # fmt: skip
        total = [[sum(logs[p][b] for b in row) + math.log(max(sizes[p], 1)) for p in range(parts)] for row in rows]
        before, of = of, [max(range(parts), key=lambda p: (own[p], -p)) for own in total]
        if of == before:
            break
    return of


@pytest.mark.parametrize(("parts", "seed"), [(2, 0), (2, 1), (3, 2)])
def test_parts_are_those_of_a_naive_mixture(parts: int, seed: int) -> None:
    rows = examples((0,), 40, 0.5, seed, modes=parts).x
    chosen = orders(torch.tensor([seed]), len(rows))[0, :parts].tolist()
    found = _parted(rows, parts, SIZE, seed).tolist()
    assert found == parted_by_hand(rows.tolist(), parts, chosen)
    assert len(set(found)) == parts


def test_one_part_is_all_and_more_parts_than_examples_do_no_harm() -> None:
    rows = examples((0,), 3).x
    assert _parted(rows, 1, SIZE, 0).tolist() == [0, 0, 0]
    assert set(_parted(rows, 5, SIZE, 0).tolist()) <= set(range(5))


def test_a_class_of_two_kinds_is_told_from_a_mixture_of_them_by_two_parts() -> None:
    """One column takes whatever either kind chooses; two know that no example is half one kind and half the other."""
    half = torch.arange(GROUPS) < GROUPS // 2
    kinds = torch.cat([typical(0, 40), typical(1, 40)])
    mixtures = torch.where(half, typical(0, 40), typical(1, 40))
    lesson = Lesson("", 0, torch.cat([kinds, mixtures]), torch.tensor([0] * 80 + [1] * 40))
    hits = {}
    for parts in (1, 2):
        of = table(3, parts)
        made = learn(Counting(parts=parts), of, everything(of), lesson)
        hits[parts] = int((scores(made.box.weight, mixtures, parts).argmax(1) == 1).sum())
    assert hits[2] == 40 > hits[1] + 10


# A head for each task.

HEADS = Counting(head="per-task")


def with_classes(lesson: Lesson, *more: int) -> Lesson:
    return replace(lesson, classes=(*torch.unique(lesson.y).tolist(), *more))


def test_heads_are_trained_as_by_plain_logistic_regression() -> None:
    of, lesson = table(), with_classes(examples((2, 3)))
    made = learn(HEADS, of, everything(of), lesson, key=5)
    counted = _divided(60, HEADS, 5, torch.device("cpu"))[0]
    dense = torch.nn.functional.one_hot(lesson.x[counted], SIZE).sum(1).double()
    y = lesson.y[counted] - 2
    weight = torch.zeros(SIZE, 2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=HEADS.fit_rate)
    for _ in range(EPOCHS):  # all examples fit into one batch
        optimizer.zero_grad()
        torch.autograd.backward(torch.nn.functional.cross_entropy(dense @ weight * SCALE / GROUPS, y))
        optimizer.step()
    apart = (made.box.weight[:, 2:4].double() - weight.detach()).abs()
    assert float((apart < 1e-4).double().mean()) > 0.95 and float(apart.max()) < 0.005, "Adam blows up some rounding"
    answers = scores(made.box.weight, lesson.x, 1)[:, 2:4].argmax(1) + 2
    assert made.correct == int((answers == lesson.y.numpy()).sum()) > 50
    assert made.certified >= made.correct - 2, "a point is certain but for rounding"
    assert (made.unseen_total, made.unseen_certified <= 6) == (6, True)


def test_heads_do_not_disturb_each_other() -> None:
    of = table()
    first, second = with_classes(examples((0, 1))), with_classes(examples((2, 3), seed=1))
    one = learn(HEADS, of, everything(of), first, key=1)
    both = learn(HEADS, of, one.box, second, key=2)
    alone = learn(HEADS, of, everything(of), second, key=2)
    assert torch.equal(both.box.weight[:, :2], one.box.weight[:, :2])
    assert torch.equal(both.box.weight[:, 2:4], alone.box.weight[:, 2:4])
    assert (both.certified, both.correct) == (alone.certified, alone.correct)
    assert both.box.free.tolist() == [False] * 4 + [True] * 2
    assert bool(both.box.upper[:, 4:].isinf().all()), "other heads have no ceiling"
    with pytest.raises(InvalidData, match="output 0 has no free column left"):
        learn(HEADS, of, both.box, first)


@pytest.mark.parametrize(("slots", "parts", "more"), [(2, 1, ()), (3, 2, ()), (1, 1, (5,)), (2, 2, (4, 5))])
def test_no_column_of_a_head_is_left_free_to_claim_its_examples(slots: int, parts: int, more: tuple[int, ...]) -> None:
    """Columns to spare, and outputs that compete though no example shows them."""
    of = table(slots=slots)
    made = learn(replace(HEADS, parts=parts), of, everything(of), with_classes(examples((0, 1)), *more))
    assert made.correct > 50 and made.certified >= made.correct - 2
    free = made.box.free.view(-1, slots)
    assert [output for output, own in enumerate(free.all(1).tolist()) if own] == [
        output for output in range(2, 6) if output not in more
    ]


# Seeds, and what cannot be.


def test_each_seed_learns_by_itself_and_counts_are_remembered_task_by_task() -> None:
    of, how = table(4), Counting()
    heard: list[Progress] = []
    nets = Nets(of.net, (3, 8))
    lessons = [examples((0, 1)), replace(examples((2, 3)), index=1)]
    states: list[tuple[Tensor, Memory]] = [(torch.zeros(2, SIZE * 4), {})]
    for lesson in lessons:
        states.append(how.learn(nets, *states[-1], lesson, heard.append))
    weights, memory = states[-1]
    for row, seed in enumerate((3, 8)):
        box, counts = everything(of), []
        for index, lesson in enumerate(lessons):
            made = learn(how, of, box, lesson, key_of(seed, index))
            box = made.box
            counts.append((made.certified, made.correct, made.unseen_certified, made.unseen_total))
        found = Box(*(edge[row].view(SIZE, 4) for edge in (weights, memory["lower"], memory["upper"])))
        assert same_bits(found, box)
        names = ("certified", "correct", "unseen_certified", "unseen_total")
        assert [tuple(int(memory[name][row, index]) for name in names) for index in range(2)] == counts
    assert not torch.equal(weights[0], weights[1]), "each has its own split"
    last = heard[-1]
    assert torch.equal(last.parameters, weights), "listeners hear what was learned, not what was there before"
    assert last.statistics[1] == (int(memory["correct"][1, 1]) / 60,)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"keep": 0.0}, "keep is 0.0"), ({"keep": 1.1}, "keep is 1.1"), ({"keep": math.nan}, "keep is nan"),
        ({"cap": 0.0}, "cap is 0.0"), ({"cap": math.inf}, "cap is inf"), ({"depth": -1.0}, "depth is -1.0"),
        ({"parts": 0}, "parts is 0"), ({"parts": 1.5}, "parts is 1.5"), ({"held_out": 0.5}, "held_out is 0.5"),
        ({"held_out": -0.1}, "held_out is -0.1"), ({"unseen": 0.5}, "unseen is 0.5"), 
        ({"head": "two"}, "head is 'two'"),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_named(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSetting, match=words):
        Counting(**wrong)


@pytest.mark.parametrize(
    "net",
    [
        nn.EmbeddingBag(4, 4, mode="sum"),
        nn.Sequential(nn.EmbeddingBag(4, 4, mode="mean")),
        nn.Sequential(nn.EmbeddingBag(4, 4, mode="sum"), nn.MaxPool1d(2), nn.ReLU()),
        nn.Sequential(nn.EmbeddingBag(4, 4, mode="sum"), nn.ReLU()),
        nn.Sequential(nn.EmbeddingBag(4, 4, mode="sum"), nn.MaxPool1d(3)),
        nn.Sequential(nn.EmbeddingBag(4, 4, mode="sum"), nn.MaxPool1d(2, stride=1)),
        nn.Sequential(nn.EmbeddingBag(4, 4, mode="sum"), nn.MaxPool1d(2, padding=1)),
    ],
)
def test_nets_that_are_no_table_are_refused(net: nn.Module) -> None:
    with pytest.raises(InvalidModel, match=r"EmbeddingBag|maximum over each output's columns"):
        Table.of(net)


def test_outputs_are_the_largest_of_their_columns() -> None:
    of = table(3, slots=2)
    assert (of.slots, of.columns, of.free_columns(torch.ones(6), 2)) == (2, 6, [4, 5])
    sums = torch.tensor([[1.0, 2.0, 5.0, 4.0, 0.0, -1.0]])
    assert of.outputs(sums).tolist() == [[2.0, 5.0, 0.0]]
    weight = torch.rand(SIZE, 6)
    rows = examples((0,), 5).x
    found = torch.func.functional_call(of.net, {"0.weight": weight}, (rows,))
    assert found.double().numpy() == pytest.approx(scores(weight, rows, 2), rel=1e-5)
