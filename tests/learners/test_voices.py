"""Voices under a ceiling against naive references in float64: columns, ceilings, counts, and who shapes what."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import intercontinet as icn
from intercontinet.errors import InvalidData, InvalidSetting
from intercontinet.learners import voices as voices_module
from intercontinet.learners.exact import ExactInterContiNet
from intercontinet.learners.exact_settings import ExactSettings
from intercontinet.learners.method import Lesson
from intercontinet.learners.outcome import Outcome
from intercontinet.learners.regression import regressed
from intercontinet.learners.shares import Shares
from intercontinet.learners.table import Box, Table
from intercontinet.nets import build_exact_net, with_table
from intercontinet.tasks import split_digits
from tests.learners.tables import (
    GROUPS,
    SIZE,
    Floats,
    altered,
    everything,
    examples,
    in_turn,
    learn,
    logs_of_shares,
    same_bits,
)
from tests.strategies import points_inside
from tests.tiny import same, snapshot, without_bound

HOW = ExactSettings(fit_rate=0.1)


def capped(outputs: int = 6, slots: int = 1) -> Table:
    return Table.of(with_table(nn.Sequential(), SIZE, outputs, slots, capped=True))


def voices(weight: Tensor, rows: Tensor, slots: int) -> Floats:
    """[examples, outputs] in float64: of each pair of sums the lesser, and the largest of each output's."""
    plain = weight.double().numpy()
    sums = np.stack([plain[example].sum(0) for example in rows.numpy()])
    found: Floats = np.minimum(sums[:, ::2], sums[:, 1::2]).reshape(len(sums), -1, slots).max(2)
    return found


def margins(box: Box, lesson: Lesson, slots: int) -> Floats:
    """By how much each example's class leads at the corner of the box that is worst for it."""
    low, high = voices(box.lower, lesson.x, slots), voices(box.upper, lesson.x, slots)
    labels = lesson.y.tolist()
    return np.array([low[i, y] - np.delete(high[i], y).max() for i, y in enumerate(labels)])


# Columns.


def guided(how: ExactSettings, examples: int, key: int) -> tuple[Tensor, Tensor]:
    """Which examples are trained on, and which tell how loud columns are to be."""
    counted = how.divided(examples, key, torch.device("cpu"))[0]
    return voices_module._guided(how.guides, counted, key)


def columns_by_hand(how: ExactSettings, lesson: Lesson, ceiling: float, key: int) -> list[Floats]:
    """What the columns of a task of two classes hold: a lead, how typical an example is, and a loudness."""
    counted, guides = (part.numpy() for part in guided(how, len(lesson.y), key))
    outputs = sorted(set(lesson.y.tolist()))
    labels = np.array([outputs.index(y) for y in lesson.y.tolist()])
    rows = lesson.x.numpy()
    trained = (
        regressed(lesson.x[counted], torch.tensor(labels[counted]), SIZE, 2, how.fit_rate, key, each=True)
        .double()
        .numpy()
    )
    columns = [trained[:, 0], trained[:, 1]]

    def level(share: float) -> float:
        own = []
        for example in np.flatnonzero(guides):
            said = [column[rows[example]].sum() for column in columns]
            if said[labels[example]] > said[1 - labels[example]]:
                own.append(said[labels[example]])
        return float(np.quantile(own, 1 - share)) / GROUPS

    plain, before = level(how.at_ceiling), level(how.keep)
    for place in (0, 1):
        counts = logs_of_shares(rows[counted & (labels == place)].tolist(), how)
        usual = np.mean([counts[rows[example]].mean() for example in np.flatnonzero(guides & (labels == place))])
        columns[place] = columns[place] + how.typical * plain * (counts - usual)
    shift = before - level(how.keep)
    columns = [column + shift for column in columns]
    scale = 1.0 if math.isinf(ceiling) else ceiling / level(how.at_ceiling)
    return [scale * column for column in columns]


@pytest.mark.parametrize("how", [HOW, replace(HOW, typical=0.0), replace(HOW, typical=2.0, at_ceiling=0.4, cap=0.5)])
def test_columns_are_those_of_a_naive_computation(how: ExactSettings) -> None:
    of, how = capped(), replace(how, guides=0.2)
    lessons = [examples((0, 1)), examples((2, 3)), examples((4, 5))]
    ceiling = math.inf
    for index, (lesson, made) in enumerate(zip(lessons, in_turn(how, of, lessons), strict=True)):
        expected = columns_by_hand(how, lesson, ceiling, index)
        for place, output in enumerate((2 * index, 2 * index + 1)):
            for edge in (made.box.weight, made.box.lower, made.box.upper):
                assert edge[:, 2 * output].double().numpy() == pytest.approx(expected[place], abs=1e-4)
                assert edge[:, 2 * output + 1].tolist() == [pytest.approx(min(ceiling, how.depth), rel=1e-4)] * SIZE
        ceiling = float(made.box.upper[0, -1])
        assert index == 2 or 0 < ceiling < how.depth, "the next task can be heard"


