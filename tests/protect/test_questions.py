"""What a region is searched for: criteria, heads, models with several inputs, data in any form, and unseen examples."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import intercontinet as icn
from intercontinet.criterion import Criterion, multi_label, regression
from intercontinet.errors import (
    InvalidData,
)
from intercontinet.interval import Interval
from tests.protect.points import points, right_everywhere
from tests.tiny import Pair, blobs, mlp


def numbers(outputs: int = 1) -> tuple[nn.Sequential, Pair]:
    model = mlp(outputs=outputs)
    x = torch.randn(40, 2)
    return model, (x, model(x).detach() + 0.1 * torch.randn(40, outputs))


def test_regression_keeps_within_the_tolerance() -> None:
    for model, (x, y) in (numbers(1), numbers(3)):
        certificate = icn.protect(model, (x, y), 0.8, criterion=regression(0.2), steps=8, challenge=True)
        (floor,) = certificate.tasks
        assert floor.kept and floor.criterion == "regression within 0.2" and floor.stable is None
        assert floor.attacked is not None and floor.certified <= floor.attacked <= floor.correct

        def close(out: Tensor, y: Tensor = y) -> Tensor:
            return ((out.double() - y.double()).abs() <= 0.2).all(1)

        assert floor.correct == int(close(model(x)).sum())
        assert floor.certified <= right_everywhere(model, points(certificate.region, 0), close, x)


def test_several_labels_an_example() -> None:
    model, x = mlp(outputs=4), torch.randn(40, 2)
    y = (model(x) > 0).long()
    y[:5, 0] = 1 - y[:5, 0]
    certificate = icn.protect(model, (x, y), 0.8, criterion=multi_label(), steps=8, challenge=True)
    (floor,) = certificate.tasks
    assert floor.kept and floor.correct == 35 and floor.stable is not None and floor.attacked is not None
    assert floor.certified <= floor.stable and floor.certified <= floor.attacked <= floor.correct
    weights = points(certificate.region, 0)
    assert floor.certified <= right_everywhere(model, weights, lambda out: ((out > 0) == (y > 0)).all(1), x)
    today = model(x) > 0
    assert floor.stable <= right_everywhere(model, weights, lambda out: ((out > 0) == today).all(1), x)


def top_two(out: Interval, y: Tensor) -> Tensor:
    """The right class is among the two highest, for every output of the interval."""
    own = out.lower.gather(1, y.long()[:, None])
    others = out.upper.scatter(1, y.long()[:, None], -torch.inf)
    return own.squeeze(1) - others.sort(1, descending=True).values[:, 1] - 1e-6


def test_a_criterion_of_ones_own_counts_what_is_right_not_what_is_predicted() -> None:
    """The first of two right answers staying right says nothing of the second."""
    model = nn.Linear(2, 4)
    nn.init.zeros_(model.weight)
    model.bias.data = torch.tensor([5.0, 1.0, 0.9, -5.0])
    x, second = torch.randn(10, 2), torch.ones(10, dtype=torch.int64)
    for predicted in (None, lambda out: out.argmax(1)):
        criterion = Criterion("top 2", top_two, predicted)
        found = icn.certify(model, icn.Region.around(model, {"bias": 0.2}), (x, second), criterion=criterion)
        assert found.correct == 10 and found.certified == 0
        (floor,) = icn.protect(model, (x, second), 1.0, plastic="bias", criterion=criterion, steps=2).tasks
        assert floor.kept and floor.certified == 10 and floor.criterion == "top 2"


def test_a_loaded_certificate_has_the_floors_of_a_criterion_whose_predictions_decide_nothing(tmp_path: Path) -> None:
    model, (x, y) = numbers()
    base = regression(0.3)
    near = Criterion("near", base.slack, lambda out: out + 0.29)  # at the edge, so that hardly any prediction is stable
    icn.protect(model, (x, y), 0.9, criterion=near, steps=0).save(tmp_path / "v1.icn")
    (floor,) = icn.Certificate.load(tmp_path / "v1.icn").tasks
    assert floor.kept and floor.stable is None


def test_a_criterion_that_only_says_yes_or_no_finds_a_region_too() -> None:
    model, (x, y) = numbers()
    exact = regression(0.3)
    blunt = Criterion("blunt", lambda out, y: torch.where(exact.slack(out, y) >= 0, 1.0, -1.0))
    (floor,) = icn.protect(model, (x, y), 0.9, criterion=blunt, steps=3, challenge=True).tasks
    assert floor.kept and floor.attacked is not None and floor.certified <= floor.attacked


def test_each_task_has_a_head_of_its_own() -> None:
    x, y = blobs((2, 3), examples=40)
    model = mlp(outputs=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(40):
        optimizer.zero_grad()
        F.cross_entropy(model(x)[:, 2:], y - 2).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    certificate = icn.protect(model, (x, y), 0.9, classes=(2, 3), steps=5)
    (floor,) = certificate.tasks
    assert floor.kept and floor.classes == (2, 3)
    region, weights = certificate.region, points(certificate.region, 1)
    assert floor.certified <= right_everywhere(model, weights, lambda out: out[:, 2:].argmax(1) == y - 2, x)
    own, others = ((region.upper["2.bias"] - region.lower["2.bias"])[rows] for rows in ([2, 3], [0, 1]))
    assert float(others.min()) > 10 * float(own.max()), "outputs that take no part may do as they like"


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.numbers, self.head = nn.Embedding(7, 4), nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, words: Tensor, numbers: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.words(words).mean(1) + self.numbers(numbers)))
        return out


def test_models_with_several_inputs() -> None:
    torch.manual_seed(0)
    model, x = Two(), (torch.randint(7, (30, 5)), torch.randn(30, 3))
    y = model(*x).argmax(1)
    certificate = icn.protect(model, (x, y), 0.8, steps=4, challenge=True)
    (floor,) = certificate.tasks
    assert floor.kept and floor.attacked is not None and floor.certified <= floor.attacked
    weights = points(certificate.region, 0)
    assert floor.certified <= right_everywhere(model, weights, lambda out: out.argmax(1) == y, *x)


def test_a_dataset_and_a_loader_with_workers_are_the_same_examples(case: tuple[nn.Sequential, Pair]) -> None:
    model, (x, y) = case
    known = icn.protect(model, (x, y), steps=0).tasks[0]
    dataset = TensorDataset(x, y)
    for data in (dataset, DataLoader(dataset, batch_size=7, num_workers=2)):
        assert icn.protect(model, data, steps=0).tasks[0] == known


def test_held_out_examples_get_a_floor_and_a_bound_of_their_own(case: tuple[nn.Sequential, Pair]) -> None:
    model, data = case
    more = blobs((0, 1, 2), examples=200, spread=0.6)
    others = more[0][150:], more[1][150:]
    certificate = icn.protect(model, data, 0.9, task="blobs", unseen=others, challenge=True, steps=5)
    seen, unseen = certificate.tasks
    assert unseen.task == "blobs (unseen)" and unseen.total == unseen.unseen_total == 50 and unseen.keep is None
    assert unseen.certified == icn.certify(model, certificate.region, others).certified
    assert unseen.unseen_floor is not None and unseen.unseen_floor < unseen.floor
    assert seen.attacked is not None and seen.certified <= seen.attacked <= seen.correct
    assert seen.stable is not None and seen.stable >= seen.certified
    assert unseen.attacked is None and seen.unseen_floor is None


def test_unseen_examples_that_are_in_the_data_are_refused(case: tuple[nn.Sequential, Pair]) -> None:
    model, (x, y) = case
    others = torch.cat([torch.rand(3, 2), x[5:6]]), torch.cat([y[:3], (y[5:6] + 1) % 3])
    with pytest.raises(InvalidData, match=r"1 of 4 unseen examples \(the first is number 3\) are in the data too"):
        icn.protect(model, (x, y), 0.9, unseen=others, steps=0)
