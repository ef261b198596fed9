"""Speed: steps and certification against a plain PyTorch step, the exact learner, a long stream, the paper's table."""

from __future__ import annotations

import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
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
from intercontinet.learners.intercontinet import Hyperrectangles
from intercontinet.learners.method import Lesson, Memory, Nets, Plan, cross_entropy
from intercontinet.learners.settings import Settings
from intercontinet.nets import mlp
from intercontinet.region import Region
from intercontinet.study import machine
from intercontinet.study.config import configure
from intercontinet.study.reproduce import steps, work_through
from intercontinet.study.run import Run, complete
from intercontinet.study.studies import named
from intercontinet.tasks import stream

Say = Callable[[str], None]

BATCH, STEPS, CERTIFIED, RADIUS, RATE = 128, 90, 8, 0.01, 1e-4  # an epoch of Split MNIST has about 90 steps
TASKS, EXAMPLES, TEN = 100, 1000, 10  # of the long stream; its times are told by tens
# As published, and with small steps of the radii, so that a hundred tasks find room and every one is trained on.
LONG = Settings(keep=0.1, enforce=False, rate=0.1, radii_rate=1.0, centre_epochs=3, radii_epochs=1)
DATASET, TABLE, EPOCHS, LEFT_OUT = "mnist", "table1", 30, "intercontinet-published"
TURNS = 3  # of whole tasks
SEEDS = 3  # of the convolutional net


