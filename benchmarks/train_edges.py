"""Would trained edges serve ExactInterContiNet better than its ceilings? Without rounding, and nothing held out.

    python benchmarks/train_edges.py mnist class --net dictionary-150-4-10-1-300-8

Four ways to learn the table above one and the same encoder, on five sixths of every task's training set; the last sixth
judges, as in choose_exact.py. In all of them ``keep`` of a task's accuracy is certain of what it learned from:

- falling: columns are counted, and the ceiling of all free ones falls where the new are at home, as in the learner.
- trained: the same, but every row's ceiling is trained: a worst-case loss less a reward for the logarithm of the room.
- edges: one column for each output, whose weights have an edge below and one above, in every row: centres by
  cross-entropy inside the box, edges by the worst-case loss less the reward, then drawn in.
- counted edges: the same, with centres counted, in a box as deep as counts are.

The weight of the reward is steered, step by step, so that just ``keep`` is certain.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from choose_exact import divided
from torch import Tensor

from intercontinet.learners.exact import encoded, parts_of
from intercontinet.learners.table import sums, typical
from intercontinet.nets import build_exact_net
from intercontinet.tasks import stream

CAP, DEPTH = 0.1, 8.0  # of what is counted, as the learner has them by default
HALVINGS = 30
BATCH = 1000
ALL = slice(None)


@dataclass
class Task:
    """Rows and outputs to learn from, and to be judged by."""

    rows: Tensor
    y: Tensor
    judged_rows: Tensor
    judged_y: Tensor


@dataclass(frozen=True)
class Training:
    """How edges are trained."""

    keep: float
    steps: int
    rate: float
    temperature: float
    radius: float


def least(enough: Callable[[float], bool], most: float) -> float:
    """The smallest number from 0 to ``most`` with which it is enough, by bisection; ``most`` if none is."""
    if enough(0.0):
        return 0.0
    low, high = 0.0, most
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _share(of: Tensor) -> float:
    return float(of.double().mean())


def steered(
    parameters: list[Tensor], objective: Callable[[Tensor], tuple[Tensor, Tensor, float]], of: int, training: Training
) -> None:
    """Adam on loss less reward; ``objective`` gives both for some examples, and by how much too few are certain."""
    optimizer, weight = torch.optim.Adam(parameters, lr=training.rate), 1.0
    for _ in range(training.steps):
        loss, reward, missing = objective(torch.randint(of, (BATCH,)))
        optimizer.zero_grad()
        (loss - weight * reward).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        weight *= 1.05 if missing <= 0 else 1 / 1.05


class Ceilings:
    """Counted columns, and a ceiling for all free ones."""

    def __init__(self, size: int, outputs: int, times: int, trained: bool, training: Training) -> None:
        self._columns: list[tuple[int, Tensor]] = []  # output, [rows]
        self._ceiling = torch.full((size,), CAP)
        self._outputs, self._times, self._trained, self._training = outputs, times, trained, training

    def scores(self, rows: Tensor) -> Tensor:
        """[examples, outputs], free columns at the bottom."""
        found = torch.full((len(rows), self._outputs), -DEPTH * rows.shape[1])
        if self._columns:
            values = sums(rows, torch.stack([column for _, column in self._columns], 1))
            for index, (output, _) in enumerate(self._columns):
                found[:, output] = torch.maximum(found[:, output], values[:, index])
        return found

    def learn(self, task: Task) -> Tensor:
        size, home = len(self._ceiling), torch.zeros_like(self._ceiling)
        for output in torch.unique(task.y).tolist():
            values = typical(task.rows[task.y == output], size, CAP, DEPTH).float()
            self._columns.append((output, torch.minimum(values, self._ceiling)))
            home = torch.maximum(home, self._columns[-1][1])
        scores = self.scores(task.rows)
        own = scores.gather(1, task.y[:, None])[:, 0]
        right = scores.argmax(1) == task.y
        # An output that still has a free column could overtake; without one, what is right stays so.
        taken = torch.bincount(torch.tensor([output for output, _ in self._columns]), minlength=self._outputs)
        free = taken < self._times
        at_risk = (free.sum() - free[task.y].int()) > 0
        wanted = self._training.keep * _share(right)

        def certain(ceiling: Tensor) -> Tensor:
            return right & ((own > sums(task.rows, ceiling[:, None])[:, 0]) | ~at_risk)

        if bool(at_risk.any()):
            down = self._trained_fall(task.rows, own, right, at_risk, wanted) if self._trained else home
            before = self._ceiling

            def fallen(by: float) -> Tensor:
                return (before - by * down).clamp(min=-DEPTH)

            self._ceiling = fallen(least(lambda by: _share(certain(fallen(by))) >= wanted, 1e6))
        return certain(self._ceiling)

    def _trained_fall(self, rows: Tensor, own: Tensor, right: Tensor, at_risk: Tensor, wanted: float) -> Tensor:
        """By how much each row's ceiling is to fall, [rows], in proportion."""
        lost = torch.full_like(self._ceiling, -5.0).requires_grad_()  # of the logarithm of the room
        room, risky = self._ceiling + DEPTH, right & at_risk
        chosen, mine = rows[risky], own[risky]
        share = (wanted * len(rows) - int((right & ~at_risk).sum())) / max(len(chosen), 1)

        def objective(some: Tensor) -> tuple[Tensor, Tensor, float]:
            ceiling = room * torch.exp(-F.softplus(lost)) - DEPTH
            lead = mine[some] - sums(chosen[some], ceiling[:, None])[:, 0]
            loss = torch.sigmoid(-lead / self._training.temperature).mean()
            return loss, -F.softplus(lost).mean(), share - _share(lead > 0)

        steered([lost], objective, len(chosen), self._training)
        return room * -torch.expm1(-F.softplus(lost.detach()))


