"""What keeping a training loop inside a region costs: a ResNet-18, SGD with momentum, batches of 32 images of 32 x 32.

    python -m benchmarks.keep_inside
    python -m benchmarks.keep_inside --device cuda --steps 50 --json

Plain steps and steps that are kept inside take turns in one run. Two numbers: the median over rounds of the ratio of
their median times, and the share of a kept step that is spent on keeping it inside, timed by itself, which a busy
machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from statistics import median

import torch
from tests.models import resnet18
from torch import nn

from intercontinet.keep_inside import keep_inside
from intercontinet.region import Region


def timed(step: Callable[[], None], count: int, wait: Callable[[], None]) -> list[float]:
    """Seconds of each of some steps."""
    seconds = []
    for _ in range(count):
        wait()
        start = time.perf_counter()
        step()
        wait()
        seconds.append(time.perf_counter() - start)
    return seconds


def measure(
    device: str, small_images: bool, width: int, batch: int, steps: int, rounds: int
) -> dict[str, float | list[float]]:
    """Seconds and ratios."""
    torch.manual_seed(0)
    model = resnet18(width=width, small_images=small_images).to(device)
    for layer in model.modules():
        layer.train(not isinstance(layer, nn.BatchNorm2d))
    region = Region.around(model, 1e-3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    x, y = torch.randn(batch, 3, 32, 32, device=device), torch.randint(10, (batch,), device=device)

    def wait() -> None:
        if device != "cpu":
            torch.cuda.synchronize(device)

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()

    moments: list[float] = []

    def moment(*_: object) -> None:
        wait()
        moments.append(time.perf_counter())

    timed(step, 2, wait)
    plain: list[float] = []
    kept: list[float] = []
    whole: list[float] = []
    ratios: list[float] = []
    for _ in range(rounds):
        free = timed(step, steps, wait)
        region.clamp_(model)
        with keep_inside(model, optimizer, region):
            held = timed(step, steps, wait)
        before = optimizer.register_step_post_hook(moment)
        with keep_inside(model, optimizer, region):
            after = optimizer.register_step_post_hook(moment)
            whole += timed(step, steps, wait)
            after.remove()
        before.remove()
        assert region.contains(model)
        plain, kept = plain + free, kept + held
        ratios.append(median(held) / median(free))
    keeping = median(end - start for start, end in zip(moments[::2], moments[1::2], strict=True))
    return {
        "plain_seconds": median(plain),
        "kept_seconds": median(kept),
        "keeping_seconds": keeping,
        "share": keeping / median(whole),
        "ratio": median(ratios),
        "ratios": ratios,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=3, help="Of each kind in a round.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    parser.add_argument(
        "--large-images", action="store_true", help="A stem of 7 x 7 and max-pooling: much cheaper steps at 32 x 32."
    )
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    result = measure(given.device, not given.large_images, given.width, given.batch, given.steps, given.rounds)
    machine = {
        "machine": torch.cuda.get_device_name(given.device) if given.device != "cpu" else platform.machine(),
        "threads": given.threads,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
    if given.json:
        print(json.dumps({**vars(given), **machine, **result}))
        return
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    for name, value in result.items():
        print(f"{name:16} {[round(each, 4) for each in value] if isinstance(value, list) else f'{value:.4f}'}")


if __name__ == "__main__":
    main()
