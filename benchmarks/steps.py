"""How much a centre step, a radii step and a certification pass cost, as multiples of a plain PyTorch step.

    python benchmarks/steps.py [--rounds N]

Everything is measured in turn, round after round, and the median of the rounds' ratios is printed, so that a slow
moment of the machine slows both sides. A step includes drawing its batch. A certification pass is per batch of the
same size.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intercontinet as icn
from intercontinet.bounds import Network
from intercontinet.certificate import certain_examples
from intercontinet.engine.layout import Layout
from intercontinet.engine.loop import Phase, train
from intercontinet.engine.optimizer import SGD
from intercontinet.engine.parametrisation import Share
from intercontinet.learners.hyperrectangle import centre_objective, centres_inside, radii_objective, room

BATCH, STEPS, CERTIFIED, RADIUS = 128, 20, 4, 0.01


def mlp() -> tuple[nn.Module, Tensor]:
    net = nn.Sequential(nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 10))
    return net, torch.rand(BATCH * STEPS, 784)


def convnet() -> tuple[nn.Module, Tensor]:
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 49, 100), nn.ReLU(), nn.Linear(100, 10),
    )  # fmt: skip
    return net, torch.rand(BATCH * STEPS, 1, 28, 28)


def contenders(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, Callable[[], object]]:
    """Name -> a call that takes STEPS steps, or certifies CERTIFIED batches."""
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)

    def plain() -> None:
        order = torch.randperm(len(x))
        for step in range(STEPS):
            rows = order[step * BATCH : (step + 1) * BATCH]
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(net(x[rows]), y[rows]))
            optimizer.step()

    region = icn.Region.around(net, RADIUS)
    layout = Layout.of(dict(net.named_parameters()))
    start = layout.flatten({name: p.detach() for name, p in net.named_parameters()}).clone()
    lower, upper = layout.flatten(region.lower), layout.flatten(region.upper)
    inside, mu = centres_inside(start[None], lower[None], upper[None], "scaled")
    sizes = Share(room(start, lower, upper)[None])
    centre_loss = centre_objective(Network(net), None)
    radii_loss = radii_objective(Network(net), {}, (), None, joint=True)
    centres = Phase("centres", centre_loss, layout, inside, SGD(1e-4), 1, BATCH)
    radii = Phase("radii", radii_loss, layout, sizes, SGD(1e-4), 1, BATCH, lambda means: means[:, 0] > 2)
    fixed = {name: weight[None] for name, weight in layout.unflatten(start).items()}
    shared, own, generators = {"x": x, "y": y}, {"right": torch.ones(1, len(x))}, [torch.Generator()]
    return {
        "plain": plain,
        "centre": lambda: train(centres, mu, {}, shared, {}, generators),
        "radii": lambda: train(radii, torch.full_like(start, 5.0)[None], fixed, shared, own, generators),
        "certify": lambda: certain_examples(net, region, x[: CERTIFIED * BATCH], y[: CERTIFIED * BATCH], None),
    }


def measure(calls: dict[str, Callable[[], object]], rounds: int) -> tuple[dict[str, float], float]:
    """Median ratio of each call to the plain one, and the plain step in milliseconds."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            if turn:  # the first round warms up
                seconds[name].append(time.perf_counter() - began)
    plain = seconds.pop("plain")
    ratios = {n: statistics.median(s / p for s, p in zip(own, plain, strict=True)) for n, own in seconds.items()}
    if "certify" in ratios:
        ratios["certify"] *= STEPS / CERTIFIED
    return ratios, statistics.median(plain) / STEPS * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}, batch {BATCH}")
    for name, build in {"784-400-400-10": mlp, "small convolutional net": convnet}.items():
        net, x = build()
        ratios, plain = measure(contenders(net, x, torch.randint(10, (len(x),))), rounds)
        print(
            f"{name}: plain step {plain:.2f} ms; " + ", ".join(f"{key} {ratio:.2f}x" for key, ratio in ratios.items())
        )


if __name__ == "__main__":
    main()
