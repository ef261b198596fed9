"""What holds of every method: seeds do not feel each other, memory is all that is remembered, no old data is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from intercontinet.engine.loop import Progress
from intercontinet.errors import InvalidModel, InvalidSetting
from intercontinet.learners.ewc import EWC
from intercontinet.learners.intercontinet import Hyperrectangles
from intercontinet.learners.l2 import L2
from intercontinet.learners.lwf import LwF
from intercontinet.learners.mas import MAS
from intercontinet.learners.method import Lesson, Memory, Method, Nets, Schedule, diverged
from intercontinet.learners.plain import Offline, Plain
from intercontinet.learners.settings import Settings
from intercontinet.learners.si import SI
from intercontinet.noise import key_of, mixed, uniform
from tests.learners.naive import named
from tests.tiny import QUICK, batches, blobs, mlp, same, with_statistics

SEEDS = (3, 1, 4)
BRIEF: dict[str, Any] = {"rate": 0.2, "epochs": 2, "batch_size": 20}  # 48 examples: the last 8 are dropped
BOXES: dict[str, Any] = {**QUICK, "centre_epochs": 6, "radii_epochs": 2, "rate": 0.05, "batch_size": 20}
GRADUAL: dict[str, Method] = {
    "sgd": Plain(**BRIEF),
    "adam": Plain("adam", **BRIEF),
    "offline": Offline(**BRIEF),
    "offline with heads": Offline(**BRIEF, heads=((0, 1), (2, 3))),
    "l2": L2(**BRIEF, strength=0.3),
    "ewc": EWC("adam", **BRIEF, strength=5.0),
    "online ewc": EWC(**BRIEF, strength=5.0, online=True, decay=0.9),
    "mas": MAS(**BRIEF, strength=0.3),
    "si": SI("adam", **BRIEF, strength=2.0, limit=0.5),
    "lwf": LwF(**BRIEF),
}
METHODS: dict[str, Method] = {**GRADUAL, "intercontinet": Hyperrectangles(Settings(**BOXES, head="per-task"))}


def dropping(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4))


def seeing(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4))


def convolutional(seed: int = 0) -> nn.Sequential:
    return nn.Sequential(nn.Unflatten(1, IMAGE), *seeing(seed))


def simple(seed: int = 0) -> nn.Sequential:
    return mlp(hidden=5, outputs=4, seed=seed)


KINDS: dict[str, Callable[[int], nn.Sequential]] = {
    "mlp": simple,
    "dropout": dropping,
    "convolutions": convolutional,
    "images": seeing,
}
IMAGE = (2, 4, 4)  # channels first, as data are; laid out with channels last where they come as images


def tasks(kind: str = "mlp", dtype: torch.dtype = torch.float32) -> list[Lesson]:
    pairs, inputs = [(0, 1), (2, 3)], 32 if kind in ("convolutions", "images") else 2
    data = [blobs(labels=pair, seed=k, inputs=inputs) for k, pair in enumerate(pairs)]
    shape = IMAGE if kind == "images" else (inputs,)
    return [Lesson(f"task {k}", k, x.to(dtype).view(-1, *shape), y, pairs[k]) for k, (x, y) in enumerate(data)]


def starts(kind: str = "mlp", seeds: tuple[int, ...] = SEEDS, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.stack([parameters_to_vector(KINDS[kind](seed).parameters()).detach().to(dtype) for seed in seeds])


def learn(
    method: Method, kind: str = "mlp", seeds: tuple[int, ...] = SEEDS, dtype: torch.dtype = torch.float32
) -> list[tuple[Tensor, Memory]]:
    """Weights and memory after each of two tasks."""
    nets, weights = Nets(KINDS[kind](0).to(dtype), seeds), starts(kind, seeds, dtype)
    memory: Memory = {}
    found = []
    for lesson in tasks(kind, dtype):
        weights, memory = method.learn(nets, weights, memory, lesson)
        found.append((weights, memory))
    return found


def bits(weights: Tensor, memory: Memory) -> dict[str, Tensor]:
    return {"weights": weights, **{f"memory {name}": tensor for name, tensor in memory.items()}}


# Seeds.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", METHODS)
def test_a_seed_alone_learns_as_it_does_beside_others(name: str, kind: str) -> None:
    """In float64 where a method allows it: what is left is the order in which products are added up."""
    boxes = name == "intercontinet"
    dtype = torch.float32 if boxes else torch.float64
    rtol, atol = (0.0, 1e-5) if boxes else (1e-7, 1e-8)
    together = learn(METHODS[name], kind, dtype=dtype)
    for row, seed in enumerate(SEEDS):
        for alone, beside in zip(learn(METHODS[name], kind, (seed,), dtype), together, strict=True):
            ours, theirs = bits(*alone), bits(*beside)
            assert ours.keys() == theirs.keys()
            for part, tensor in ours.items():
                assert theirs[part].shape[0] == 3, "one row a seed, in memory too"
                torch.testing.assert_close(tensor[0], theirs[part][row], rtol=rtol, atol=atol)
    assert not torch.allclose(together[1][0][0], together[1][0][1], atol=1e-2)


@pytest.mark.parametrize("seeds", [SEEDS, SEEDS[:1]], ids=["three", "one"])
@pytest.mark.parametrize("name", METHODS)
def test_images_are_learned_as_the_same_numbers_in_a_row_are(name: str, seeds: tuple[int, ...]) -> None:
    """How images lie in memory changes the order in which products are added up, and nothing else."""
    dtype = torch.float32 if name == "intercontinet" else torch.float64
    rtol, atol = (0.0, 1e-5) if name == "intercontinet" else (1e-7, 1e-8)
    for images, rows in zip(
        *(learn(METHODS[name], kind, seeds, dtype) for kind in ("images", "convolutions")), strict=True
    ):
        torch.testing.assert_close(bits(*images), bits(*rows), rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", METHODS)
def test_a_seed_may_go_on_alone_from_its_rows(name: str) -> None:
    method = METHODS[name]
    (weights, memory), (expected, _) = learn(method)
    nets = Nets(simple(), SEEDS).rows(slice(1, 2))
    assert nets.seeds == (1,)
    own = {part: tensor[1:2] for part, tensor in memory.items()}
    alone, _ = method.learn(nets, weights[1:2], own, tasks()[1])
    torch.testing.assert_close(alone[0], expected[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_dropout_acts_while_training_and_touches_no_global_generator(name: str) -> None:
    """In the first task, and in the second from the same weights and memory."""
    method, weights = METHODS[name], starts("dropout", (0,))
    memory: Memory = {}
    for lesson in tasks():
        results = []
        for noise, training in ((0, True), (1, True), (0, False)):
            nets = Nets(dropping().train(training), (0,))
            torch.manual_seed(noise)
            before = torch.get_rng_state()
            results.append(method.learn(nets, weights, memory, lesson))
            assert torch.equal(torch.get_rng_state(), before)
        assert same(bits(*results[0]), bits(*results[1]))
        assert not torch.allclose(results[0][0], results[2][0], atol=1e-3)
        weights, memory = results[2]


def test_dropout_follows_the_keys_of_the_steps() -> None:
    """One task of SGD against plain PyTorch with masks drawn by hand, in float64."""
    model, lesson = dropping().double(), tasks(dtype=torch.float64)[0]
    weights = starts("dropout", (5,), torch.float64)
    trained, _ = Plain(**BRIEF).learn(Nets(model, (5,)), weights, {}, lesson)
    values, key = weights[0].clone(), key_of(5, 0, 0)
    for step, rows in enumerate(batches(key, 2, 48, 20)):
        epoch, position = 1 + step // 2, 20 * (step % 2)
        noise = mixed(mixed(torch.tensor(key + epoch)) + position + 1)
        mask = (uniform(mixed(noise + 3), 20 * 8).view(20, 8) >= 0.5) / 0.5  # the third layer
        leaf = values.clone().requires_grad_()
        parts = named(leaf, model)
        hidden = torch.relu(lesson.x[rows] @ parts["0.weight"].T + parts["0.bias"]) * mask
        out = hidden @ parts["3.weight"].T + parts["3.bias"]
        (slope,) = torch.autograd.grad(F.cross_entropy(out[:, :2], lesson.y[rows]), leaf)
        values = values - 0.2 * slope
    torch.testing.assert_close(trained[0], values, rtol=1e-9, atol=1e-10)


# Memory.


@pytest.mark.parametrize("name", METHODS)
def test_going_on_from_a_file_changes_nothing(name: str, tmp_path: Path) -> None:
    method = METHODS[name]
    (weights, memory), expected = learn(method)
    copies = {part: tensor.clone() for part, tensor in bits(weights, memory).items()}  # a file holds nothing twice
    save_file(copies, tmp_path / "after.safetensors")
    loaded = load_file(tmp_path / "after.safetensors")
    memory = {part.removeprefix("memory "): tensor for part, tensor in loaded.items() if part != "weights"}
    found = method.learn(Nets(simple(), SEEDS), loaded["weights"], memory, tasks()[1])
    assert same(bits(*found), bits(*expected))


@pytest.mark.parametrize("name", METHODS)
def test_learning_a_task_reads_neither_old_data_nor_the_models_own_weights(name: str) -> None:
    results = []
    for spoil in (False, True):
        model, weights = simple(), starts()
        nets, (first, second) = Nets(model, SEEDS), tasks()
        method = METHODS[name]
        weights, memory = method.learn(nets, weights, {}, first)
        if spoil:
            first.x.fill_(torch.nan)
            first.y.fill_(-7)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(1e3)
        results.append(method.learn(nets, weights, memory, second))
    assert same(bits(*results[0]), bits(*results[1]))


@pytest.mark.parametrize("name", METHODS)
def test_what_is_handed_over_is_left_as_it_is(name: str) -> None:
    model, method = simple(), METHODS[name]
    kept = {part: tensor.clone() for part, tensor in model.state_dict().items()}
    nets, lesson = Nets(model, SEEDS), tasks()[1]
    weights, memory = method.learn(nets, starts(), {}, tasks()[0])
    before = {part: tensor.clone() for part, tensor in bits(weights, memory).items()}
    x, y = lesson.x.clone(), lesson.y.clone()
    method.learn(nets, weights, memory, lesson)
    assert same(bits(weights, memory), before)
    assert same(dict(model.state_dict()), kept), "the model itself does not train"
    assert torch.equal(lesson.x, x) and torch.equal(lesson.y, y)


@pytest.mark.parametrize("name", ["ewc", "online ewc", "mas"])
def test_importance_is_measured_without_dropout_and_augmentation_unless_asked_for(name: str) -> None:
    settings: dict[str, Any] = {"epochs": 0, "batch_size": 16}
    method = MAS(**settings) if name == "mas" else EWC(**settings, online=name == "online ewc")

    def spoil(x: Tensor, keys: Tensor) -> Tensor:
        return x * torch.nan

    weights, lesson = starts("dropout"), tasks()[0]
    plain = method.learn(Nets(dropping().eval(), SEEDS), weights, {}, lesson)
    noisy = method.learn(Nets(dropping().train(), SEEDS, augment=spoil), weights, {}, lesson)
    assert same(bits(*plain), bits(*noisy)) and bool((plain[1]["curvature"] > 0).any())
    asked = replace(method, augmented=True)
    _, spoilt = asked.learn(Nets(dropping().train(), SEEDS, augment=spoil), weights, {}, lesson)
    assert bool(spoilt["curvature"].isnan().any()), "examples as training sees them"
    assert same(bits(*asked.learn(Nets(dropping(), SEEDS), weights, {}, lesson)), bits(*plain)), "and still no dropout"


@pytest.mark.parametrize("name", GRADUAL)
def test_training_sees_augmented_examples(name: str) -> None:
    """Where every example is made the same, x = 0, weights of the first layer have no gradient."""
    nets = Nets(simple(), SEEDS, augment=lambda x, keys: torch.zeros_like(x))
    weights, _ = METHODS[name].learn(nets, starts(), {}, tasks()[0])
    assert torch.equal(weights[:, :10], starts()[:, :10]) and not torch.equal(weights, starts())


# Around it.


@pytest.mark.parametrize("name", METHODS)
def test_the_listener_hears_every_epoch_of_every_seed_with_the_tasks_name(name: str) -> None:
    heard: list[Progress] = []
    METHODS[name].learn(Nets(simple(), SEEDS), starts(), {}, tasks()[0], heard.append)
    train = [("train", 1), ("train", 2)]
    boxes = [("centres", n) for n in range(1, 7)] + [("radii", 1), ("radii", 2)]
    assert [(p.phase, p.epoch) for p in heard] == (boxes if name == "intercontinet" else train)
    assert {p.task for p in heard} == {"task 0"} and {len(p.loss) for p in heard} == {3}


@pytest.mark.parametrize(("name", "kind"), [*((name, "mlp") for name in GRADUAL), ("ewc", "convolutions")])
def test_a_seed_that_diverges_is_known_and_does_no_harm_to_others(name: str, kind: str) -> None:
    nets, healthy = Nets(KINDS[kind](0), SEEDS), learn(METHODS[name], kind)
    weights = starts(kind)
    memory: Memory = {}
    weights[1] = torch.nan
    for lesson, (expected, remembered) in zip(tasks(kind), healthy, strict=True):
        weights, memory = METHODS[name].learn(nets, weights, memory, lesson)
        assert diverged(weights, nets) == [1] and diverged(expected, nets) == []
        for part, tensor in bits(expected, remembered).items():
            assert torch.equal(bits(weights, memory)[part][[0, 2]], tensor[[0, 2]])


def test_a_rate_that_is_far_too_high_diverges() -> None:
    nets = Nets(simple(), SEEDS)
    weights, _ = Plain(rate=1e38, epochs=3).learn(nets, starts(), {}, tasks()[0])
    assert diverged(weights, nets) == list(SEEDS)
    with pytest.raises(
        InvalidSetting, match=r"infinity in task task 0 for seed\(s\) 3, 1, 4: lower the learning rate \(now 1e\+38\)"
    ):
        Hyperrectangles(Settings(rate=1e38)).learn(nets, starts(), {}, tasks()[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "rmsprop"}, "optimizer is 'rmsprop'; choose one of 'sgd', 'adam'"),
        ({"rate": 0.0}, "rate is 0.0; it must be a positive number"),
        ({"rate": float("inf")}, "rate is inf"),
        ({"rate": float("nan")}, "rate is nan"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"epochs": -1}, "epochs not negative"),
    ],
)
@pytest.mark.parametrize("kind", [Schedule, Plain, Offline, L2, EWC, MAS, SI, LwF])
def test_settings_that_make_no_sense_are_refused(kind: type[Schedule], options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        kind(**options)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (SI, {"damping": 0.0}, "damping is 0.0; it must be a positive number"),
        (SI, {"damping": float("nan")}, "damping is nan"),
        (SI, {"limit": -1.0}, "limit is -1.0; it must be zero or more"),
        (SI, {"limit": float("nan")}, "limit is nan"),
        (EWC, {"online": True, "decay": -0.5}, "decay is -0.5; it must be zero or more"),
        (EWC, {"decay": 0.5}, r"decay is 0.5, but only one penalty for all tasks \(online\) decays: leave it out"),
        (MAS, {"decay": float("inf")}, "decay is inf"),
        (MAS, {"online": False, "decay": 0.5}, "decay is 0.5, but only one penalty"),
        (MAS, {"strength": -1.0}, "strength is negative"),
    ],
)
def test_settings_of_single_methods_that_make_no_sense_are_refused(
    kind: type[Schedule], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidSetting, match=message):
        kind(**options)


def test_milestones_reach_the_loop() -> None:
    nets, lesson = Nets(simple(), (0,)), tasks()[0]
    weights = starts(seeds=(0,))
    slowing, _ = Plain(**BRIEF, milestones=(1,)).learn(nets, weights, {}, lesson)
    steady, _ = Plain(**BRIEF).learn(nets, weights, {}, lesson)
    assert 0 < float((slowing - weights).abs().max()) < 0.8 * float((steady - weights).abs().max())


def test_nets_know_their_keys_and_their_route() -> None:
    nets = Nets(simple(), (5, 6))
    assert nets.keys(2, 1) == [key_of(5, 2, 1), key_of(6, 2, 1)]
    assert nets.stacked and not Nets(convolutional(), (0,)).stacked
    assert not nets.network.drops and Nets(dropping(), (0,)).network.drops


def test_a_model_without_anything_to_train_is_refused() -> None:
    with pytest.raises(InvalidModel, match="every parameter has requires_grad=False: there is nothing to learn"):
        Nets(simple().requires_grad_(False), (0,))


def test_what_does_not_train_is_read_from_the_model() -> None:
    """A frozen first layer, and statistics that rest."""
    model = with_statistics()
    model[0].requires_grad_(False)
    nets = Nets(model, (0,))
    assert set(nets.layout.shapes) == {"1.weight", "1.bias", "3.weight", "3.bias"}
    weights = nets.layout.flatten(dict(model.named_parameters())).detach()[None]
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x, y = blobs()
    method = Plain(rate=0.1, epochs=1, batch_size=48)
    learned, _ = method.learn(nets, weights, {}, Lesson("", 0, x, y))
    assert same(dict(model.state_dict()), kept)
    gradients = torch.autograd.grad(
        F.cross_entropy(model(x), y), [model.get_parameter(name) for name in nets.layout.shapes]
    )
    slope = torch.cat([gradient.reshape(-1) for gradient in gradients])
    torch.testing.assert_close(learned[0], weights[0] - 0.1 * slope)


def test_labels_are_positions_among_the_classes() -> None:
    y = torch.tensor([5, 2, 5, 3], dtype=torch.int32)
    x = torch.zeros(4, 1)
    labels, classes = Lesson("", 0, x, y, (3, 5, 2)).labels()
    assert labels.tolist() == [1, 2, 1, 0] and classes is not None and classes.tolist() == [3, 5, 2]
    labels, classes = Lesson("", 0, x, y).labels()
    assert labels.tolist() == [5, 2, 5, 3] and labels.dtype == torch.int64 and classes is None
