"""The exact learner: counts against a naive loop, floors that are kept, a ceiling no lower than it must be."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import intercontinet as icn
from intercontinet.engine.loop import Progress
from intercontinet.errors import InvalidData, InvalidModel, InvalidSetting
from intercontinet.learners.exact import ExactInterContiNet
from intercontinet.nets import KWinners, feature_ferns, fern_net, with_table
from intercontinet.tasks import Task, split_digits
from tests.tiny import same, snapshot, without_bound


def small(seed: int = 0, outputs: int = 10) -> nn.Sequential:
    return fern_net((1, 8, 8), outputs, groups=150, tests=6, window=5, kind="pair", seed=seed)


def images(task: Task, test: bool = False) -> tuple[Tensor, Tensor]:
    x, y = task.test if test else task.train
    return x.view(-1, 1, 8, 8), y


TASKS = split_digits("class").tasks


@pytest.fixture(scope="module")
def learned() -> tuple[nn.Sequential, ExactInterContiNet, list[icn.Region]]:
    model, regions = small(), []
    learner = ExactInterContiNet(model, keep=0.8)
    for task in TASKS:
        learner.learn(images(task), task.name)
        regions.append(learner.region)
    return model, learner, regions


Learned = tuple[nn.Sequential, ExactInterContiNet, list[icn.Region]]


def test_every_class_is_learned_and_every_floor_is_kept_and_still_true(learned: Learned) -> None:
    model, learner, regions = learned
    assert all(floor.kept and floor.certified > 0 for floor in learner.certificate.tasks)
    assert all(child.within(parent) for parent, child in pairwise(regions))
    assert icn.verify(model, learner.certificate)
    for task, floor, region in zip(TASKS, learner.certificate.tasks, regions, strict=True):
        x, y = images(task)
        assert floor.certified <= int((model(x).argmax(1) == y).sum()), "a floor fell"
        assert floor.floor <= icn.attack(model, regions[-1], (x, y)).accuracy
        assert icn.certify(model, regions[-1], (x, y)).certified >= floor.certified
        assert region.within(regions[0])
    accuracy = [float((model(x).argmax(1) == y).double().mean()) for x, y in (images(t, test=True) for t in TASKS)]
    assert sum(accuracy) / 5 > 0.6 and min(accuracy) > 0.3, accuracy


def test_the_rows_of_the_first_task_are_the_capped_logarithms_of_counts() -> None:
    model = small(outputs=3)
    learner = ExactInterContiNet(model, keep=0.8, cap=0.5, depth=6.0, held_out=0.0, unseen=0.0)
    x, y = images(TASKS[0])
    learner.learn((x, y))
    bins, weight = model[0](x), learner.region.lower["1.weight"]
    for label in (0, 1):
        mine = bins[y == label]
        for which in torch.unique(bins)[::97].tolist():
            share = (mine == which).sum().item() / len(mine)
            value = max(-6.0, min(0.5, math.log(64 * share))) if share else -6.0
            assert weight[which, label].item() == pytest.approx(value, abs=1e-5)
    assert torch.equal(weight[:, :2], learner.region.upper["1.weight"][:, :2]), "what is learned is a point"


def test_the_ceiling_falls_where_the_new_classes_are_at_home_and_nowhere_else() -> None:
    learner = ExactInterContiNet(small(), keep=0.8)
    learner.learn(images(TASKS[0]))
    weight, upper = learner.region.lower["1.weight"], learner.region.upper["1.weight"][:, 5]
    home = weight[:, :2].amax(1) > 0
    assert bool((upper[home] < 0.1).all()) and bool((upper[~home] == 0.1).all())
    assert 0 < int(home.sum()) < len(home) / 2


def test_the_ceiling_falls_no_further_than_it_must() -> None:
    model = small()
    learner = ExactInterContiNet(model, keep=0.9, held_out=0.0)
    data = images(TASKS[0])
    floor = learner.learn(data)
    lower, upper = dict(learner.region.lower), dict(learner.region.upper)
    raised = upper["1.weight"].clone()
    raised[:, 2:] += 0.02 * (raised[:, 2:] < 0.1) * (0.1 - raised[:, 2:])
    higher = icn.certify(model, icn.Region(lower, {**upper, "1.weight": raised}), data)
    assert higher.certified < 0.9 * floor.correct <= floor.certified


def test_held_out_examples_keep_their_share_too() -> None:
    """They are not counted, so that they are harder: what holds for them says more than what holds for the others."""
    floors = {}
    for share in (0.0, 0.2):
        learner = ExactInterContiNet(small(), keep=0.9, held_out=share)
        floors[share] = learner.learn(images(TASKS[0])).floor
    assert floors[0.0] < floors[0.2]


def test_with_a_head_for_each_task_other_heads_stay_free() -> None:
    model = small()
    learner = ExactInterContiNet(model, keep=0.9, head="per-task")
    for task in split_digits("task").tasks[:2]:
        floor = learner.learn(images(task), task.name, classes=task.classes)
        assert floor.classes == task.classes and floor.kept and floor.accuracy > 0.95
    lower, upper = learner.region.lower["1.weight"], learner.region.upper["1.weight"]
    assert bool(lower[:, 4:].isinf().all()) and torch.equal(lower[:, :4], upper[:, :4])


def test_going_on_from_a_certificate_gives_the_same_bits() -> None:
    whole, broken = small(), small()
    learner = ExactInterContiNet(whole, seed=3)
    first = ExactInterContiNet(broken, seed=3)
    for task in TASKS[:3]:
        learner.learn(images(task))
    first.learn(images(TASKS[0]))
    second = ExactInterContiNet(broken, seed=3, certificate=first.certificate)
    for task in TASKS[1:3]:
        second.learn(images(task))
    assert same(snapshot(whole), snapshot(broken))
    assert [without_bound(floor) for floor in learner.certificate.tasks[1:]] == list(second.certificate.tasks[1:])


def test_a_class_is_learned_once_and_an_error_changes_nothing() -> None:
    model = small()
    learner = ExactInterContiNet(model)
    learner.learn(images(TASKS[0]))
    before, certificate = snapshot(model), learner.certificate
    with pytest.raises(InvalidData, match="output 0 has no free column left"):
        learner.learn(images(TASKS[0]))
    assert same(snapshot(model), before) and learner.certificate is certificate


def test_settings_that_make_no_sense_are_refused_at_once() -> None:
    with pytest.raises(InvalidSetting, match="keep is 0"):
        ExactInterContiNet(small(), keep=0)


@pytest.mark.parametrize("model", [nn.Linear(2, 2), nn.Sequential(nn.Flatten(), nn.Linear(64, 2))])
def test_other_models_are_refused(model: nn.Module) -> None:
    with pytest.raises(InvalidModel, match="fern_net"):
        ExactInterContiNet(model)


def above_a_network() -> tuple[nn.Sequential, tuple[Tensor, Tensor]]:
    """A frozen network, ferns on its features, a table; and examples."""
    torch.manual_seed(0)
    y = torch.arange(200) // 100
    x = torch.randn(200, 4) + 4 * nn.functional.one_hot(y, 4)
    backbone = nn.Sequential(nn.Linear(4, 16), nn.ReLU())
    with torch.no_grad():
        ferns = feature_ferns(backbone(x), groups=60, tests=4)
    return with_table(nn.Sequential(*backbone, ferns), ferns.bins, outputs=3), (x, y)


def test_a_network_below_the_table_is_part_of_the_promise() -> None:
    model, data = above_a_network()
    learner = ExactInterContiNet(model, keep=0.8)
    floor = learner.learn(data)
    assert floor.kept and floor.certified > 100
    assert icn.certify(model, learner.region, data).certified == floor.certified
    assert icn.verify(model, learner.certificate)
    with torch.no_grad():
        model.get_parameter("0.weight")[0, 0] += 1e-3
    with pytest.raises(icn.Violation, match=re.escape("0.weight")):
        icn.verify(model, learner.certificate)


def test_inputs_that_an_encoder_cannot_take_exactly_are_refused() -> None:
    x = 1e6 * torch.rand(40, 16, generator=torch.Generator().manual_seed(0))
    learner = ExactInterContiNet(with_table(KWinners(16, units=32, winners=4), 32, outputs=3))
    with pytest.raises(InvalidData, match="KWinners"):
        learner.learn((x, torch.arange(40) % 2))


def test_features_too_small_for_hardware_that_flushes_them_are_never_certain() -> None:
    y = torch.arange(40) % 2
    x = torch.where(y[:, None] == 1, 1e-40, 0.0).expand(40, 4).contiguous()
    ferns = feature_ferns(x, groups=20, tests=2)
    learner = ExactInterContiNet(with_table(ferns, ferns.bins, outputs=3), keep=0.8)
    with pytest.warns(UserWarning, match="not certified as asked"):
        assert learner.learn((x, y)).certified == 0


@pytest.mark.parametrize("groups", [10, 200])
def test_classes_that_tie_with_the_ceiling_are_certain_once_it_has_fallen(groups: int) -> None:
    """All examples of a class alike: a fall that is smaller than rounding must not be taken for enough."""
    x = torch.cat([torch.zeros(20, 1, 6, 6), torch.ones(20, 1, 6, 6)])
    learner = ExactInterContiNet(fern_net((1, 6, 6), outputs=4, groups=groups, tests=4, window=4), keep=0.8)
    assert learner.learn((x, torch.arange(40) // 20)).kept


def test_what_does_not_fit_the_learner_is_named() -> None:
    x, y = images(TASKS[0])
    learner = ExactInterContiNet(small(), depth=4.0)
    with pytest.raises(InvalidData, match="per-task"):
        learner.learn((x, y), classes=[0, 1])
    with pytest.raises(InvalidData, match=r"shape \(1, 8, 8\), not \(2, 8, 8\)"):
        learner.learn((x.repeat(1, 2, 1, 1), y))
    learner.learn((x, y))
    deeper = ExactInterContiNet(learner.model, depth=5.0, certificate=learner.certificate)
    with pytest.raises(InvalidSetting, match=r"depth is 5.0, and was 4 in the tasks before: use theirs"):
        deeper.learn(images(TASKS[1]))
    with pytest.raises(InvalidSetting, match="parts is 2, but an output has 1 column"):
        ExactInterContiNet(small(), parts=2).learn((x, y))


def test_weights_alone_say_that_they_are() -> None:
    model = small()
    learner = ExactInterContiNet(model)
    learner.learn(images(TASKS[0]))
    assert "weights alone cannot tell" in str(icn.verify(model.state_dict(), learner.certificate))
    assert "weights alone" not in str(icn.verify(model, learner.certificate))


def test_a_listener_hears_of_every_task_once_with_the_weights_it_left() -> None:
    model = small()
    heard: list[Progress] = []
    learner = ExactInterContiNet(model)
    floor = learner.learn(images(TASKS[0]), "first", listen=heard.append)
    told = ("first", "learning", ((floor.floor, floor.accuracy),))
    assert [(one.task, one.phase, one.statistics) for one in heard] == [told]
    assert torch.equal(heard[0].parameters[0], model.get_parameter("1.weight").flatten())
    assert math.isnan(heard[0].loss[0]), "there is no loss to tell of"


def test_no_bound_stands_on_examples_that_were_learned_from_before() -> None:
    x = torch.rand(80, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    x[:40, :, :3] *= 0.2
    x[40:, :, 3:] *= 0.2
    y = torch.arange(80) // 40
    learner = icn.ExactInterContiNet(fern_net((1, 6, 6), outputs=2, groups=40, tests=4, window=4, slots=2), keep=0.8)
    assert learner.learn((x, y), task="first").unseen_total == 8
    assert learner.learn((x, y), task="again").unseen_floor == 0.0


@pytest.mark.filterwarnings("ignore:not certified as asked")  # in so little room
def test_shifted_voices_that_find_the_lowest_ceiling_stay_in_their_region() -> None:
    """After multiplied ones, whose ceilings may not fall below their own height with another sign."""
    generator = torch.Generator().manual_seed(0)

    def task(index: int) -> tuple[Tensor, Tensor]:
        x, y = torch.rand(150, 1, 6, 6, generator=generator), torch.arange(150) % 2
        dark = torch.rand(6, 6, generator=generator) < 0.5
        for label, where in ((0, dark), (1, ~dark)):
            x[y == label] = torch.where(where, 0.45 * x[y == label], x[y == label])
        return x, y + 2 * index

    net = fern_net((1, 6, 6), outputs=16, groups=30, tests=4, window=4, capped=True)
    learner = icn.ExactInterContiNet(net, keep=0.9)
    learner.learn(task(0))
    learner = icn.ExactInterContiNet(net, 0.9, certificate=learner.certificate, tuning="shifted", at_ceiling=0.3)
    for index in range(1, 8):
        before = learner.region
        learner.learn(task(index))
        assert learner.region.within(before)