# The ceiling.

USES = [
    pytest.param(1, [(0, 1), (2, 3), (4, 5)], id="new classes"),
    pytest.param(3, [(0, 1), (0, 1), (0, 1)], id="the same outputs again"),
    pytest.param(2, [(0, 1, 2), (2, 3, 0)], id="three classes, some of them again"),
]


@pytest.mark.parametrize(("slots", "outputs"), USES)
def test_edges_nest_what_is_learned_stays_and_floors_are_kept(slots: int, outputs: list[tuple[int, ...]]) -> None:
    of = capped(max(map(max, outputs)) + 2, slots)
    lessons = [examples(labels, seed=seed) for seed, labels in enumerate(outputs)]
    states = in_turn(HOW, of, lessons)
    boxes = [everything(of), *(made.box for made in states)]
    for before, after in pairwise(boxes):
        assert bool((before.lower <= after.lower).all() and (after.upper <= before.upper).all())
        assert bool((after.lower <= after.weight).all() and (after.weight <= after.upper).all())
        assert bool(after.lower.isfinite().all() and after.upper.isfinite().all())
        known = ~before.free
        for edges in ((before.weight, after.weight), (before.lower, after.lower), (before.upper, after.upper)):
            assert torch.equal(edges[0][:, known], edges[1][:, known])
        free = after.upper[:, after.free]
        assert bool((free[:, ::2] == HOW.depth).all()), "a voice's own weights keep their full width"
        assert bool((free[:, 1::2] == free[:1, 1:2]).all()), "one ceiling for all"
    for made, lesson in zip(states, lessons, strict=True):
        assert 0 < 0.8 * made.correct <= made.certified and made.left_out == ()
        now = (voices(states[-1].box.weight, lesson.x, slots).argmax(1) == lesson.y.numpy()).sum()
        assert now >= made.certified
        assert (margins(states[-1].box, lesson, slots) > 1e-5).sum() >= made.certified - 1
    first = states[0]
    assert first.correct > 0.9 * len(lessons[0].y), "there was something to learn"


def test_the_ceiling_is_the_highest_that_keeps_the_promise() -> None:
    of, how = capped(), replace(HOW, unseen=0.0, held_out=0.2)
    lesson = examples((0, 1), 60, sharp=0.5)
    made = learn(how, of, everything(of), lesson)
    watched = how.divided(120, 0, torch.device("cpu"))[1].numpy()
    own = voices(made.box.weight, lesson.x, 1)
    right = own.argmax(1) == lesson.y.numpy()
    lead = own[np.arange(120), lesson.y.numpy()]

    def enough(ceiling: float) -> bool:
        kept = right & (lead > ceiling)
        return all(kept[some].sum() >= 0.8 * right[some].sum() for some in (np.ones(120, bool), watched))

    ceiling = float(made.box.upper[:, -1].double().sum()) / SIZE * GROUPS
    assert enough(ceiling) and not enough(1.001 * ceiling)


@pytest.mark.parametrize("tuning", ["multiplied", "shifted"])
def test_no_way_down_turns_edges_round(tuning: Any) -> None:
    """Whatever ceiling is tried after whatever other."""
    of, how = capped(), replace(HOW, tuning=tuning)
    lesson, box = examples((0, 1)), learn(how, of, everything(of), examples((0, 1))).box
    wide = replace(box, lower=box.lower.clone(), upper=box.upper.clone())
    wide.lower[:, 4:], wide.upper[:, 4:] = -how.depth, how.depth
    deepest = -how.depth if tuning == "multiplied" else voices_module.LOWEST
    nobody = torch.zeros(60, dtype=torch.bool)
    for ceilings in ([1.6, 0.0, deepest], [deepest, 0.5], [0.0, -0.1, 0.1]):
        with patch.object(voices_module, "_lower_and_lower", lambda *_, tried=ceilings: iter(tried)):
            for made in voices_module._boxes(how, of, wide, lesson, ~nobody, Shares(0.8, ~nobody, nobody, nobody)):
                assert bool((made.lower <= made.weight).all() and (made.weight <= made.upper).all())
                assert made.region.within(wide.region)


