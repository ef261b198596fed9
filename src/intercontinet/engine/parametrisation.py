"""From the vector that an optimizer moves to the parameters that a model runs on, and gradients back.

Elementwise, so a whole stack [seeds, entries] goes at once; written out by hand, into buffers that are used again,
because on a CPU every pass over such vectors counts, and allocating them anew costs more than the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, final

import torch
from torch import Tensor

LEAST_REACH = 1e-30  # keeps v / r defined where there is no room left


class Parametrisation(Protocol):
    """An elementwise map and its derivative."""

    def decode(self, values: Tensor) -> Tensor:
        """Parameters for these values, [seeds, entries]: always in the same tensor, overwritten by the next call.

        For :class:`Identity` that tensor is ``values`` itself, which an optimizer moves in place.
        """
        ...

    def pull(self, gradients: Sequence[Tensor]) -> Tensor:
        """The gradient by the values last decoded, once for each decoding; overwritten by the next call.

        Args:
            gradients: By the parameters, in parts, in order, [seeds, ...] each.

        Returns:
            [seeds, entries].
        """
        ...


@final
class Identity:
    """The values are the parameters."""

    def __init__(self) -> None:
        self._out = torch.empty(0)

    def decode(self, values: Tensor) -> Tensor:
        if self._out.shape != values.shape:
            self._out = torch.empty_like(values)
        return values

    def pull(self, gradients: Sequence[Tensor]) -> Tensor:
        return torch.cat([part.reshape(len(part), -1) for part in gradients], dim=1, out=self._out)


@final
class Anchored:
    r"""The values are the parameters, and a penalty :math:`\sum a\theta^2 - 2b\theta` pulls at them.

    The sum of any number of quadratic penalties :math:`\sum_k c_k (\theta - \theta_k)^2` is one of this form, with
    :math:`a = \sum_k c_k` and :math:`b = \sum_k c_k \theta_k`, up to a constant. Its gradient is added here, by hand.

    Args:
        curvature: a, [seeds, entries].
        pull: b, [seeds, entries].

    >>> anchored = Anchored(torch.tensor([[3.0]]), torch.tensor([[3.0]]))  # 3 (theta - 1)^2
    >>> _ = anchored.decode(torch.tensor([[2.0]]))
    >>> anchored.pull([torch.zeros(1, 1)])
    tensor([[6.]])
    """

    def __init__(self, curvature: Tensor, pull: Tensor) -> None:
        self._curvature, self._pull = curvature, pull
        self._values = curvature
        self._out = torch.empty_like(curvature)

    def decode(self, values: Tensor) -> Tensor:
        self._values = values
        return values

    def pull(self, gradients: Sequence[Tensor]) -> Tensor:
        out = torch.cat([part.reshape(len(part), -1) for part in gradients], dim=1, out=self._out)
        return out.addcmul_(self._curvature, self._values, value=2).sub_(self._pull, alpha=2)


@final
class InBox:
    r""":math:`s + r \tanh(v / c)`: whatever v is, the result is at most the reach r away from the start s.

    tanh(a) is computed as 2 sigmoid(2a) - 1, which is faster on CPUs.

    Args:
        start: [seeds, entries].
        reach: [seeds, entries].
        scale: c, a number, or None for c = r, where a small step in v is the same step in the parameter.
        free: Ones for entries without bounds, to which v is simply added; [seeds, entries], or None for none.

    >>> box = InBox(torch.zeros(1, 2), torch.ones(1, 2))
    >>> box.decode(torch.tensor([[0.5, 100.0]])), torch.tanh(torch.tensor(0.5))
    (tensor([[0.4621, 1.0000]]), tensor(0.4621))
    """

    def __init__(self, start: Tensor, reach: Tensor, scale: float | None = None, free: Tensor | None = None) -> None:
        self._start, self._free = start, free
        self._half = reach.clamp(min=LEAST_REACH) / 2  # one vector serves as r and as c: fewer to read
        self._stretch = None if scale is None else reach / scale
        self._bounded = None if free is None else 1 - free
        self._tanh = torch.empty_like(start)
        self._out = torch.empty_like(start)
        self._pieces = _Pieces(self._tanh)
        self._minus_one = torch.tensor(-1.0, dtype=start.dtype, device=start.device)

    def decode(self, values: Tensor) -> Tensor:
        torch.div(values, self._half, out=self._tanh)
        if self._stretch is not None:
            self._tanh.mul_(self._stretch)  # v / r * r / c
        torch.add(self._minus_one, self._tanh.sigmoid_(), alpha=2, out=self._tanh)
        if self._bounded is not None:
            self._tanh.mul_(self._bounded)
        torch.addcmul(self._start, self._half, self._tanh, value=2, out=self._out)
        return self._out if self._free is None else self._out.addcmul_(self._free, values)

    def pull(self, gradients: Sequence[Tensor]) -> Tensor:
        out = self._tanh
        for part, gradient in self._pieces.beside(gradients):
            torch.ops.aten.tanh_backward.grad_input(gradient, part, grad_input=part)  # g (1 - tanh^2)
        if self._stretch is not None:
            out.mul_(self._stretch if self._free is None else torch.where(self._free > 0, 1, self._stretch))
        return out


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

    def pull(self, gradients: Sequence[Tensor]) -> Tensor:
        slope = torch.addcmul(self._out, self._out, self._sigmoid, value=-1, out=self._sigmoid)
        for part, gradient in self._pieces.beside(gradients):
            part.mul_(gradient)
        return slope


class _Pieces:
    """The pieces of a stack of vectors that belong to each of its parameters, found once."""

    def __init__(self, vectors: Tensor) -> None:
        self._vectors = vectors
        self._views: tuple[Tensor, ...] = ()

    def beside(self, gradients: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Each piece, in the shape of its gradient, [seeds, ...], and that gradient."""
        if not self._views:
            sizes = [gradient.shape[1:].numel() for gradient in gradients]
            pieces = zip(torch.split(self._vectors, sizes, dim=1), gradients, strict=True)
            self._views = tuple(piece.view(gradient.shape) for piece, gradient in pieces)
        return zip(self._views, gradients, strict=True)
