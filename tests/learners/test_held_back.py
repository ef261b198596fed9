"""InterContiNet with examples that it only watches, examples that shape nothing, and layers taken as computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import intercontinet as icn
from intercontinet.errors import InvalidSetting
from intercontinet.learners import boxes
from intercontinet.learners.intercontinet import Hyperrectangles
from intercontinet.learners.method import Lesson, Nets
from intercontinet.learners.settings import Settings
from intercontinet.learners.shares import divided
from intercontinet.noise import key_of
from intercontinet.state import State
from intercontinet.statistics import lowest_share
from tests.tiny import QUICK, Pair, blobs, mlp, same, snapshot

BACK: dict[str, Any] = {**QUICK, "held_out": 0.2, "unseen": 0.2, "keep": 0.8}
SPREAD = 0.9  # some examples are wrong, so that what is certain depends on which ones are asked


def parts(data: Pair, task: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    return divided(BACK["held_out"], BACK["unseen"], len(data[0]), key_of(task), torch.device("cpu"))


def learned(data: Pair, **changes: Any) -> tuple[icn.InterContiNet, dict[str, Tensor]]:
    model = mlp()
    learner = icn.InterContiNet(model, **{**BACK, **changes})
    learner.learn(data, task="blobs")
    return learner, snapshot(model)


def edges(region: icn.Region) -> dict[str, Tensor]:
    return {f"{side} {n}": t for side in ("lower", "upper") for n, t in getattr(region, side).items()}


def moved(data: Pair, which: Tensor) -> Pair:
    """Some of the examples put elsewhere, near enough to stay on their side."""
    x = data[0].clone()
    x[which] *= 1.1
    return x, data[1]


def test_unseen_examples_shape_neither_weights_nor_region() -> None:
    data = blobs(examples=200, spread=SPREAD)
    _, _, unseen = parts(data)
    (one, weights), (other, again) = learned(data), learned(moved(data, unseen))
    assert same(weights, again) and same(edges(one.region), edges(other.region))
    floor = one.certificate.tasks[0]
    assert floor.unseen_total == 40 == int(unseen.sum()) and floor.kept


def test_watched_examples_shape_the_region_and_nothing_else() -> None:
    data = blobs(examples=200, spread=SPREAD)
    _, watched, _ = parts(data)
    x = data[0].clone()
    x[watched] *= 0.2  # nearer to the other class: fewer of them are certain
    (one, weights), (other, again) = learned(data, widen=True), learned((x, data[1]), widen=True)
    assert same(weights, again) and not same(edges(one.region), edges(other.region))


def test_the_promise_holds_on_all_on_the_watched_alone_and_counts_the_unseen() -> None:
    data = x, y = blobs(examples=200, spread=SPREAD)
    _, watched, unseen = parts(data)
    learner, _ = learned(data)
    (floor,) = learner.certificate.tasks
    for some in (torch.ones_like(watched), watched):
        own = icn.certify(learner.model, learner.region, (x[some], y[some]))
        assert own.certified >= 0.8 * own.correct
    counted = icn.certify(learner.model, learner.region, (x[unseen], y[unseen]))
    assert (floor.unseen_certified, floor.unseen_total) == (counted.certified, counted.total)
    assert floor.unseen_floor == lowest_share(counted.certified, counted.total, 0.95)
    assert floor.certified == icn.certify(learner.model, learner.region, data).certified


def test_unseen_examples_that_break_the_promise_are_watched_once_they_were_counted() -> None:
    """So that bounds are not given by whether they flatter."""
    x, y = blobs(examples=200, spread=0.3)
    _, _, unseen = parts((x, y))
    x = x.clone()
    x[unseen] *= 0.01  # right, but certain only in a tiny region
    (fine, weights), (learner, again) = (learned(data, keep=0.95) for data in (blobs(examples=200, spread=0.3), (x, y)))
    (floor,) = learner.certificate.tasks
    assert same(weights, again) and learner.region.within(fine.region) and not fine.region.within(learner.region)
    now = icn.certify(learner.model, learner.region, (x[unseen], y[unseen]))
    before = icn.certify(fine.model, fine.region, (x[unseen], y[unseen]))
    assert floor.kept and (floor.unseen_certified, floor.unseen_total) == (before.certified, 40)
    assert before.certified < now.certified, "a count from after they were watched would flatter"


@pytest.mark.parametrize(("factor", "stands"), [(0.5, True), (2.0, False)], ids=["inside", "elsewhere"])
def test_a_count_stands_only_where_the_new_region_lies_in_that_it_was_made_in(
    factor: float, stands: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let out, a region may end elsewhere once the unseen are watched."""
    factors = iter([1.0, factor])

    def fitted(
        certain: Any, enough: Any, weights: State, region: icn.Region, parent: Any, examples: int
    ) -> tuple[icn.Region, Tensor]:
        now = next(factors)
        box = region.scaled(now, weights) if now <= 1 else icn.Region.around(weights, 9.0)
        found = certain(region.scaled(1e-6, weights), False, torch.ones(examples, dtype=torch.bool))
        return box, found if now != 1 else found & (torch.arange(len(found)) % 2 == 0)

    monkeypatch.setattr(boxes, "fitted_to_keep", fitted)
    learner = icn.InterContiNet(mlp(), **BACK)
    floor = learner.learn(blobs(examples=200, spread=0.3))
    assert not list(factors) and floor.unseen_total == 40 and floor.unseen_certified is not None
    assert (floor.unseen_certified > 0) is stands, "where it does not stand, none counts as certain"


