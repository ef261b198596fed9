"""The learner: what it computes, that its promises last, and that it leaves everything whole when it fails."""

from __future__ import annotations

import gc
import itertools
import weakref
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

import intercontinet as icn
from intercontinet.engine.loop import Progress
from intercontinet.errors import InvalidData
from intercontinet.floor import Margins
from intercontinet.learners import boxes, intercontinet
from intercontinet.noise import key_of
from tests.learners.test_hyperrectangle import naive_margins
from tests.tiny import QUICK, Pair, batches, blobs, mlp, same, snapshot

START = torch.sigmoid(torch.tensor(5.0)).item()


def right(model: nn.Module, data: Pair, classes: list[int] | None = None) -> int:
    model.eval()
    with torch.no_grad():
        out = model(data[0])
    if classes is not None:
        others = [c for c in range(out.shape[1]) if c not in classes]
        out[:, others] = -torch.inf
    return int((out.argmax(1) == data[1]).sum())


def going_on(model: nn.Module, radius: float, **options: Any) -> icn.InterContiNet:
    """A learner that has one task behind it, whose region is this large."""
    region = icn.Region.around(model, radius)
    certificate = icn.Certificate.of(model, region, [icn.TaskFloor("before", 0, 1, 0)])
    return icn.InterContiNet(model, certificate=certificate, **options)


# What it computes.


def test_radii_start_at_almost_the_first_tasks_radius() -> None:
    model = mlp()
    before = snapshot(model)
    learner = icn.InterContiNet(model, radius=0.5, enforce=False, centre_epochs=0, radii_epochs=0)
    learner.learn(blobs())
    for name, weight in before.items():
        torch.testing.assert_close(learner.region.upper[name] - weight, torch.full_like(weight, START * 0.5))
        torch.testing.assert_close(weight - learner.region.lower[name], torch.full_like(weight, START * 0.5))


def test_later_radii_start_at_almost_the_room_left_in_the_parent() -> None:
    model = mlp()
    learner = going_on(model, 0.3, enforce=False, radii_epochs=0, rate=0.05, centre_epochs=4, batch_size=16)
    parent = learner.region
    learner.learn(blobs())
    for name, weight in snapshot(model).items():
        w, low, up = weight.double(), parent.lower[name].double(), parent.upper[name].double()
        size = START * torch.minimum(up - w, w - low)
        torch.testing.assert_close(learner.region.upper[name].double(), w + size, rtol=0, atol=1e-6)
        torch.testing.assert_close(learner.region.lower[name].double(), w - size, rtol=0, atol=1e-6)
        assert bool((size < 0.29).any()), "the centre must have moved"


def test_a_weight_that_nothing_asks_to_move_stays_to_the_bit() -> None:
    model, (x, y) = mlp(inputs=40), blobs(inputs=40)
    x[:, :35] = 0  # pixels that are never lit
    before = snapshot(model)
    going_on(model, 0.3, enforce=False, radii_epochs=0, rate=0.05, centre_epochs=2).learn((x, y))
    after = snapshot(model)["0.weight"]
    assert torch.equal(after[:, :35], before["0.weight"][:, :35]), "no rounding on the way through the map"
    assert float((after - before["0.weight"]).abs().max()) > 1e-3


def test_radii_start_where_they_are_told_to() -> None:
    learner = icn.InterContiNet(mlp(), enforce=False, centre_epochs=0, radii_epochs=0, radii_start=0.0)
    learner.learn(blobs())
    assert learner.region.size().mean_radius == pytest.approx(0.5)


