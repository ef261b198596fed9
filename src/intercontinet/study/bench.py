"""Speed as ratios: steps and certification against a plain PyTorch step of the same net, measured in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intercontinet.engine.loop import train
from intercontinet.engine.optimizer import SGD
from intercontinet.engine.parametrisation import Share
from intercontinet.errors import InvalidSetting
from intercontinet.floor import certain_examples
from intercontinet.learners.hyperrectangle import centres_inside, radii_objective, room
from intercontinet.learners.method import Nets, Plan, cross_entropy
from intercontinet.nets import mlp
from intercontinet.region import Region
from intercontinet.study import machine

BATCH, STEPS, CERTIFIED, RADIUS, RATE = 128, 90, 8, 0.01, 1e-4  # an epoch of Split MNIST has about 90 steps


def measured(rounds: int, say: Callable[[str], None], convolutional: bool = False) -> dict[str, Any]:
    """Figures for the paper's 784-400-400-10 net, and, if asked for, for a small convolutional one.

    Everything is measured in turn, round after round, and the median of the rounds' ratios is taken, so that a slow
    moment of the machine slows both sides. A step includes drawing its batch; a certification pass is per batch.

    Returns:
        "centre_ratio", "radii_ratio", "certify_ratio", "naive_ratio", the plain step in milliseconds, the same of the
        convolutional net under "convolutional", machine and versions.
    """
    if rounds < 1:
        raise InvalidSetting(f"rounds is {rounds}: measure at least once")
    hardware, versions = machine.hardware(torch.device("cpu")), machine.versions()
    say(f"{hardware['name']}, {hardware['threads']} threads, torch {versions['torch']}, batches of {BATCH}")
    found: dict[str, dict[str, float]] = {}
    nets = {"784-400-400-10": _mlp()} | ({"small convolutional net": _convolutional()} if convolutional else {})
    for name, (net, shape) in nets.items():
        generator = torch.Generator().manual_seed(0)
        x = torch.rand(BATCH * STEPS, *shape, generator=generator)
        y = torch.randint(10, (len(x),), generator=generator)
        found[name] = _ratios(_contenders(net, x, y), rounds, say)
        ratios = ", ".join(f"{key} {value:.2f}x" for key, value in found[name].items() if key != "plain_ms")
        say(f"{name}: plain step {found[name]['plain_ms']:.2f} ms; {ratios}")
    ours, *others = (
        {(key if key == "plain_ms" else f"{key}_ratio"): value for key, value in figures.items()}
        for figures in found.values()
    )
    return {
        **ours,
        **({"convolutional": others[0]} if others else {}),
        "rounds": rounds,
        "hardware": hardware,
        "versions": versions,
    }


def _mlp() -> tuple[nn.Sequential, tuple[int, ...]]:
    return mlp(784, (400, 400), 10, seed=0), (784,)


def _convolutional() -> tuple[nn.Sequential, tuple[int, ...]]:
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 49, 100), nn.ReLU(), nn.Linear(100, 10),
    )  # fmt: skip
    return net, (1, 28, 28)


def _contenders(net: nn.Sequential, x: Tensor, y: Tensor) -> dict[str, Callable[[], object]]:
    """Name -> a call that takes STEPS steps, or certifies CERTIFIED batches."""
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)

    def plain() -> None:
        order = torch.randperm(len(x))
        for step in range(STEPS):
            rows = order[step * BATCH : (step + 1) * BATCH]
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(net(x[rows]), y[rows]))
            optimizer.step()

    nets = Nets(net, (0,))
    layout, plan = nets.layout, Plan(SGD(RATE), 1, BATCH)
    start = layout.flatten({name: p.detach() for name, p in net.named_parameters()}).clone()[None]
    inside, mu = centres_inside(start, start - RADIUS, start + RADIUS, "scaled")
    sizes = Share(room(start, start - RADIUS, start + RADIUS))
    loss = cross_entropy(nets.network, None)
    radii_loss = radii_objective(nets.network, {}, (), None, joint=True)
    naive = nets.phase("naive", loss, plan)
    centres = nets.phase("centres", loss, plan, way=inside)
    radii = nets.phase("radii", radii_loss, plan, way=sizes, statistics=2, pause=lambda means: means[:, 0] > 2)
    shared, own = {"x": x, "y": y}, {"right": torch.ones(1, len(x))}
    region = Region({n: t[0] for n, t in layout.unflatten(start - RADIUS).items()},
                    {n: t[0] for n, t in layout.unflatten(start + RADIUS).items()})  # fmt: skip
    some = slice(CERTIFIED * BATCH)
    return {
        "plain": plain,
        "naive": lambda: train(naive, start, {}, shared, {}, [0]),
        "centre": lambda: train(centres, mu, {}, shared, {}, [0]),
        "radii": lambda: train(radii, torch.full_like(start, 5.0), layout.unflatten(start), shared, own, [0]),
        "certify": lambda: certain_examples(net, region, x[some], y[some], None),
    }


def _ratios(calls: dict[str, Callable[[], object]], rounds: int, say: Callable[[str], None]) -> dict[str, float]:
    """Median ratio of each call to the plain one, and the plain step in milliseconds."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        say(f"  round {turn} of {rounds}" if turn else "  warming up")
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            if turn:  # the first round warms up
                seconds[name].append(time.perf_counter() - began)
    plain = seconds.pop("plain")
    ratios = {n: statistics.median(s / p for s, p in zip(own, plain, strict=True)) for n, own in seconds.items()}
    ratios["certify"] *= STEPS / CERTIFIED
    return {**ratios, "plain_ms": statistics.median(plain) / STEPS * 1000}
