"""Choose encoders and settings of ExactInterContiNet on training data alone.

    python benchmarks/choose_exact.py mnist class --net dictionary-150-4-10-1-300-8 --parts 1 --parts 4

A sixth of every task's training set plays the test set: nothing learns from it, and the real test set is not read.
Prints, for each choice, the accuracy on that sixth after the last task, the share that is certain of each task's other
training examples, those that shape nothing left aside, and by how many points it lies above the share of these.
"""

from __future__ import annotations

import argparse
import time
from itertools import product
from typing import Literal

import torch
from torch import Tensor

from intercontinet.inference import right
from intercontinet.learners.exact import encoded, mirrored, parts_of, strange_rows
from intercontinet.learners.exact_method import learn_task
from intercontinet.learners.exact_settings import ExactSettings
from intercontinet.learners.method import Lesson
from intercontinet.learners.table import WEIGHT, Box, Table
from intercontinet.nets import build_exact_net, with_table
from intercontinet.noise import key_of, orders
from intercontinet.study.encoders import strangers
from intercontinet.tasks import Stream, stream

CHOICES = (
    "parts", "depth", "cap", "fit_rate", "at_ceiling", "typical", "mirror", "held_out", "tuning", "strangers_from"
)  # fmt: skip


def divided(x: Tensor, y: Tensor, index: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """A task's training set as five sixths to learn from and one to judge by."""
    order = orders(torch.tensor([key_of(6, index)]), len(x))[0]
    judged, learned = order[: len(x) // 6], order[len(x) // 6 :]
    return (x[learned], y[learned]), (x[judged], y[judged])


def judge(tasks: Stream, net: str, options: list[ExactSettings], device: str, seed: int) -> None:
    """Print what each of the settings comes to. They must hold back the same examples: the encoder may not see them."""
    pairs = [divided(*task.train, index) for index, task in enumerate(tasks.tasks)]
    times = len(tasks.tasks) if tasks.scenario == "domain" else 1
    began = time.perf_counter()
    first = pairs[0][0][0]
    shaping = first[options[0].shaping(len(first), seed)].to(device)
    encoder, above, _ = parts_of(build_exact_net(net, shaping, tasks.outputs, 1, seed))
    rows = [[encoded(encoder.to(device), x.to(device))[0] for x, _ in pair] for pair in pairs]
    wanted = any(settings.mirror for settings in options)
    reflected = [encoded(encoder, mirrored(pair[0][0].to(device)))[0] if wanted else None for pair in pairs]
    names = {settings.strangers_from for settings in options} - {""}
    strange = {
        (name, mirror): strange_rows(encoder, strangers(name, tasks).to(device), mirror)
        for name in names
        for mirror in {settings.mirror for settings in options}
    }
    print(f"{net}: encoded in {time.perf_counter() - began:.1f} s", flush=True)
    size = above.bag.num_embeddings
    for settings in options:
        began = time.perf_counter()
        slots = settings.parts * times
        table = Table.of(with_table(torch.nn.Sequential(), size, tasks.outputs, slots, above.capped).to(device))
        edge = torch.full((size, table.columns), torch.inf, device=device)
        box = Box(torch.zeros_like(edge), -edge, edge)
        floors, unseen = [], []
        for index, task in enumerate(tasks.tasks):
            y = pairs[index][0][1].to(device)
            shown = reflected[index] if settings.mirror else None
            lesson = Lesson(
                task.name,
                index,
                rows[index][0],
                y,
                task.classes,
                shown,
                strange.get((settings.strangers_from, settings.mirror)),
            )
            sure = torch.ones(len(y), dtype=torch.bool, device=device)
            made = learn_task(settings, table, box, lesson, sure, key_of(seed, index))
            box = made.box
            others = len(y) - made.unseen_total
            floors.append(min((made.certified - made.unseen_certified) / others, 1.0))  # unseen: or more
            unseen.append(made.unseen_certified / made.unseen_total if made.unseen_total else None)
        shares = []
        for index, task in enumerate(tasks.tasks):
            lesson = Lesson(task.name, index, rows[index][1], pairs[index][1][1].to(device), task.classes)
            labels, classes = lesson.labels()
            hits = right(table.net, {WEIGHT: box.weight}, lesson.x, labels, classes)
            shares.append(float(hits.double().mean()))
        figures = " ".join(f"{share:.3f}" for share in shares)
        gaps = " ".join(
            "-" if other is None else f"{100 * (one - other):.1f}" for one, other in zip(floors, unseen, strict=True)
        )
        chosen = " ".join(f"{name} {getattr(settings, name)}" for name in ("keep", *CHOICES))
        print(
            f"  {100 * sum(shares) / len(shares):.2f} %  [{figures}]  certain [{_line(floors)}]  "
            f"above unseen [{gaps}]  {chosen}  {time.perf_counter() - began:.1f} s",
            flush=True,
        )


def _line(shares: list[float]) -> str:
    return " ".join(f"{share:.2f}" for share in shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("scenario")
    parser.add_argument("--net", action="append", required=True)
    parser.add_argument("--parts", action="append", type=int)
    parser.add_argument("--depth", action="append", type=float)
    parser.add_argument("--cap", action="append", type=float)
    parser.add_argument("--fit-rate", action="append", type=float)
    parser.add_argument("--at-ceiling", action="append", type=float)
    parser.add_argument("--typical", action="append", type=float)
    parser.add_argument("--held-out", action="append", type=float)
    parser.add_argument("--tuning", action="append")
    parser.add_argument("--strangers-from", action="append", help="a data set")
    parser.add_argument("--mirror", action="append", type=int, help="1 to train on mirrored images too, 0 not to")
    parser.add_argument("--keep", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    head: Literal["shared", "per-task"] = "per-task" if given.scenario == "task" else "shared"
    given.mirror = [bool(wanted) for wanted in given.mirror or [0]]
    lists = [getattr(given, name) or [getattr(ExactSettings(), name)] for name in CHOICES]
    options = [
        ExactSettings(given.keep, head=head, **dict(zip(CHOICES, choice, strict=True))) for choice in product(*lists)
    ]
    tasks = stream(given.dataset, given.scenario)
    for net, held_out in product(given.net, sorted({settings.held_out for settings in options})):
        alike = [settings for settings in options if settings.held_out == held_out]  # and so are those left unseen
        judge(tasks, net, alike, given.device, given.seed)


if __name__ == "__main__":
    main()
