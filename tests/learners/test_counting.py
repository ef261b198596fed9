"""Learning by counting against naive references in float64: columns, ceilings, counts, and who shapes what."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from intercontinet.errors import InvalidData
from intercontinet.learners.counting import HOPELESS, _parted
from intercontinet.learners.exact_method import ExactMethod, learn_task
from intercontinet.learners.exact_settings import ExactSettings
from intercontinet.learners.method import Lesson, Memory, Nets
from intercontinet.noise import orders
from tests.learners.tables import (
    BINS,
    GROUPS,
    SIZE,
    altered,
    everything,
    examples,
    in_turn,
    learn,
    logs_of_shares,
    same_bits,
    scores,
    spread,
    table,
    typical,
    worst_margins,
)
from tests.strategies import points_inside

# Columns.


@pytest.mark.parametrize("how", [ExactSettings(), ExactSettings(cap=0.5, depth=3.0, held_out=0.2, unseen=0.0)])
def test_columns_are_logarithms_of_counts_under_the_ceiling(how: ExactSettings) -> None:
    of = table()
    lessons = [examples((0, 1)), examples((2, 3)), examples((4, 5))]
    ceiling = np.full(SIZE, how.cap)
    for index, (lesson, made) in enumerate(zip(lessons, in_turn(how, of, lessons), strict=True)):
        counted, watched, unseen = how.divided(len(lesson.y), index, torch.device("cpu"))
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
    states = in_turn(ExactSettings(parts=parts), of, lessons)
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
    states = in_turn(ExactSettings(), of, [examples((0, 1)), examples((2, 3))])
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
    of, how = table(), ExactSettings(held_out=0.0, unseen=0.0, keep=1.0)
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
    how = ExactSettings(keep=keep, parts=parts)
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
        unseen = how.divided(len(labels), index, torch.device("cpu"))[2].numpy()
        if made.unseen_total:
            assert made.unseen_total == int(unseen.sum())
            assert made.unseen_certified <= int((certain & unseen).sum()), "fewer, where the ceiling fell for them, too"
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
    made = learn_task(ExactSettings(), of, everything(of), lesson, sure, 0)
    plain = learn(ExactSettings(), of, everything(of), lesson)
    assert made.certified <= int(sure.sum()) < made.correct == plain.correct
    assert made.certified >= 0.8 * made.correct, "the others make up for them"


# Who shapes what.


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), parts=st.sampled_from([1, 2]), sharp=st.sampled_from([0.5, 0.8]))
def test_unseen_examples_shape_nothing_and_the_others_do(seed: int, parts: int, sharp: float) -> None:
    of, how = table(5, parts), ExactSettings(unseen=0.2, parts=parts)
    first, second = (examples(labels, 20, sharp, seed) for labels in ((0, 1), (2, 3)))
    box = learn(how, of, everything(of), first).box
    counted, watched, unseen = how.divided(len(second.y), 1, torch.device("cpu"))
    with patch(
        "intercontinet.learners.counting.kept_for_all", lambda fitted, shares: fitted(shares)
    ):  # before they break a promise
        made, again = (learn(how, of, box, lesson, 1) for lesson in (second, altered(second, unseen, seed)))
    assert same_bits(made.box, again.box)
    made = learn(how, of, box, second, 1)
    other = learn(how, of, box, altered(second, counted, seed), 1)
    if not (made.left_out or other.left_out):
        assert not torch.equal(other.box.weight, made.box.weight), "what is counted does"
    other = learn(how, of, box, altered(second, watched, seed), 1)
    if other.left_out == made.left_out:
        known = slice(0, 4 * parts)
        assert torch.equal(other.box.weight[:, known], made.box.weight[:, known]), "what is watched moves the ceiling"


def test_unseen_examples_that_break_the_promise_are_watched_once_they_were_counted() -> None:
    of, how = table(), ExactSettings(keep=0.9, unseen=0.3, held_out=0.0, depth=1.0)
    unseen = how.divided(60, 0, torch.device("cpu"))[2]
    plain = BINS * torch.arange(GROUPS).expand(60, -1)
    strange = torch.where(torch.arange(GROUPS) < GROUPS // 2, plain, spread(60))
    rows = [torch.where(unseen[:, None], those, typical(0, 60)) for those in (plain, strange)]
    fine, made = (learn(how, of, everything(of), Lesson("0", 0, x, torch.zeros(60, dtype=torch.int64))) for x in rows)
    assert (fine.unseen_total, made.unseen_total, made.unseen_certified) == (18, 18, 0)
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


ONE_OF = ExactSettings(held_out=0.0, unseen=0.0, depth=2.0)
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
        weights, memory = ExactMethod(ONE_OF).learn(nets, weights, memory, lesson)
    assert memory["left_out"].nonzero().tolist() == [[0, 1, 2]], "seed, task, output"


def test_unseen_examples_have_no_say_in_who_is_left_out() -> None:
    of, how = table(), replace(ONE_OF, unseen=0.45)
    first = learn(ONE_OF, of, everything(of), FIRST)
    unseen = how.divided(60, 1, torch.device("cpu"))[2]
    few = int((~unseen[:40]).sum() * 0.4)
    others = int(unseen[:40].sum())
    assert few + others >= HOPELESS * 40, "with the unseen it would be learned"
    made = [learn(how, of, first.box, no_room(few, unseen, right), 1) for right in (0, others)]
    assert [(one.left_out, one.unseen_total) for one in made] == [((2,), 27)] * 2
    assert same_bits(made[0].box, made[1].box)


def test_an_output_without_a_free_column_is_named() -> None:
    of = table(4, slots=2)
    made = in_turn(ExactSettings(), of, [examples((0, 1)), examples((1, 2), seed=1)])
    with pytest.raises(InvalidData, match=r"output 1 has no free column left.*more slots"):
        learn(ExactSettings(), of, made[-1].box, examples((1, 3), seed=2))
    assert learn(ExactSettings(), of, made[-1].box, examples((0, 3), seed=2)).certified > 0


def test_an_output_of_which_nothing_is_counted_is_named() -> None:
    lesson = examples((0, 1), 10)
    _, watched, _ = ExactSettings(held_out=0.4).divided(20, 0, torch.device("cpu"))
    lesson = replace(lesson, y=torch.where(watched, 1, 0))
    with pytest.raises(InvalidData, match=r"output 1 has no example left to count"):
        learn(ExactSettings(held_out=0.4), table(), everything(table()), lesson)


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
        made = learn(ExactSettings(parts=parts), of, everything(of), lesson)
        hits[parts] = int((scores(made.box.weight, mixtures, parts).argmax(1) == 1).sum())
    assert hits[2] == 40 > hits[1] + 10
