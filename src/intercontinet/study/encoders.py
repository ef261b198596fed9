"""The seeds' models of a run: what of them learns, and the frozen encoders below it, where they have any."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import final

import torch
from torch import Tensor, nn

from intercontinet.errors import InvalidModel, InvalidSetting
from intercontinet.inference import positions
from intercontinet.learners.exact import encoded, mirrored_rows, parts_of, strange_rows
from intercontinet.learners.exact_method import ExactMethod
from intercontinet.learners.method import Lesson, Method
from intercontinet.learners.table import WEIGHT
from intercontinet.nets import build_exact_net, build_net
from intercontinet.region import Region
from intercontinet.study.config import Config
from intercontinet.tasks import Stream, stream

STRANGERS = 10_000  # of a data set, at most


@final
class Examples:
    """Examples to measure accuracy on, where the nets are.

    Args:
        pair: Examples and labels.
        classes: The outputs among which to choose, or None for all.
        device: Where.
    """

    def __init__(self, pair: tuple[Tensor, Tensor], classes: tuple[int, ...] | None, device: torch.device) -> None:
        self.x = pair[0].to(device)
        self.labels, self.classes = positions(pair[1].to(device), classes)
        self._rows: dict[int, Tensor] = {}

    def seen_by(self, encoder: nn.Sequential | None, seed: int) -> Tensor:
        """The examples as a seed's encoder, if it has one, presents them; encoded once."""
        if encoder is None:
            return self.x
        if seed not in self._rows:
            rows, sure = encoded(encoder, self.x)
            if not bool(sure.all()):
                raise InvalidModel("an encoder of a run must choose rows that no rounding can change")
            self._rows[seed] = rows
        return self._rows[seed]


@final
class Models:
    """One whole model a seed.

    Args:
        whole: The models.
        device: Where encoders are put.
        exact: Whether each is an encoder below a table.
        strangers: Examples of no task, where such encoders are to present any.

    Attributes:
        whole: The models.
        learning: What of each learns: the table, or all of it.
        encoders: What lies below, or None; by seed.
    """

    def __init__(
        self, whole: Sequence[nn.Module], device: torch.device, exact: bool, strangers: Tensor | None = None
    ) -> None:
        self.whole = whole
        self._strangers = None if strangers is None else strangers.to(device)
        self._strange_rows: dict[int, Tensor] = {}
        self.learning = whole
        self.encoders: Sequence[nn.Sequential | None] = [None] * len(whole)
        if exact:
            parts = [parts_of(model) for model in whole]
            self.learning = [table.net for _, table, _ in parts]
            self.encoders = [encoder.to(device) for encoder, _, _ in parts]

    @classmethod
    def built(cls, config: Config, method: Method, tasks: Stream, device: torch.device) -> Models:
        """Those that a configuration asks for."""
        whole = [_built(config.net, method, tasks, seed, device) for seed in config.seeds]
        exact = isinstance(method, ExactMethod)
        name = method.settings.strangers_from if isinstance(method, ExactMethod) else ""
        return cls(whole, device, exact, strangers(name, tasks) if name else None)

    @property
    def hashes(self) -> list[str]:
        """Of the seeds' encoders, where they have any, and of the strangers that these present."""
        hashes = []
        for encoder in self.encoders:
            if encoder is not None:
                values = [buffer.detach().cpu().contiguous().numpy().tobytes() for buffer in encoder.buffers()]
                values += [] if self._strangers is None else [self._strangers.cpu().numpy().tobytes()]
                hashes.append(hashlib.sha256(b"".join(values)).hexdigest())
        return hashes

    def lesson(self, lesson: Lesson, examples: Examples, row: int, mirror: bool) -> Lesson:
        """A task as a seed's encoder, if it has one, presents its examples; seen in a mirror too, where asked for."""
        encoder = self.encoders[row]
        if encoder is None:
            return lesson
        mirrored = mirrored_rows(encoder, examples.x) if mirror else None
        if self._strangers is not None and row not in self._strange_rows:
            self._strange_rows[row] = strange_rows(encoder, self._strangers, mirror)
        strange = self._strange_rows.get(row)
        return replace(lesson, x=examples.seen_by(encoder, row), mirrored=mirrored, strangers=strange)

    def loaded(self, row: int, tensors: Mapping[str, Tensor]) -> nn.Module:
        """A copy of one seed's model on the CPU, with these tensors in what learns."""
        model = deepcopy(self.whole[row]).cpu()
        own = dict(model.named_parameters())
        with torch.no_grad():
            for name, tensor in self._by_full_name(row, tensors).items():
                own[name].copy_(tensor)
        return model

    def region(self, row: int, region: Region) -> Region:
        """A region of what learns as one of the whole model, whose encoder is a point."""
        if self.encoders[row] is None:
            return region
        resting = Region.around(self.whole[row], 0.0).to("cpu")
        lower, upper = (self._by_full_name(row, edges) for edges in (region.lower, region.upper))
        return Region({**resting.lower, **lower}, {**resting.upper, **upper})

    def _by_full_name(self, row: int, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Tensors of what learns, by their names in the whole model."""
        if self.encoders[row] is None:
            return tensors
        return {parts_of(self.whole[row])[2]: tensors[WEIGHT]}


def strangers(name: str, tasks: Stream) -> Tensor:
    """Training examples of another data set, evenly drawn from all of it, but none that the stream holds as well."""
    others = torch.cat([task.train[0] for task in stream(name, "task").tasks])
    if others.shape[1:] != tasks.shape:
        raise InvalidSetting(
            f"strangers_from is '{name}', of shape {tuple(others.shape[1:])}, and these examples are {tasks.shape}: "
            "choose a data set of the same shape"
        )
    some = others[:: -(-len(others) // STRANGERS)]
    known = {hash(one.tobytes()) for task in tasks.tasks for x, _ in (task.train, task.test) for one in x.numpy()}
    new = torch.tensor([hash(one.tobytes()) not in known for one in some.numpy()])
    if 2 * int(new.sum()) < len(some):
        raise InvalidSetting(f"strangers_from is '{name}', most of whose examples belong to the tasks: they are none")
    return some[new]


def _built(net: str, method: Method, tasks: Stream, seed: int, device: torch.device) -> nn.Module:
    """One seed's net. Encoders that must be fitted are, to the first task's examples, without their labels."""
    if not isinstance(method, ExactMethod):
        return build_net(net, tasks.shape, tasks.outputs, seed)
    times = len(tasks.tasks) if tasks.scenario == "domain" else 1  # that a task brings the same outputs
    x, _ = tasks.tasks[0].train
    examples = x[method.settings.shaping(len(x), seed).to(x.device)].to(device)
    return build_exact_net(net, examples, tasks.outputs, method.settings.parts * times, seed)
