"""Encoders of several seeds: what they have in common sees every example once, and all see what each would alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from intercontinet.errors import InvalidData, InvalidModel
from intercontinet.learners.exact import encoded, exact_features, mirrored, parts_of
from intercontinet.learners.method import Lesson
from intercontinet.nets import WholeNet, build_exact_net
from intercontinet.nets.whole import WholeConvolution
from intercontinet.study import encoders
from intercontinet.study.encoders import Examples, Models, Shown

CPU = torch.device("cpu")
X = torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))
Y = torch.arange(6) % 2


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


def test_a_mirror_is_for_images() -> None:
    with pytest.raises(InvalidData, match="mirror is for images"):
        mirrored(torch.rand(5, 4))
