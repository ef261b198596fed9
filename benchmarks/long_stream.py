"""Whether the hundredth task costs as much as the first: InterContiNet, enforced, on permuted MNIST.

    python benchmarks/long_stream.py [--tasks 100] [--examples 2000] [--epochs 3] [--device auto]

Prints the median seconds of each ten tasks as a multiple of the first ten's, and how many values the learner holds
besides the model. Tasks are built before the clock starts.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from intercontinet.learners.intercontinet import Hyperrectangles
from intercontinet.learners.method import Lesson, Memory, Nets
from intercontinet.learners.settings import Settings
from intercontinet.nets import mlp
from intercontinet.study.machine import chosen_device, hardware, versions
from intercontinet.tasks import stream


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--examples", type=int, default=2000, help="of each task's 60,000")
    parser.add_argument("--epochs", type=int, default=3, help="for centres; a third as many for radii")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    device = chosen_device(given.device)
    tasks = stream("permuted-mnist", "domain", tasks=given.tasks)
    net = mlp(784, (400, 400), tasks.outputs, seed=0).to(device)
    nets = Nets(net, (0,))
    weights = nets.layout.flatten(dict(net.named_parameters())).detach()[None]
    epochs = {"centre_epochs": given.epochs, "radii_epochs": max(1, given.epochs // 3)}
    method = Hyperrectangles(Settings(keep=0.8, rate=0.1, radii_rate=100.0, **epochs))
    memory: Memory = {}
    seconds, held = [], []
    for index, task in enumerate(tasks.tasks):
        x, y = (part[: given.examples].to(device) for part in task.train)
        began = time.perf_counter()
        weights, memory = method.learn(nets, weights, memory, Lesson(task.name, index, x, y))
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
        held.append(sum(tensor.numel() for tensor in (memory["lower"], memory["upper"])))
    print(f"{hardware(device)['name']}, torch {versions()['torch']}, {given.tasks} tasks of {given.examples} examples")
    first = statistics.median(seconds[:10])
    for start in range(0, given.tasks, 10):
        ten = statistics.median(seconds[start : start + 10])
        print(f"tasks {start + 1:3} to {min(start + 10, given.tasks):3}: {ten:.2f} s a task, {ten / first:.2f}x")
    entries = weights.shape[1]
    first_size, last_size = held[0] / entries, held[-1] / entries
    print(f"held besides the model: {first_size:.0f} D values after the first task, {last_size:.0f} D after the last")


if __name__ == "__main__":
    main()
