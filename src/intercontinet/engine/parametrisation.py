"""From the vector that is trained to the parameters that a model runs on, and from their gradients to a step of it.

Elementwise, so a whole stack [seeds, entries] goes at once; written out by hand, into buffers that are used again,
because on a CPU every pass over such vectors counts, and allocating them anew costs more than the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor

from intercontinet.engine.optimizer import Stride

LEAST_REACH = 1e-30  # keeps v / r defined where there is no room left
SIGMOID_BACKWARD = torch.ops.aten.sigmoid_backward.grad_input
RUN = (
    100_000  # entries, at least, that go through all passes before the next ones do, while a CPU has them in its cache
)


class Parametrisation(Protocol):
    """An elementwise map, and how to move along it."""

    def decode(self, values: Tensor) -> Tensor:
        """Parameters for these values, [seeds, entries]: always in the same tensor, overwritten by the next call.

        For :class:`Identity` that tensor is ``values`` itself, which an optimizer moves in place.
        """
        ...

    def move_(self, values: Tensor, gradients: Sequence[Tensor], stride: Stride) -> None:
        """Take a step from the values last decoded, in place, and decode them again.

        Args:
            values: [seeds, entries].
            gradients: By the parameters, in parts, in order, [seeds, ...] each.
            stride: The optimizer that takes it.
        """
        ...


@final
class Identity:
    """The values are the parameters."""

    def __init__(self) -> None:
        self._pieces = _Pieces(torch.empty(0))
        self._gradient = torch.empty(0)

    def decode(self, values: Tensor) -> Tensor:
        return values

    def move_(self, values: Tensor, gradients: Sequence[Tensor], stride: Stride) -> None:
        if self._pieces.vectors is not values:
            self._pieces, self._gradient = _Pieces(values), values.new_empty(0)
        rate = stride.rate
        if rate is None:
            stride.step_(values, _laid_out(gradients, self._gradient))
            return
        for piece, gradient in self._pieces.beside(gradients):
            piece.sub_(gradient, alpha=rate)


@final
class Clamped:
    """The values are the parameters, moved to the nearest point of the box before every use: projected gradients.

    Args:
        lower: [seeds, entries].
        upper: [seeds, entries].

    >>> Clamped(torch.zeros(1, 2), torch.ones(1, 2)).decode(torch.tensor([[-3.0, 0.5]]))
    tensor([[0.0000, 0.5000]])
    """

    def __init__(self, lower: Tensor, upper: Tensor) -> None:
        self._lower, self._upper = lower, upper
        self._unbounded = Identity()

    def decode(self, values: Tensor) -> Tensor:
        return self._unbounded.decode(values).clamp_(self._lower, self._upper)

    def move_(self, values: Tensor, gradients: Sequence[Tensor], stride: Stride) -> None:
        self._unbounded.move_(values, gradients, stride)
        self.decode(values)


@final
class Anchored:
    r"""The values are the parameters, and a penalty :math:`\sum a\theta^2 - 2b\theta` pulls at them.

    The sum of any number of quadratic penalties :math:`\sum_k c_k (\theta - \theta_k)^2` is one of this form, with
    :math:`a = \sum_k c_k` and :math:`b = \sum_k c_k \theta_k`, up to a constant. Its gradient is added here, by hand.

    Args:
        curvature: a, [seeds, entries].
        pull: b, [seeds, entries].

    >>> from intercontinet.engine.optimizer import SGD
    >>> anchored, values = Anchored(torch.tensor([[3.0]]), torch.tensor([[3.0]])), torch.tensor([[2.0]])
    >>> anchored.move_(anchored.decode(values), [torch.zeros(1, 1)], Stride(SGD(0.1)))  # 3 (theta - 1)^2
    >>> values
    tensor([[1.4000]])
    """

    def __init__(self, curvature: Tensor, pull: Tensor) -> None:
        self._curvature, self._pull = curvature, pull
        self._gradient = torch.empty_like(curvature)

    def decode(self, values: Tensor) -> Tensor:
        return values

    def move_(self, values: Tensor, gradients: Sequence[Tensor], stride: Stride) -> None:
        gradient = _laid_out(gradients, self._gradient)
        stride.step_(values, gradient.addcmul_(self._curvature, values, value=2).sub_(self._pull, alpha=2))


@final
class InBox:
    r""":math:`s + r \tanh(v / c)`: whatever v is, the result is at most the reach r away from the start s.

    Optimizers step in v. What is stored is :math:`u = 2v / c`, since :math:`s + r \tanh(v / c) = (s - r) + 2r
    \sigma(u)`: so it takes fewest passes, and the logistic function is faster on CPUs than tanh. By v, the slope is
    :math:`4r / c \cdot \sigma(1 - \sigma)`, and a step of v is :math:`2 / c` times as long in u. Where u is 0, the
    result is the start, up to rounding.

    Args:
        start: [seeds, entries].
        reach: [seeds, entries].
        scale: c, a number, or None for c = r, where a small step in v is the same step in the parameter.
        free: Ones for entries without bounds, to which v is simply added; [seeds, entries], or None for none. Their
            reach is zero.

    >>> box = InBox(torch.zeros(1, 2), torch.ones(1, 2))
    >>> box.decode(torch.tensor([[2 * 0.5, 100.0]])), torch.tanh(torch.tensor(0.5))
    (tensor([[0.4621, 1.0000]]), tensor(0.4621))
    """

    def __init__(self, start: Tensor, reach: Tensor, scale: float | None = None, free: Tensor | None = None) -> None:
        c = reach.clamp(min=LEAST_REACH) if scale is None else torch.full_like(reach, scale)
        steepness, self._finer = 4 * reach / c, 2 / c
        if free is not None:  # there u is v, and sigma(1 - sigma) a quarter
            steepness, self._finer = steepness + 4 * free, torch.where(free > 0, 1, self._finer)
        self._whole = _Entries(
            start - reach,
            2 * reach,
            steepness * self._finer,
            torch.empty_like(start),
            torch.empty_like(start),
            () if free is None else (1 - free, free),
        )
        self._runs, self._runs_of = tuple[_Run, ...](), torch.empty(0)

    def decode(self, values: Tensor) -> Tensor:
        return self._whole.decode(values)

    def move_(self, values: Tensor, gradients: Sequence[Tensor], stride: Stride) -> None:
        if self._runs_of is not values:
            self._runs, self._runs_of = tuple(self._cut(values, gradients)), values
        rate = stride.rate
        for run in self._runs:
            for piece, gradient in zip(run.pieces, gradients[run.which], strict=True):
                SIGMOID_BACKWARD(gradient, piece, grad_input=piece)  # g sigma(1 - sigma)
            if rate is not None:
                run.values.addcmul_(run.entries.gain, run.entries.sigma, value=-rate)
                run.entries.decode(run.values)
        if rate is None:
            step = torch.zeros_like(values)
            stride.step_(step, self._whole.sigma.mul_(self._whole.gain).div_(self._finer))
            self.decode(values.addcmul_(step, self._finer))

    def _cut(self, values: Tensor, gradients: Sequence[Tensor]) -> Iterator[_Run]:
        """All entries in runs of consecutive parameters: on a GPU, which would rather have few passes, in one."""
        end = values.shape[1]
        least = RUN if values.device.type == "cpu" else end
        sizes = [gradient.shape[1:].numel() for gradient in gradients]
        first = start = stop = 0
        for place, size in enumerate(sizes, 1):
            stop += size
            if min(stop - start, end - stop) >= least or place == len(sizes):
                entries = self._whole.part(start, stop)
                pieces = torch.split(entries.sigma, sizes[first:place], dim=1)
                shaped = (
                    piece.view(gradient.shape) for piece, gradient in zip(pieces, gradients[first:], strict=False)
                )
                yield _Run(entries, values[:, start:stop], slice(first, place), tuple(shaped))
                first, start = place, stop


@dataclass(frozen=True)
class _Entries:
    """Consecutive entries of an :class:`InBox`, [seeds, entries] each.

    Attributes:
        low: What sigma = 0 stands for.
        width: What sigma is multiplied by.
        gain: What a gradient step in v comes to in u, less sigma(1 - sigma).
        sigma: The logistic function of the values last decoded.
        out: The parameters.
        kinds: Ones for entries with bounds, and ones for those without; empty where all have bounds.
    """

    low: Tensor
    width: Tensor
    gain: Tensor
    sigma: Tensor
    out: Tensor
    kinds: tuple[Tensor, ...]

    def part(self, start: int, stop: int) -> _Entries:
        low, width, gain, sigma, out = (
            t[:, start:stop] for t in (self.low, self.width, self.gain, self.sigma, self.out)
        )
        return _Entries(low, width, gain, sigma, out, tuple(kind[:, start:stop] for kind in self.kinds))

    def decode(self, values: Tensor) -> Tensor:
        if not self.kinds:
            torch.sigmoid(values, out=self.sigma)
            return torch.addcmul(self.low, self.width, self.sigma, out=self.out)
        bounded, free = self.kinds
        torch.mul(values, bounded, out=self.sigma).sigmoid_()
        return torch.addcmul(self.low, self.width, self.sigma, out=self.out).addcmul_(free, values)


@dataclass(frozen=True)
class _Run:
    """Consecutive parameters.

    Attributes:
        entries: Theirs.
        values: Theirs, [seeds, entries].
        which: Their places among all parameters.
        pieces: Views of the entries' sigma, one a parameter, in the shape of its gradient, [seeds, ...].
    """

    entries: _Entries
    values: Tensor
    which: slice
    pieces: tuple[Tensor, ...]


@final
class Share:
    """``sigmoid(v) * largest``: anything from nothing to the largest.

    Args:
        largest: [seeds, entries].

    >>> Share(torch.tensor([[1.0, 0.3]])).decode(torch.tensor([[0.0, 100.0]]))
    tensor([[0.5000, 0.3000]])
    """

    def __init__(self, largest: Tensor) -> None:
        self.largest = largest
        self._sigmoid = torch.empty_like(largest)
        self._pieces = _Pieces(self._sigmoid)
        self._out = torch.empty_like(largest)

    def decode(self, values: Tensor) -> Tensor:
        torch.sigmoid(values, out=self._sigmoid)
        return torch.mul(self._sigmoid, self.largest, out=self._out)

    def move_(self, values: Tensor, gradients: Sequence[Tensor], stride: Stride) -> None:
        slope = torch.addcmul(self._out, self._out, self._sigmoid, value=-1, out=self._sigmoid)
        for piece, gradient in self._pieces.beside(gradients):
            piece.mul_(gradient)
        stride.step_(values, slope)
        self.decode(values)


@final
class Exponential:
    """``exp(v)`` between two positive bounds, in which v is kept; nothing at all where the upper one is zero.

    Args:
        least: [seeds, entries].
        most: [seeds, entries].

    >>> bounds = torch.tensor([[0.5, 0.5, 0.5]]), torch.tensor([[2.0, 2.0, 0.0]])
    >>> Exponential(*bounds).decode(torch.tensor([[0.0, 9.0, 9.0]]))
    tensor([[1., 2., 0.]])
    """

    def __init__(self, least: Tensor, most: Tensor) -> None:
        self._least, self._most = least.log(), torch.maximum(least, most).log()
        self._there = (most > 0).to(most.dtype)
        self._out, self._gradient = torch.empty_like(most), torch.empty_like(most)

    def decode(self, values: Tensor) -> Tensor:
        torch.exp(values.clamp_(self._least, self._most), out=self._out)
        return self._out.mul_(self._there)

    def move_(self, values: Tensor, gradients: Sequence[Tensor], stride: Stride) -> None:
        stride.step_(values, _laid_out(gradients, self._gradient).mul_(self._out))
        self.decode(values)


def _laid_out(gradients: Sequence[Tensor], out: Tensor) -> Tensor:
    """Parts, [seeds, ...] each, as one vector a seed, [seeds, entries], in ``out``."""
    return torch.cat([part.reshape(len(part), -1) for part in gradients], dim=1, out=out)


class _Pieces:
    """The pieces of a stack of vectors that belong to each of its parameters, found once."""

    def __init__(self, vectors: Tensor) -> None:
        self.vectors = vectors
        self._views: tuple[Tensor, ...] = ()

    def beside(self, gradients: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Each piece, in the shape of its gradient, [seeds, ...], and that gradient."""
        if not self._views:
            sizes = [gradient.shape[1:].numel() for gradient in gradients]
            pieces = zip(torch.split(self.vectors, sizes, dim=1), gradients, strict=True)
            self._views = tuple(piece.view(gradient.shape) for piece, gradient in pieces)
        return zip(self._views, gradients, strict=True)
