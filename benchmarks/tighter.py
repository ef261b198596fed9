"""What would bounds tighter than interval arithmetic bring the paper's network? Without rounding: not a proof.

    python benchmarks/tighter.py fashion-mnist

Incremental domain, two outputs, the 2 x 400 MLP, InterContiNet with log-volume as its aim (docs/method.md). After every
task the share of its examples that is certain is counted twice: by intervals, and by the better of intervals and a
linear relaxation (CROWN, over weights). What the first of two learners goes on with is its region as it is; the second
one's is let out until just ``keep`` is certain by the better of both. A sixth of every task's training set judges. The
last column says how far each layer alone could be let out, by intervals.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from choose_exact import divided
from torch import Tensor, nn

import intercontinet as icn
from intercontinet.nets import build_net
from intercontinet.study.studies import VOLUME
from intercontinet.tasks import stream

LAYERS = ("1", "3", "5")  # the linear ones
MOST, HALVINGS = 4.0, 12
AT_ONCE = 500

Edges = dict[str, tuple[Tensor, Tensor]]


class Leads(NamedTuple):
    """Of the right output over the other, at the least: [examples] each, and the seconds they took."""

    intervals: Tensor
    relaxed: Tensor
    seconds: tuple[float, float]


def leads(edges: Edges, x: Tensor, y: Tensor) -> Leads:
    """Both bounds, in float64, of a net of Flatten (0), Linear (1), ReLU, Linear (3), ReLU, Linear (5)."""
    found, taken = [], [0.0, 0.0]
    for rows, labels in zip(torch.split(x.flatten(1).double(), AT_ONCE), torch.split(y, AT_ONCE), strict=True):
        began = time.perf_counter()
        (w1, v1), (b1, c1) = edges["1.weight"], edges["1.bias"]
        low, high = (rows @ w1.T + b1).clamp(min=0), (rows @ v1.T + c1).clamp(min=0)  # pixels are not negative
        (w2, v2), (b2, c2) = edges["3.weight"], edges["3.bias"]
        under = low @ w2.clamp(min=0).T + high @ w2.clamp(max=0).T + b2
        over = high @ v2.clamp(min=0).T + low @ v2.clamp(max=0).T + c2
        (w3, v3), (b3, c3) = edges["5.weight"], edges["5.bias"]
        steps, start = w3[labels] - v3[1 - labels], b3[labels] - c3[1 - labels]  # activations are not negative either
        intervals = (steps.clamp(min=0) * under.clamp(min=0) + steps.clamp(max=0) * over.clamp(min=0)).sum(1) + start
        middle = time.perf_counter()
        # A ReLU lies above z or 0, whichever is nearer, and below the line through its ends.
        crossing = (under < 0) & (over > 0)
        chord = torch.where(crossing, over / (over - under).clamp(min=1e-300), (under >= 0).double())
        below = torch.where(crossing, (over > -under).double(), chord)
        slopes = steps.clamp(min=0) * below + steps.clamp(max=0) * chord
        offset = -(steps.clamp(max=0) * torch.where(crossing, chord * under, torch.zeros(()).double())).sum(1)
        up, down = slopes.clamp(min=0), slopes.clamp(max=0)
        along = (
            up @ w2 + down @ v2
        )  # what each unit of the first layer counts in all, its readers' weights at their worst
        relaxed = (along.clamp(min=0) * low + along.clamp(max=0) * high).sum(1) + up @ b2 + down @ c2 + offset + start
        found.append((intervals, relaxed))
        taken[0], taken[1] = taken[0] + middle - began, taken[1] + time.perf_counter() - middle
    intervals, relaxed = (torch.cat(parts) for parts in zip(*found, strict=True))
    return Leads(intervals, relaxed, (taken[0], taken[1]))


def let_out(model: nn.Module, region: icn.Region, parent: icn.Region, factors: Mapping[str, float]) -> Edges:
    """Every distance from the weight to an edge times its layer's factor, inside of the parent."""
    edges = {}
    for name, weight in model.state_dict().items():
        factor = factors.get(name.split(".")[0], 1.0)
        lower, upper = weight - factor * (weight - region.lower[name]), weight + factor * (region.upper[name] - weight)
        lower, upper = torch.maximum(lower, parent.lower[name]), torch.minimum(upper, parent.upper[name])
        edges[name] = (torch.minimum(lower, weight), torch.maximum(upper, weight))
    return edges


