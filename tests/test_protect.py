"""The search for a large region: true floors, nested chains, more for more steps, and never a moment without proof."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

import intercontinet as icn
from intercontinet import inference
from intercontinet.bounds.tape import Tape
from intercontinet.criterion import Criterion, multi_label, regression
from intercontinet.errors import (
    CertificateError,
    InvalidData,
    InvalidModel,
    InvalidSetting,
    NotCertified,
    TrainingMode,
    UnsupportedLayer,
    Violation,
)
from intercontinet.interval import Interval
from intercontinet.protect import Protecting
from intercontinet.question import Question
from intercontinet.search import Search, Shape
from tests.tiny import Pair, blobs, fitted, mlp, same, snapshot, with_statistics

Weights = dict[str, Tensor]


@pytest.fixture(scope="module")
def case() -> tuple[nn.Sequential, Pair]:
    data = blobs((0, 1, 2), examples=60, spread=0.6)
    return fitted(data, mlp(outputs=3)), data


@pytest.fixture(scope="module")
def first(case: tuple[nn.Sequential, Pair]) -> icn.Certificate:
    return icn.protect(*case, keep=0.9, steps=20)


def points(region: icn.Region, seed: int, count: int = 6) -> list[Weights]:
    """Corners of a region, points on its edges, and points inside."""
    generator = torch.Generator().manual_seed(seed)
    out = []
    for number in range(count):
        point = {}
        for name, low in region.lower.items():
            share = torch.rand(low.shape, generator=generator)
            if number % 3 < 2:
                share = share.round()
            if number % 3 == 1:
                share = torch.where(torch.rand(low.shape, generator=generator) < 0.5, share, 0.5)
            point[name] = torch.clamp(low + share * (region.upper[name] - low), low, region.upper[name])
        out.append(point)
    return out


def right_everywhere(model: nn.Module, weights: list[Weights], right: Callable[[Tensor], Tensor], *x: Tensor) -> int:
    """How many examples all of these weights get right: a naive count that no floor may exceed."""
    with torch.no_grad():
        return int(torch.stack([right(functional_call(model, one, x)) for one in weights]).all(0).sum())


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 1000),
    keep=st.sampled_from([0.3, 0.8, 0.95, 1.0]),
    plastic=st.sampled_from(["all", "head", "0.*", ["0.bias", "2.weight"]]),
)
def test_no_weights_of_the_region_get_a_certified_example_wrong(seed: int, keep: float, plastic: Any) -> None:
    data = blobs((0, 1), examples=24, seed=seed, spread=0.8)
    model = fitted(data, mlp(seed=seed, hidden=5), steps=15)
    today = int((model(data[0]).argmax(1) == data[1]).sum())
    certificate = icn.protect(model, data, keep, plastic=plastic, steps=3, seed=seed)
    (floor,) = certificate.tasks
    assert floor.kept and floor.correct == today and floor.certified >= keep * today
    assert certificate.region.contains(model)
    assert icn.certify(model, certificate.region, data).certified == floor.certified
    weights = points(certificate.region, seed)
    weights.append(icn.attack(model, certificate.region, data, seed, starts=2, steps=5).weights)
    assert floor.certified <= right_everywhere(model, weights, lambda out: out.argmax(1) == data[1], data[0])
    predicted = model(data[0]).argmax(1)
    stable = right_everywhere(model, weights, lambda out: out.argmax(1) == predicted, data[0])
    assert floor.stable is not None and floor.certified <= floor.stable <= stable


def test_the_region_is_as_wide_as_the_floor_allows_and_not_the_same_on_both_sides(
    case: tuple[nn.Sequential, Pair], first: icn.Certificate
) -> None:
    model, data = case
    wider = icn.certify(model, first.region.scaled(1.1, model), data)
    assert wider.certified < 0.9 * wider.correct
    state = snapshot(model)
    down = torch.cat([(state[n] - low).flatten() for n, low in first.region.lower.items()])
    up = torch.cat([(upper - state[n]).flatten() for n, upper in first.region.upper.items()])
    assert float((down / up).log().abs().median()) > 0.01
    assert bool((down > 0).all() and (up > 0).all())


def test_more_steps_never_make_a_smaller_region(case: tuple[nn.Sequential, Pair]) -> None:
    volumes = [icn.protect(*case, keep=0.9, steps=steps).region.size().log_volume for steps in (0, 10, 40)]
    assert volumes == sorted(volumes)
    assert volumes[2] > volumes[0] + 5


def test_the_same_seed_finds_the_same_region(case: tuple[nn.Sequential, Pair]) -> None:
    torch.manual_seed(1)
    one = icn.protect(*case, steps=5, seed=3)
    torch.manual_seed(2)
    other = icn.protect(*case, steps=5, seed=3)
    assert same(one.region.lower, other.region.lower) and same(one.region.upper, other.region.upper)


def test_the_model_is_unchanged() -> None:
    model = with_statistics()
    before, modes = snapshot(model), [module.training for module in model.modules()]
    icn.protect(model, blobs(), 0.5, steps=3, challenge=True)
    assert same(before, snapshot(model)) and [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_every_certificate_on_the_way_verifies_and_each_is_larger(case: tuple[nn.Sequential, Pair]) -> None:
    model, data = case
    heard: list[Protecting] = []
    last = icn.protect(model, data, 0.9, steps=25, listen=heard.append)
    assert [h.step for h in heard] == [0, 0, *range(1, 26)] and all(h.steps == 25 for h in heard)
    found = [h for h in heard if h.certificate is not None]
    assert len(found) >= 3 and heard[0] is found[0]
    for h in found:
        assert h.certificate is not None and icn.verify(model, h.certificate)
        (floor,) = h.certificate.tasks
        assert floor.kept and h.certain == floor.floor
        assert icn.certify(model, h.certificate.region, data).certified == floor.certified
        assert h.log_volume == h.certificate.region.size().log_volume
    assert [h.log_volume for h in heard] == sorted(h.log_volume for h in heard)
    assert same(found[-1].certificate.region.lower, last.region.lower) if found[-1].certificate else False


class Enough(Exception):
    pass


@pytest.mark.parametrize("signal", [KeyboardInterrupt, Enough])
def test_an_interrupted_search_is_resumed_and_loses_nothing(
    case: tuple[nn.Sequential, Pair], tmp_path: Path, signal: type[BaseException]
) -> None:
    def listen(heard: Protecting) -> None:
        if heard.certificate is not None:
            heard.certificate.save(tmp_path / "v1.icn")
        if heard.step == 12:
            raise signal

    with pytest.raises(signal):
        icn.protect(*case, keep=0.9, steps=20, listen=listen)
    left = icn.Certificate.load(tmp_path / "v1.icn")
    assert icn.verify(case[0], left) and left.tasks[0].kept
    volumes = [left.region.size().log_volume]
    for steps in (0, 10):
        resumed = icn.protect(*case, keep=0.9, steps=steps, start=tmp_path / "v1.icn")
        assert resumed.tasks[0].kept and icn.certify(*case[:1], resumed.region, case[1]).kept
        volumes.append(resumed.region.size().log_volume)
    assert volumes == sorted(volumes)


def test_a_start_that_asks_for_more_than_it_holds_is_shrunk(case: tuple[nn.Sequential, Pair]) -> None:
    loose = icn.protect(*case, keep=0.3, steps=5)
    strict = icn.protect(*case, keep=1.0, steps=0, start=loose)
    assert strict.tasks[0].kept and strict.tasks[0].certified > loose.tasks[0].certified


def test_a_start_for_other_weights_is_refused(case: tuple[nn.Sequential, Pair], first: icn.Certificate) -> None:
    with pytest.raises(Violation):
        icn.protect(mlp(outputs=3, seed=9), case[1], 0.1, start=first)


def test_time_is_a_budget_too(case: tuple[nn.Sequential, Pair]) -> None:
    heard: list[Protecting] = []
    certificate = icn.protect(*case, keep=0.9, seconds=0.4, listen=heard.append)
    assert heard[-1].step > 3 and heard[-1].steps is None
    assert certificate.tasks[0].kept and heard[-1].seconds < 5
    heard.clear()
    icn.protect(*case, keep=0.9, steps=10_000, seconds=0.0, listen=heard.append)
    assert [h.step for h in heard] == [0] and heard[0].steps == 10_000


def test_a_chain_of_certificates_nests_to_the_bit_and_carries_its_floors(
    case: tuple[nn.Sequential, Pair], first: icn.Certificate, tmp_path: Path
) -> None:
    model, data = mlp(outputs=3), blobs((0, 1, 2), examples=40, seed=1)
    model.load_state_dict(case[0].state_dict())
    first.save(tmp_path / "v1.icn")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with icn.keep_inside(model, optimizer, first):
        for _ in range(20):
            optimizer.zero_grad()
            F.cross_entropy(model(data[0]), data[1]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    assert not same(snapshot(model), snapshot(case[0]))
    second = icn.protect(model, data, 0.8, within=tmp_path / "v1.icn", task="new", steps=12)
    third = icn.protect(model, data, 0.95, within=second, task="again", plastic="head", steps=0)
    assert third.region.within(second.region) and second.region.within(first.region)
    assert second.tasks[0] == first.tasks[0] and [floor.task for floor in third.tasks] == ["", "new", "again"]
    assert torch.equal(third.region.lower["0.weight"], model.get_parameter("0.weight"))
    for certificate in (first, second, third):
        assert icn.verify(model, certificate)
        assert certificate.tasks[-1].kept
        assert certificate.architecture == first.architecture
    old = right_everywhere(model, points(third.region, 0), lambda out: out.argmax(1) == case[1][1], case[1][0])
    assert old >= first.tasks[0].certified


def test_a_model_outside_the_earlier_region_is_refused(
    case: tuple[nn.Sequential, Pair], first: icn.Certificate
) -> None:
    with pytest.raises(Violation, match="outside the certified region"):
        icn.protect(mlp(outputs=3, seed=4), case[1], within=first)
    other = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(), nn.Linear(8, 3))
    other.load_state_dict(case[0].state_dict())
    with pytest.raises(CertificateError, match="another architecture"):
        icn.protect(other, case[1], within=first)


def test_no_room_left_is_a_point_and_no_endless_search(case: tuple[nn.Sequential, Pair]) -> None:
    model, data = case
    point = icn.Region.around(model, 0.0)
    parent = icn.Certificate.of(model, point, [icn.certify(model, point, data)])
    heard: list[Protecting] = []
    child = icn.protect(model, data, 0.9, within=parent, steps=11, listen=heard.append)
    assert child.region.within(point) and len(child.tasks) == 2
    assert [h.certificate is not None for h in heard].count(True) == 1, "nothing was ever larger"


def test_edges_without_bounds_in_the_earlier_region_leave_finite_ones(case: tuple[nn.Sequential, Pair]) -> None:
    model, data = case
    parent = icn.Certificate.of(
        model, icn.Region.everything(model), [icn.certify(model, icn.Region.around(model, 0), data)]
    )
    child = icn.protect(model, data, 0.9, within=parent, steps=2)
    assert all(bool(edge.isfinite().all()) for edge in (*child.region.lower.values(), *child.region.upper.values()))


@pytest.mark.parametrize("plastic", ["head", "2.*", ["2.weight", "2.bias"], lambda name: name.startswith("2")])
def test_what_is_not_plastic_is_a_point(case: tuple[nn.Sequential, Pair], plastic: Any) -> None:
    region = icn.protect(*case, plastic=plastic, steps=2).region
    for name, low in region.lower.items():
        assert torch.equal(low, region.upper[name]) == name.startswith("0"), name


def test_statistics_are_points_while_the_norm_around_them_moves() -> None:
    model = with_statistics()
    data = blobs()
    region = icn.protect(model, (data[0], model(data[0]).argmax(1)), 0.8, steps=2).region
    assert torch.equal(region.lower["1.running_mean"], region.upper["1.running_mean"])
    assert bool((region.lower["1.weight"] < region.upper["1.weight"]).all())


def brute_force_margin(region: icn.Region, hidden: Tensor, y: Tensor) -> Tensor:
    """The least lead of the right class over all weights of the head's box, in float64: one corner a rival."""
    low, up = region.lower["2.weight"].double(), region.upper["2.weight"].double()
    below, above = region.lower["2.bias"].double(), region.upper["2.bias"].double()
    h = hidden.double()
    least = (torch.minimum(low * h[:, None], up * h[:, None]).sum(2) + below).gather(1, y[:, None])
    most = torch.maximum(low * h[:, None], up * h[:, None]).sum(2) + above
    return (least - most.scatter(1, y[:, None], -math.inf)).amin(1)


