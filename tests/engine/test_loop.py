"""The training loop: seeds side by side, shuffling, pauses, what a listener hears, milestones and noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from intercontinet.engine.layout import Layout
from intercontinet.engine.loop import Pause, Phase, Progress, Statistics, train
from intercontinet.engine.optimizer import SGD, Adam, Optimizer
from intercontinet.engine.parametrisation import Identity, InBox
from intercontinet.noise import key_of, mixed, orders, uniform
from tests.tiny import blobs, mlp, order

MODEL = mlp(hidden=4)
LAYOUT = Layout.of(dict(MODEL.named_parameters()))
X, Y = blobs(examples=50)
Named = Mapping[str, Tensor]
NAN = float("nan")


def objective(parameters: Named, fixed: Named, batch: Named) -> tuple[Tensor, Statistics]:
    out = functional_call(MODEL, {**parameters}, (batch["x"],))
    hits = (out.detach().argmax(1) == batch["y"]).to(out.dtype).mean()
    return (F.cross_entropy(out, batch["y"], reduction="none") * batch["weight"]).mean(), lambda: hits[None]


def phase(optimizer: Optimizer | None = None, epochs: int = 3, batch_size: int = 16) -> Phase:
    return Phase("test", objective, LAYOUT, Identity(), optimizer or SGD(0.2), epochs, batch_size)


def start(seed: int) -> Tensor:
    return LAYOUT.flatten(dict(mlp(hidden=4, seed=seed).named_parameters())).detach()


def run(what: Phase, seeds: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    trained = torch.stack([start(seed) for seed in seeds]).to(dtype)
    weight = torch.stack([torch.full((50,), 1.0 + seed, dtype=dtype) for seed in seeds])
    return train(what, trained, {}, {"x": X.to(dtype), "y": Y}, {"weight": weight}, seeds)


@pytest.mark.parametrize("optimizer", [SGD(0.2), Adam(0.01)], ids=["sgd", "adam"])
def test_a_seed_alone_trains_as_it_does_beside_others(optimizer: Optimizer) -> None:
    """To 1e-10 in float64 after nine steps: batched products add up in another order, and nothing else differs."""
    together = run(phase(optimizer), (3, 1, 4), torch.float64)
    for row, seed in enumerate((3, 1, 4)):
        alone = run(phase(optimizer), (seed,), torch.float64)
        torch.testing.assert_close(alone[0], together[row], rtol=1e-10, atol=1e-10)
    assert not torch.allclose(together[0], together[1], atol=1e-3)


@pytest.mark.parametrize("seeds", [(2,), (2, 5)])
def test_training_is_repeatable_bit_for_bit(seeds: tuple[int, ...]) -> None:
    assert torch.equal(run(phase(Adam(0.01)), seeds), run(phase(Adam(0.01)), seeds))


def test_the_loop_takes_the_very_steps_of_a_plain_one() -> None:
    values = start(0).clone().requires_grad_()
    optimizer = torch.optim.SGD([values], lr=0.2)
    for epoch in (1, 2, 3):
        shuffled = orders(mixed(torch.tensor([0]) + epoch), 50)[0]
        for first in range(0, 48, 16):
            rows = shuffled[first : first + 16]
            optimizer.zero_grad()
            out = functional_call(MODEL, LAYOUT.unflatten(values), (X[rows],))
            torch.autograd.backward(F.cross_entropy(out, Y[rows]))
            optimizer.step()
    torch.testing.assert_close(run(phase(), (0,))[0], values.detach(), rtol=1e-5, atol=1e-6)


def test_the_start_is_left_as_it_is() -> None:
    trained = start(0)[None]
    before = trained.clone()
    shared, own = {"x": X, "y": Y}, {"weight": torch.ones(1, 50)}
    after = train(phase(), trained, {}, shared, own, [0])
    assert torch.equal(trained, before) and not torch.equal(after, before)


def test_an_incomplete_last_batch_is_dropped_and_a_small_set_is_one_batch() -> None:
    sizes: list[int] = []

    def spy(parameters: Named, fixed: Named, batch: Named) -> tuple[Tensor, Statistics]:
        sizes.append(len(batch["x"]))
        return objective(parameters, fixed, batch)

    run(replace(phase(epochs=2, batch_size=16), objective=spy), (0,))
    assert sizes == [16] * 6
    sizes.clear()
    run(replace(phase(epochs=2, batch_size=1000), objective=spy), (0,))
    assert sizes == [50] * 2


def test_each_seed_is_shuffled_by_its_own_key_and_sees_everything_once() -> None:
    seen: list[Tensor] = []

    def spy(parameters: Named, fixed: Named, batch: Named) -> tuple[Tensor, Statistics]:
        seen.append(batch["index"].clone())
        return parameters["w"].sum(), lambda: torch.zeros(1)

    layout = Layout({"w": torch.Size([1])})
    what = Phase("test", spy, layout, Identity(), SGD(0.1), 2, 5)
    index = torch.arange(10)
    train(what, torch.zeros(1, 1), {}, {"x": index, "index": index}, {}, [7])
    first, second = torch.cat(seen[:2]), torch.cat(seen[2:])
    assert torch.equal(first, orders(mixed(torch.tensor([7 + 1])), 10)[0])
    assert torch.equal(second, orders(mixed(torch.tensor([7 + 2])), 10)[0])
    assert not torch.equal(first, second)
    assert torch.equal(first.sort().values, index) and torch.equal(second.sort().values, index)
    seen.clear()
    beside = replace(what, stacked=False)
    train(beside, torch.zeros(2, 1), {}, {"x": index, "index": index}, {}, [3, 7])
    assert torch.equal(torch.cat(seen[1:4:2]), first), "whoever trains beside it"
    assert not torch.equal(torch.cat(seen[0:4:2]), first)


@pytest.mark.parametrize("batches", [4, 10, 25])
@pytest.mark.parametrize("keys", [[0], [0, 1]])
def test_listeners_hear_of_the_last_batches_of_an_epoch_whether_or_not_steps_are_paused(
    batches: int, keys: list[int]
) -> None:
    def share(parameters: Named, fixed: Named, batch: Named) -> tuple[Tensor, Statistics]:
        return parameters["w"].sum(), lambda: batch["x"][:1].double()

    plain = Phase("test", share, Layout({"w": torch.Size([1])}), Identity(), SGD(0.1), 3, 2)
    heard: dict[bool, list[Progress]] = {False: [], True: []}
    for paused in heard:
        what = replace(plain, pause=lambda means: torch.zeros(len(keys), dtype=torch.bool)) if paused else plain
        examples = {"x": torch.arange(2 * batches)}
        train(what, torch.zeros(len(keys), 1), {}, examples, {}, keys, heard[paused].append)
    assert [told.statistics for told in heard[False]] == [told.statistics for told in heard[True]]
    orders_of = [orders(mixed(torch.tensor([keys[0] + epoch])), 2 * batches)[0, ::2].double() for epoch in (1, 2, 3)]
    for epoch, told in enumerate(heard[False]):
        last = torch.cat(orders_of[: epoch + 1])[-10:]
        assert told.statistics[0] == pytest.approx((float(last.mean()),))


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_a_pause_stops_every_update(seeds: tuple[int, ...]) -> None:
    heard: list[Progress] = []
    still = replace(phase(), pause=lambda means: torch.ones(len(means), dtype=torch.bool))
    trained = torch.stack([start(seed) for seed in seeds])
    shared, own = {"x": X, "y": Y}, {"weight": torch.ones(len(seeds), 50)}
    assert torch.equal(train(still, trained, {}, shared, own, seeds, heard.append), trained)
    assert [progress.paused for progress in heard] == [1.0, 1.0, 1.0]


def test_only_the_seeds_that_pause_hold_still() -> None:
    half = replace(phase(), pause=lambda means: torch.tensor([True, False]))
    trained = run(half, (0, 1))
    assert torch.equal(trained[0], start(0))
    torch.testing.assert_close(trained[1], run(phase(), (1,))[0], rtol=1e-4, atol=1e-5)


def test_the_pause_judges_averages_over_the_last_ten_batches() -> None:
    means: list[float] = []
    calls = 0

    def spy(parameters: Named, fixed: Named, batch: Named) -> tuple[Tensor, Statistics]:
        nonlocal calls
        calls += 1
        return parameters["w"].sum(), lambda: torch.tensor([float(calls)])

    def listen(statistics: Tensor) -> Tensor:
        means.append(float(statistics[0, 0]))
        return torch.zeros(1, dtype=torch.bool)

    what = Phase("test", spy, Layout({"w": torch.Size([1])}), Identity(), SGD(0.1), 6, 5, listen)
    train(what, torch.zeros(1, 1), {}, {"x": torch.arange(10)}, {}, [0])
    assert means == [sum(range(max(1, n - 9), n + 1)) / min(n, 10) for n in range(1, 13)]


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_a_listener_hears_every_epoch(seeds: tuple[int, ...]) -> None:
    heard: list[Progress] = []
    seen: list[Tensor] = []

    def listen(progress: Progress) -> None:
        heard.append(progress)
        seen.append(progress.parameters.clone())

    trained, own = torch.stack([start(seed) for seed in seeds]), {"weight": torch.ones(len(seeds), 50)}
    after = train(phase(epochs=4), trained, {}, {"x": X, "y": Y}, own, seeds, listen)
    assert [(p.phase, p.epoch, p.epochs, p.paused) for p in heard] == [("test", n, 4, 0.0) for n in (1, 2, 3, 4)]
    for row in range(len(seeds)):
        assert heard[-1].loss[row] < heard[0].loss[row]
        assert all(0 <= p.statistics[row][0] <= 1 for p in heard)
    assert {len(p.loss) for p in heard} == {len(p.statistics) for p in heard} == {len(seeds)}
    assert (
        heard[-1].mean(0)
        == heard[-1].mean(-1)
        == pytest.approx(sum(own[0] for own in heard[-1].statistics) / len(seeds))
    )
    assert torch.equal(seen[-1], after) and not torch.equal(seen[-2], after)


@pytest.mark.parametrize(
    ("weights", "paused", "gone"),
    [((NAN,), False, 1), ((NAN, NAN), False, 1), ((NAN, 1.0), False, 4), ((1.0,), False, 4), ((NAN,), True, 4)],
    ids=["alone", "all", "one of two", "none", "held still, and so not lost"],
)
def test_once_every_seed_has_diverged_epochs_are_told_of_but_not_gone_through(
    weights: tuple[float, ...], paused: bool, gone: int
) -> None:
    steps: list[int] = []

    def counted(*given: Named) -> tuple[Tensor, Statistics]:
        steps.append(len(epochs))
        return objective(*given)

    what = phase(epochs=4)
    what = replace(what, objective=counted, pause=lambda means: torch.full(means.shape[:1], paused))
    seeds = range(len(weights))
    own = {"weight": torch.tensor(weights)[:, None].repeat(1, 50)}
    epochs: list[Progress] = []
    values = train(
        what, torch.stack([start(seed) for seed in seeds]), {}, {"x": X, "y": Y}, own, list(seeds), epochs.append
    )
    assert [(progress.epoch, progress.epochs) for progress in epochs] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert sorted(set(steps)) == list(range(gone))
    for weight, row in zip(weights, values, strict=True):
        assert bool(row.isnan().all()) == (weight != weight and not paused)


@pytest.mark.parametrize("channels", [1, 3])
def test_convolutions_get_images_with_channels_last_and_learn_the_same_from_them(channels: int) -> None:
    model = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    layout, images = Layout.of(dict(model.named_parameters())), torch.rand(40, channels, 6, 6)
    labels, first = torch.arange(40) % 2, layout.flatten(dict(model.named_parameters())).detach()[None]
    seen: list[tuple[int, ...]] = []

    def learned(parameters: Named, fixed: Named, batch: Named) -> tuple[Tensor, Statistics]:
        seen.append(batch["x"].stride()[1:])  # of one channel, is_contiguous says yes to either order
        return F.cross_entropy(functional_call(model, {**parameters}, (batch["x"],)), batch["y"]), lambda: first[0, :1]

    what = Phase("test", learned, layout, Identity(), SGD(0.1), 3, 8)
    results = [
        train(replace(what, stacked=stacked), first, {}, {"x": images, "y": labels}, {}, [0])
        for stacked in (True, False)
    ]
    assert seen == [(36, 6, 1)] * 15 + [(1, 6 * channels, channels)] * 15
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-6)
    assert not torch.equal(results[0], first)


def test_a_listener_sees_parameters_not_what_stands_for_them() -> None:
    centre, reach, seen = start(0)[None], torch.full((1, start(0).numel()), 0.05), []
    inside = InBox(centre, reach)
    own, still = {"weight": torch.ones(1, 50)}, torch.zeros_like(centre)
    what = replace(phase(), parametrisation=inside)
    after = train(what, still, {}, {"x": X, "y": Y}, own, [0], lambda p: seen.append(p.parameters.clone()))
    torch.testing.assert_close(seen[-1], centre + reach * torch.tanh(after / 2), rtol=0, atol=1e-6)


def test_a_loss_is_the_mean_over_the_epoch_of_each_seed() -> None:
    heard: list[Progress] = []

    def share(parameters: Named, fixed: Named, batch: Named) -> tuple[Tensor, Statistics]:
        return batch["value"].mean() + 0 * parameters["w"].sum(), lambda: batch["value"].max()[None]

    what = Phase("test", share, Layout({"w": torch.Size([1])}), Identity(), SGD(0.1), 1, 2)
    own = {"value": torch.tensor([[1.0, 2.0, 3.0, 6.0], [0.0, 0.0, 0.0, 8.0]])}
    train(what, torch.zeros(2, 1), {}, {"x": torch.arange(4)}, own, [1, 2], heard.append)
    assert heard[0].loss == (3.0, 2.0)
    assert heard[0].statistics[1] == (4.0,), "of two batches, one holds the 8"


# Routes.


def pausing(means: Tensor) -> Tensor:
    return means[:, 0] > 0.8


@pytest.mark.parametrize("pause", [None, pausing])
@pytest.mark.parametrize("optimizer", [SGD(0.2), Adam(0.05)], ids=["sgd", "adam"])
def test_one_after_the_other_equals_all_at_once_and_each_alone(optimizer: Optimizer, pause: Pause | None) -> None:
    seeds, heard = (3, 1, 4), {}
    what = replace(phase(optimizer), pause=pause)
    shared, weight = {"x": X.double(), "y": Y}, torch.ones(3, 50, dtype=torch.float64)
    starts = torch.stack([start(seed) for seed in seeds]).double()
    results = {}
    for stacked in (True, False):
        listener: list[Progress] = []
        route = replace(what, stacked=stacked)
        results[stacked] = train(route, starts, {}, shared, {"weight": weight}, seeds, listener.append)
        heard[stacked] = listener
    torch.testing.assert_close(results[False], results[True], rtol=1e-10, atol=1e-10)
    for one, other in zip(heard[False], heard[True], strict=True):
        assert one.loss == pytest.approx(other.loss) and one.paused == other.paused
        assert one.statistics == other.statistics
    for row, seed in enumerate(seeds):
        alone = train(what, starts[row : row + 1], {}, shared, {"weight": weight[:1]}, [seed])
        torch.testing.assert_close(results[False][row], alone[0], rtol=1e-10, atol=1e-10)
    if pause is not None:
        assert 0 < sum(p.paused for p in heard[True]) < 3, "the case must show both"


def test_every_route_hands_each_seed_what_it_holds_fixed() -> None:
    def towards(parameters: Named, fixed: Named, batch: Named) -> tuple[Tensor, Statistics]:
        return (parameters["w"] - fixed["goal"]).square().sum(), lambda: torch.zeros(1)

    what = Phase("test", towards, Layout({"w": torch.Size([2])}), Identity(), SGD(0.5), 1, 4)
    goal = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    for stacked in (True, False):
        route = replace(what, stacked=stacked)
        reached = train(route, torch.zeros(2, 2), {"goal": goal}, {"x": torch.arange(4)}, {}, [0, 1])
        assert torch.equal(reached, goal)


# Milestones.


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_after_a_milestone_the_rate_falls_to_a_tenth(kind: str) -> None:
    values = start(0).double().requires_grad_()
    theirs: torch.optim.Optimizer = (
        torch.optim.SGD([values], lr=0.2) if kind == "sgd" else torch.optim.Adam([values], lr=0.2)
    )
    for epoch in range(1, 6):
        for rows in torch.split(order(0, epoch, 50)[:48], 16):
            theirs.zero_grad()
            out = functional_call(MODEL, LAYOUT.unflatten(values), (X[rows].double(),))
            torch.autograd.backward(F.cross_entropy(out, Y[rows]))
            theirs.step()
        if epoch in (2, 4):
            theirs.param_groups[0]["lr"] *= 0.1
    ours = phase(SGD(0.2) if kind == "sgd" else Adam(0.2), epochs=5)
    slowing = run(replace(ours, milestones=(2, 4)), (0,), torch.float64)[0]
    torch.testing.assert_close(slowing, values.detach(), rtol=1e-9, atol=1e-9)
    assert not torch.allclose(slowing, run(ours, (0,), torch.float64)[0], atol=1e-3)


# Noise and augmentation.


def heard_noise(keys: list[int], epochs: int = 3) -> list[list[int]]:
    """The key of every step, for each seed."""
    steps: list[int] = []

    def spy(parameters: Named, fixed: Named, batch: Named) -> tuple[Tensor, Statistics]:
        assert batch["noise"].shape == ()
        steps.append(int(batch["noise"]))
        return parameters["w"].sum(), lambda: torch.zeros(1)

    layout = Layout({"w": torch.Size([1])})
    what = Phase("test", spy, layout, Identity(), SGD(0.1), epochs, 5, noise=True, stacked=False)
    train(what, torch.zeros(len(keys), 1), {}, {"x": torch.arange(17)}, {}, keys)
    return [steps[row :: len(keys)] for row in range(len(keys))]


def noise_of(key: int, epochs: int, positions: tuple[int, ...]) -> list[int]:
    """The same by its formula."""
    starts = [mixed(torch.tensor(key) + epoch) for epoch in range(1, epochs + 1)]
    return [int(mixed(start + position + 1)) for start in starts for position in positions]


def test_every_step_of_every_seed_has_a_fresh_key_that_depends_on_nothing_else() -> None:
    keys = [key_of(seed) for seed in (7, 8, 9)]
    together = heard_noise(keys)
    assert [len(own) for own in together] == [9, 9, 9]
    assert len({key for own in together for key in own}) == 27
    for own, key in zip(together, keys, strict=True):
        assert own == heard_noise([key])[0], "alone or beside others"
        assert own[:3] == heard_noise([key], epochs=1)[0], "however long the phase"
    assert together[0] == noise_of(keys[0], epochs=3, positions=(0, 5, 10))


def blurred(parameters: Named, fixed: Named, batch: Named) -> tuple[Tensor, Statistics]:
    """A loss whose gradient is the noise."""
    loss = (parameters["w"] * uniform(batch["noise"], 4).to(torch.float64)).sum()
    return loss, lambda: torch.zeros(1, dtype=torch.float64)


def test_noise_is_the_same_on_every_route() -> None:
    what = Phase("test", blurred, Layout({"w": torch.Size([4])}), Identity(), SGD(1.0), 2, 5, noise=True)
    keys, nothing, shared = [11, 12], torch.zeros(2, 4, dtype=torch.float64), {"x": torch.arange(10)}
    together = train(what, nothing, {}, shared, {}, keys)
    each = train(replace(what, stacked=False), nothing, {}, shared, {}, keys)
    alone = torch.cat([train(what, nothing[:1], {}, shared, {}, [key]) for key in keys])
    torch.testing.assert_close(together, each, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)
    expected = sum(uniform(torch.tensor(key), 4).double() for key in noise_of(11, epochs=2, positions=(0, 5)))
    torch.testing.assert_close(-together[0], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("augmented", [False, True])
def test_there_is_no_noise_where_none_is_asked_for(augmented: bool) -> None:
    names: list[set[str]] = []

    def spy(parameters: Named, fixed: Named, batch: Named) -> tuple[Tensor, Statistics]:
        names.append(set(batch))
        return parameters["w"].sum(), lambda: torch.zeros(1)

    augment = (lambda x, keys: x) if augmented else None
    what = Phase("test", spy, Layout({"w": torch.Size([1])}), Identity(), SGD(0.1), 1, 5, augment=augment)
    train(what, torch.zeros(1, 1), {}, {"x": torch.arange(10)}, {}, [0])
    assert names == [{"x"}, {"x"}]


def test_augmentation_gets_fresh_keys_and_decides_what_is_learned_from() -> None:
    calls: list[tuple[Tensor, Tensor]] = []

    def augment(x: Tensor, keys: Tensor) -> Tensor:
        calls.append((x.clone(), keys.clone()))
        return torch.zeros_like(x)

    def spy(parameters: Named, fixed: Named, batch: Named) -> tuple[Tensor, Statistics]:
        return parameters["w"].sum() + batch["x"].abs().sum() * parameters["w"].sum(), lambda: torch.zeros(1)

    what = Phase("test", spy, Layout({"w": torch.Size([1])}), Identity(), SGD(1.0), 2, 5, noise=True, augment=augment)
    seeds = [key_of(0), key_of(1)]
    trained = train(what, torch.zeros(2, 1), {}, {"x": torch.ones(10, 3)}, {}, seeds)
    assert torch.equal(trained, torch.full((2, 1), -4.0)), "the examples as they were took no part"
    assert [x.shape for x, _ in calls] == [(2, 5, 3)] * 4
    keys = torch.stack([own for _, own in calls])
    assert keys.shape == (4, 2) and len(torch.unique(keys)) == 8
    noise = torch.tensor([noise_of(seed, 2, (0, 5)) for seed in seeds])
    assert not torch.isin(noise, keys).any(), "other keys than those of dropout"
    calls.clear()
    train(what, torch.zeros(1, 1), {}, {"x": torch.ones(10, 3)}, {}, seeds[1:])
    assert torch.equal(torch.cat([own for _, own in calls]), keys[:, 1])
