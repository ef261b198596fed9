"""The exact learner where a promise could have been false, or broken without a word."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import intercontinet as icn
from intercontinet.errors import InvalidSetting
from intercontinet.learners.exact_settings import ExactSettings
from intercontinet.nets import feature_ferns, fern_net, with_table
from intercontinet.nets.ferns import Ferns
from intercontinet.noise import key_of

CPU = torch.device("cpu")


def halves(columns: bool = False) -> tuple[Tensor, Tensor]:
    """Images that are dark in one half or the other."""
    x, y = torch.rand(200, 1, 6, 6, generator=torch.Generator().manual_seed(int(columns))), torch.arange(200) // 100
    x = x.transpose(2, 3).contiguous() if columns else x
    x[:100, :, :3] *= 0.2
    x[100:, :, 3:] *= 0.2
    return x, y


def test_an_encoder_that_a_certificate_lets_roam_becomes_a_point() -> None:
    """Elsewhere in its region it would choose other rows, of which nothing was counted."""
    torch.manual_seed(0)
    y = torch.arange(400) // 200
    x = torch.randn(400, 4) + 4 * nn.functional.one_hot(y, 4)
    backbone = nn.Sequential(nn.Linear(4, 32), nn.ReLU())
    with torch.no_grad():
        ferns = feature_ferns(backbone(x), groups=100, tests=5)
    model = with_table(nn.Sequential(*backbone, ferns), ferns.bins, outputs=4)
    wide = icn.Region.around(model, {"0.weight": 0.5, "0.bias": 0.5, "3.weight": 8.0})
    learner = icn.ExactInterContiNet(model, keep=0.8, certificate=icn.Certificate.of(model, wide))
    floor = learner.learn((x, y))
    assert floor.certified > 300 and icn.certify(model, learner.region, (x, y)).certified == floor.certified
    assert learner.region.within(wide)
    with torch.no_grad():
        next(model.parameters()).add_(0.1)
    with pytest.raises(icn.Violation, match=r"0\.weight"):
        icn.verify(model, learner.certificate)


def noise(examples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images of nothing, whose labels cannot be told."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(examples, 1, 6, 6, generator=generator), torch.randint(0, 2, (examples,), generator=generator)


def test_no_bound_stands_on_copies_of_examples() -> None:
    """Or a learner that knows an oversampled set by heart would promise the same of new data: here labels are noise."""
    x, y = noise(60, seed=0)
    learner = icn.ExactInterContiNet(fern_net((1, 6, 6), outputs=2, groups=200, tests=6, window=6))
    floor = learner.learn((x.repeat(20, 1, 1, 1), y.repeat(20)))
    assert floor.certified > 800 and (floor.unseen_certified, floor.unseen_total) == (0, 120)


@pytest.mark.parametrize("seed", range(3))
def test_bounds_are_true_where_new_examples_are_often_the_same(seed: int) -> None:
    """Two fifths are one blank image with labels by chance: without them the unseen would look easier than new ones."""

    def drawn(examples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.rand(examples, 1, 6, 6, generator=generator)
        y = torch.randint(0, 2, (examples,), generator=generator)
        x[y == 0, :, :3] *= 0.2
        x[y == 1, :, 3:] *= 0.2
        x[torch.rand(examples, generator=generator) < 0.4] = 0.0
        return x, y

    generator = torch.Generator().manual_seed(seed)
    model = fern_net((1, 6, 6), outputs=2, groups=50, tests=4, window=4, capped=True)
    learner = icn.ExactInterContiNet(model, keep=0.8, seed=seed, fit_rate=0.1)
    floor, new = learner.learn(drawn(2000, generator)), drawn(2000, generator)
    assert floor.unseen_floor is not None and 0.4 < floor.unseen_floor < 0.65
    assert floor.unseen_floor < icn.certify(model, learner.region, new).floor


def test_bounds_are_true_where_a_task_brings_examples_again() -> None:
    """All but one were there before, and labels are noise."""
    x, y = noise(600, seed=0)
    more = torch.cat([x, noise(1, seed=1)[0]]), torch.cat([y, y[:1]])
    model = fern_net((1, 6, 6), outputs=2, groups=300, tests=8, window=6, slots=3)
    learner = icn.ExactInterContiNet(model, keep=0.5)
    learner.learn((x, y), task="first")
    elsewhere = deepcopy(model)
    taken_up = icn.ExactInterContiNet(elsewhere, keep=0.5, certificate=learner.certificate)
    again = learner.learn(more, task="nearly the same")
    assert again.certified > 500 and again.unseen_floor == 0.0
    assert taken_up.learn(more, task="nearly the same").unseen_total is None, "a certificate does not have examples"


def test_a_loader_that_shuffles_does_not_mix_what_is_held_back() -> None:
    """What an encoder may see goes by the examples' places."""
    x, y = halves()
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    regions = []
    for data in ((x, y), loader):
        learner = icn.ExactInterContiNet(fern_net((1, 6, 6), outputs=2, groups=50, tests=4, window=4))
        learner.learn(data)
        regions.append(learner.region)
    assert regions[0].within(regions[1]) and regions[1].within(regions[0])


@pytest.mark.parametrize("head", ["shared", "per-task"])
def test_a_promise_that_fails_on_the_watched_is_told_of(head: Any) -> None:
    """All of them lie on a threshold of an encoder that rounds, so that none is certain."""
    watched = ExactSettings(unseen=0.0).divided(200, key_of(0, 0), CPU)[1]
    y = torch.arange(200) % 2
    features = torch.where(watched[:, None], 0.5 + 1e-7 * y[:, None], 0.1 + 0.8 * y[:, None]).repeat(1, 4)
    x = torch.cat([features, torch.arange(200.0)[:, None]], 1)  # no two are the same
    linear = nn.Linear(5, 4, bias=False)
    with torch.no_grad():
        linear.weight.copy_(torch.eye(4, 5))
    ferns = Ferns((4,), 20, 2, levels=torch.full((20, 2), 0.5))
    model = with_table(nn.Sequential(linear, ferns), ferns.bins, outputs=4)
    learner = icn.ExactInterContiNet(model, keep=0.8, unseen=0.0, head=head)
    with pytest.warns(UserWarning, match="not certified as asked on the examples held out, though on all"):
        floor = learner.learn((x, y))
    assert floor.kept and floor.certified == 180


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({"depth": 8.0}, {"depth": 0.01}, r"depth is 0.01, and was 8 in the tasks before: use theirs"),
        ({"depth": 4.0}, {"depth": 8.0}, r"depth is 8.0, and was 4 in the tasks before: use theirs"),
        ({}, {"head": "per-task"}, r"head is 'per-task', but these outputs have a ceiling.*head='shared'"),
    ],
)
def test_settings_that_do_not_go_with_earlier_ones_are_named(
    first: dict[str, Any], second: dict[str, Any], words: str
) -> None:
    net = fern_net((1, 6, 6), outputs=4, groups=50, tests=4, window=4)
    before = icn.ExactInterContiNet(net, **first)
    before.learn(halves())
    x, y = halves(columns=True)
    after = icn.ExactInterContiNet(net, certificate=before.certificate, **second)
    with pytest.raises(InvalidSetting, match=words):
        after.learn((x, y + 2))