# Counts.


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), keep=st.sampled_from([0.3, 0.8, 1.0]), sharp=st.sampled_from([0.4, 0.7]))
def test_counts_are_those_of_a_plain_loop_and_no_weight_in_the_box_breaks_one(
    seed: int, keep: float, sharp: float
) -> None:
    of, how = capped(5), replace(HOW, keep=keep)
    lessons = [examples(labels, 20, sharp, seed) for labels in ((0, 1), (2, 3))]
    generator = torch.Generator().manual_seed(seed)
    for lesson, made in zip(lessons, in_turn(how, of, lessons), strict=True):
        worst = margins(made.box, lesson, 1)
        certain, close = worst > 0, int((abs(worst) < 1e-3).sum())  # what rounding may decide
        assert int(certain.sum()) - close <= made.certified <= int(certain.sum())
        free = made.box.free
        lowest = torch.equal(made.box.upper[:, free][:, 1::2], made.box.lower[:, free][:, 1::2])
        assert made.certified >= keep * made.correct - close or lowest, "but for ties and voices below all ceilings"
        for weight in points_inside(made.box.lower, made.box.upper, 9, generator):
            assert bool((voices(weight, lesson.x, 1).argmax(1) == lesson.y.numpy())[certain].all())
        for example in (~certain).nonzero()[0][:5]:  # and for each of the others, one weight in the box is wrong
            mine = torch.arange(of.columns) // 2 == int(lesson.y[example])
            corner = torch.where(mine, made.box.lower, made.box.upper)
            found = voices(corner, lesson.x[example : example + 1], 1)[0]
            assert found[lesson.y[example]] <= np.delete(found, lesson.y[example]).max()


# Who shapes what.


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), sharp=st.sampled_from([0.5, 0.8]))
def test_unseen_examples_shape_nothing_and_the_others_do(seed: int, sharp: float) -> None:
    of, how = capped(5), replace(HOW, unseen=0.2, held_out=0.2)
    first, second = (examples(labels, 20, sharp, seed) for labels in ((0, 1), (2, 3)))
    box = learn(how, of, everything(of), first).box
    counted, watched, unseen = how.divided(len(second.y), 1, torch.device("cpu"))
    assume(float(box.upper[0, -1]) > 0)
    with patch(
        "intercontinet.learners.voices.kept_for_all", lambda fitted, shares: fitted(shares)
    ):  # before they break a promise
        made, again = (learn(how, of, box, lesson, 1) for lesson in (second, altered(second, unseen, seed)))
    assert same_bits(made.box, again.box)
    made = learn(how, of, box, second, 1)
    assume(not made.left_out)
    trained, guides = guided(how, len(second.y), 1)
    assert bool(((trained | guides) == counted).all())
    for some in (trained, guides):
        assert not same_bits(learn(how, of, box, altered(second, some, seed), 1).box, made.box)
    other = learn(how, of, box, altered(second, watched, seed), 1).box
    taken = slice(4, 8)  # the columns of this task, and their ceilings
    assert torch.equal(other.weight[:, taken], made.box.weight[:, taken]), "the watched decide the next ceiling alone"


def test_the_watched_decide_the_next_ceiling() -> None:
    of, how = capped(5), replace(HOW, unseen=0.2, held_out=0.2)
    lesson = examples((0, 1), 20, 0.5)
    watched = how.divided(40, 0, torch.device("cpu"))[1]
    ours, others = (learn(how, of, everything(of), one).box for one in (lesson, altered(lesson, watched, 0)))
    assert float(ours.upper[0, -1]) != float(others.upper[0, -1])


def test_unseen_examples_that_break_the_promise_are_watched_once_they_were_counted() -> None:
    of, how = capped(), replace(HOW, keep=0.95, unseen=0.3, held_out=0.0, tuning="shifted")
    unseen = how.divided(80, 0, torch.device("cpu"))[2]
    clear, vague = (examples((0, 1), 40, sharp=sharp) for sharp in (0.9, 0.6))
    mixed = replace(clear, x=torch.where(unseen[:, None], vague.x, clear.x))
    fine, made = (learn(how, of, everything(of), lesson) for lesson in (clear, mixed))
    assert torch.equal(fine.box.weight[:, :4], made.box.weight[:, :4]), "they are not trained on"
    assert float(made.box.upper[0, -1]) < float(fine.box.upper[0, -1]), "but the ceiling falls for them"
    assert made.certified >= 0.95 * made.correct and made.unseen_total == int(unseen.sum())
    within = int((margins(made.box, mixed, 1) > 0)[unseen.numpy()].sum())
    assert made.unseen_certified < within, "as counted before that"


def test_the_same_key_gives_the_same_bits_and_another_does_not() -> None:
    of = capped()
    made = [learn(HOW, of, everything(of), examples((0, 1)), key) for key in (1, 1, 2)]
    assert same_bits(made[0].box, made[1].box) and not same_bits(made[0].box, made[2].box)