def widest(enough: Callable[[float], bool]) -> float:
    """The largest factor that leaves enough certain, from one on."""
    low, high = 1.0, MOST
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if enough(middle) else (low, middle)
    return low


def percent(factor: float) -> str:
    """How much wider; ends that meet the parent's are counted, too, so that it may be as much as was tried."""
    return f"{100 * (factor - 1):.1f} %" if factor < 0.99 * MOST else f"over {100 * (0.99 * MOST - 1):.0f} %"


@dataclass(frozen=True)
class Outcome:
    """A task's region, and how much wider it might be."""

    model: nn.Module
    region: icn.Region
    parent: icn.Region
    x: Tensor
    y: Tensor
    wanted: int  # examples that must be certain

    def leads(self, factors: Mapping[str, float]) -> Leads:
        edges = let_out(self.model, self.region, self.parent, factors)
        return leads({name: (a.double(), b.double()) for name, (a, b) in edges.items()}, self.x, self.y)

    def by_the_better(self) -> float:
        """Factor by which all layers could be let out."""

        def enough(factor: float) -> bool:
            found = self.leads(dict.fromkeys(LAYERS, factor))
            return int((torch.maximum(found.intervals, found.relaxed) > 0).sum()) >= self.wanted

        return widest(enough)

    def alone(self, layer: str) -> float:
        """Factor by which one layer could be let out, by intervals."""
        return widest(lambda factor: int((self.leads({layer: factor}).intervals > 0).sum()) >= self.wanted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--examples", type=int, default=4000, help="to learn each task from")
    parser.add_argument("--keep", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=100)
    given = parser.parse_args()
    source = stream(given.dataset, "domain")
    pairs = [divided(*task.train, index) for index, task in enumerate(source.tasks)]
    settings = {**VOLUME, "held_out": 0.0, "unseen": 0.0}
    print("| region | task | certain by intervals | by the better | time of both | let out by | one layer alone |")
    print("|---|---|---:|---:|---:|---:|---|", flush=True)
    for wider in (False, True):
        torch.manual_seed(given.seed)
        model = build_net("mlp-400-400", source.shape, source.outputs, given.seed)
        learner = icn.InterContiNet(model, given.keep, seed=given.seed, **settings)
        for index, ((x, y), _) in enumerate(pairs):
            x, y, parent = x[: given.examples], y[: given.examples], learner.region
            floor = learner.learn((x, y), task=str(index))
            outcome = Outcome(model, learner.region, parent, x, y, math.ceil(given.keep * floor.correct))
            found, factor = outcome.leads({}), outcome.by_the_better()
            own = found.intervals > 0
            either = own | (found.relaxed > 0)
            print(
                f"| {'let out' if wider else 'as it is'} | {source.tasks[index].name} | {int(own.sum())} | "
                f"{int(either.sum())} | {sum(found.seconds) / found.seconds[0]:.2f}x | {percent(factor)} | "
                f"{' '.join(percent(outcome.alone(layer)) for layer in LAYERS)} |",
                flush=True,
            )
            if wider:
                edges = let_out(model, learner.region, parent, dict.fromkeys(LAYERS, factor))
                region = icn.Region({n: e[0] for n, e in edges.items()}, {n: e[1] for n, e in edges.items()})
                certificate = replace(learner.certificate, region=region)
                learner = icn.InterContiNet(model, given.keep, seed=given.seed, certificate=certificate, **settings)
        hits = torch.cat([model(x).argmax(1) == y for _, (x, y) in pairs])
        print(f"{'let out' if wider else 'as it is'}: accuracy {100 * float(hits.double().mean()):.2f} %", flush=True)


if __name__ == "__main__":
    main()