def test_where_only_the_head_moves_the_count_is_exact(case: tuple[nn.Sequential, Pair]) -> None:
    model, (x, y) = case
    for keep in (0.5, 0.9, 1.0):
        certificate = icn.protect(model, (x, y), keep, plastic="head", steps=5)
        margin = brute_force_margin(certificate.region, model[:2](x).detach(), y)
        assert int((margin > 1e-5).sum()) <= certificate.tasks[0].certified <= int((margin > 0).sum())


class Tailed(nn.Module):
    """A frozen body that counts how often it runs, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.runs = nn.Linear(2, 8), nn.Linear(8, 2), 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        out: Tensor = self.head(torch.relu(self.body(x)))
        return out


@pytest.mark.parametrize("drift", [None, 1e-5])
def test_frozen_layers_are_computed_a_few_times_however_long_the_search(drift: float | None) -> None:
    torch.manual_seed(0)
    model, (x, _) = Tailed(), blobs()
    icn.protect(model, (x, model(x).argmax(1)), plastic="head", drift=drift, steps=30)
    assert model.runs <= 9  # six of them to see that examples do not mix


def test_drift_is_recorded_and_lets_a_deep_frozen_body_through(tmp_path: Path) -> None:
    torch.manual_seed(0)
    deep = [layer for _ in range(40) for layer in (nn.Linear(16, 16), nn.ReLU())]
    for layer in deep[::2]:
        nn.init.orthogonal_(layer.weight, gain=1.6)  # type: ignore[arg-type]
    model, x = nn.Sequential(nn.Linear(2, 16), *deep, nn.Linear(16, 2)), torch.randn(30, 2)
    data = x, model(x).argmax(1)
    with pytest.raises(NotCertified, match=r"Freeze the lower layers \(plastic='head'\) and give drift=1e-5"):
        icn.protect(model, data, plastic="head", steps=0)
    first = icn.protect(model, data, plastic="head", drift=1e-6, steps=2)
    (floor,) = first.tasks
    assert floor.kept and floor.drift == 1e-6 and "drift by no more than 1e-06" in str(floor)
    first.save(tmp_path / "v1.icn")
    second = icn.protect(model, data, within=tmp_path / "v1.icn", drift=1e-6, steps=2)
    assert second.tasks[1].kept, "what is frozen there is frozen here, though all may move"


def test_drift_where_everything_moves_is_no_promise_less(case: tuple[nn.Sequential, Pair]) -> None:
    model, data = case
    certificate = icn.protect(model, data, 0.9, drift=1e-5, steps=2)
    assert icn.certify(model, certificate.region, data).certified >= certificate.tasks[0].certified


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


class Idle(nn.Module):
    """One parameter takes no part in the output."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.idle = nn.Linear(2, 2), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x)
        return out


