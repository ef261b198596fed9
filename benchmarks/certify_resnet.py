"""What certifying any model costs: a head above 50,000 embeddings, whole networks by the example, and files.

    python -m benchmarks.certify_resnet
    python -m benchmarks.certify_resnet --device cuda --json

The head of a ResNet-18 is certified on its embeddings (512 features, 10 classes), as ``protect(plastic="head",
drift=...)`` does it once it has computed them. Whole networks are certified on a few examples, in turn with plain
float32 forward passes of the same batch; printed are the medians over rounds of the ratios. Files are certificates of a
ResNet-18 of which all parameters may move, or its head alone.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from tests.models import ViT, resnet18
from torch import Tensor, nn

import intercontinet as icn
from intercontinet.nets import mlp

Times = dict[str, float]


def seconds(work: Callable[[], object], device: str) -> float:
    """How long some work takes."""
    if device != "cpu":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    work()
    if device != "cpu":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def in_turn(works: dict[str, Callable[[], object]], rounds: int, device: str) -> dict[str, list[float]]:
    """Seconds of each, one after the other in every round, after one round that does not count."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for index in range(rounds + 1):
        for name, work in works.items():
            spent = seconds(work, device)
            if index:
                taken[name].append(spent)
    return taken


def head(examples: int, rounds: int, device: str) -> Times:
    """One linear layer on embeddings that are nearly separable, as those of a trained network are."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(10, (examples,), generator=generator)
    places = torch.rand(10, 512, generator=generator)
    x = (places[y] + 0.3 * torch.randn(examples, 512, generator=generator)).relu()
    layer = nn.Linear(512, 10)
    layer.weight.data = 0.1 * (places - places.mean(0))
    layer.bias.data = -(layer.weight.data * places.mean(0)).sum(1)
    layer, x, y = layer.to(device), x.to(device), y.to(device)
    region = icn.Region.around(layer, 6e-3)
    floor = icn.certify(layer, region, (x, y))
    with torch.no_grad():
        taken = in_turn(
            {"plain": lambda: layer(x), "certify": lambda: icn.certify(layer, region, (x, y))}, rounds, device
        )
    protecting = seconds(lambda: icn.protect(layer, (x, y), keep=0.9), device)
    plain, certify = (median(taken[name]) for name in ("plain", "certify"))
    return {
        "examples": examples,
        "certified_share": floor.floor,
        "plain_seconds": plain,
        "certify_seconds": certify,
        "ratio": median(c / p for c, p in zip(taken["certify"], taken["plain"], strict=True)),
        "protect_seconds": protecting,
    }


def networks(small: bool) -> dict[str, tuple[nn.Module, Tensor, float | None]]:
    """Each with a batch; and with a drift, where only its head may move."""
    torch.manual_seed(0)
    images = torch.rand(8, 3, 32, 32)
    found: dict[str, tuple[nn.Module, Tensor, float | None]] = {
        "MLP 784-400-400-10": (mlp(784, (400, 400), 10), torch.rand(128, 784), None),
        "ViT, one block of 128 features": (ViT(10, features=128), torch.rand(32, 1, 8, 8), None),
        "ResNet-18, width 16": (resnet18(width=16), images, None),
        "ResNet-18, width 16, head alone": (resnet18(width=16), images, 1e-5),
    }
    if not small:
        found["ResNet-18, width 64"] = resnet18(), images, None
        found["ResNet-18, width 64, head alone"] = resnet18(), images, 1e-5
    return found


def network(model: nn.Module, x: Tensor, drift: float | None, rounds: int, device: str) -> Times:
    """Certifying against a forward pass of the same batch, by the example."""
    model, x = model.to(device).eval(), x.to(device)
    with torch.no_grad():
        y = model(x).argmax(1)
    moving = {name: 1e-6 for name, _ in model.named_parameters() if drift is None or name.startswith("fc.")}
    region = icn.Region.around(model, moving)

    def plain() -> None:
        with torch.no_grad():
            model(x)

    taken = in_turn(
        {"plain": plain, "certify": lambda: icn.certify(model, region, (x, y), drift=drift)}, rounds, device
    )
    return {
        "batch": len(x),
        "plain_seconds_an_example": median(taken["plain"]) / len(x),
        "certify_seconds_an_example": median(taken["certify"]) / len(x),
        "ratio": median(c / p for c, p in zip(taken["certify"], taken["plain"], strict=True)),
    }


def files() -> Times:
    """Bytes of certificates, and of the weights."""
    model = resnet18()
    whole, some = icn.Region.around(model, 1e-3), icn.Region.around(model, {"fc.weight": 1e-3, "fc.bias": 1e-3})
    sizes: Times = {"weights_bytes": sum(4 * t.numel() for t in whole.lower.values())}
    with tempfile.TemporaryDirectory() as folder:
        for name, region in (("whole_bytes", whole), ("head_bytes", some)):
            path = Path(folder) / "model.icn"
            icn.Certificate.of(model, region).save(path)
            sizes[name] = path.stat().st_size
    return sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--examples", type=int, default=50_000, help="Embeddings for the head.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="Leave out the ResNet-18 of width 64.")
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    machine = {
        "machine": torch.cuda.get_device_name(given.device) if given.device != "cpu" else platform.machine(),
        "threads": given.threads,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "intercontinet": icn.__version__,
    }
    result: dict[str, Times] = {"head": head(given.examples, given.rounds, given.device)}
    for name, (model, x, drift) in networks(given.small).items():
        result[name] = network(model, x, drift, given.rounds, given.device)
    result["files"] = files()
    if given.json:
        print(json.dumps({**vars(given), **machine, **result}))
        return
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    for name, times in result.items():
        print(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in times.items()))


if __name__ == "__main__":
    main()
