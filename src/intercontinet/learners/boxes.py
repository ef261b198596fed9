"""One task of Hyperrectangle Training for a stack of seeds: centres, then radii, then the promise made true."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from intercontinet.engine.layout import Layout
from intercontinet.engine.loop import Listener, Progress, train
from intercontinet.engine.parametrisation import Parametrisation, Share
from intercontinet.errors import InvalidSetting
from intercontinet.floor import certain_examples
from intercontinet.inference import right
from intercontinet.learners.enforce import fitted_to_keep
from intercontinet.learners.hyperrectangle import ABOVE, BELOW, centres_inside, lost, radii_objective, room
from intercontinet.learners.method import (
    Lesson,
    Nets,
    Plan,
    check_nested,
    cross_entropy,
    diverged,
    stepping,
    telling,
)
from intercontinet.learners.settings import Settings
from intercontinet.learners.shares import Shares, divided
from intercontinet.learners.volume import WEIGHT, logarithms, volume_objective
from intercontinet.noise import key_of
from intercontinet.region import Region


@dataclass(frozen=True)
class Boxes:
    """What is known of every seed after a task.

    Attributes:
        weights: [seeds, entries].
        lower: Edges of the region, [seeds, entries].
        upper: [seeds, entries].
        certified: Examples of the task that are certain, [seeds].
        correct: Examples that the weights get right, [seeds].
        unseen_certified: Of those that shaped nothing, how many are certain, [seeds].
        unseen_total: How many shaped nothing, [seeds].
        enough: Whether as much as was asked for is certain, among all but the unseen and among the watched, [seeds].
    """

    weights: Tensor
    lower: Tensor
    upper: Tensor
    certified: Tensor
    correct: Tensor
    unseen_certified: Tensor
    unseen_total: Tensor
    enough: Tensor


def learn_in_boxes(
    settings: Settings,
    nets: Nets,
    weights: Tensor,
    lower: Tensor,
    upper: Tensor,
    lesson: Lesson,
    listen: Listener | None = None,
) -> Boxes:
    """Learn a task inside the edges, [seeds, entries], and draw them in until it is certain too.

    What is held back is the same for all seeds, which learn from the same examples. Where every edge has met the other
    there is nothing to train: the task is counted, and its epochs are only told of.
    """
    hear, examples, device = telling(lesson, listen), len(lesson.x), weights.device
    shown = (settings.held_out, settings.unseen, examples, key_of(lesson.index), device, lesson.known)
    learned, watched, unseen = divided(*shown)
    taught = lesson if bool(learned.all()) else replace(lesson, x=lesson.x[learned], y=lesson.y[learned])
    moves = bool((lower < upper).any())
    if moves:
        weights = _centres(settings, nets, weights, lower, upper, taught, hear)
    labels, index = lesson.labels()
    rows = [nets.layout.unflatten(own) for own in weights]
    correct = torch.stack([right(nets.model, row, lesson.x, labels, index) for row in rows])
    if moves:
        low, up = _radii(settings, nets, weights, lower, upper, taught, correct[:, learned], hear)
    else:
        low, up = lower.clone(), upper.clone()
    shares = Shares(settings.keep, torch.ones_like(learned), watched, unseen, lesson.known)
    counts = torch.zeros(4, len(rows), dtype=torch.int64, device=device)
    for seed in range(len(rows)):
        region, parent = (region_of(nets, *edges) for edges in ((low[seed], up[seed]), (lower[seed], upper[seed])))
        region, counts[:, seed] = _promised(
            settings, nets, lesson, weights[seed], region, parent, shares, correct[seed]
        )
        low[seed], up[seed] = nets.layout.flatten(region.lower), nets.layout.flatten(region.upper)
    check_nested(weights, (low, up), (lower, upper))
    if hear is not None and not moves:
        _tell_counted(settings, weights, counts[0] / examples, correct.double().mean(1), hear)
    return Boxes(weights, low, up, counts[0], correct.sum(1), counts[1], counts[2], counts[3].bool())


def _tell_counted(settings: Settings, weights: Tensor, certain: Tensor, right: Tensor, hear: Listener) -> None:
    """Of a task that was only counted, every epoch is heard of as it would have been, but for a loss."""
    accuracy, both = ([tuple(row) for row in torch.stack(found, 1).tolist()] for found in ((right,), (certain, right)))
    none = (math.nan,) * len(weights)
    for phase, epochs, shares, values in (
        ("centres", settings.centre_epochs, accuracy, weights),
        ("radii", settings.radii_epochs, both, torch.zeros_like(weights)),
    ):
        for epoch in range(1, epochs + 1):
            hear(Progress(phase, epoch, epochs, none, tuple(shares), 1.0, values))


def _promised(
    settings: Settings,
    nets: Nets,
    lesson: Lesson,
    weights: Tensor,
    region: Region,
    parent: Region,
    shares: Shares,
    hits: Tensor,
) -> tuple[Region, Tensor]:
    """One seed's region with its promise made true; and its counts: certain, certain of the unseen, unseen, and 1 where
    that is enough."""
    labels, index = lesson.labels()
    rigid = _rigid_names(settings, nets)
    movable = [name for name in nets.layout.shapes if name not in rigid]
    state = {**_resting(nets).lower, **nets.layout.unflatten(weights)}
    model = nets.model
    if settings.drift is not None:  # what rigid layers put out is computed by the model itself
        model = deepcopy(model)
        model.load_state_dict(state, strict=False)

    def certain(box: Region, quick: bool, some: Tensor) -> Tensor:
        found = torch.zeros_like(some)
        if bool(some.any()):
            how = (index, settings.margins == "joint", quick, settings.drift, movable)
            found[some] = certain_examples(model, box, lesson.x[some], labels[some], *how)
        return found

    def fitted(shares: Shares) -> tuple[Region, Tensor]:
        out = parent if settings.widen else None
        return fitted_to_keep(certain, lambda found: shares.enough(found, hits), state, region, out, len(hits))

    box, found = fitted(shares) if settings.enforce else (region, certain(region, False, torch.ones_like(hits)))
    certain_unseen, unseen = shares.of_unseen(found)  # before they have a part in anything
    if settings.enforce and unseen and int(found.sum()) < settings.keep * int(hits.sum()):
        first = box  # the promise is for the unseen, too
        box, found = fitted(replace(shares, unseen=torch.zeros_like(shares.unseen)))
        certain_unseen = certain_unseen if box.within(first) else 0  # a bound is given whether it flatters or not
    return box, torch.tensor([int(found.sum()), certain_unseen, unseen, int(shares.enough(found, hits))])


def check_layers(settings: Settings, nets: Nets) -> None:
    """Refuse more rigid layers or budgets than a net has layers for."""
    layers = len(_layers(nets))
    if settings.rigid >= layers:
        raise InvalidSetting(f"rigid is {settings.rigid}, but only {layers} layer(s) can move: at most {layers - 1}")
    if len(settings.budgets) > layers:
        raise InvalidSetting(
            f"budgets has {len(settings.budgets)} numbers, but only {layers} layer(s) can move: at most {layers}"
        )


def region_of(nets: Nets, lower: Tensor, upper: Tensor) -> Region:
    """One seed's edges, [entries], as a region of the whole model: what does not train is a point."""
    resting = _resting(nets).lower
    layout = nets.layout
    return Region({**resting, **layout.unflatten(lower)}, {**resting, **layout.unflatten(upper)})