def test_a_parameter_that_takes_no_part_may_go_far() -> None:
    torch.manual_seed(0)
    model, (x, _) = Idle(), blobs()
    region = icn.protect(model, (x, model(x).argmax(1)), steps=2, challenge=True).region
    width = {name: region.upper[name] - low for name, low in region.lower.items()}
    assert float(width["idle"].min()) > 5 * float(width["head.weight"].max())


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


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ("data", "for other data: ask for the same"),
        ("classes", r"for classes None \(not \(0, 1, 2\)\)"),
        ("criterion", r"for criterion classification \(not mine\)"),
        ("drift", r"for drift None \(not 0.0\)"),
    ],
)
def test_a_start_that_promises_something_else_is_refused(
    case: tuple[nn.Sequential, Pair], first: icn.Certificate, changed: str, complaint: str
) -> None:
    model, (x, y) = case
    mine = Criterion("mine", lambda out, targets: out.lower.amax(1))
    values: dict[str, Any] = {"classes": (0, 1, 2), "drift": 0.0, "criterion": mine}
    options = {} if changed == "data" else {changed: values[changed]}
    with pytest.raises(InvalidSetting, match=complaint):
        icn.protect(model, (x[1:], y[1:]) if changed == "data" else (x, y), 0.9, start=first, steps=0, **options)
    empty = dataclasses.replace(first, tasks=())
    with pytest.raises(InvalidSetting, match="holds no floor"):
        icn.protect(model, (x, y), 0.9, start=empty, steps=0)


