"""Two learners on Split Digits, in all three scenarios: learn, certify, attack, and leave everything in a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Literal, get_args

from torch import nn

from intercontinet.attack import attack
from intercontinet.bounds.network import Network, Step
from intercontinet.engine.loop import Progress
from intercontinet.errors import WriteError
from intercontinet.files import save_weights, write_atomically
from intercontinet.floor import TaskFloor
from intercontinet.inference import positions, right
from intercontinet.learners.exact import ExactInterContiNet
from intercontinet.learners.exact_settings import ExactSettings
from intercontinet.learners.intercontinet import InterContiNet
from intercontinet.nets import build_exact_net, mlp
from intercontinet.region import Region
from intercontinet.report.results import ScenarioResult, TaskResult, epoch_record
from intercontinet.tasks import Scenario, Stream, Task, split_digits
from intercontinet.tasks.digits import PAIRS

Method = Literal["intercontinet", "exact"]
METHODS: tuple[Method, ...] = get_args(Method)  # the paper's, and the one whose bounds are exact
KEEP: dict[Scenario, float] = {"task": 0.9, "domain": 0.8, "class": 0.8}  # the paper's, for MNIST
HIDDEN = (100,)
CENTRE_EPOCHS, RADII_EPOCHS = 40, 20
ENCODER = "levels-200-6"  # frozen: 200 ferns of six tests each, fitted to the first task's images without their labels


def accuracy(model: nn.Module, task: Task, test: bool = False) -> float:
    """Share of a task's examples that the model gets right."""
    x, y = task.test if test else task.train
    labels, index = positions(y, task.classes)
    return float(right(model, {}, x, labels, index).double().mean())


def run_scenario(
    scenario: Scenario, method: Method, out: Path, seed: int = 0, listen: Callable[[Progress], None] | None = None
) -> ScenarioResult:
    """Learn the five tasks of one scenario with one method; leave certificate, weights and metrics in ``out``."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(f"cannot make the folder {out}: {error.strerror}. Choose another with --out") from error
    stream = split_digits(scenario)
    learner = (_paper if method == "intercontinet" else _exact)(scenario, stream, seed)
    model = learner.model
    layers = {f"layer {i + 1}": step.names["weight"] for i, step in enumerate(_layers(model))}
    metrics: list[dict[str, object]] = []

    def hear(progress: Progress) -> None:
        metrics.append(epoch_record(progress, 0))
        if listen is not None:
            listen(progress)

    learned: list[tuple[Task, TaskFloor, float, Region]] = []
    for task in stream.tasks:
        floor = learner.learn(task.train, task.name, classes=task.classes, listen=hear)
        if not learned:
            save_weights(model, out / "after-first-task.safetensors")
        worst = attack(model, learner.region, task.train, seed=seed, classes=task.classes)
        learned.append((task, floor, worst.accuracy, learner.region))
    results = [
        TaskResult(
            task=task.name,
            after=floor.accuracy,
            now=accuracy(model, task),
            test=accuracy(model, task, test=True),
            floor=floor.floor,
            attacked=attacked,
            certified=floor.certified,
            total=floor.total,
            kept=floor.kept,
            radii={label: region.size((name,)).mean_radius for label, name in layers.items()},
            region=region.size(),
        )
        for task, floor, attacked, region in learned
    ]
    metrics += [{"event": "task", **asdict(result)} for result in results]
    learner.certificate.save(out / "model.icn")
    save_weights(model, out / "model.safetensors")
    write_atomically(out / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in metrics).encode())
    return ScenarioResult(scenario, method, KEEP[scenario], results)


def epochs_in_all(method: Method) -> int:
    """How many epochs a listener hears of in one scenario."""
    return len(PAIRS) * (CENTRE_EPOCHS + RADII_EPOCHS if method == "intercontinet" else 1)


def _paper(scenario: Scenario, stream: Stream, seed: int) -> InterContiNet:
    return InterContiNet(
        mlp(64, HIDDEN, stream.outputs, seed=seed),
        keep=KEEP[scenario],
        seed=seed,
        head="per-task" if scenario == "task" else "shared",
        rate=0.1,
        later_rate=3.0,
        radii_rate=100.0,
        centre_epochs=CENTRE_EPOCHS,
        radii_epochs=RADII_EPOCHS,
        batch_size=32,
    )


def _exact(scenario: Scenario, stream: Stream, seed: int) -> ExactInterContiNet:
    slots = len(stream.tasks) if scenario == "domain" else 1  # there every task brings both outputs again
    x, _ = stream.tasks[0].train
    net = build_exact_net(ENCODER, x[ExactSettings().shaping(len(x), seed)], stream.outputs, slots, seed)
    head = "per-task" if scenario == "task" else "shared"
    return ExactInterContiNet(net, keep=KEEP[scenario], seed=seed, head=head)


def _layers(model: nn.Module) -> list[Step]:
    return [step for step in Network(model).steps if isinstance(step.layer, nn.Linear | nn.EmbeddingBag)]