def measured(
    rounds: int,
    say: Say,
    convolutional_on: torch.device | None = None,
    stream_on: torch.device | None = None,
    tables_on: torch.device | None = None,
    exact_on: torch.device | None = None,
) -> dict[str, Any]:
    """Figures for the paper's 784-400-400-10 net on the CPU, and whatever else is asked for.

    Everything is measured in turn with plain steps, round after round, and the median of the rounds' ratios is taken,
    so that a slow moment of the machine slows both sides. A step includes drawing its batch; a certification pass is
    per batch.

    Args:
        rounds: How often.
        say: Told what is going on, in lines.
        convolutional_on: Where to train several seeds of a small convolutional net, see :func:`side_by_side`, besides
            measuring it on the CPU; None for neither.
        stream_on: Where to learn a long stream, see :func:`long_stream`; None for nowhere.
        tables_on: Where to run Table 1, see :func:`tables`; None for nowhere.
        exact_on: Where to set the exact learner beside the paper's, see :func:`exact`; None for nowhere.

    Returns:
        "centre_ratio", "clamped_ratio" (centres with shift="clamped"), "radii_ratio", "certify_ratio", "naive_ratio",
        the plain step in milliseconds, the same of the convolutional net under "convolutional", with what
        :func:`side_by_side` found, the others' under "stream", "tables" and "exact", machine and versions.
    """
    if rounds < 1:
        raise InvalidSetting(f"rounds is {rounds}: measure at least once")
    more = {} if stream_on is None else {"stream": long_stream(stream_on, say)}
    more |= {} if tables_on is None else {"tables": tables(tables_on, say)}
    more |= {} if exact_on is None else {"exact": exact(exact_on, say)}
    hardware, versions = machine.hardware(torch.device("cpu")), machine.versions()
    say(f"{hardware['name']}, {hardware['threads']} threads, torch {versions['torch']}, batches of {BATCH}")
    found: dict[str, dict[str, float]] = {}
    nets = {"784-400-400-10": _mlp()} | ({"small convolutional net": _convolutional()} if convolutional_on else {})
    for name, (net, shape) in nets.items():
        x, y = _examples(shape)
        found[name] = _ratios(_contenders(net, x, y), rounds, say)
        ratios = ", ".join(f"{key} {value:.2f}x" for key, value in found[name].items() if key != "plain_ms")
        say(f"{name}: plain step {found[name]['plain_ms']:.2f} ms; {ratios}")
    ours, *others = (
        {(key if key == "plain_ms" else f"{key}_ratio"): value for key, value in figures.items()}
        for figures in found.values()
    )
    return {
        **ours,
        **({"convolutional": others[0] | side_by_side(convolutional_on, rounds, say)} if convolutional_on else {}),
        **more,
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


def _examples(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(BATCH * STEPS, *shape, generator=generator)
    return x, torch.randint(10, (len(x),), generator=generator)


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
    clamp, nu = centres_inside(start, start - RADIUS, start + RADIUS, "clamped")
    sizes = Share(room(start, start - RADIUS, start + RADIUS))
    loss = cross_entropy(nets.network, None)
    radii_loss = radii_objective(nets.network, {}, (), None, joint=True)
    naive = nets.phase("naive", loss, plan)
    centres = nets.phase("centres", loss, plan, way=inside)
    clamped = nets.phase("clamped", loss, plan, way=clamp)
    radii = nets.phase("radii", radii_loss, plan, way=sizes, statistics=2, pause=lambda means: means[:, 0] > 2)
    shared, own = {"x": x, "y": y}, {"right": torch.ones(1, len(x))}
    region = Region({n: t[0] for n, t in layout.unflatten(start - RADIUS).items()},
                    {n: t[0] for n, t in layout.unflatten(start + RADIUS).items()})  # fmt: skip
    some = slice(CERTIFIED * BATCH)
    return {
        "plain": plain,
        "naive": lambda: train(naive, start, {}, shared, {}, [0]),
        "centre": lambda: train(centres, mu, {}, shared, {}, [0]),
        "clamped": lambda: train(clamped, nu, {}, shared, {}, [0]),
        "radii": lambda: train(radii, torch.full_like(start, 5.0), layout.unflatten(start), shared, own, [0]),
        "certify": lambda: certain_examples(net, region, x[some], y[some], None),
    }


def _ratios(calls: dict[str, Callable[[], object]], rounds: int, say: Say) -> dict[str, float]:
    """Median ratio of each call to the plain one, and the plain step in milliseconds.

    Every call is measured right after a plain one, and in an order that changes from round to round.
    """
    names = [name for name in calls if name != "plain"]
    ratios: dict[str, list[float]] = {name: [] for name in names}
    plains: list[float] = []
    for turn in range(rounds + 1):
        say(f"  round {turn} of {rounds}" if turn else "  warming up")
        for name in random.Random(turn).sample(names, len(names)):
            plain, own = _seconds(calls["plain"]), _seconds(calls[name])
            if turn:  # the first round warms up
                plains.append(plain)
                ratios[name].append(own / plain)
    medians = {name: statistics.median(own) for name, own in ratios.items()}
    medians["certify"] *= STEPS / CERTIFIED
    return {**medians, "plain_ms": statistics.median(plains) / STEPS * 1000}


def side_by_side(device: torch.device, rounds: int, say: Say) -> dict[str, float]:
    """Seeds of the small convolutional net trained one after the other, and all in one stack, in turn.

    Returns:
        "apart_ratio": median of the rounds' ratios, seconds one after the other over seconds stacked.
    """
    net, shape = _convolutional()
    nets = Nets(net.to(device), tuple(range(SEEDS)))
    x, y = (part.to(device) for part in _examples(shape))
    start = nets.layout.flatten({name: p.detach() for name, p in net.named_parameters()}).repeat(SEEDS, 1)
    phase = nets.phase("naive", cross_entropy(nets.network, None), Plan(SGD(RATE), 1, BATCH))

    def seconds(stacked: bool) -> float:
        began = _now(device)
        train(replace(phase, stacked=stacked), start, {}, {"x": x, "y": y}, {}, nets.keys(0))
        return _now(device) - began

    turns = [(seconds(False), seconds(True)) for _ in range(rounds + 1)][1:]  # the first warms up
    ratio = statistics.median(apart / stacked for apart, stacked in turns)
    name = machine.hardware(device)["name"]
    say(f"{SEEDS} seeds of it on {name}, one after the other: {ratio:.2f}x the time of one stack")
    return {"apart_ratio": ratio}


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def device_for_tables(name: str) -> torch.device:
    """The device for :func:`tables`: a CPU only where it is asked for by its name.

    Raises:
        InvalidSetting: There is no such device, or "auto" found no GPU.
    """
    device = machine.chosen_device(name)
    if name == "auto" and device.type == "cpu":
        raise InvalidSetting(
            "no GPU is at hand, and on a CPU --tables takes hours: add --device cpu to do it all the same"
        )
    return device


def long_stream(device: torch.device, say: Say) -> dict[str, Any]:
    """Whether the hundredth task costs what the first did: InterContiNet, as published, on permuted MNIST.

    The first task is learned once before the clock starts, to warm up, and tasks are built outside its time. Little or
    nothing is certain with these settings; with a promise that is enforced, room can be used up long before, and tasks
    in which no weight can move are not trained on, but counted.

    Returns:
        "seconds_by_tens": median seconds of a task, for each ten tasks; "last_over_first": the last ten's over the
        first ten's; "right_by_tens": median share of a task's examples that is right once it was learned; "movable":
        the share of weights that can still move in the end; "entries", the model's values D; "state_first" and
        "state_last": values that the learner holds besides the model after the first task and the last, as multiples
        of D; how many tasks and examples there were, and on what.
    """
    tasks = stream("permuted-mnist", "domain", tasks=TASKS)
    net = mlp(math.prod(tasks.shape), (400, 400), tasks.outputs, seed=0).to(device)
    nets, method = Nets(net, (0,)), Hyperrectangles(LONG)
    weights = nets.layout.flatten(dict(net.named_parameters())).detach()[None]
    memory: Memory = {}
    hardware = machine.hardware(device)
    say(f"long stream: {TASKS} tasks of {EXAMPLES} examples of permuted MNIST on {hardware['name']}")
    seconds, held, right = [], [], []
    for index, task in enumerate(tasks.tasks):
        x, y = (part[:EXAMPLES].to(device) for part in task.train)
        lesson = Lesson(task.name, index, x, y)
        if not index:
            method.learn(nets, weights, memory, lesson)
        began = _now(device)
        weights, memory = method.learn(nets, weights, memory, lesson)
        seconds.append(_now(device) - began)
        held.append(_values(memory) / weights.numel())
        right.append(int(memory["correct"][0, -1]) / len(y))
        if (index + 1) % TEN == 0 or index + 1 == TASKS:
            first = index - index % TEN
            told = f"{statistics.median(seconds[first:]):.3f} s a task, {statistics.median(right[first:]):.0%} right"
            say(f"  tasks {first + 1} to {index + 1}: {told}")
    tens, learned = (_by_tens(values) for values in (seconds, right))
    movable = float((memory["lower"] < memory["upper"]).double().mean())
    say(
        f"  the last ten took {tens[-1] / tens[0]:.2f}x the first ten; {movable:.1%} of all weights can still move; "
        f"held besides the model's D values: {held[0]:.4f} D after the first task, {held[-1]:.4f} D after the last"
    )
    return {
        "tasks": TASKS,
        "examples": EXAMPLES,
        "seconds_by_tens": tens,
        "last_over_first": tens[-1] / tens[0],
        "right_by_tens": learned,
        "movable": movable,
        "entries": weights.numel(),
        "state_first": held[0],
        "state_last": held[-1],
        "hardware": hardware,
    }


def _by_tens(values: Sequence[float]) -> list[float]:
    return [statistics.median(values[first : first + TEN]) for first in range(0, len(values), TEN)]


def _now(device: torch.device) -> float:
    """The time when all that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _values(memory: Memory) -> int:
    """How many values there are in all that a learner carries from task to task, whatever their names."""
    return sum(tensor.numel() for tensor in memory.values())


def exact(device: torch.device, say: Say) -> dict[str, Any]:
    """Seconds for the first task of Split MNIST, incremental class, one seed: both learners by their presets, in turn.

    The exact learner's time holds fitting its encoder, encoding, training and certifying; the paper's building the net,
    training its 30 epochs, and certifying. Reading the data and testing are in neither.

    Returns:
        "exact_seconds" and "paper_seconds", medians of the rounds; "exact_ratio", the median of the rounds' ratios; and
        the hardware.
    """
    hardware, tasks = machine.hardware(device), stream(DATASET, "class")
    say(f"the first task of {DATASET}, incremental class, on {hardware['name']}")

    def seconds(method: str) -> float:
        began = _now(device)
        run = Run(configure(DATASET, "class", method, seeds=(0,)), device.type, say, tasks=tasks)
        built = _now(device) - began
        return built + run.advance(run.begin()).seconds

    rounds = [{method: seconds(method) for method in ("exact", "intercontinet")} for _ in range(TURNS)]
    ours, theirs = (statistics.median(turn[method] for turn in rounds) for method in ("exact", "intercontinet"))
    ratio = statistics.median(turn["exact"] / turn["intercontinet"] for turn in rounds)
    say(f"  exact {ours:.1f} s, the paper's {theirs:.1f} s: {ratio:.2f}x")
    return {"exact_seconds": ours, "paper_seconds": theirs, "exact_ratio": ratio, "hardware": hardware}


def tables(device: torch.device, say: Say) -> dict[str, Any]:
    """Seconds for five seeds of Split MNIST, and for the paper's Table 1 with its nine methods and the enforced one.

    Nothing is left behind: the results store has its own command.

    Returns:
        "five_seeds_seconds": InterContiNet, enforced, incremental domain, five tasks of 30 epochs, with certifying and
        testing; "five_seeds_learning_seconds", without testing; "table_seconds": all cells, from reading the data to
        the last record; "table_cells", how many; and the hardware.
    """
    hardware, plans = machine.hardware(device), named(TABLE).plans
    seeds = tuple(range(named(TABLE).seeds))
    say(f"{len(seeds)} seeds of {DATASET} on {hardware['name']}")
    run = Run(configure(DATASET, "domain", seeds=seeds, epochs=EPOCHS), device.type, say)
    began = time.perf_counter()  # no waiting for the device here: records are whole, and cells record side by side
    state = complete(run)
    alone = time.perf_counter() - began
    say(f"  {alone:.1f} s, of which learning and certifying {state.seconds:.1f} s")
    only = sorted({plan.method for plan in plans} - {LEFT_OUT})
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        todo = steps(TABLE, Path(folder), None, None, only)
        for path in work_through(TABLE, todo, Path(folder), device.type, say):
            say(f"  {time.perf_counter() - began:6.1f} s  {path.stem}")
        whole = time.perf_counter() - began
    say(f"{TABLE}: {len(todo)} cells of {len(seeds)} seeds in {whole:.1f} s")
    return {
        "five_seeds_seconds": alone,
        "five_seeds_learning_seconds": state.seconds,
        "table_seconds": whole,
        "table_cells": len(todo),
        "hardware": hardware,
    }
