"""Encoders of several seeds: what they have in common sees every example once, and all see what each would alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from intercontinet.errors import InvalidModel
from intercontinet.learners.exact import encoded, exact_features, parts_of
from intercontinet.learners.method import Lesson
from intercontinet.nets import WholeNet, build_exact_net
from intercontinet.nets.whole import WholeConvolution
from intercontinet.study import encoders
from intercontinet.study.config import configure
from intercontinet.study.encoders import Examples, Models, Shown
from intercontinet.study.run import Run, complete
from intercontinet.tasks import Stream, Task, stream

CPU = torch.device("cpu")
X = torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))
Y = torch.arange(6) % 2
DIGITS = {"task": stream("digits", "task"), "class": stream("digits", "class")}


def nets(name: str = "capped-sight-2-5-3") -> list[nn.Sequential]:
    return [build_exact_net(name, X, outputs=2, slots=1, seed=seed) for seed in (0, 1)]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many examples eyes have looked at, call by call."""
    seen: list[int] = []

    def features(layers: nn.Sequential, x: Tensor) -> Tensor:
        seen.append(len(x))
        return exact_features(layers, x)

    monkeypatch.setattr(encoders, "exact_features", features)
    return seen


def test_seeds_share_their_eyes_and_see_what_each_would_alone(looks: list[int]) -> None:
    strange = 1 - X[:4]
    models, examples = Models(nets(), CPU, exact=True, strangers=strange), Examples((X, Y), None, CPU)
    for row in (0, 1):
        shown = models.lesson(Lesson("task", 0, X, Y), examples, row, mirror=True)
        whole = parts_of(models.whole[row])[0]
        assert torch.equal(shown.x, encoded(whole, X)[0])
        assert shown.mirrored is not None and torch.equal(shown.mirrored, encoded(whole, X.flip(-1))[0])
        both = torch.cat([strange, strange.flip(-1)])
        assert shown.strangers is not None and torch.equal(shown.strangers, encoded(whole, both)[0])
        examples.shown.to(models.encoders[row], row)
    assert looks == [6, 6, 4, 4]
    one, other = (examples.shown.to(encoder, row) for row, encoder in enumerate(models.encoders))
    assert not torch.equal(one, other), "ferns are each seed's own"


def test_eyes_that_differ_are_not_shared(looks: list[int]) -> None:
    one, other = nets()
    first = next(part for part in other.modules() if isinstance(part, WholeConvolution))
    first.bias += 1000
    models, shown = Models([one, other], CPU, exact=True), Shown(X)
    for row, encoder in enumerate(models.encoders):
        assert torch.equal(shown.to(encoder, row), encoded(parts_of(models.whole[row])[0], X)[0])
    assert not looks


@pytest.mark.parametrize("name", ["pairs-5-3-4", "dictionary-4-2-10-0.1-5-3"])
def test_other_encoders_are_each_seeds_own(name: str, looks: list[int]) -> None:
    models, shown = Models(nets(name), CPU, exact=True), Shown(X)
    for row, encoder in enumerate(models.encoders):
        assert torch.equal(shown.to(encoder, row), encoded(parts_of(models.whole[row])[0], X)[0])
    assert not looks


def test_nets_without_encoders_are_shown_examples_as_they_are() -> None:
    models, examples = Models([nn.Linear(2, 2)], CPU, exact=False), Examples((X, Y), None, CPU)
    lesson = Lesson("task", 0, X, Y)
    assert models.lesson(lesson, examples, 0, mirror=True) is lesson
    assert examples.shown.to(None, 0) is examples.shown.x and not models.hashes


def test_layers_that_round_have_no_exact_features() -> None:
    with pytest.raises(InvalidModel, match="known up to that only"):
        exact_features(nn.Sequential(nn.Flatten(), nn.Linear(768, 3)), X)
    assert exact_features(nn.Sequential(WholeNet((3,), (0,), heard=1)), X).dtype == torch.float32


def test_other_strangers_make_another_run() -> None:
    ours, others = (Models(nets(), CPU, exact=True, strangers=x).hashes for x in (X, 1 - X))
    assert len(ours) == 2 and not set(ours) & {*others, *Models(nets(), CPU, exact=True).hashes}


@pytest.mark.parametrize("scenario", ["task", "class"])
def test_runs_train_on_mirrored_images_where_asked_for(scenario: str) -> None:
    net = "capped-pairs-20-4-4" if scenario == "class" else "pairs-20-4-4"
    images = [
        replace(task, train=_as_images(task.train), test=_as_images(task.test)) for task in DIGITS[scenario].tasks
    ]
    tasks = replace(DIGITS[scenario], tasks=images[:2])
    found = []
    for mirror in (False, True):
        config = configure("digits", scenario, "exact", net=net, settings={"mirror": mirror})
        found.append(complete(Run(config, "cpu", tasks=tasks)).weights)
    assert not torch.equal(*found)


def test_a_run_of_several_seeds_is_that_of_each_alone() -> None:
    tasks = Stream([Task("both", (X, Y), (X, Y), (0, 1))], 2, "task")
    together = complete(run_of(tasks, (0, 1))).weights
    alone = [complete(run_of(tasks, (seed,))).weights for seed in (0, 1)]
    assert torch.equal(together, torch.cat(alone)) and not torch.equal(*alone)


def run_of(tasks: Stream, seeds: tuple[int, ...]) -> Run:
    settings = {"mirror": True, "held_out": 0.0, "unseen": 0.0}
    return Run(configure("cifar-10", "task", "exact", seeds, net="sight-2-5-3", settings=settings), "cpu", tasks=tasks)


def _as_images(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return pair[0].view(-1, 1, 8, 8), pair[1]