class Edges:
    """One column an output, every weight between two edges."""

    def __init__(self, size: int, outputs: int, counted: bool, training: Training) -> None:
        low, high = (-DEPTH, CAP) if counted else (-training.radius, training.radius)
        self._weight = torch.full(
            (size, outputs), low if counted else 0.0
        )  # what was never counted stays at the bottom
        self._lower, self._upper = torch.full_like(self._weight, low), torch.full_like(self._weight, high)
        self._counted, self._training = counted, training

    def scores(self, rows: Tensor) -> Tensor:
        return sums(rows, self._weight)

    def learn(self, task: Task) -> Tensor:
        if self._counted:
            self._count(task)
        else:
            self._centres(task)
        right = sums(task.rows, self._weight).argmax(1) == task.y
        wanted = self._training.keep * _share(right)
        own = F.one_hot(task.y, self._weight.shape[1]).bool()
        below = (self._weight - self._lower).clamp(min=1e-6)
        above = (self._upper - self._weight).clamp(min=1e-6)
        shrunk = [
            torch.full_like(self._weight, -5.0).requires_grad_() for _ in range(2)
        ]  # of the logarithm of the room

        def leads(lower: Tensor, upper: Tensor, some: Tensor | slice = ALL) -> Tensor:
            """Of the right output at its worst over all others at their best."""
            worst, best, mine = sums(task.rows[some], lower), sums(task.rows[some], upper), own[some]
            return worst[mine] - best.masked_fill(mine, -torch.inf).amax(1)

        def edges() -> tuple[Tensor, Tensor]:
            down, up = (room * torch.exp(-F.softplus(s)) for room, s in zip((below, above), shrunk, strict=True))
            return self._weight - down, self._weight + up

        def objective(some: Tensor) -> tuple[Tensor, Tensor, float]:
            lead = leads(*edges(), some)
            loss = torch.sigmoid(-lead / self._training.temperature).mean()
            return loss, -F.softplus(torch.stack(shrunk)).mean(), wanted - _share(lead > 0)

        steered(shrunk, objective, len(own), self._training)
        lower, upper = (edge.detach() for edge in edges())
        down, up = self._weight - lower, upper - self._weight
        cut = least(
            lambda e: _share(leads(self._weight - (1 - e) * down, self._weight + (1 - e) * up) > 0) >= wanted, 1.0
        )
        self._lower = torch.maximum(self._weight - (1 - cut) * down, self._lower)
        self._upper = torch.minimum(self._weight + (1 - cut) * up, self._upper)
        return leads(self._lower, self._upper) > 0

    def _count(self, task: Task) -> None:
        """Counted weights of the task's outputs, as near to them as the box allows."""
        for output in torch.unique(task.y).tolist():
            values = typical(task.rows[task.y == output], len(self._weight), CAP, DEPTH).float()
            self._weight[:, output] = torch.minimum(
                torch.maximum(values, self._lower[:, output]), self._upper[:, output]
            )

    def _centres(self, task: Task) -> None:
        weight = self._weight.clone().requires_grad_()
        optimizer = torch.optim.Adam([weight], lr=self._training.rate / 10)
        for _ in range(self._training.steps):
            optimizer.zero_grad()
            some = torch.randint(len(task.y), (BATCH,))
            F.cross_entropy(sums(task.rows[some], weight), task.y[some]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            with torch.no_grad():
                weight.copy_(torch.minimum(torch.maximum(weight, self._lower), self._upper))
        self._weight = weight.detach()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("scenario", choices=["domain", "class"])
    parser.add_argument("--net", required=True, help="an exact net that is not capped")
    parser.add_argument("--keep", type=float, default=0.8)
    parser.add_argument("--steps", type=int, default=200, help="of centres, and of edges, for each task")
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--temperature", type=float, action="append", help="of the worst-case loss, in units of scores")
    parser.add_argument("--radius", type=float, default=1.0, help="of the first box, where every row has edges")
    parser.add_argument("--seed", type=int, default=100)
    given = parser.parse_args()
    source = stream(given.dataset, given.scenario)
    pairs = [divided(*task.train, index) for index, task in enumerate(source.tasks)]
    encoder, above, _ = parts_of(build_exact_net(given.net, pairs[0][0][0], source.outputs, 1, given.seed))
    tasks = [Task(encoded(encoder, x)[0], y, encoded(encoder, other)[0], other_y) for (x, y), (other, other_y) in pairs]
    size, times = above.bag.num_embeddings, len(tasks) if given.scenario == "domain" else 1
    print(
        "| way | temperature | accuracy | task by task | certain | seconds |\n|---|---:|---:|---|---|---:|", flush=True
    )
    for way in ("falling", "trained", "edges", "counted edges"):
        for temperature in (given.temperature or [10.0]) if way != "falling" else [0.0]:
            training = Training(given.keep, given.steps, given.rate, temperature, given.radius)
            learner: Ceilings | Edges = (
                Ceilings(size, source.outputs, times, way == "trained", training)
                if way in ("falling", "trained")
                else Edges(size, source.outputs, way == "counted edges", training)
            )
            began = time.perf_counter()
            torch.manual_seed(given.seed)
            certain = [learner.learn(task) for task in tasks]
            for task, sure in zip(tasks, certain, strict=True):
                wrong = learner.scores(task.rows).argmax(1) != task.y
                assert not bool((sure & wrong).any()), "what was certain is right for ever"
            hits = [learner.scores(task.judged_rows).argmax(1) == task.judged_y for task in tasks]
            shares = [100 * float(own.double().mean()) for own in hits]
            print(
                f"| {way} | {temperature or '-'} | {sum(shares) / len(shares):.2f} | "
                f"{' '.join(f'{share:.1f}' for share in shares)} | "
                f"{' '.join(f'{_share(sure):.2f}' for sure in certain)} | {time.perf_counter() - began:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
