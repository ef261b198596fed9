"""Keep: what is promised is enforced, and no more than that."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import intercontinet as icn
from intercontinet.errors import InvalidSetting
from intercontinet.floor import certain_examples
from intercontinet.learners.enforce import fitted_to_keep
from intercontinet.region import Region
from intercontinet.state import state_of
from tests.tiny import QUICK, blobs, fitted, mlp


def fitted_by_hand(
    model: nn.Module, region: Region, parent: Region | None, data: tuple[Tensor, Tensor], wanted: float
) -> tuple[Region, int]:
    def certain(box: Region, quick: bool, some: Tensor) -> Tensor:
        return certain_examples(model, box, *data, None, quick=quick) & some

    def enough(found: Tensor) -> bool:
        return int(found.sum()) >= wanted

    box, found = fitted_to_keep(certain, enough, state_of(model), region, parent, len(data[1]))
    return box, int(found.sum())


def test_keep_is_enforced_where_the_published_method_falls_short() -> None:
    floors = {}
    for enforce in (True, False):
        learner = icn.InterContiNet(mlp(), keep=0.9, enforce=enforce, **{**QUICK, "radii_epochs": 0})
        floors[enforce] = learner.learn(blobs())
        assert floors[enforce].accuracy > 0.9
    assert floors[True].kept and not floors[False].kept
    assert floors[True].certified >= 0.9 * floors[True].correct > floors[False].certified


def test_enforcing_shrinks_no_further_than_it_must() -> None:
    model, data = mlp(), blobs()
    learner = icn.InterContiNet(model, keep=0.9, **{**QUICK, "radii_epochs": 0})
    floor = learner.learn(data)
    wider = icn.certify(model, learner.region.scaled(1.02, model), data)
    assert wider.certified < 0.9 * floor.correct <= floor.certified


def test_a_region_that_keeps_enough_is_left_as_the_radii_phase_made_it() -> None:
    regions = []
    for enforce in (True, False):
        learner = icn.InterContiNet(mlp(), keep=0.5, radius=0.01, enforce=enforce, **QUICK)
        assert learner.learn(blobs()).kept
        regions.append(learner.region)
    assert regions[0].within(regions[1]) and regions[1].within(regions[0])


def test_dropout_does_not_blur_the_search_for_the_largest_region() -> None:
    sizes = []
    for noise in range(3):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2))
        learner = icn.InterContiNet(model, centre_epochs=0, radii_epochs=0)
        torch.manual_seed(noise)
        learner.learn(blobs())
        sizes.append(learner.region.size().radii)
    assert sizes[0] == sizes[1] == sizes[2] > 0


def test_a_task_that_cannot_be_certified_is_never_silent() -> None:
    """Outputs near the end of float32 may overflow, so nothing is certain of them, not even at one point."""
    x, y = blobs()
    data = (x * 1e37, y)
    model = mlp()
    learner = icn.InterContiNet(model, centre_epochs=0, radii_epochs=0)
    with pytest.warns(UserWarning, match="not certified as asked, even at a single point: far out.*NOT the 90%"):
        floor = learner.learn(data, task="far out")
    assert not floor.kept and floor.certified == 0 < floor.correct
    again = icn.InterContiNet(mlp(), centre_epochs=0, radii_epochs=0)
    with pytest.raises(UserWarning, match="not certified"):  # pytest makes errors of warnings
        again.learn(data)
    assert not again.certificate.tasks, "a warning that is an error leaves everything as it was"


def test_widening_lets_the_region_out_until_just_enough_is_certain() -> None:
    floors, regions = [], []
    for widen in (False, True):
        model = mlp()
        learner = icn.InterContiNet(model, keep=0.8, radius=0.05, widen=widen, **QUICK)
        floors.append(learner.learn(blobs()))
        regions.append(learner.region)
    assert regions[0].within(regions[1]) and not regions[1].within(regions[0])
    assert floors[0].certified > floors[1].certified >= 0.8 * floors[1].correct
    wider = icn.certify(model, regions[1].scaled(1.02, model), blobs())
    assert wider.certified < 0.8 * floors[1].correct, "and no less than that"


def test_widening_stays_inside_what_earlier_tasks_left() -> None:
    learner = icn.InterContiNet(mlp(), keep=0.8, widen=True, **QUICK)
    learner.learn(blobs(seed=0), task="first")
    parent = learner.region
    second = learner.learn(blobs(seed=1), task="second")
    assert learner.region.within(parent) and second.kept


def test_rigid_layers_are_points_after_the_first_task_and_others_are_not() -> None:
    learner = icn.InterContiNet(mlp(), keep=0.8, rigid=1, **QUICK)
    learner.learn(blobs())
    lower, upper = learner.region.lower, learner.region.upper
    assert all(torch.equal(lower[name], upper[name]) for name in ("0.weight", "0.bias"))
    assert bool((lower["2.weight"] < upper["2.weight"]).any())
    with pytest.raises(InvalidSetting, match=r"rigid is 2, but only 2 layer"):
        icn.InterContiNet(mlp(), rigid=2, **QUICK)


@pytest.mark.parametrize("radius", [1e-3, 0.02, 1.0, 50.0])
def test_from_any_radius_the_search_ends_at_the_same_one(radius: float) -> None:
    data = blobs(spread=0.8)
    model = fitted(data)
    region, parent = icn.Region.around(model, radius), icn.Region.around(model, 100.0)
    wanted = 0.8 * icn.certify(model, icn.Region.around(model, 0.0), data).certified
    box, certified = fitted_by_hand(model, region, parent, data, wanted)
    reached = float((box.upper["0.weight"] - box.lower["0.weight"]).max()) / 2
    by_hand = [
        icn.certify(model, icn.Region.around(model, factor * reached), data).certified for factor in (0.999, 1.02)
    ]
    assert by_hand[0] >= wanted > by_hand[1] and certified == icn.certify(model, box, data).certified >= wanted


def test_without_a_parent_nothing_is_let_out_and_with_one_nothing_leaves_it() -> None:
    data = blobs()
    model = fitted(data)
    region = icn.Region.around(model, 1e-4)

    def edges(box: icn.Region) -> list[Tensor]:
        return [*box.lower.values(), *box.upper.values()]

    left, _ = fitted_by_hand(model, region, None, data, 40.0)
    assert all(torch.equal(one, other) for one, other in zip(edges(left), edges(region), strict=True))
    near = icn.Region.around(model, {"0.weight": 2e-4, "0.bias": 1e-4, "2.weight": 1e-4, "2.bias": 1e-4})
    out, _ = fitted_by_hand(model, region, near, data, 40.0)
    assert all(torch.equal(one, other) for one, other in zip(edges(out), edges(near), strict=True))


@pytest.mark.parametrize("radius", [0.01, 1.0])
def test_what_is_beyond_doubt_is_not_looked_at_again(radius: float) -> None:
    """Certain in a larger box, or not even in a smaller one: neither changes the answer, and both cost time."""
    data = blobs(examples=300, spread=0.8)
    model = fitted(data)
    region, parent = icn.Region.around(model, radius), icn.Region.around(model, 100.0)
    wanted = 0.8 * icn.certify(model, icn.Region.around(model, 0.0), data).certified
    looks: list[int] = []

    def certain(box: Region, quick: bool, some: Tensor) -> Tensor:
        looks.append(int(some.sum()))
        return certain_examples(model, box, *data, None, quick=quick) & some

    def always(box: Region, quick: bool, some: Tensor) -> Tensor:
        return certain_examples(model, box, *data, None, quick=quick)

    def enough(found: Tensor) -> bool:
        return int(found.sum()) >= wanted

    start = (enough, state_of(model), region, parent, 300)
    (box, found), (other, plainly) = fitted_to_keep(certain, *start), fitted_to_keep(always, *start)
    assert box.within(other) and other.within(box) and torch.equal(found, plainly)
    assert looks[0] == looks[-1] == 300 and len(looks) > 9 and looks[-2] < 10, "but the last, which must be sure"
    assert sum(looks) < 0.6 * 300 * len(looks)