def _resting(nets: Nets) -> Region:
    return Region.around(nets.model, 0.0)


def _centres(
    settings: Settings,
    nets: Nets,
    weights: Tensor,
    lower: Tensor,
    upper: Tensor,
    lesson: Lesson,
    hear: Listener | None,
) -> Tensor:
    inside, still = centres_inside(weights, lower, upper, settings.shift)
    rate = settings.centre_rate(lesson.index)
    plan = Plan(stepping(settings.optimizer, rate), settings.centre_epochs, settings.batch_size, settings.milestones)
    labels, index = lesson.labels()
    phase = nets.phase("centres", cross_entropy(nets.network, index), plan, way=inside)
    mu = train(phase, still, {}, {"x": lesson.x, "y": labels}, {}, nets.keys(lesson.index, 0), hear)
    out = torch.where(mu == still, weights, inside.decode(mu))  # the map would round what never moved
    out = torch.clamp(out, lower, upper)
    astray = diverged(out, nets)
    if astray:
        whom = f"in task {lesson.name} for seed(s) {', '.join(map(str, astray))}"
        raise InvalidSetting(f"training diverged to NaN or infinity {whom}: lower the learning rate (now {rate})")
    return out


def _radii(
    settings: Settings,
    nets: Nets,
    weights: Tensor,
    lower: Tensor,
    upper: Tensor,
    lesson: Lesson,
    correct: Tensor,
    hear: Listener | None,
) -> tuple[Tensor, Tensor]:
    head, rigid = _own_head_names(settings, nets), _rigid_names(settings, nets)
    labels, index = lesson.labels()
    frozen = _marked(nets, head, slice(None))
    still = frozen | _marked(nets, rigid, slice(None))
    symmetric = settings.edges == "symmetric"
    reaches = [room(weights, lower, upper)] if symmetric else [weights - lower, upper - weights]
    largest = torch.cat([torch.where(reach.isinf(), settings.radius, reach) * ~still for reach in reaches], dim=1)
    points = {name: box for name, box in _resting(nets).intervals().items() if name not in nets.layout.shapes}
    joint, loss = settings.margins == "joint", F.cross_entropy if settings.worst == "entropy" else lost
    objective = radii_objective(nets.network, points, [*head, *rigid], index, joint, loss)
    sides = ("",) if symmetric else (BELOW, ABOVE)
    layout = Layout({side + name: shape for side in sides for name, shape in nets.layout.shapes.items()})
    sizes: Parametrisation = Share(largest)
    values = torch.full_like(largest, settings.radii_start)
    changes: dict[str, object] = {"pause": lambda means: means[:, 0] >= settings.keep * means[:, 1]}
    if settings.aim == "volume":
        objective = volume_objective(objective, _budgets(settings, nets, sides, {*head, *rigid}), settings.keep)
        layout = Layout({**layout.shapes, WEIGHT: torch.Size()})
        sizes, values = logarithms(largest)
        changes = {}
    rate = settings.rate_of_radii(lesson.index)
    phase = nets.phase(
        "radii",
        objective,
        Plan(stepping(settings.optimizer, rate), settings.radii_epochs, settings.batch_size),
        way=sizes,
        layout=layout,
        statistics=2,
        noise=False,
        augment=None,
        **changes,
    )
    shared, own = {"x": lesson.x, "y": labels}, {"right": correct}
    values = train(phase, values, nets.layout.unflatten(weights), shared, own, nets.keys(lesson.index, 1), hear)
    size = sizes.decode(values)
    if bool(size.isnan().any()):
        raise InvalidSetting(
            "the worst-case loss became NaN: lower the learning rate of the centres (rate, later_rate), "
            f"or that of the radii (radii_rate, later_radii_rate, now {rate})"
        )
    entries = weights.shape[1]
    below, above = size[:, :entries], size[:, :entries] if symmetric else size[:, entries : 2 * entries]
    others = frozen if index is None else frozen & ~_marked(nets, head, index)  # heads of other tasks keep their edges
    low, up = (torch.clamp(edge, lower, upper) for edge in (weights - below, weights + above))
    return torch.where(others, lower, low), torch.where(others, upper, up)