def test_room_is_left_for_the_luck_of_the_unseen() -> None:
    """Or about every second promise would be broken by them."""
    of, lesson, how = capped(), examples((0, 1), each=200, sharp=0.4), replace(HOW, held_out=0.0)
    careful = learn(how, of, everything(of), lesson)
    with patch.object(voices_module, "SPARE", 0.0):
        careless = learn(how, of, everything(of), lesson)
    assert float(careful.box.upper[0, -1]) < float(careless.box.upper[0, -1])
    assert careful.certified > careless.certified >= 0.8 * careless.correct


def test_typicality_is_silent_where_the_tasks_own_voices_are_below_zero() -> None:
    of, lesson = capped(), examples((0, 1))
    of_others = replace(lesson, strangers=lesson.x.repeat(20, 1))  # so many that every column is low on its own
    shifted = replace(HOW, tuning="shifted")
    quiet = [learn(replace(shifted, typical=t), of, everything(of), of_others) for t in (0.0, 5.0)]
    assert same_bits(quiet[0].box, quiet[1].box)
    loud = [learn(replace(shifted, typical=t), of, everything(of), lesson) for t in (0.0, 5.0)]
    assert not same_bits(loud[0].box, loud[1].box)


# What cannot be.


def test_where_no_room_is_left_outputs_are_named_and_old_floors_stay() -> None:
    of = capped()
    first = learn(HOW, of, everything(of), examples((0, 1)))
    upper = first.box.upper.clone()
    upper[:, 5::2] = first.box.lower[0, 5] / 2  # the ceiling of what is free: nothing can be heard below it
    made: Outcome = learn(HOW, of, replace(first.box, upper=upper), examples((2, 3)), 1)
    assert (made.correct, made.certified, made.left_out) == (0, 0, (2, 3))
    assert (margins(made.box, examples((0, 1)), 1) > 0).sum() >= first.certified


def test_what_makes_no_sense_is_refused_with_a_way_out() -> None:
    of = capped()
    with pytest.raises(InvalidData, match=r"task '0' has one class only.*without capped"):
        learn(HOW, of, everything(of), examples((0,)))
    with pytest.raises(InvalidSetting, match="parts is 2, but"):
        learn(replace(HOW, parts=2), capped(6, 2), everything(capped(6, 2)), examples((0, 1)))
    with pytest.raises(InvalidSetting, match=r"per-task.* the net is capped"):
        learn(replace(HOW, head="per-task"), of, everything(of), examples((0, 1)))
    lesson = examples((0, 1), 10)
    watched = replace(HOW, held_out=0.4).divided(20, 0, torch.device("cpu"))[1]
    with pytest.raises(InvalidData, match="no example left to train on"):
        learn(replace(HOW, held_out=0.4), of, everything(of), replace(lesson, y=watched.long()))


# The learner.

TASKS = split_digits("class").tasks
NET = "capped-levels-150-6"


def small(outputs: int = 10, slots: int = 1) -> nn.Sequential:
    return build_exact_net(NET, TASKS[0].train[0], outputs, slots, 0)


def test_every_class_is_learned_and_every_floor_is_kept_and_still_true() -> None:
    model = small()
    learner = ExactInterContiNet(model, keep=0.8, fit_rate=0.1)
    for task in TASKS:
        assert learner.learn(task.train, task.name).kept
    assert icn.verify(model, learner.certificate)
    for task, floor in zip(TASKS, learner.certificate.tasks, strict=True):
        x, y = task.train
        assert floor.certified <= icn.certify(model, learner.region, (x, y)).certified
        assert 0 < floor.floor <= icn.attack(model, learner.region, (x, y)).accuracy
    accuracy = [float((model(x).argmax(1) == y).double().mean()) for x, y in (task.test for task in TASKS)]
    assert sum(accuracy) / 5 > 0.7 and min(accuracy) > 0.4, accuracy


def test_going_on_from_a_certificate_gives_the_same_bits() -> None:
    whole, broken = small(), small()
    learner, first = ExactInterContiNet(whole, seed=3), ExactInterContiNet(broken, seed=3)
    for task in TASKS[:3]:
        learner.learn(task.train)
    first.learn(TASKS[0].train)
    second = ExactInterContiNet(broken, seed=3, certificate=first.certificate)
    for task in TASKS[1:3]:
        second.learn(task.train)
    assert same(snapshot(whole), snapshot(broken))
    assert [without_bound(floor) for floor in learner.certificate.tasks[1:]] == list(second.certificate.tasks[1:])