def test_where_rounding_leaves_nothing_certain_the_first_pieces_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "EXAMPLES_AT_ONCE", 8)
    model, (x, _) = Tailed(), blobs(examples=64)
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)  # so that all is a tie: the first class is right, and never certain
    looked: list[int] = []
    played = Tape.before_last

    def counted(*args: Any) -> Any:
        looked.append(1)
        return played(*args)

    monkeypatch.setattr(Tape, "before_last", counted)
    with pytest.raises(NotCertified, match=r"of 40 examples that the model gets right, 0 are certain.*drift=1e-5"):
        icn.protect(model, (x, torch.zeros(64, dtype=torch.int64)), keep=0.5, steps=0)
    assert len(looked) == 5


@pytest.mark.parametrize("keep", [0.0, -0.5, 1.1, math.nan])
def test_a_share_out_of_range_is_refused(case: tuple[nn.Sequential, Pair], keep: float) -> None:
    with pytest.raises(InvalidSetting, match="keep is"):
        icn.protect(*case, keep=keep)


@pytest.mark.parametrize("setting", [{"steps": -1}, {"seconds": -1.0}, {"seconds": math.nan}, {"drift": -1.0}])
def test_settings_that_make_no_sense_are_refused(case: tuple[nn.Sequential, Pair], setting: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting, match=r"must not be negative|drift is"):
        icn.protect(*case, **setting)