def _budgets(settings: Settings, nets: Nets, sides: tuple[str, ...], still: set[str]) -> dict[tuple[str, ...], float]:
    """The budget of every layer that moves, by the names of its distances; one where none is given."""
    layers = [[name for name in names if name not in still] for names in _layers(nets)]
    budgets = (*settings.budgets, *[1.0] * (len(layers) - len(settings.budgets)))
    pairs = zip(layers, budgets, strict=True)
    return {tuple(side + name for side in sides for name in names): budget for names, budget in pairs if names}


def _own_head_names(settings: Settings, nets: Nets) -> list[str]:
    """The last layer's parameters, where each task has rows of its own."""
    head = nets.network.head
    if settings.head == "shared" or head is None:
        return []
    return [name for name in head.names.values() if name in nets.layout.shapes]


def _rigid_names(settings: Settings, nets: Nets) -> list[str]:
    """The parameters of the layers, from the input on, that are to be points."""
    return [name for names in _layers(nets)[: settings.rigid] for name in names]


def _layers(nets: Nets) -> list[list[str]]:
    """The names of the parameters that can move, layer by layer, from the input on."""
    layers = [[name for name in step.names.values() if name in nets.layout.shapes] for step in nets.network.steps]
    return [names for names in layers if names]


def _marked(nets: Nets, names: list[str], rows: Tensor | slice) -> Tensor:
    """Which entries of the flat vector belong to some rows of some parameters, [entries]."""
    device = next(iter(nets.model.parameters())).device
    marks: Mapping[str, Tensor] = {
        name: torch.zeros(shape, dtype=torch.bool, device=device) for name, shape in nets.layout.shapes.items()
    }
    for name in names:
        marks[name][rows] = True
    return nets.layout.flatten(marks)
