"""Strangers: classes told from examples of no task, too, so that less of what is to come is taken for what is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import intercontinet as icn
from intercontinet.errors import InvalidData, InvalidSetting
from intercontinet.learners.regression import regressed
from intercontinet.nets import feature_ferns, fern_net, with_table
from intercontinet.study import encoders
from intercontinet.study.config import configure
from intercontinet.study.encoders import strangers
from intercontinet.study.run import Run, complete
from intercontinet.tasks import stream

OPTIONS: dict[str, Any] = {"fit_rate": 0.1, "typical": 0.0}


def blobs(classes: list[int], examples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Class c has a large feature c of eight; all are noisy."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.tensor(classes).repeat_interleave(examples)
    x = torch.randn(len(y), 8, generator=generator)
    x[torch.arange(len(y)), y] += 3
    return x, y


def learned(strange: Tensor | None, tuning: str = "shifted") -> tuple[icn.ExactInterContiNet, list[float]]:
    first = blobs([0, 1], 300, 0)
    ferns = feature_ferns(first[0], groups=200, tests=4)
    model = with_table(ferns, ferns.bins, outputs=4, capped=True)
    learner = icn.ExactInterContiNet(model, keep=0.8, strangers=strange, tuning=tuning, **OPTIONS)
    learner.learn(first, task="first")
    learner.learn(blobs([2, 3], 300, 1), task="second")
    tests = blobs([0, 1], 200, 2), blobs([2, 3], 200, 3)
    return learner, [float((model(x).argmax(1) == y).double().mean()) for x, y in tests]


def test_classes_to_come_are_taken_for_known_ones_less_often() -> None:
    strange = blobs([4, 5, 6, 7], 300, 4)[0]
    _, without = learned(None)
    learner, told_apart = learned(strange)
    assert told_apart[1] > without[1] + 0.15, (without, told_apart)
    assert told_apart[0] > without[0] - 0.1
    assert all(floor.kept and floor.certified > 0 for floor in learner.certificate.tasks)


def test_floors_are_of_the_task_alone_and_hold() -> None:
    learner, _ = learned(blobs([4, 5], 300, 4)[0])
    floor = learner.certificate.tasks[0]
    again = icn.certify(learner.model, learner.region, blobs([0, 1], 300, 0))
    assert floor.total == 600 and again.certified >= floor.certified
    assert icn.attack(learner.model, learner.region, blobs([0, 1], 300, 0)).accuracy >= floor.floor


def test_the_same_strangers_the_same_bits_and_others_others() -> None:
    strange = blobs([4, 5], 300, 4)[0]
    one, other, different = (learned(x)[0].model.state_dict() for x in (strange, strange.clone(), strange[:50]))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not all(torch.equal(one[name], different[name]) for name in one)


def test_shifted_voices_reach_the_ceiling_that_multiplied_ones_cannot() -> None:
    """Told from very many strangers most own examples are below zero: multiplied, nothing is heard of them."""
    strange = blobs([2, 3, 4, 5], 1500, 4)[0]  # for the sake of the argument, like the second task
    with pytest.warns(UserWarning, match=r"too little room is left for output\(s\) 2, 3"):
        learned(strange, "multiplied")
    learner, _ = learned(strange, "shifted")
    assert learner.certificate.tasks[1].certified > 0


@pytest.mark.filterwarnings("ignore:.*too little room is left")
@pytest.mark.parametrize("keep", [0.5, 0.9, 0.98, 1.0])
@pytest.mark.parametrize("told", [False, True])
def test_shifted_voices_keep_any_promise(keep: float, told: bool) -> None:
    """Ceilings may fall below zero, which means nothing to them: as far as the promise needs."""
    strange = blobs([6, 7], 100, 4)[0] if told else None
    x, y = blobs([0, 1], 150, 0)
    ferns = feature_ferns(x, groups=80, tests=3)
    model = with_table(ferns, ferns.bins, outputs=6, capped=True)
    learner = icn.ExactInterContiNet(model, keep=keep, strangers=strange, tuning="shifted", fit_rate=0.1)
    tasks = [(x, y), blobs([2, 3], 150, 1), blobs([4, 5], 150, 2)]
    for place, task in enumerate(tasks):
        before = learner.region
        floor = learner.learn(task, task=str(place))
        assert floor.kept and learner.region.within(before)
    for task, floor in zip(tasks, learner.certificate.tasks, strict=True):
        assert icn.certify(model, learner.region, task).certified >= floor.certified
        assert icn.attack(model, learner.region, task).accuracy >= floor.floor
    assert icn.verify(model, learner.certificate)


def test_columns_are_low_on_examples_of_no_class() -> None:
    rows, labels = torch.tensor([[0, 3], [1, 3], [2, 3]] * 20), torch.tensor([0, 1, 2] * 20)
    column = regressed(rows, labels, size=4, columns=2, rate=0.1, key=0, each=True)
    sums = column[rows[:3]].sum(1)
    assert bool((sums.diagonal() > 0).all()) and bool((sums[2] < 0).all())


def test_who_cannot_use_strangers_says_so() -> None:
    x, y = blobs([0, 1], 50, 0)
    ferns = feature_ferns(x, groups=20, tests=3)
    counted = icn.ExactInterContiNet(with_table(ferns, ferns.bins, outputs=2), strangers=x)
    with pytest.raises(InvalidSetting, match="capped"):
        counted.learn((x, y))
    with pytest.raises(InvalidSetting, match="pass examples as strangers"):
        icn.ExactInterContiNet(with_table(ferns, ferns.bins, outputs=2), strangers_from="mnist")
    capped = icn.ExactInterContiNet(with_table(ferns, ferns.bins, outputs=2, capped=True), strangers=torch.rand(5, 9))
    with pytest.raises(InvalidData, match=r"strangers have shape \(9,\), and the task's examples \(8,\)"):
        capped.learn((x, y))
    images = fern_net((1, 4, 4), outputs=2, groups=10, tests=3, window=3, capped=True)
    learner = icn.ExactInterContiNet(images, strangers=torch.full((3, 1, 4, 4), torch.nan))
    with pytest.raises(InvalidData, match="NaN"):
        learner.learn((torch.rand(20, 1, 4, 4), torch.arange(20) % 2))


def test_a_run_takes_them_from_another_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    parts: dict[str, Any] = {}
    for part, count in (("train", 120), ("test", 20)):
        parts |= {f"x_{part}": generator.random((count, 64), np.float32), f"y_{part}": np.arange(count) % 4}
    file = tmp_path / "others.npz"
    np.savez(file, **parts)
    asked: dict[str, Any] = {"dataset": "digits", "scenario": "class", "method": "exact", "net": "capped-levels-40-5"}
    matrices = []
    for name in ("", str(file)):
        settings = {"tuning": "shifted", "strangers_from": name, "fit_rate": 0.1}
        run = Run(configure(**asked, settings=settings), "cpu")
        state = complete(run)
        assert run.summary(state)["settings"]["strangers_from"] == name
        matrices.append(state.weights)
    assert not torch.equal(*matrices)
    digits = stream("digits", "class")
    assert len(strangers(str(file), digits)) == 120 <= encoders.STRANGERS
    with monkeypatch.context() as patch:
        patch.setattr(encoders, "STRANGERS", 50)
        some = strangers(str(file), digits)
    assert torch.equal(some, strangers(str(file), digits)[::3]), "every third, from all of them"
    with pytest.raises(InvalidSetting, match=r"of shape \(64,\), and these examples are \(1, 8, 8\)"):
        strangers(
            str(file),
            replace(digits, tasks=[replace(t, train=(t.train[0].view(-1, 1, 8, 8), t.train[1])) for t in digits.tasks]),
        )
    own = tmp_path / "own.npz"
    np.savez(
        own, **{**parts, "x_train": np.concatenate([parts["x_train"][:110], digits.tasks[2].test[0][:10].numpy()])}
    )
    assert len(strangers(str(own), digits)) == 110, "the stream's own examples are no strangers"
    np.savez(own, **{**parts, "x_train": digits.tasks[2].train[0][:120].numpy()})
    with pytest.raises(InvalidSetting, match="belong to the tasks"):
        strangers(str(own), digits)
    for wrong in ({"strangers_from": str(file)}, {"tuning": "shifted"}):
        with pytest.raises(InvalidSetting, match="use a capped net"):
            configure(**{**asked, "net": "levels-40-5"}, settings=wrong)
    with pytest.raises(InvalidSetting, match="the data set itself"):
        configure(**asked, settings={"strangers_from": "digits"})


def test_sight_is_not_for_images_that_it_has_seen() -> None:
    with pytest.raises(InvalidSetting, match="was trained on the images of cifar-100"):
        configure("cifar-100", "task", "exact", net="sight-2-50-4")