def test_a_model_that_gets_nothing_right_has_nothing_to_keep(case: tuple[nn.Sequential, Pair]) -> None:
    model, (x, _) = case
    with pytest.raises(NotCertified, match="gets no example right"):
        icn.protect(model, (x, (model(x).argmax(1) + 1) % 3))


def test_ties_are_never_certain() -> None:
    model = mlp()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    x = torch.randn(10, 2)
    with pytest.raises(NotCertified, match="0 are certain"):
        icn.protect(model, (x, torch.zeros(10, dtype=torch.int64)))


def test_constant_outputs_and_a_single_example() -> None:
    model = mlp()
    nn.init.zeros_(model[2].weight)  # type: ignore[arg-type]
    model.get_parameter("2.bias").data = torch.tensor([0.0, 1.0])
    for x in (torch.randn(10, 2), torch.zeros(1, 2)):
        certificate = icn.protect(model, (x, torch.ones(len(x), dtype=torch.int64)), 1.0, steps=12)
        assert certificate.tasks[0].certified == len(x)
        weights = points(certificate.region, 0)
        assert right_everywhere(model, weights, lambda out: out.argmax(1) == 1, x) == len(x)


def test_one_class_leaves_nothing_to_lose_and_edges_stay_finite() -> None:
    model, x = mlp(outputs=1), torch.randn(5, 2)
    region = icn.protect(model, (x, torch.zeros(5, dtype=torch.int64)), steps=3).region
    assert all(bool(edge.isfinite().all()) for edge in (*region.lower.values(), *region.upper.values()))


