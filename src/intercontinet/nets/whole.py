r"""A convolutional network of whole numbers: frozen, and the same to the bit on any hardware.

Deep networks round differently on every machine, and a bound on that rounding grows with every layer until nothing can
stand on it. This one does not round. Activations are whole numbers from 0 to 255 and weights from -127 to 127, so that
every sum is a whole number that float32 holds, whatever its order; what is left is a division by a power of two, and
cutting off:

.. math:: y = \min(\max(\lfloor (W x + b) / 2^k \rfloor, 0), 255).

It is trained in floating point, and made whole afterwards by :func:`whole_convolution`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intercontinet.bounds.arithmetic import Arithmetic
from intercontinet.bounds.registry import rule
from intercontinet.errors import InvalidData, InvalidModel, InvalidSetting
from intercontinet.interval import Interval
from intercontinet.nets.numbers import BRIGHTEST, EXACT, STEEPEST, cell_of, summed

SIDE = 3  # of a filter
MOST_HALVINGS = 20
AT_ONCE_ON_CPU, AT_ONCE = 16, 500  # images: what the cache of a CPU holds, and what keeps a GPU busy
MIDDLE = 128  # from 0 to 255 less this is from -128 to 127, which int8 holds


class WholeConvolution(nn.Module):
    """[batch, height, width, channels], whole numbers from 0 to 255 -> the same of other size.

    Filters are 3 x 3, with zeros round the image. A matrix product and not torch's convolution, for which hardware may
    choose an algorithm that rounds.

    Args:
        channels: Of the input.
        filters: How many.
        stride: Between the places where filters are laid.

    >>> layer = WholeConvolution(1, 1)
    >>> layer.weight[0, 0, 1, 1], layer.bias[0], layer.halvings[0] = 3, 1, 1
    >>> layer(torch.tensor([[[[4.0], [200.0]]]])).flatten()  # (3 * 4 + 1) / 2, and more than there may be
    tensor([  6., 255.])
    """

    weight: Tensor
    bias: Tensor
    halvings: Tensor

    def __init__(self, channels: int, filters: int, stride: int = 1) -> None:
        super().__init__()
        self.stride = stride
        self.register_buffer("weight", torch.zeros(filters, channels, SIDE, SIDE, dtype=torch.int8))
        self.register_buffer("bias", torch.zeros(filters, dtype=torch.int32))
        self.register_buffer("halvings", torch.zeros(filters, dtype=torch.uint8))

    def forward(self, x: Tensor, beside: Tensor | None = None, in_bytes: bool = False) -> Tensor:
        """Sums, divided, cut off.

        Args:
            x: Whole numbers from 0 to 255.
            beside: Added before cutting off: what a block is given goes round it like this.
            in_bytes: Whether products are added up in bytes: where :func:`adds_bytes`, the same sums.
        """
        filters = self.weight.permute(2, 3, 1, 0).flatten(0, 2)
        if in_bytes:
            places = self._places((x.to(torch.uint8) ^ MIDDLE).view(torch.int8), nothing=-MIDDLE)
            start = MIDDLE * filters.sum(0, dtype=torch.int32) + self.bias
            sums = torch._int_mm(places.flatten(0, 2), filters.contiguous()).add_(start).to(x.dtype)
            sums = sums.view(*places.shape[:3], len(start))
        else:
            sums = self._places(x, nothing=0) @ filters.to(x.dtype) + self.bias.to(x.dtype)
        whole = sums.div_((1 << self.halvings.int()).to(x.dtype)).floor_()
        return (whole if beside is None else whole.add_(beside)).clamp_(0, BRIGHTEST)

    def _places(self, x: Tensor, nothing: int) -> Tensor:
        """[batch, rows, columns, 9 * channels]: what lies under a filter, ``nothing`` round the image."""
        rows, columns = ((side - 1) // self.stride + 1 for side in x.shape[1:3])
        padded, step = F.pad(x, (0, 0, 1, 1, 1, 1), value=nothing), self.stride
        shifted = [
            padded[:, down : down + step * rows : step, right : right + step * columns : step]
            for down in range(SIDE)
            for right in range(SIDE)
        ]
        return torch.cat(shifted, 3)

    def check(self, name: str) -> None:
        """Refuse numbers with which it might round."""
        kinds = {"weight": torch.int8, "bias": torch.int32, "halvings": torch.uint8}
        for own, kind in kinds.items():
            if getattr(self, own).dtype != kind:
                raise InvalidModel(f"'{name}.{own}' is {getattr(self, own).dtype}, not {kind}: load it without assign")
        if int(self.halvings.max()) > MOST_HALVINGS:
            raise InvalidModel(f"'{name}' divides by more than 2^{MOST_HALVINGS}: fill it by whole_convolution")
        if not self.largest_sum < EXACT:
            raise InvalidModel(f"'{name}': sums of up to {self.largest_sum} would round: fill it by whole_convolution")

    @property
    def largest_sum(self) -> int:
        """No sum, nor any part of one, is larger than this, whatever the image."""
        sums = BRIGHTEST * self.weight.long().abs().sum((1, 2, 3)) + self.bias.long().abs()
        return int(sums.max())

    def extra_repr(self) -> str:
        filters, channels = self.weight.shape[:2]
        return f"{channels}, {filters}, stride={self.stride}"


@cache
def adds_bytes() -> bool:
    """Whether this CPU adds up products of bytes without losing any: several times as fast, and the same sums.

    Older ones add pairs of products in 16 bits, and cut off what does not fit.
    """
    vnni = getattr(torch.cpu, "_is_vnni_supported", None)
    if vnni is None or not vnni():
        return False
    ends = [torch.full((32, 256), end, dtype=torch.int8, device="cpu") for end in (127, -128)]
    return all(torch.equal(torch._int_mm(a, b.T.contiguous()), a.int() @ b.int().T) for a in ends for b in ends)


@torch.no_grad()
def whole_convolution(layer: WholeConvolution, weight: Tensor, bias: Tensor, given: Tensor, wanted: Tensor) -> None:
    """Fill in what comes nearest to a convolution in floating point, followed by ReLU.

    Args:
        layer: To be filled.
        weight: [filters, channels, 3, 3].
        bias: [filters].
        given: What a step of each input channel stands for, [channels].
        wanted: What a step of each output channel stands for, [filters].

    >>> layer, step = WholeConvolution(1, 1), torch.tensor([0.01])
    >>> whole_convolution(layer, torch.full((1, 1, 3, 3), 0.1), torch.tensor([0.5]), given=step, wanted=step)
    >>> int(layer.weight[0, 0, 1, 1]), int(layer.halvings[0])  # 102 / 2^10 is nearly 0.1
    (102, 10)
    >>> layer(torch.full((1, 1, 1, 1), 100.0))  # 0.1 * 1 + 0.5, in hundredths
    tensor([[[[60.]]]])
    """
    exact, offset = weight.double() * given[:, None, None] / wanted[:, None, None, None], bias.double() / wanted
    todo = torch.ones(len(exact), dtype=torch.bool, device=weight.device)
    for halvings in range(MOST_HALVINGS, -1, -1):
        scaled = (exact * 2**halvings).round()
        started = (offset * 2**halvings + 2**halvings / 2).round()  # half a step more: floor then rounds
        fits = (scaled.abs().amax((1, 2, 3)) <= STEEPEST) & (
            BRIGHTEST * scaled.abs().sum((1, 2, 3)) + started.abs() < EXACT
        )
        now = todo & fits
        layer.weight[now] = scaled[now].to(torch.int8)
        layer.bias[now] = started[now].to(torch.int32)
        layer.halvings[now] = halvings
        todo &= ~fits
    if bool(todo.any()):
        raise InvalidModel(f"{int(todo.sum())} filters have weights too large for whole numbers up to {STEEPEST}")


class WholeNet(nn.Module):
    """[batch, 1 or 3, height, width], pixels in [0, 1] -> [batch, features], float32 whole numbers.

    Stages of convolutions: the first keeps the size, each later one halves it, and then come its blocks of two
    convolutions with a way round them. Features are the activations of the last ``heard`` stages, summed over the cells
    of a grid; the cells of a channel lie next to each other. A pixel that is not from 0 to 1 counts as the nearest that
    is, and NaN as 0; where something is to be certain, such are refused.

    Args:
        widths: Channels of each stage.
        blocks: How many each stage has.
        heard: Stages, from the last one back, whose activations are features.
        pool: Cells along each side of the grid.

    >>> WholeNet(widths=(4, 8), blocks=(0, 1), heard=1)(torch.rand(5, 3, 16, 16)).shape
    torch.Size([5, 32])
    """

    def __init__(self, widths: Sequence[int], blocks: Sequence[int], heard: int = 2, pool: int = 2) -> None:
        super().__init__()
        if not widths or len(blocks) != len(widths) or not 1 <= heard <= len(widths) or pool < 1:
            raise InvalidSetting(
                f"widths {tuple(widths)}, blocks {tuple(blocks)}, heard {heard}, pool {pool}: give as many blocks as "
                "widths, and let at least one stage be heard"
            )
        self.heard, self.pool = heard, pool
        self.stages = nn.ModuleList()
        channels = 3
        for place, (width, count) in enumerate(zip(widths, blocks, strict=True)):
            first = WholeConvolution(channels, width, stride=1 if place == 0 else 2)
            pairs = [WholeConvolution(width, width) for _ in range(2 * count)]
            self.stages.append(nn.ModuleList([first, *pairs]))
            channels = width
        self.features = pool**2 * sum(widths[-heard:])

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4 or x.shape[1] not in (1, 3):
            raise InvalidData(f"this net is for images, [batch, 1 or 3, height, width], not {tuple(x.shape)}")
        return torch.cat(
            [self._features(part) for part in torch.split(x, AT_ONCE_ON_CPU if x.device.type == "cpu" else AT_ONCE)]
        )

    def _features(self, x: Tensor) -> Tensor:
        pixels = torch.round(BRIGHTEST * x.float().nan_to_num().clamp(0, 1))
        h, said = pixels.expand(-1, 3, -1, -1).permute(0, 2, 3, 1), []
        followed = x.requires_grad and torch.is_grad_enabled()  # gradients are zero, but there must be some
        in_bytes = x.device.type == "cpu" and not followed and adds_bytes()
        for stage in self.stages:
            first, *pairs = cast("list[WholeConvolution]", list(cast(nn.ModuleList, stage)))
            h = first(h, in_bytes=in_bytes)
            for inner, outer in zip(pairs[::2], pairs[1::2], strict=True):
                h = outer(inner(h, in_bytes=in_bytes), beside=h, in_bytes=in_bytes)
            said.append(h)
        return torch.cat([self._cells(h.permute(0, 3, 1, 2)).flatten(1) for h in said[-self.heard :]], 1)

    def _cells(self, values: Tensor) -> Tensor:
        cell = cell_of(values.shape[-2:], self.pool)
        if cell is None:
            raise InvalidData(f"a grid of {self.pool} cells a side does not fit {tuple(values.shape[-2:])} places")
        return summed(values, cell)

    def extra_repr(self) -> str:
        return f"heard={self.heard}, pool={self.pool}, features={self.features}"


@rule(WholeNet)
def whole_net(layer: WholeNet, parameters: object, x: Interval, arithmetic: Arithmetic) -> Interval:
    """The very features that a float32 evaluation finds, provided that no sum of whole numbers is too large."""
    if not x.is_point or not bool(((x.lower >= 0) & (x.lower <= 1)).all()):
        raise InvalidData("a net of whole numbers needs pixels from 0 to 1, known exactly: pass a tensor of such")
    for name, part in layer.named_modules():
        if type(part) not in (WholeNet, WholeConvolution, nn.ModuleList):
            raise InvalidModel(f"'{name}' ({type(part).__name__}) is not a plain part of a WholeNet: use it as it is")
        if isinstance(part, WholeConvolution):
            part.check(name)
    places = x.lower.shape[-2] * x.lower.shape[-1]
    if not BRIGHTEST * places < EXACT:
        raise InvalidData(f"sums over {places} places would round: pass smaller images")
    return Interval.point(cast(Tensor, layer(x.lower.float())).to(x.lower.dtype), nonnegative=True)