def test_nothing_is_held_back_unless_asked_for() -> None:
    learner, _ = learned(blobs(), held_out=0.0, unseen=0.0)
    assert learner.certificate.tasks[0].unseen_total is None


def test_no_bound_stands_on_examples_that_were_learned_from_before() -> None:
    """It would say that a learner keeps of new data what it knows by heart."""
    x, y = blobs(examples=60, spread=SPREAD)
    learner, _ = learned((x, y))
    new, labels = blobs(examples=60, seed=5, spread=SPREAD)
    again = learner.learn((torch.cat([x.flip(0), new[:1]]), torch.cat([y.flip(0), labels[:1]])), task="one more")
    assert again.unseen_total == 12 and again.unseen_certified in (0, 1)
    fresh = learner.learn((new[1:], labels[1:]), task="new ones")
    assert fresh.unseen_certified is not None and fresh.unseen_certified > 1


def test_after_going_on_from_a_certificate_no_bound_is_given() -> None:
    """Which examples its tasks had cannot be known."""
    data, model = blobs(examples=60, spread=SPREAD), mlp()
    shipped = icn.protect(model, data, keep=0.8, steps=2)
    later = icn.InterContiNet(model, certificate=shipped, **BACK)
    assert later.learn(blobs(examples=60, seed=5)).unseen_total is None
    bare = icn.InterContiNet(model, certificate=icn.Certificate.of(model, later.region), **BACK)
    assert bare.learn(blobs(examples=60, seed=6)).unseen_total == 12, "of a region without floors it can"


def test_later_tasks_hold_back_others_and_nest() -> None:
    learner, _ = learned(blobs(examples=100, spread=SPREAD))
    before = learner.region
    learner.learn(blobs(examples=100, spread=SPREAD, seed=1), task="next")
    assert learner.region.within(before)
    assert [floor.unseen_total for floor in learner.certificate.tasks] == [20, 20]
    assert not torch.equal(parts(blobs(examples=100), 0)[2], parts(blobs(examples=100), 1)[2])


def test_seeds_beside_each_other_hold_back_what_they_would_alone() -> None:
    x, y = blobs(examples=100, spread=SPREAD)
    method, lesson = Hyperrectangles(Settings(**BACK)), Lesson("blobs", 0, x, y)
    start = Nets(mlp(), (0,)).layout.flatten(dict(mlp().named_parameters())).detach()[None]
    both = method.learn(Nets(mlp(), (3, 1)), start.repeat(2, 1), {}, lesson)[1]
    alone = [method.learn(Nets(mlp(), (seed,)), start, {}, lesson)[1] for seed in (3, 1)]
    for name in ("correct", "certified", "unseen_certified", "unseen_total"):
        assert torch.equal(both[name], torch.cat([one[name] for one in alone]))


@pytest.mark.parametrize(
    "changes",
    [
        {"held_out": 0.5},
        {"unseen": -0.1},
        {"drift": 1e-5},
        {"drift": 2.0, "rigid": 1},
        {"drift": False, "rigid": 1},
    ],
)
def test_settings_that_make_no_sense_are_refused_before_anything_is_trained(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting, match=next(iter(changes))):
        icn.InterContiNet(mlp(), **changes)


def deep() -> nn.Sequential:
    """Too deep for any rounding bound: layers whose entries cancel each other."""
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64) for _ in range(12)]
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    hidden = [step for layer in layers for step in (layer, nn.ReLU())]
    return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), *hidden, nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2))


def test_rigid_layers_taken_as_computed_leave_something_to_promise() -> None:
    data = blobs(examples=60)
    options = {**QUICK, "keep": 0.8, "rigid": 13, "rate": 1e-3, "centre_epochs": 40, "radius": 0.1}
    with pytest.warns(UserWarning, match="not certified"):
        hopeless = icn.InterContiNet(deep(), **options).learn(data)
    assert hopeless.certified == 0 < hopeless.correct
    model = deep()
    learner = icn.InterContiNet(model, **options, drift=1e-5)
    floor = learner.learn(data, task="first")
    assert floor.kept and floor.accuracy > 0.9 and floor.drift == 1e-5 and "drift by no more than 1e-05" in str(floor)
    lower, upper = learner.region.lower, learner.region.upper
    assert all(torch.equal(lower[n], upper[n]) for n in lower if not n.startswith(("26", "28")))
    assert bool((lower["26.weight"] < upper["26.weight"]).any())
    again = icn.certify(model, learner.region, data, drift=1e-5)
    assert again.certified == floor.certified
    assert icn.attack(model, learner.region, data).accuracy >= floor.floor
    second = learner.learn(blobs(examples=60, seed=2), task="second")
    assert second.drift == 1e-5 and icn.verify(model, learner.certificate)
