"""Training on mirrored images: more is learned, floors go on speaking of the images as they are, nothing leaks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import intercontinet as icn
from intercontinet.errors import InvalidData, InvalidSetting
from intercontinet.learners.exact_settings import ExactSettings
from intercontinet.learners.method import Lesson
from intercontinet.learners.regression import training_rows
from intercontinet.nets import KWinners, fern_net, with_table


def halves(examples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images with a bright upper or lower half, and more light on the left in what is shown."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(examples) % 2
    x = torch.rand(examples, 1, 8, 8, generator=generator)
    x[y == 0, :, :4, :4] += 0.5
    x[y == 1, :, 4:, :4] += 0.5
    return x, y


def small(capped: bool) -> nn.Sequential:
    return fern_net((1, 8, 8), outputs=2, groups=60, tests=5, window=8, seed=3, capped=capped)


@pytest.mark.parametrize("capped", [False, True])
def test_mirrored_examples_are_learned_from_ones_that_were_never_shown(capped: bool) -> None:
    x, y = halves(300, 0)
    probe, labels = halves(200, 1)
    right = {}
    for mirror in (False, True):
        model = fern_net((1, 8, 8), outputs=2, groups=150, tests=5, window=8, seed=3, capped=capped)
        head = "shared" if capped else "per-task"
        learner = icn.ExactInterContiNet(model, keep=0.8, head=head, fit_rate=0.1, mirror=mirror)
        floor = learner.learn((x, y), task="halves")
        assert floor.total == len(x) and floor.kept
        right[mirror] = float((model(probe.flip(-1)).argmax(1) == labels).double().mean())
    assert right[True] > right[False] + 0.1, right


@pytest.mark.parametrize("capped", [False, True])
def test_unseen_images_shape_nothing_in_a_mirror_either(capped: bool) -> None:
    x, y = halves(300, 0)
    options: dict[str, Any] = {"head": "shared" if capped else "per-task", "fit_rate": 0.1, "mirror": True}
    unseen = ~ExactSettings(keep=0.8, **options).shaping(len(x), seed=0)
    other = torch.where(unseen[:, None, None, None], torch.rand(x.shape, generator=torch.Generator().manual_seed(9)), x)
    learned = []
    for images in (x, other):
        model = small(capped)
        learner = icn.ExactInterContiNet(model, keep=0.8, **options)
        learner.learn((images, y))
        learned.append(learner.model.state_dict())
    assert bool(unseen.any()) and all(torch.equal(learned[0][name], learned[1][name]) for name in learned[0])
    seen = ~unseen
    other = torch.where(seen[:, None, None, None], other.flip(0), x)
    learner = icn.ExactInterContiNet(small(capped), keep=0.8, **options)
    learner.learn((other, y))
    assert any(not torch.equal(learned[0][name], t) for name, t in learner.model.state_dict().items()), "it can tell"


def test_counted_columns_have_no_use_for_a_mirror() -> None:
    x, y = halves(40, 0)
    learner = icn.ExactInterContiNet(fern_net((1, 8, 8), outputs=2, groups=4, tests=3, window=8), mirror=True)
    with pytest.raises(InvalidSetting, match="mirror is for columns that are trained"):
        learner.learn((x, y))
    with pytest.raises(InvalidSetting, match="mirror is 'no'"):
        ExactSettings(mirror="no")  # type: ignore[arg-type]


def test_rows_are_doubled_with_their_labels() -> None:
    lesson = Lesson("a", 0, torch.tensor([[0], [1], [2]]), torch.tensor([0, 1, 0]), None, torch.tensor([[3], [4], [5]]))
    counted = torch.tensor([True, False, True])
    rows, labels = training_rows(lesson, counted, torch.tensor([7, 8]))
    assert rows.tolist() == [[0], [2], [3], [5]] and labels.tolist() == [7, 8, 7, 8]


def test_only_images_have_a_mirror() -> None:
    model = with_table(KWinners(4, units=8, winners=2), 8, outputs=2)
    learner = icn.ExactInterContiNet(model, head="per-task", mirror=True)
    with pytest.raises(InvalidData, match="mirror is for images"):
        learner.learn((torch.rand(20, 4), torch.arange(20) % 2))
