"""The search for a large region: true floors, nested chains, more for more steps, and never a moment without proof."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import intercontinet as icn
from intercontinet import inference
from intercontinet.bounds.tape import Tape
from intercontinet.errors import (
    CertificateError,
    NotCertified,
    Violation,
)
from intercontinet.protect import Protecting
from tests.protect.points import points, right_everywhere
from tests.tiny import Pair, blobs, fitted, mlp, same, snapshot, with_statistics


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
