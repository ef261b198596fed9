"""InterContiNet, the paper's method: centres first, then radii, then a certificate. Regions only ever nest."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from intercontinet.bounds import Network
from intercontinet.certificate import (
    Certificate,
    Margins,
    TaskFloor,
    certify,
    check_inside,
    floor_of,
)
from intercontinet.data import Data, check_inputs, check_labels, collect
from intercontinet.engine.layout import Layout
from intercontinet.engine.loop import Phase, Progress, train
from intercontinet.engine.optimizer import SGD, Adam, Optimizer
from intercontinet.engine.parametrisation import Share
from intercontinet.errors import InvalidData, InvalidModel, InvalidSetting, TrainingMode
from intercontinet.inference import outputs_of, positions, right
from intercontinet.learners.enforce import shrunk_to_keep
from intercontinet.learners.hyperrectangle import (
    Shift,
    centre_objective,
    centres_inside,
    radii_objective,
    room,
)
from intercontinet.region import Region, nearest, state_of

Listener = Callable[[Progress], None]


@final
@dataclass(frozen=True)
class Settings:
    """How :class:`InterContiNet` trains.

    Attributes:
        keep: Share of a task's training accuracy that must be certain ever after (the paper's acc_thresh).
        radius: Largest radius in the first task.
        enforce: Whether ``keep`` is made true on the whole training set, by shrinking the region where the radii phase
            left it short. Without it this is the method as published, and the floor is whatever it is.
        head: "shared", one head for all tasks; or "per-task", where the rows of the last linear layer that belong to a
            task's classes are points, trained with the task and frozen after it.
        margins: "joint", the tighter form, or "separate", the paper's, for the worst-case loss and for the floors.
        shift: "scaled" for tanh(mu / eps*), "plain" for tanh(mu).
        optimizer: "sgd" or "adam", for both phases.
        rate: Learning rate of the centres in the first task.
        later_rate: The same in later tasks; None for the same rate.
        radii_rate: Learning rate of the radii.
        centre_epochs: Passes over the data for the centres.
        radii_epochs: Passes for the radii.
        batch_size: Examples a step.
        radii_start: Value that nu is set to before every task's radii phase.
    """

    keep: float = 0.9
    radius: float = 1.0
    enforce: bool = True
    head: Literal["shared", "per-task"] = "shared"
    margins: Margins = "joint"
    shift: Shift = "scaled"
    optimizer: Literal["sgd", "adam"] = "sgd"
    rate: float = 0.1
    later_rate: float | None = None
    radii_rate: float = 100.0
    centre_epochs: int = 20
    radii_epochs: int = 10
    batch_size: int = 128
    radii_start: float = 5.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            whole, number = item.type == "int", item.type in ("int", "float", "float | None")
            left_out = value is None and item.type == "float | None"
            if number and not left_out and not isinstance(value, int if whole else (int, float)):
                raise InvalidSetting(f"{item.name} is {value!r}; it must be a {'whole ' if whole else ''}number")
        choices = {
            "head": ("shared", "per-task"),
            "margins": ("joint", "separate"),
            "shift": ("scaled", "plain"),
            "optimizer": ("sgd", "adam"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise InvalidSetting(
                    f"{name} is {getattr(self, name)!r}; choose one of {', '.join(map(repr, allowed))}"
                )
        if not 0 < self.keep <= 1:
            raise InvalidSetting(f"keep is {self.keep}; it is a share of the accuracy: above 0, at most 1")
        positive = {"radius": self.radius, "rate": self.rate, "radii_rate": self.radii_rate}
        if self.later_rate is not None:
            positive["later_rate"] = self.later_rate
        for name, value in positive.items():
            if not 0 < value < math.inf:
                raise InvalidSetting(f"{name} is {value}; it must be a positive number")
        if self.batch_size < 1 or self.centre_epochs < 0 or self.radii_epochs < 0:
            raise InvalidSetting("batch_size must be at least 1, and epochs not negative")
        if not math.isfinite(self.radii_start):
            raise InvalidSetting(f"radii_start is {self.radii_start}; it must be a finite number")

    def optimizer_at(self, rate: float) -> Optimizer:
        return SGD(rate) if self.optimizer == "sgd" else Adam(rate)


@final
class InterContiNet:
    """Learns tasks one after another; what it certified of one holds for ever, without that task's data.

    Args:
        model: An ordinary module, trained in place: after each task it holds the centre of the region.
        keep: Share of each task's accuracy that must stay certain.
        radius: Largest radius in the first task.
        seed: Fixes the order in which examples are seen.
        certificate: Where to go on from; the model must lie in its region.
        options: See :class:`Settings`.

    Attributes:
        certificate: The current region and the floors of all tasks so far.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> x = torch.randn(64, 2)
    >>> learner = InterContiNet(model, keep=0.8, centre_epochs=5, radii_epochs=5)
    >>> floor = learner.learn((x, (x[:, 0] > 0).long()), task="left/right")
    >>> floor.certified >= 0.8 * floor.correct
    True
    """

    def __init__(
        self,
        model: nn.Module,
        keep: float = 0.9,
        radius: float = 1.0,
        *,
        seed: int = 0,
        certificate: Certificate | None = None,
        **options: Any,
    ) -> None:
        known = [item.name for item in fields(Settings)]
        for name in options:
            if name not in known:
                raise InvalidSetting(f"there is no option '{name}'{nearest(name, known)}: they are {', '.join(known)}")
        self.settings = Settings(keep=keep, radius=radius, **options)
        state = state_of(model)
        if certificate is not None:
            check_inside(model, certificate)
            certificate = replace(certificate, region=certificate.region.to(next(iter(state.values())).device))
        network = Network(model)
        _check_statistics_rest(model)
        if self.settings.head == "per-task" and network.head is None:
            raise InvalidModel("a head per task needs a Linear layer as the model's last one")
        self.model = model
        self.certificate = certificate or Certificate.of(model, Region.everything(model), method="InterContiNet")
        self._network = network
        self._generator = torch.Generator().manual_seed(seed)
        movable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not movable:
            raise InvalidModel("every parameter has requires_grad=False: there is nothing to learn")
        self._layout = Layout.of(movable)

    @property
    def region(self) -> Region:
        return self.certificate.region

    def __repr__(self) -> str:
        return f"InterContiNet({len(self.certificate.tasks)} task(s) learned, keep={self.settings.keep}, {self.region})"

    def learn(
        self, data: Data, task: str = "", *, classes: Sequence[int] | None = None, listen: Listener | None = None
    ) -> TaskFloor:
        """Learn one task inside the current region, then shrink the region until the task is certain too.

        The model and the certificate change only at the very end, together: an error or an interrupt leaves both as
        they were.

        Args:
            data: The task's examples; labels name the model's outputs.
            task: Its name in the certificate.
            classes: Outputs that take part. By default all; with a head per task, the labels that occur.
            listen: Called after every epoch.

        Returns:
            The task's floor.
        """
        x, y = collect(data)
        state = state_of(self.model)
        _check_statistics_rest(self.model)
        check_inside(self.model, self.certificate)
        check_inputs(x, next(iter(state.values())).device)
        if classes is None and self.settings.head == "per-task":
            classes = tuple(torch.unique(y).tolist())
        classes = None if classes is None else tuple(int(c) for c in classes)
        check_labels(y, len(x), outputs_of(self.model, x), classes)
        self._check_head_is_new(classes)
        labels, index = positions(y, classes)

        def hear(progress: Progress) -> None:
            if listen is not None:
                listen(replace(progress, task=task))

        weights = self._train_centres(state, x, labels, index, hear)
        region = self._train_radii(weights, x, labels, index, hear)
        return self._conclude(weights, region, (x, y), task, classes)

    def _train_centres(
        self, state: dict[str, Tensor], x: Tensor, labels: Tensor, index: Tensor | None, hear: Listener
    ) -> Tensor:
        layout, settings = self._layout, self.settings
        lower, upper = layout.flatten(self.region.lower), layout.flatten(self.region.upper)
        inside, mu = centres_inside(layout.flatten(state)[None], lower[None], upper[None], settings.shift)
        first = not self.certificate.tasks
        rate = settings.rate if first or settings.later_rate is None else settings.later_rate
        phase = Phase(
            "centres",
            centre_objective(self._network, index),
            layout,
            inside,
            settings.optimizer_at(rate),
            settings.centre_epochs,
            settings.batch_size,
        )
        mu = train(phase, mu, {}, {"x": x, "y": labels}, {}, [self._generator], hear)
        weights = torch.clamp(inside.decode(mu)[0], lower, upper)
        if not bool(weights.isfinite().all()):
            raise InvalidSetting(f"training diverged to NaN or infinity: lower the learning rate (now {rate})")
        return weights

    def _train_radii(self, weights: Tensor, x: Tensor, labels: Tensor, index: Tensor | None, hear: Listener) -> Region:
        layout, settings, head = self._layout, self.settings, self._own_head_names()
        centre = layout.unflatten(weights)
        largest = {
            name: torch.zeros_like(weight)
            if name in head
            else room(weight, self.region.lower[name], self.region.upper[name])
            for name, weight in centre.items()
        }
        largest = {name: torch.where(size.isinf(), settings.radius, size) for name, size in largest.items()}
        resting = Region.around(self.model, 0.0).intervals()
        points = {name: box for name, box in resting.items() if name not in centre}
        sizes = Share(layout.flatten(largest)[None])
        phase = Phase(
            "radii",
            radii_objective(self._network, points, head, index, settings.margins == "joint"),
            layout,
            sizes,
            settings.optimizer_at(settings.radii_rate),
            settings.radii_epochs,
            settings.batch_size,
            pause=lambda means: means[:, 0] >= settings.keep * means[:, 1],
        )
        hits = right(self.model, centre, x, labels, index)
        fixed = {name: weight[None] for name, weight in centre.items()}
        nu = torch.full_like(weights, settings.radii_start)[None]
        nu = train(phase, nu, fixed, {"x": x, "y": labels}, {"right": hits[None]}, [self._generator], hear)
        size = sizes.decode(nu)[0]
        if bool(size.isnan().any()):
            raise InvalidSetting(
                "the worst-case loss became NaN: lower the learning rate of the centres (rate, later_rate), "
                f"or that of the radii (radii_rate, now {settings.radii_rate})"
            )
        return self._box(weights, size, index)

    def _box(self, weights: Tensor, size: Tensor, index: Tensor | None) -> Region:
        """The region around new weights, inside the parent; head rows of other tasks keep their edges."""
        low, up = self._layout.unflatten(weights - size), self._layout.unflatten(weights + size)
        parent = self.region
        for name in self._own_head_names():
            others = torch.ones(len(low[name]), dtype=torch.bool, device=low[name].device)
            others[index] = False
            low[name], up[name] = low[name].clone(), up[name].clone()
            low[name][others], up[name][others] = parent.lower[name][others], parent.upper[name][others]
        resting = Region.around(self.model, 0.0)
        return Region({**resting.lower, **low}, {**resting.upper, **up}).clamped_into(parent)

    def _conclude(
        self, weights: Tensor, region: Region, data: tuple[Tensor, Tensor], task: str, classes: Sequence[int] | None
    ) -> TaskFloor:
        before = {name: tensor.clone() for name, tensor in state_of(self.model).items()}
        settings = self.settings
        try:
            self._load(self._layout.unflatten(weights))
            if settings.enforce:
                joint = settings.margins == "joint"
                region, certified = shrunk_to_keep(self.model, region, data, classes, settings.keep, joint)
                floor = floor_of(self.model, data, certified, task, classes, settings.keep)
            else:
                floor = certify(
                    self.model, region, data, task=task, classes=classes, keep=settings.keep, margins=settings.margins
                )
            if settings.enforce and not floor.kept:
                warnings.warn(f"not certified as asked, even at a single point: {floor}", stacklevel=3)
            self.certificate = self.certificate.extended(region, floor)
        except BaseException:
            self._load(before)
            raise
        return floor

    @torch.no_grad()
    def _load(self, weights: dict[str, Tensor]) -> None:
        own = state_of(self.model)
        for name, tensor in weights.items():
            own[name].copy_(tensor)

    def _own_head_names(self) -> list[str]:
        """The last layer's parameters, where each task has rows of its own."""
        head = self._network.head
        if self.settings.head == "shared" or head is None:
            return []
        return [name for name in head.names.values() if name in self._layout.shapes]

    def _check_head_is_new(self, classes: Sequence[int] | None) -> None:
        if self.settings.head == "shared" or classes is None:
            return
        for floor in self.certificate.tasks:
            taken = set(floor.classes or ()) & set(classes)
            if taken:
                raise InvalidData(
                    f"class {min(taken)} belongs to task '{floor.task}', whose head is frozen: "
                    "give every task classes of its own"
                )


def _check_statistics_rest(model: nn.Module) -> None:
    for path, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            raise TrainingMode(
                f"layer '{path}' ({type(module).__name__}) is in training mode: call model.eval() on it first"
            )