@pytest.mark.parametrize("shift", ["scaled", "plain"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_centres_take_the_steps_of_algorithm_1(shift: str, optimizer: str) -> None:
    """Against autograd through W* + tanh(mu / eps*) eps*, in float64, with torch's optimizer."""
    model, (x, y) = mlp(), blobs(examples=40)
    start = {name: weight.double() for name, weight in snapshot(model).items()}
    rate = 0.5 if (shift, optimizer) == ("plain", "sgd") else 0.05  # there a step shrinks by the room twice over
    learner = going_on(
        model, 0.2, seed=4, enforce=False, shift=shift, optimizer=optimizer, rate=rate, centre_epochs=3, radii_epochs=0,
        batch_size=16,
    )  # fmt: skip
    mu = {name: torch.zeros_like(weight).requires_grad_() for name, weight in start.items()}
    kind = torch.optim.SGD if optimizer == "sgd" else torch.optim.Adam
    steps = kind(mu.values(), lr=rate)
    scale = 0.2 if shift == "scaled" else 1.0

    def weights() -> dict[str, Tensor]:
        return {name: start[name] + 0.2 * torch.tanh(mu[name] / scale) for name in mu}

    for rows in batches(key_of(4, 1, 0), 3, 40, 16):  # seed 4, the second task, centres
        steps.zero_grad()
        out = functional_call(model, weights(), (x[rows].double(),))
        torch.autograd.backward(F.cross_entropy(out, y[rows]))
        steps.step()
    learner.learn((x, y))
    for name, expected in weights().items():
        torch.testing.assert_close(snapshot(model)[name].double(), expected.detach(), rtol=0, atol=2e-5)
        assert float((expected.detach() - start[name]).abs().max()) > 5e-4


@pytest.mark.parametrize("margins", ["joint", "separate"])
def test_radii_take_the_steps_of_algorithm_1_and_stop_when_enough_is_certain(margins: str) -> None:
    """Against autograd through sigmoid(nu) x room and corner-by-corner margins, in float64."""
    model, (x, y) = mlp(), blobs(examples=40)
    options: dict[str, Any] = {"rate": 0.05, "centre_epochs": 10, "batch_size": 20, "optimizer": "sgd"}
    icn.InterContiNet(model, radii_epochs=0, enforce=False, **options).learn((x, y))
    centre = {name: weight.double() for name, weight in snapshot(model).items()}
    hits = functional_call(model, centre, (x.double(),)).argmax(1) == y
    learner = going_on(
        model, 0.2, keep=0.7, seed=9, enforce=False, margins=margins, **{**options, "centre_epochs": 0},
        radii_epochs=8, radii_rate=320.0,
    )  # fmt: skip
    nu = {name: torch.full_like(weight, 5.0).requires_grad_() for name, weight in centre.items()}
    recent, paused = [], []
    for rows in batches(key_of(9, 1, 1), 8, 40, 20):  # seed 9, the second task, radii
        radius = {name: torch.sigmoid(value) * 0.2 for name, value in nu.items()}
        worst = naive_margins(centre, radius, x[rows].double(), y[rows], margins == "joint")
        certain = (worst.scatter(1, y[rows][:, None], -torch.inf) < 0).all(1)
        recent.append((float(certain.double().mean()), float(hits[rows].double().mean())))
        share, own = (sum(column) / len(recent[-10:]) for column in zip(*recent[-10:], strict=True))
        paused.append(share >= 0.7 * own)
        if not paused[-1]:
            slopes = torch.autograd.grad(F.cross_entropy(worst, y[rows]), list(nu.values()))
            with torch.no_grad():
                for value, slope in zip(nu.values(), slopes, strict=True):
                    value -= 320.0 * slope
    learner.learn((x, y))
    assert any(paused) and not all(paused), "the case must show both"
    for name, value in nu.items():
        expected = centre[name] + torch.sigmoid(value.detach()) * 0.2
        torch.testing.assert_close(learner.region.upper[name].double(), expected, rtol=0, atol=2e-4)


def test_the_rate_of_later_tasks_is_their_own() -> None:
    moved = {}
    for later in (None, 1e-6):
        model = mlp()
        before = snapshot(model)
        going_on(model, 0.5, later_rate=later, **QUICK).learn(blobs())
        moved[later] = max(float((t - before[n]).abs().max()) for n, t in snapshot(model).items())
    assert moved[1e-6] < 1e-3 < moved[None]


def test_radii_of_later_tasks_have_a_rate_of_their_own() -> None:
    """A radius that takes no step stays where nu starts: sigmoid(5) of the room."""
    held = {}
    for later in (None, 1e-9):
        learner = icn.InterContiNet(mlp(), later_radii_rate=later, enforce=False, **QUICK)
        learner.learn(blobs())
        first = learner.region
        learner.learn(blobs(seed=1))
        room = {n: torch.minimum(c - first.lower[n], first.upper[n] - c) for n, c in learner.model.named_parameters()}
        width = {n: (learner.region.upper[n] - learner.region.lower[n]) / 2 for n in room}
        start = torch.sigmoid(torch.tensor(5.0))
        held[later] = all(torch.allclose(width[n], room[n] * start, atol=1e-6) for n in room)
    assert held == {None: False, 1e-9: True}


def test_a_seed_makes_the_result_repeatable() -> None:
    results = []
    for seed, noise in ((3, 0), (3, 1), (4, 0)):
        model = mlp()
        learner = icn.InterContiNet(model, seed=seed, **QUICK)
        torch.manual_seed(noise)
        learner.learn(blobs())
        learner.learn(blobs(seed=1))
        results.append({**snapshot(model), **{f"upper {n}": t for n, t in learner.region.upper.items()}})
    assert same(results[0], results[1]) and not same(results[0], results[2])


def test_the_listener_hears_of_both_phases_and_the_task() -> None:
    heard: list[Progress] = []
    icn.InterContiNet(mlp(), **QUICK).learn(blobs(), task="0/1", listen=heard.append)
    assert [(p.phase, p.epoch) for p in heard] == [("centres", n) for n in range(1, 13)] + [
        ("radii", n) for n in range(1, 5)
    ]
    assert {p.task for p in heard} == {"0/1"}
    assert {len(p.statistics[0]) for p in heard[:12]} == {1}, "accuracy"
    assert {len(p.statistics[0]) for p in heard[12:]} == {2}, "certified share and accuracy"


def test_every_form_of_data_teaches_the_same() -> None:
    x, y = blobs()
    floors, weights = [], []
    forms: list[Any] = [(x, y), TensorDataset(x, y), DataLoader(TensorDataset(x, y), batch_size=7)]
    for data in forms:
        model = mlp()
        floors.append(icn.InterContiNet(model, **QUICK).learn(data))
        weights.append(snapshot(model))
    assert floors[0] == floors[1] == floors[2]
    assert same(weights[0], weights[1]) and same(weights[0], weights[2])


# Promises last.


def test_after_twenty_tasks_regions_nest_and_no_floor_has_fallen() -> None:
    model = mlp(hidden=12)
    learner = icn.InterContiNet(model, keep=0.9, **QUICK)
    tasks = [blobs(seed=seed, examples=32) for seed in range(20)]
    regions = []
    for number, data in enumerate(tasks):
        floor = learner.learn(data, task=str(number))
        assert floor.kept and learner.certificate.tasks[-1] == floor
        regions.append(learner.region)
    assert all(child.within(parent) for i, parent in enumerate(regions) for child in regions[i:])
    assert all(region.contains(model) for region in regions)
    assert len(learner.certificate.tasks) == 20
    for data, floor in zip(tasks, learner.certificate.tasks, strict=True):
        assert right(model, data) >= floor.certified
        assert icn.certify(model, learner.region, data).certified >= floor.certified
    assert learner.certificate.tasks[0].floor > 0.8, "the first promise must be worth something"
    assert regions[-1].size().radii < regions[0].size().radii
    assert icn.verify(model, learner.certificate)


def test_radii_that_fill_the_parent_do_not_leave_it_by_rounding() -> None:
    learner = icn.InterContiNet(mlp(hidden=64), enforce=False, **{**QUICK, "radii_epochs": 0, "radii_start": 100.0})
    regions = []
    for seed in range(4):
        learner.learn(blobs(seed=seed))
        regions.append(learner.region)
    assert all(child.within(parent) for parent, child in itertools.pairwise(regions))


@pytest.mark.parametrize("margins", ["joint", "separate"])
def test_a_head_per_task_freezes_with_its_task_and_stays_certain(margins: Margins) -> None:
    model = mlp(hidden=12, outputs=6)
    learner = icn.InterContiNet(model, keep=0.9, head="per-task", margins=margins, **QUICK)
    tasks = [blobs(labels=(2 * k, 2 * k + 1), seed=k) for k in range(3)]
    untouched = model.get_parameter("2.weight")[4:].detach().clone()
    frozen: list[tuple[Tensor, Tensor]] = []
    for number, data in enumerate(tasks):
        floor = learner.learn(data, task=str(number))
        rows = slice(2 * number, 2 * number + 2)
        assert floor.classes == (2 * number, 2 * number + 1), "by default, the labels"
        assert floor.kept and floor.accuracy > 0.9
        for name in ("2.weight", "2.bias"):
            head = model.get_parameter(name).detach()
            assert torch.equal(learner.region.lower[name][rows], head[rows])
            assert torch.equal(learner.region.upper[name][rows], head[rows])
            assert bool(learner.region.upper[name][rows.stop :].isinf().all()), "heads to come are free"
            frozen.append((head[rows], head[rows].clone()))
        if number < 2:
            assert torch.equal(model.get_parameter("2.weight")[4:], untouched)
    for now, then in frozen:
        assert torch.equal(now, then)
    for data, floor in zip(tasks, learner.certificate.tasks, strict=True):
        assert floor.classes is not None
        assert right(model, data, list(floor.classes)) >= floor.certified
        again = icn.certify(model, learner.region, data, classes=floor.classes, margins=margins)
        assert again.certified >= floor.certified > 0
        found = icn.attack(model, learner.region, data, classes=floor.classes, steps=5)
        assert floor.floor <= found.accuracy


def test_classes_whose_head_is_frozen_cannot_be_learned_again() -> None:
    model = mlp(outputs=4)
    learner = icn.InterContiNet(model, head="per-task", **QUICK)
    learner.learn(blobs(), task="first")
    before, certificate = snapshot(model), learner.certificate
    with pytest.raises(InvalidData, match="class 1 belongs to task 'first', whose head is frozen"):
        learner.learn(blobs(labels=(1, 2)))
    assert same(before, snapshot(model)) and learner.certificate is certificate


def test_a_head_that_never_trains_may_serve_all_tasks() -> None:
    model = mlp(outputs=4)
    model[2].requires_grad_(False)
    before = snapshot(model)
    learner = icn.InterContiNet(model, head="per-task", **QUICK)
    assert learner.learn(blobs()).kept and learner.learn(blobs(labels=(2, 3))).kept
    assert torch.equal(snapshot(model)["2.weight"], before["2.weight"])
    assert torch.equal(learner.region.upper["2.weight"], before["2.weight"])


def test_learning_needs_no_data_of_earlier_tasks() -> None:
    results = []
    for spoil in (False, True):
        model = mlp()
        learner = icn.InterContiNet(model, **QUICK)
        x, y = blobs()
        learner.learn((x, y))
        if spoil:
            x.fill_(torch.nan)
            y.fill_(-7)
        learner.learn(blobs(seed=1))
        results.append(snapshot(model))
    assert same(results[0], results[1])


def test_a_learner_holds_no_examples() -> None:
    learner = icn.InterContiNet(mlp(), **QUICK)
    x, y = blobs()
    learner.learn((x, y))
    references = weakref.ref(x), weakref.ref(y)
    del x, y
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_going_on_from_a_file_stays_inside_what_was_promised(tmp_path: Path) -> None:
    model = mlp()
    learner = icn.InterContiNet(model, **QUICK)
    first = learner.learn(blobs(), task="first")
    learner.certificate.save(tmp_path / "model.icn")
    revived = mlp(seed=5)
    revived.load_state_dict(model.state_dict())
    loaded = icn.Certificate.load(tmp_path / "model.icn")
    other = icn.InterContiNet(revived, certificate=loaded, **QUICK)
    other.learn(blobs(seed=1), task="second")
    assert other.region.within(learner.region)
    assert [floor.task for floor in other.certificate.tasks] == ["first", "second"]
    assert right(revived, blobs()) >= first.certified
    assert icn.verify(revived, loaded) and icn.verify(revived, other.certificate)


def test_a_file_between_two_tasks_changes_nothing(tmp_path: Path) -> None:
    """The region goes through the file; the order of examples is that of a second learner with the same seed."""
    results = []
    for through_a_file in (False, True):
        model = mlp()
        learner = icn.InterContiNet(model, **QUICK)
        learner.learn(blobs())
        certificate = learner.certificate
        if through_a_file:
            certificate.save(tmp_path / "model.icn")
            certificate = icn.Certificate.load(tmp_path / "model.icn")
        second = icn.InterContiNet(model, certificate=certificate, seed=1, **QUICK)
        second.learn(blobs(seed=1))
        results.append({**snapshot(model), **{f"lower {n}": t for n, t in second.region.lower.items()}})
    assert same(results[0], {name: results[1][name] for name in results[0]})


# Whole when it fails.


@pytest.mark.parametrize("phase", ["centres", "radii"])
def test_an_interrupt_leaves_model_and_certificate_untouched(phase: str) -> None:
    model = mlp()
    learner = icn.InterContiNet(model, **QUICK)
    learner.learn(blobs())
    before, certificate = snapshot(model), learner.certificate

    def interrupt(progress: Progress) -> None:
        if progress.phase == phase and progress.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learner.learn(blobs(seed=1), listen=interrupt)
    assert same(before, snapshot(model)) and learner.certificate is certificate


@pytest.mark.parametrize(
    ("module", "step"), [(intercontinet, "floor_of"), (boxes, "fitted_to_keep")], ids=["floor_of", "fitted_to_keep"]
)
def test_an_interrupt_while_certifying_puts_the_old_weights_back(
    module: ModuleType, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = mlp()
    learner = icn.InterContiNet(model, **QUICK)
    before, certificate = snapshot(model), learner.certificate

    def interrupt(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, step, interrupt)
    with pytest.raises(KeyboardInterrupt):
        learner.learn(blobs())
    assert same(before, snapshot(model)) and learner.certificate is certificate
