r"""Intervals on one layer of sums above a frozen, sparse encoder: the worst case over the box is exact.

The logit of class c is :math:`z_c(x) = \sum_{b \in B(x)} W_{b,c}` over the bins B(x) that the encoder puts x into. Over
a box of W each logit's bounds are reached, and different classes share no weight: nothing is lost to looseness.

No gradients. With :math:`P_c(b)` the share of class c's examples in bin b, and K bins a group,

.. math:: W_{b,c} = \min\bigl(\log K P_c(b),\; U_b\bigr), \quad \text{at least} -\text{depth},

where U, the ceiling of all classes to come, starts at ``cap``. What is learned stays as it is. After each task the
ceiling falls where the new classes are at home, :math:`U_b \leftarrow U_b - e \max(0, \max_c W_{b,c})`, by the smallest
e at which ``keep`` of the accuracy is certain. A small cap and a great depth make a class known by the bins it never
falls into; bins that no class is at home in keep their full width for the classes to come.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, cast, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intercontinet.certificate import Certificate, TaskFloor, certain_examples, check_inside, floor_of
from intercontinet.data import Data, check_inputs, check_labels, collect
from intercontinet.errors import InvalidData, InvalidModel, InvalidSetting
from intercontinet.inference import outputs_of, positions, right
from intercontinet.nets.ferns import Ferns
from intercontinet.noise import key_of, orders
from intercontinet.region import Region, state_of

LARGEST_FALL = 1e6


@final
class ExactInterContiNet:
    """Learns classes one task after another; each class once, in a few passes of counting.

    Args:
        model: Ferns, then an EmbeddingBag that sums, as :func:`~intercontinet.nets.ferns.fern_net` makes it.
        keep: Share of each task's accuracy that must stay certain, on its training set and on the part held out.
        cap: What a bin can add for a class, at most.
        depth: What it can take away, at most.
        held_out: Share of a task's examples that are not counted in P, but only watched when the ceiling falls.
        head: "shared", where all classes compete, or "per-task", where only those of one task do.
        seed: Fixes which examples are held out.
        certificate: Where to go on from; the model must lie in its region.

    Attributes:
        certificate: The current region and the floors of all tasks so far.

    >>> from intercontinet.nets.ferns import fern_net
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
        cap: float = 0.1,
        depth: float = 20.0,
        held_out: float = 0.1,
        head: Literal["shared", "per-task"] = "shared",
        seed: int = 0,
        certificate: Certificate | None = None,
    ) -> None:
        if not 0 < keep <= 1:
            raise InvalidSetting(f"keep is {keep}; it is a share of the accuracy: above 0, at most 1")
        if not (0 < cap < math.inf and 0 < depth < math.inf and 0 <= held_out < 1):
            raise InvalidSetting(
                f"cap is {cap}, depth {depth} and held_out {held_out}: the first two must be positive, the last a share"
            )
        if head not in ("shared", "per-task"):
            raise InvalidSetting(f"head is {head!r}; choose one of 'shared', 'per-task'")
        self._encoder, self._bag, self._name = _parts(model)
        if certificate is not None:
            check_inside(model, certificate)
        self.model, self.keep = model, keep
        self._cap, self._depth, self._held_out, self._head, self._seed = cap, depth, held_out, head, seed
        everything = Region.everything(model)
        self.certificate = certificate or Certificate.of(model, everything, method="ExactInterContiNet")

    @property
    def region(self) -> Region:
        return self.certificate.region

    def __repr__(self) -> str:
        return f"ExactInterContiNet({len(self.certificate.tasks)} task(s) learned, keep={self.keep}, {self.region})"

    @torch.no_grad()
    def learn(self, data: Data, task: str = "", *, classes: Sequence[int] | None = None) -> TaskFloor:
        """Learn the classes of one task, then lower the ceiling of those to come until the task is certain.

        The model and the certificate change only at the very end, together.

        Args:
            data: The task's examples; labels name the model's outputs.
            task: Its name in the certificate.
            classes: With a head per task, the outputs that compete; by default the labels that occur.

        Returns:
            The task's floor, on all of its examples.

        Raises:
            InvalidData: A class was learned before. This learner learns each class once.
        """
        x, y = collect(data)
        check_inside(self.model, self.certificate)
        check_inputs(x, self._bag.weight.device)
        new = torch.unique(y).tolist()
        competing = tuple(classes or new) if self._head == "per-task" else None
        check_labels(y, len(x), outputs_of(self.model, x), competing)
        lower, upper = (edges[self._name].clone() for edges in (self.region.lower, self.region.upper))
        open_still = (lower != upper).any(0)  # columns of classes not learned yet
        for label in new:
            if not bool(open_still[label]):
                raise InvalidData(f"class {label} was learned before, and this learner learns each class once")
        bins = torch.cat([self._encoder(part) for part in torch.split(x, 512)])
        held = orders(torch.tensor([key_of(self._seed, len(self.certificate.tasks))]), len(x))[0].to(x.device)
        held = held[: int(self._held_out * len(x))]
        counted = torch.ones(len(x), dtype=torch.bool, device=x.device)
        counted[held] = False
        ceiling = upper[:, open_still].amax(1).clamp(max=self._cap)  # all columns of classes to come are alike
        weight = self._bag.weight.clone()
        for label in new:
            weight[:, label] = torch.minimum(self._typical(bins[counted & (y == label)]), ceiling)
        lower[:, new] = upper[:, new] = weight[:, new]
        open_still[new] = False
        if competing is None:
            weight[:, open_still] = lower[:, open_still] = -self._depth
        labels, index = positions(y, competing)
        hits = right(self.model, {**state_of(self.model), self._name: weight}, x, labels, index)
        groups = [torch.arange(len(x), device=x.device), *([held] if len(held) else [])]

        def enough(certain: Tensor) -> bool:
            return all(int(certain[some].sum()) >= self.keep * int(hits[some].sum()) for some in groups)

        ceilings = iter([ceiling])
        if competing is None:
            ceilings = self._falling(ceiling, weight, bins, y, open_still, enough)
        for lowered in ceilings:
            if competing is None:
                upper[:, open_still] = lowered[:, None]
            region = Region({**self.region.lower, self._name: lower}, {**self.region.upper, self._name: upper})
            certain = certain_examples(self.model, region, x, labels, index, joint=False)
            if enough(certain):
                break
        floor = floor_of((x, y), int(certain.sum()), int(hits.sum()), task, competing, self.keep)
        if not floor.kept:
            warnings.warn(f"not certified as asked, even under the lowest ceiling: {floor}", stacklevel=2)
        certificate = self.certificate.extended(region, floor)
        self._bag.weight.copy_(weight)
        self.certificate = certificate
        return floor

    def _typical(self, bins: Tensor) -> Tensor:
        """log K P(b) for the examples in ``bins`` [examples, groups], within [-depth, cap]: [bins]."""
        if not len(bins):
            raise InvalidData("a class has no example left to count: give more, or a smaller held_out")
        size = self._bag.num_embeddings
        count = torch.bincount(bins.flatten(), minlength=size).to(self._bag.weight.dtype)
        share = count / len(bins) * (size // bins.shape[1])
        return share.log().clamp(-self._depth, self._cap)

    def _falling(
        self,
        ceiling: Tensor,
        weight: Tensor,
        bins: Tensor,
        y: Tensor,
        free: Tensor,
        enough: Callable[[Tensor], bool],
    ) -> Iterator[Tensor]:
        """Ceilings [bins], each lower than the one before; the first is the highest that is enough but for rounding."""
        if not bool(free.any()):
            yield ceiling
            return
        home = weight[:, torch.unique(y)].amax(1).clamp(min=0)
        known = F.embedding_bag(bins, weight[:, ~free], mode="sum")
        own = F.embedding_bag(bins, weight, mode="sum").gather(1, y[:, None]).squeeze(1)
        hits = own >= known.amax(1)

        def fallen(by: float) -> Tensor:
            return (ceiling - by * home).clamp(min=-self._depth)

        def quickly(by: float) -> bool:
            return enough(hits & (own > F.embedding_bag(bins, fallen(by)[:, None], mode="sum").squeeze(1)))

        least = _least(quickly)
        for more in (1.0, 1.001, 1.01, 1.1, 2.0, 10.0):
            yield fallen(least * more)


def _least(enough: Callable[[float], bool]) -> float:
    """The smallest number from which on enough is enough."""
    if enough(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while not enough(high) and high < LARGEST_FALL:
        low, high = high, 2 * high
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _parts(model: nn.Module) -> tuple[Ferns, nn.EmbeddingBag, str]:
    if isinstance(model, nn.Sequential) and len(model) == 2:
        encoder, bag = model
        known = isinstance(encoder, Ferns) and isinstance(bag, nn.EmbeddingBag)
        if known and bag.mode == "sum" and bag.num_embeddings == encoder.bins:
            return cast(Ferns, encoder), cast(nn.EmbeddingBag, bag), f"{next(reversed(model._modules))}.weight"
    raise InvalidModel("this learner needs Ferns and an EmbeddingBag that sums over their bins: see fern_net")
