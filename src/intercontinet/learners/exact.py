"""ExactInterContiNet: intervals on one layer of sums above a frozen, sparse encoder, where the worst case is exact."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from intercontinet.bounds import Float32, Network, in_float64
from intercontinet.certificate import Certificate, check_inside
from intercontinet.complaints import nearest
from intercontinet.data import Data, check_inputs, check_labels, collect_one
from intercontinet.engine.loop import Listener
from intercontinet.errors import InvalidData, InvalidModel, InvalidSetting
from intercontinet.floor import TaskFloor, floor_of
from intercontinet.inference import evaluated, examples_at_once, outputs_of
from intercontinet.interval import Interval
from intercontinet.learners.exact_method import learn_task
from intercontinet.learners.exact_settings import ExactSettings
from intercontinet.learners.method import Lesson
from intercontinet.learners.outcome import Outcome, progress_of
from intercontinet.learners.shares import Past
from intercontinet.learners.table import Box, Table
from intercontinet.nets.dictionary import PatchDictionary, TriangleDictionary
from intercontinet.nets.ferns import Ferns
from intercontinet.nets.whole import WholeNet
from intercontinet.nets.winners import KWinners
from intercontinet.noise import key_of
from intercontinet.region import Region
from intercontinet.state import state_of

# Whole numbers and comparisons: nothing rounds.
EXACT = (Ferns, KWinners, PatchDictionary, TriangleDictionary, WholeNet, nn.Flatten)


@final
class ExactInterContiNet:
    """Learns tasks one after another; what it certified of one holds for ever, without that task's data.

    Args:
        model: A frozen encoder, an EmbeddingBag that sums over the rows it chooses, and, where outputs have several
            columns, a MaxPool1d over them: see :mod:`intercontinet.nets`. Where a Lesser puts ceilings on the sums, as
            in ``with_table(..., capped=True)``, outputs are trained instead of counted.
        keep: Share of each task's accuracy that must stay certain, on its training set and on the part held out.
        seed: Fixes which examples are held out, and how classes are divided into parts.
        certificate: Where to go on from; the model must lie in its region. If it has tasks, their examples are not
            known then, and no bound for unseen ones is given.
        strangers: Examples of no task, which need no labels: a capped net's classes are told from them, too, so that
            fewer of what is to come is taken for what is known. The same for all tasks.
        options: See :class:`~intercontinet.learners.exact_settings.ExactSettings`.

    Attributes:
        certificate: The current region and the floors of all tasks so far.

    >>> from intercontinet.nets import fern_net
    >>> x = torch.rand(200, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    >>> x[:100, :, :3] *= 0.2  # dark above: class 0; dark below: class 1
    >>> x[100:, :, 3:] *= 0.2
    >>> learner = ExactInterContiNet(fern_net((1, 6, 6), outputs=4, groups=50, tests=4, window=4), keep=0.8)
    >>> floor = learner.learn((x, torch.arange(200) // 100), task="above/below")
    >>> floor.accuracy, floor.kept
    (1.0, True)
    """

    def __init__(
        self,
        model: nn.Module,
        keep: float = 0.8,
        *,
        seed: int = 0,
        certificate: Certificate | None = None,
        strangers: Tensor | None = None,
        **options: Any,
    ) -> None:
        known = [item.name for item in fields(ExactSettings)]
        for name in options:
            if name not in known:
                raise InvalidSetting(f"there is no option '{name}'{nearest(name, known)}: they are {', '.join(known)}")
        self.settings = ExactSettings(keep=keep, **options)
        self._encoder, self._table, self._name = parts_of(model)
        if certificate is not None:
            check_inside(model, certificate)
            region = certificate.region.to(self._table.bag.weight.device).with_values(model)
            certificate = replace(certificate, region=region)
        if self.settings.strangers_from:
            raise InvalidSetting("strangers_from names a data set, for runs: here, pass examples as strangers")
        self.model, self._seed, self._strangers = model, seed, strangers
        self._past = Past.of(certificate, self.settings.held_out, self.settings.unseen)
        self._strange_rows: Tensor | None = None
        self.certificate = certificate or Certificate.of(model, self._start(), method="ExactInterContiNet")

    def _start(self) -> Region:
        """The table may be anything yet; all else is a point, since floors stand on the encoder as it is."""
        resting, everything = Region.around(self.model, 0.0), Region.everything(self.model)
        tables = [{self._name: edges[self._name]} for edges in (everything.lower, everything.upper)]
        return Region({**resting.lower, **tables[0]}, {**resting.upper, **tables[1]})

    @property
    def region(self) -> Region:
        return self.certificate.region

    def __repr__(self) -> str:
        return (
            f"ExactInterContiNet({len(self.certificate.tasks)} task(s) learned, keep={self.settings.keep}, "
            f"{self.region})"
        )

    @torch.no_grad()
    def learn(
        self, data: Data, task: str = "", *, classes: Sequence[int] | None = None, listen: Listener | None = None
    ) -> TaskFloor:
        """Learn the outputs of one task, then lower the ceiling of those to come until the task is certain.

        The model and the certificate change only at the very end, together.

        Args:
            data: The task's examples; labels name the model's outputs.
            task: Its name in the certificate.
            classes: With a head per task, the outputs that compete; by default the labels that occur.
            listen: Called once the task is learned.

        Returns:
            The task's floor, on all of its examples.

        Raises:
            InvalidData: An output has no free column left.
        """
        x, y = collect_one(data)
        check_inside(self.model, self.certificate)
        check_inputs(x, self._table.bag.weight.device)
        if classes is not None and self.settings.head == "shared":
            raise InvalidData("classes are for head='per-task': with a shared head all outputs compete")
        competing = tuple(classes or torch.unique(y).tolist()) if self.settings.head == "per-task" else None
        check_labels(y, len(x), outputs_of(self.model, x), competing)
        rows, sure = encoded(self._encoder, x)
        index = len(self.certificate.tasks)
        edges = (self.region.lower[self._name], self.region.upper[self._name])
        box = Box(state_of(self.model)[self._name], *edges)
        reflected = encoded(self._encoder, mirrored(x))[0] if self.settings.mirror else None
        known, past = self._past.given(x)
        lesson = Lesson(task, index, rows, y, competing, reflected, self._strange(x), known)
        made = learn_task(self.settings, self._table, box, lesson, sure, key_of(self._seed, index))
        floor = self._concluded(made, x, y, task, competing)
        self._past = past
        if listen is not None:
            listen(progress_of([made], lesson))
        return floor

    def _strange(self, x: Tensor) -> Tensor | None:
        """Rows of the strangers, chosen once."""
        if self._strangers is not None and self._strange_rows is None:
            check_inputs(self._strangers, self._table.bag.weight.device)
            if self._strangers.shape[1:] != x.shape[1:]:
                raise InvalidData(
                    f"strangers have shape {tuple(self._strangers.shape[1:])}, and the task's examples "
                    f"{tuple(x.shape[1:])}: give strangers of the same shape"
                )
            self._strange_rows = strange_rows(self._encoder, self._strangers, self.settings.mirror)
        return self._strange_rows

    def _concluded(
        self, made: Outcome, x: Tensor, y: Tensor, task: str, competing: tuple[int, ...] | None
    ) -> TaskFloor:
        unseen = {"unseen_certified": made.unseen_certified, "unseen_total": made.unseen_total}
        told = unseen if made.unseen_total and self._past.whole else {}
        floor = floor_of((x, y), made.certified, made.correct, task, competing, self.settings.keep, **told)
        if not (floor.kept and made.enough):
            where = "" if not floor.kept else " on the examples held out, though on all"
            tried = "" if self.settings.head == "per-task" else ", even under the lowest ceiling"
            warnings.warn(f"not certified as asked{where}{tried}: {floor}", stacklevel=3)
        if made.left_out:
            outputs = ", ".join(map(str, made.left_out))
            warnings.warn(f"task '{task}': too little room is left for output(s) {outputs}: not learned", stacklevel=3)
        resting = Region.around(self.model, 0.0)  # the encoder was taken as it is: elsewhere nothing is certain
        region = Region({**resting.lower, self._name: made.box.lower}, {**resting.upper, self._name: made.box.upper})
        certificate = self.certificate.extended(region, floor)
        self._table.bag.weight.copy_(made.box.weight)
        self.certificate = certificate
        return floor


def parts_of(model: nn.Module) -> tuple[nn.Sequential, Table, str]:
    """A model's encoder, the table above it, and the full name of the table's weight."""
    layers = list(model.named_children()) if isinstance(model, nn.Sequential) else []
    for place, (name, layer) in enumerate(layers):
        if isinstance(layer, nn.EmbeddingBag):
            encoder = nn.Sequential(*(module for _, module in layers[:place]))
            return encoder, Table.of(nn.Sequential(*(module for _, module in layers[place:]))), f"{name}.weight"
    raise InvalidModel(
        "this learner needs a Sequential of a frozen encoder and an EmbeddingBag that sums the rows it chooses: see "
        "fern_net and its like in intercontinet.nets"
    )


def mirrored(x: Tensor) -> Tensor:
    """Images as a mirror shows them, [examples, ..., width]."""
    if x.dim() < 3:
        raise InvalidData(f"mirror is for images, and each example has shape {tuple(x.shape[1:])}: leave it out")
    return x.flip(-1)


def strange_rows(encoder: nn.Sequential, strangers: Tensor, mirror: bool) -> Tensor:
    """The rows that the encoder chooses for strangers, and, where asked for, for what a mirror shows of them."""
    return torch.cat([encoded(encoder, x)[0] for x in (strangers, *([mirrored(strangers)] if mirror else []))])


@torch.no_grad()
def encoded(encoder: nn.Sequential, x: Tensor) -> tuple[Tensor, Tensor]:
    """The rows that the encoder chooses, [examples, chosen], and where no rounding could change them, [examples].

    Encoders made of whole-number arithmetic and comparisons do not round. Others (a frozen network, and ferns on its
    features) are bounded: an example whose features lie too near to a threshold is not sure.
    """
    rows = torch.cat([box.lower for box in _bounded(encoder, x)])
    if rows.dim() != 2 or rows.is_floating_point():
        raise InvalidModel("an encoder must choose rows: whole numbers, [examples, chosen]")
    sure = (rows >= 0).all(1)
    if not (bool(sure.all()) and all(type(layer) in EXACT for layer in encoder)):  # whose bounds are what they put out
        with evaluated(encoder):
            rows = torch.cat([encoder(part) for part in torch.split(x, examples_at_once(x))])
    return rows, sure


@torch.no_grad()
def exact_features(layers: nn.Sequential, x: Tensor) -> Tensor:
    """What the first layers of an encoder put out, where they do not round, [examples, features] in float32."""
    boxes = list(_bounded(layers, x))
    if not all(box.is_point for box in boxes):
        raise InvalidModel("these layers round, and what they put out is known up to that only")
    return torch.cat([box.lower.float() for box in boxes])


def _bounded(layers: nn.Sequential, x: Tensor) -> Iterator[Interval]:
    """What layers put out for some of the examples after the other."""
    network = Network(layers)
    weights = any(tensor.is_floating_point() for tensor in layers.state_dict().values())
    points = Region.around(layers, 0.0).intervals(torch.float64) if weights else {}
    for part in torch.split(x, examples_at_once(x)):
        yield network.propagate(points, in_float64(Interval.point(part)), Float32())
