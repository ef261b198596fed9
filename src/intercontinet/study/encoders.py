"""The seeds' models of a run: what of them learns, and the frozen encoders below it, where they have any."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from torch import Tensor, nn

from intercontinet.errors import InvalidModel, InvalidSetting
from intercontinet.inference import positions
from intercontinet.learners.exact import encoded, exact_features, mirrored, parts_of
from intercontinet.learners.exact_method import ExactMethod
from intercontinet.learners.method import Lesson, Method
from intercontinet.learners.table import WEIGHT
from intercontinet.nets import WholeNet, build_exact_net, build_net
from intercontinet.region import Region
from intercontinet.study.config import Config
from intercontinet.tasks import Stream, stream

STRANGERS = 10_000  # of a data set, at most


@final
@dataclass(frozen=True)
class Encoder:
    """A seed's frozen encoder.

    Attributes:
        eyes: Its first layers, as far as all seeds have them in common: what they put out is computed once for all.
        own: The others.
    """

    eyes: nn.Sequential
    own: nn.Sequential


@final
class Shown:
    """Examples, and what encoders make of them.

    Args:
        x: [examples, ...], where the encoders are.
    """

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self._features: Tensor | None = None
        self._rows: dict[int, Tensor] = {}

    @cached_property
    def mirrored(self) -> Shown:
        """The examples, which must be images, as a mirror shows them."""
        return Shown(mirrored(self.x))

    def to(self, encoder: Encoder | None, seed: int) -> Tensor:
        """The examples as a seed's encoder, if it has one, presents them; encoded once."""
        if encoder is None:
            return self.x
        if seed not in self._rows:
            self._rows[seed] = self.rows(encoder).int()  # half as large
        return self._rows[seed].long()

    def with_mirror(self, encoder: Encoder) -> Tensor:
        """The rows of the examples, and of what a mirror shows of them."""
        return torch.cat([self.rows(encoder), self.mirrored.rows(encoder)])

    def rows(self, encoder: Encoder) -> Tensor:
        """What an encoder makes of them, [examples, chosen]: for those who need it once."""
        if self._features is None:
            self._features = exact_features(encoder.eyes, self.x) if len(encoder.eyes) else self.x
        rows, sure = encoded(encoder.own, self._features)
        if not bool(sure.all()):
            raise InvalidModel("an encoder of a run must choose rows that no rounding can change")
        return rows


@final
class Examples:
    """Examples to learn from, or to measure accuracy on, where the nets are.

    Args:
        pair: Examples and labels.
        classes: The outputs among which to choose, or None for all.
        device: Where.

    Attributes:
        shown: The examples.
        labels: As positions among the classes.
        classes: As an index.
    """

    def __init__(self, pair: tuple[Tensor, Tensor], classes: tuple[int, ...] | None, device: torch.device) -> None:
        self.shown = Shown(pair[0].to(device))
        self.labels, self.classes = positions(pair[1].to(device), classes)

    def __len__(self) -> int:
        return len(self.labels)


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
        self._strangers = None if strangers is None else Shown(strangers.to(device))
        self.learning = whole
        self.encoders: Sequence[Encoder | None] = [None] * len(whole)
        if exact:
            parts = [parts_of(model) for model in whole]
            self.learning = [table.net for _, table, _ in parts]
            encoders = [list(encoder.to(device)) for encoder, _, _ in parts]
            eyes = _in_common(encoders)
            self.encoders = [
                Encoder(nn.Sequential(*layers[:eyes]), nn.Sequential(*layers[eyes:])) for layers in encoders
            ]

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
                buffers = [*encoder.eyes.buffers(), *encoder.own.buffers()]
                values = [buffer.detach().cpu().contiguous().numpy().tobytes() for buffer in buffers]
                values += [] if self._strangers is None else [self._strangers.x.cpu().numpy().tobytes()]
                hashes.append(hashlib.sha256(b"".join(values)).hexdigest())
        return hashes

    def lesson(self, lesson: Lesson, examples: Examples, row: int, mirror: bool) -> Lesson:
        """A task as a seed's encoder, if it has one, presents its examples; seen in a mirror too, where asked for."""
        encoder = self.encoders[row]
        if encoder is None:
            return lesson
        own, strange = examples.shown, self._strangers
        return replace(
            lesson,
            x=own.to(encoder, row),
            mirrored=own.mirrored.rows(encoder) if mirror else None,
            strangers=None if strange is None else strange.with_mirror(encoder) if mirror else strange.rows(encoder),
        )

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


def _in_common(encoders: Sequence[Sequence[nn.Module]]) -> int:
    """How many layers, from the input on, are the same in all encoders, and such as put out exact features."""
    first, *others = encoders
    for place, layer in enumerate(first):
        alike = [str(other[place]) == str(layer) and _same(other[place], layer) for other in others]
        if not isinstance(layer, WholeNet) or not all(alike):
            return place
    return len(first)


def _same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(*pair) for pair in pairs)


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
