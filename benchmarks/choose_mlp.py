"""Compare settings of InterContiNet on the paper's own network, each idea by itself: the table in docs/method.md.

    python benchmarks/choose_mlp.py mnist domain --seeds 3
    python benchmarks/choose_mlp.py fashion-mnist domain --seeds 5 --test --variant preset --variant volume

All seeds train side by side. A sixth of every task's training set plays the test set, as in choose_exact.py; with
--test all of it is learned from, and the real test set judges. Prints a Markdown table, and with --json writes it all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from choose_exact import divided
from torch import Tensor

from intercontinet.files import write_atomically
from intercontinet.inference import right
from intercontinet.learners.method import Lesson, Memory, Nets
from intercontinet.nets import build_net
from intercontinet.study.config import build_method, configure
from intercontinet.study.studies import VOLUME
from intercontinet.tasks import Stream, stream

JOINT: dict[str, Any] = {"margins": "joint"}
WIDENED = {**JOINT, "widen": True}
ASYMMETRIC = {**WIDENED, "edges": "asymmetric", "shift": "clamped"}
# As ideas were compared: on all examples, with fewer steps for the radii.
FIRST = {
    **VOLUME, "held_out": 0.0, "unseen": 0.0, "centre_epochs": 20, "radii_epochs": 10, "radii_rate": 0.06
}  # fmt: skip
BACK = {**FIRST, "held_out": 0.1, "unseen": 0.1}
VARIANTS: dict[str, Mapping[str, Any]] = {
    "preset": {},
    "joint": JOINT,
    "widened": WIDENED,
    "asymmetric": ASYMMETRIC,
    "volume": FIRST,
    "volume, symmetric": {**FIRST, "edges": "symmetric"},
    "volume, entropy": {**FIRST, "worst": "entropy"},
    "volume, entropy, symmetric": {**FIRST, "worst": "entropy", "edges": "symmetric"},
    "volume, budgets 1 .1 .1": {**FIRST, "budgets": (1.0, 0.1, 0.1)},
    "volume, budgets .1 1 .1": {**FIRST, "budgets": (0.1, 1.0, 0.1)},
    "volume, budgets .1 1 1": {**FIRST, "budgets": (0.1, 1.0, 1.0)},
    "volume, not widened": {**FIRST, "widen": False},
    "volume, separate margins": {**FIRST, "margins": "separate"},
    "volume, rigid": {**FIRST, "rigid": 1},
    "volume, radius .1": {**FIRST, "radius": 0.1},
    "volume, radius 1": {**FIRST, "radius": 1.0},
    "held back": BACK,
    "held back, as many steps": {**BACK, "centre_epochs": 25, "radii_epochs": 13},
    "held back, slower": VOLUME,
}

Pair = tuple[Tensor, Tensor]


def learn(variant: str, tasks: Stream, pairs: list[tuple[Pair, Pair]], given: argparse.Namespace) -> dict[str, Any]:
    """One variant, all seeds: its accuracy on what is judged by, its floors, its time."""
    extra = {} if given.keep is None else {"keep": given.keep}
    seeds = tuple(range(given.first_seed, given.first_seed + given.seeds))
    settings = {**VARIANTS[variant], **extra}
    config = configure(given.dataset, given.scenario, seeds=seeds, settings=settings, epochs=given.epochs)
    models = [build_net(config.net, tasks.shape, tasks.outputs, seed).to(given.device) for seed in seeds]
    nets = Nets(models[0], seeds)
    weights = torch.stack([nets.layout.flatten(dict(model.named_parameters())) for model in models])
    weights, memory = weights.detach(), dict[str, Tensor]()
    method, began = build_method(config), time.perf_counter()
    kept: Memory = memory
    for index, (task, (learned, _)) in enumerate(zip(tasks.tasks, pairs, strict=True)):
        lesson = Lesson(task.name, index, learned[0], learned[1], task.classes)
        weights, kept = method.learn(nets, weights, kept, lesson)
    seconds = time.perf_counter() - began
    hits = []
    for index, (task, (_, judged)) in enumerate(zip(tasks.tasks, pairs, strict=True)):
        labels, classes = Lesson(task.name, index, judged[0], judged[1], task.classes).labels()
        states = [nets.layout.unflatten(row) for row in weights]
        hits.append(torch.stack([right(nets.model, state, judged[0], labels, classes) for state in states]))
    floors = kept["certified"] >= config.settings["keep"] * kept["correct"]
    return {
        "variant": variant,
        "accuracy": (100 * torch.cat(hits, dim=1).double().mean(1)).tolist(),
        "tasks": [(100 * own.double().mean()).item() for own in hits],
        "kept": int(floors.sum()),
        "floors": floors.numel(),
        "seconds": seconds,
        "settings": {name: value for name, value in config.settings.items() if name in settings},
    }


def line(found: dict[str, Any]) -> str:
    accuracy = found["accuracy"]
    spread = f" ± {statistics.stdev(accuracy):.2f}" if len(accuracy) > 1 else ""
    tasks = " ".join(f"{share:.1f}" for share in found["tasks"])
    return (
        f"| {found['variant']} | {statistics.mean(accuracy):.2f}{spread} | {tasks} | "
        f"{found['kept']} of {found['floors']} | {found['seconds']:.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("scenario")
    parser.add_argument("--variant", action="append", choices=VARIANTS, help="may be given again; all by default")
    parser.add_argument("--seeds", type=int, default=1, help="how many, from --first-seed on")
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--keep", type=float, help="instead of the preset's")
    parser.add_argument("--epochs", type=int, help="all epochs of a task, instead of the preset's")
    parser.add_argument("--test", action="store_true", help="judge by the test set")
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    tasks = stream(given.dataset, given.scenario)
    pairs = [(t.train, t.test) if given.test else divided(*t.train, i) for i, t in enumerate(tasks.tasks)]
    there = [tuple((x.to(given.device), y.to(given.device)) for x, y in pair) for pair in pairs]
    found = []
    print("| variant | accuracy | task by task | floors kept | seconds |\n|---|---:|---|---|---:|", flush=True)
    for variant in given.variant or VARIANTS:
        found.append(learn(variant, tasks, [(pair[0], pair[1]) for pair in there], given))
        print(line(found[-1]), flush=True)
        if given.json:
            write_atomically(given.json, json.dumps(found, indent=1).encode())


if __name__ == "__main__":
    main()