def test_huge_weights_leave_finite_edges() -> None:
    state = {"w": torch.tensor([1e37, -1e38])}
    shape = Shape(state, ["w"], None)
    shape.scale(1e30)
    region = shape.region(2.0**20)
    assert bool(region.lower["w"].isfinite().all() and region.upper["w"].isfinite().all())


def test_distances_stay_where_gradients_reach_them(case: tuple[nn.Sequential, Pair]) -> None:
    """Beyond the room there is, a distance would grow for ever and never come back."""
    model, (x, y) = case
    shape = Shape(snapshot(model), ["2.bias"], icn.Region.around(model, 1e-4))
    question, generator = Question.of(model, (x, y), x.device, None, None), torch.Generator().manual_seed(0)
    search = Search(model, question, shape, 0.5, None, generator)
    search.fit()
    for _ in range(5):
        search.step(generator)
    room, distance = shape.room["2.bias"], shape.distances["2.bias"]
    assert bool((distance <= room.log()).all())
    edges = torch.stack(shape.edges("2.bias"))
    assert bool((torch.autograd.grad(edges[1].sum() - edges[0].sum(), distance)[0] > 0).all())


def test_a_batch_norm_in_training_mode_is_named() -> None:
    model = with_statistics()
    model.train()
    with pytest.raises(TrainingMode, match=r"'1' \(BatchNorm1d\).*eval"):
        icn.protect(model, blobs(), 0.5)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.two(torch.relu(self.one(x)))))
        return out


def test_tied_weights_move_together(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Tied(), torch.randn(30, 3)
    y = model(x).argmax(1)
    certificate = icn.protect(model, (x, y), 0.8, steps=4)
    assert "two.weight" not in certificate.region.lower and certificate.tied == {"two.weight": "one.weight"}
    weights = points(certificate.region, 0)
    assert certificate.tasks[0].certified <= right_everywhere(model, weights, lambda out: out.argmax(1) == y, x)
    certificate.save(tmp_path / "v1.icn")
    assert icn.verify(model, tmp_path / "v1.icn")


@pytest.mark.parametrize(("convert", "word"), [(nn.Module.double, "float64"), (nn.Module.half, "float16")])
def test_another_precision_is_refused_by_name(convert: Callable[[nn.Module], nn.Module], word: str) -> None:
    with pytest.raises(InvalidModel, match=rf"'0\.weight' is {word}.*model.float\(\)"):
        icn.protect(convert(mlp()), blobs())


def test_weights_and_data_that_cannot_be_used_are_named(case: tuple[nn.Sequential, Pair]) -> None:
    model, (x, y) = case
    broken = mlp(outputs=3)
    broken.get_parameter("2.bias").data[0] = math.nan
    with pytest.raises(InvalidModel, match=r"'2\.bias' holds NaN"):
        icn.protect(broken, (x, y))
    with pytest.raises(InvalidData, match="the data is empty"):
        icn.protect(model, (x[:0], y[:0]))
    with pytest.raises(InvalidData, match="label 3 is out of range"):
        icn.protect(model, (x, y + 1))
    with pytest.raises(InvalidData, match="example 4 holds NaN"):
        icn.protect(model, (x.index_fill(0, torch.tensor([4]), math.nan), y))
    with pytest.raises(InvalidData, match="cannot take examples of shape"):
        icn.protect(model, (torch.randn(60, 5), y))
    with pytest.raises(InvalidData, match=r"inputs are float64.*x.float\(\)"):
        icn.protect(model, (x.double(), y))


def test_a_search_needs_gradients(case: tuple[nn.Sequential, Pair]) -> None:
    with torch.no_grad():
        assert icn.protect(*case, keep=0.9, steps=2).tasks[0].kept
    with torch.inference_mode(), pytest.raises(InvalidSetting, match=r"inference_mode\(\) forbids"):
        icn.protect(*case)


def test_a_hooked_model_is_refused(case: tuple[nn.Sequential, Pair]) -> None:
    model = mlp(outputs=3)
    model[0].register_forward_hook(lambda *_: None)
    with pytest.raises(UnsupportedLayer, match="remove them first"):
        icn.protect(model, case[1])
