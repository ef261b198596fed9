"""InterContiNet, the paper's method: centres first, then radii, then a certificate. Regions only ever nest."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from intercontinet.certificate import Certificate, check_inside
from intercontinet.complaints import nearest
from intercontinet.data import Data, check_inputs, check_labels, collect_one
from intercontinet.engine.loop import Listener
from intercontinet.errors import InvalidData, InvalidModel, InvalidSetting, TrainingMode
from intercontinet.floor import TaskFloor, floor_of
from intercontinet.inference import outputs_of
from intercontinet.learners.boxes import Boxes, check_layers, learn_in_boxes, region_of
from intercontinet.learners.method import Lesson, Memory, Nets, earlier
from intercontinet.learners.settings import Settings
from intercontinet.learners.shares import Past
from intercontinet.region import Region
from intercontinet.state import state_of


@final
@dataclass(frozen=True)
class Hyperrectangles:
    """The paper's method on a stack of seeds; its memory is the edges, and what was certified of each task.

    Memory: "lower", "upper" [seeds, entries]; "certified", "correct" [seeds, tasks]; and, where some examples are held
    back, "unseen_certified", "unseen_total", "enough" [seeds, tasks].
    """

    settings: Settings

    def learn(
        self, nets: Nets, weights: Tensor, memory: Memory, lesson: Lesson, listen: Listener | None = None
    ) -> tuple[Tensor, Memory]:
        if memory:
            lower, upper = memory["lower"], memory["upper"]
        else:
            upper = torch.full_like(weights, torch.inf)
            lower = -upper
        boxes = learn_in_boxes(self.settings, nets, weights, lower, upper, lesson, listen)
        back = self.settings.held_out or self.settings.unseen
        names = ("certified", "correct", *(("unseen_certified", "unseen_total", "enough") if back else ()))
        counts = {name: getattr(boxes, name)[:, None] for name in names}
        if memory:
            counts = {name: torch.cat([earlier(memory, name), now], dim=1) for name, now in counts.items()}
        return boxes.weights, {"lower": boxes.lower, "upper": boxes.upper, **counts}


@final
class InterContiNet:
    """Learns tasks one after another; what it certified of one holds for ever, without that task's data.

    Args:
        model: An ordinary module, trained in place: after each task it holds the centre of the region.
        keep: Share of each task's accuracy that must stay certain.
        radius: Largest radius in the first task.
        seed: Fixes the order in which examples are seen.
        certificate: Where to go on from; the model must lie in its region. If it has tasks, their examples are not
            known then, and no bound for unseen ones is given.
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
            region = certificate.region.to(next(iter(state.values())).device).with_values(model)
            certificate = replace(certificate, region=region)
        nets = Nets(model, (seed,))
        check_layers(self.settings, nets)
        _check_statistics_rest(model)
        if self.settings.head == "per-task" and nets.network.head is None:
            raise InvalidModel("a head per task needs a Linear layer as the model's last one")
        self.model = model
        self.certificate = certificate or Certificate.of(model, Region.everything(model), method="InterContiNet")
        self._nets = nets
        self._past = Past.of(certificate, self.settings.held_out, self.settings.unseen)

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
        x, y = collect_one(data)
        state = state_of(self.model)
        _check_statistics_rest(self.model)
        check_inside(self.model, self.certificate)
        check_inputs(x, next(iter(state.values())).device)
        if classes is None and self.settings.head == "per-task":
            classes = tuple(torch.unique(y).tolist())
        classes = None if classes is None else tuple(int(c) for c in classes)
        check_labels(y, len(x), outputs_of(self.model, x), classes)
        self._check_head_is_new(classes)
        known, past = self._past.given(x)
        lesson = Lesson(task, len(self.certificate.tasks), x, y, classes, known=known)
        nets, layout = self._nets, self._nets.layout
        weights = layout.flatten(state)[None]
        edges = [layout.flatten(edge)[None] for edge in (self.region.lower, self.region.upper)]
        boxes = learn_in_boxes(self.settings, nets, weights, edges[0], edges[1], lesson, listen)
        floor = self._conclude(boxes, lesson)
        self._past = past
        return floor

    def _conclude(self, boxes: Boxes, lesson: Lesson) -> TaskFloor:
        settings, layout = self.settings, self._nets.layout
        data = (lesson.x, lesson.y)
        counts = int(boxes.certified[0]), int(boxes.correct[0])
        unseen = {"unseen_certified": int(boxes.unseen_certified[0]), "unseen_total": int(boxes.unseen_total[0])}
        told = unseen if unseen["unseen_total"] and self._past.whole else {}
        floor = floor_of(data, *counts, lesson.name, lesson.classes, settings.keep, **told)
        floor = replace(floor, drift=settings.drift)
        if settings.enforce and not floor.kept:
            warnings.warn(f"not certified as asked, even at a single point: {floor}", stacklevel=3)
        elif settings.enforce and not bool(boxes.enough[0]):
            warnings.warn(
                f"not certified as asked on the examples held out, even at a single point, though on all: {floor}",
                stacklevel=3,
            )
        region = region_of(self._nets, boxes.lower[0], boxes.upper[0])
        certificate = self.certificate.extended(region, floor)
        self._load(layout.unflatten(boxes.weights[0]))
        self.certificate = certificate
        return floor

    @torch.no_grad()
    def _load(self, weights: dict[str, Tensor]) -> None:
        own = state_of(self.model)
        for name, tensor in weights.items():
            own[name].copy_(tensor)

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
