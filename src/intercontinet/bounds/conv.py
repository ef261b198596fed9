"""Conv1d, Conv2d and their transposes, with any stride, padding, dilation and groups: matrix products over patches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intercontinet.bounds.arithmetic import NUDGE, Arithmetic
from intercontinet.bounds.functions import function, moved
from intercontinet.bounds.linear import TERMS_AT_ONCE, MatrixProduct, affine
from intercontinet.bounds.product import multiply_loosely
from intercontinet.bounds.registry import rule
from intercontinet.interval import Interval


class Convolution:
    """x [batch, channels, *size], w [out, channels / groups, *kernel] -> [batch, out, *positions]."""

    def __init__(self, layer: nn.Conv1d | nn.Conv2d) -> None:
        self.layer = layer
        self.zeros = layer.padding_mode == "zeros"
        self.margins = layer._reversed_padding_repeated_twice  # every padding, 'same' included, as F.pad takes it

    def padded(self, x: Tensor) -> Tensor:
        return F.pad(x, self.margins, mode="constant" if self.zeros else self.layer.padding_mode)

    def __call__(self, x: Tensor, w: Tensor) -> Tensor:
        layer = self.layer
        padding = layer.padding if self.zeros else 0
        x = x if self.zeros else self.padded(x)
        if isinstance(layer, nn.Conv1d):
            return F.conv1d(x, w, None, layer.stride, padding, layer.dilation, layer.groups)
        return F.conv2d(x, w, None, layer.stride, padding, layer.dilation, layer.groups)

    def termwise(self, combine: Callable[..., Tensor], xs: tuple[Tensor, ...], ws: tuple[Tensor, ...]) -> Tensor:
        layer, groups = self.layer, self.layer.groups
        flat = isinstance(layer, nn.Conv1d)  # a Conv1d is a Conv2d of height one
        kernel, stride, dilation = (
            ((1, *size) if flat else size) for size in (layer.kernel_size, layer.stride, layer.dilation)
        )
        rows = [w.flatten(1).chunk(groups, dim=0) for w in ws]  # groups x [out / groups, terms]
        product = MatrixProduct()

        def some(xs: tuple[Tensor, ...]) -> Tensor:
            patches = []
            for x in xs:
                image = self.padded(x)
                columns = F.unfold(image.unsqueeze(2) if flat else image, kernel, dilation, 0, stride)
                patches.append(columns.transpose(1, 2).chunk(groups, dim=2))  # groups x [batch, positions, terms]
            outs = [
                product.termwise(combine, tuple(p[g] for p in patches), tuple(r[g] for r in rows))
                for g in range(groups)
            ]
            return torch.cat(outs, dim=2).transpose(1, 2)  # [batch, out, positions]

        shape = self(xs[0], ws[0]).shape
        at_once = max(1, TERMS_AT_ONCE // (shape[2:].numel() * ws[0][0].numel() * groups))
        batches = zip(*(torch.split(x, at_once) for x in xs), strict=True)
        return torch.cat([some(batch) for batch in batches]).reshape(shape)


@rule(nn.Conv1d, nn.Conv2d)
def convolution(
    layer: nn.Conv1d | nn.Conv2d, parameters: Mapping[str, Interval], x: Interval, arithmetic: Arithmetic
) -> Interval:
    """[batch, channels, *size] -> [batch, out, *positions].

    >>> from intercontinet.bounds.arithmetic import Real
    >>> box = {"weight": Interval(torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[1.0, 1.0]]]))}
    >>> x = Interval.point(torch.tensor([[[1.0, 2.0, 4.0]]]))
    >>> out = convolution(nn.Conv1d(1, 1, 2, bias=False), box, x, Real())
    >>> out.lower, out.upper
    (tensor([[[1., 2.]]]), tensor([[[3., 6.]]]))
    """
    weight, bias = parameters["weight"], parameters.get("bias")
    if bias is not None:
        shape = (-1, *[1] * (weight.lower.dim() - 2))
        lower = bias.lower.reshape(shape)
        bias = Interval.point(lower) if bias.is_point else Interval(lower, bias.upper.reshape(shape))
    terms = weight.shape[1:].numel()
    return affine(Convolution(layer), x, weight, bias, terms, arithmetic)


def _single(value: Any) -> Any:
    return value[0] if isinstance(value, (list, tuple)) else value


def _by_layer(kind: type[nn.Conv1d] | type[nn.Conv2d]) -> Callable[..., Interval]:
    """The rule of a layer, for its function."""

    def apply(
        arithmetic: Arithmetic,
        x: Interval,
        weight: Interval,
        bias: Interval | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Interval:
        out, inner, *sizes = weight.shape
        kernel: Any = tuple(sizes)
        if kind is nn.Conv1d:  # which takes numbers where the function takes lists as well
            kernel, stride, padding, dilation = (_single(value) for value in (kernel, stride, padding, dilation))
        options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        layer = kind(inner * groups, out, kernel, bias=False, device="meta", **options)
        parameters = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
        return convolution(layer, parameters, x, arithmetic)

    return apply


function("conv1d")(_by_layer(nn.Conv1d))
function("conv2d")(_by_layer(nn.Conv2d))


def _transposed(name: str) -> Callable[..., Interval]:
    op = getattr(F, name)

    def apply(
        arithmetic: Arithmetic,
        x: Interval,
        weight: Interval,
        bias: Interval | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Interval:
        """Weight [in, out / groups, *kernel]: by centre and radius where both factors may be of either sign."""

        def product(t: Tensor, w: Tensor) -> Tensor:
            out: Tensor = op(t, w, None, stride, padding, output_padding, groups, dilation)
            return out

        out = multiply_loosely(product, x, weight)
        terms = weight.shape.numel() // (weight.shape[1] * groups)
        size = None
        if bias is not None:
            column = moved(lambda t: t.reshape(-1, *[1] * (len(weight.shape) - 2)), bias)
            out, size = Interval(out.lower + column.lower, out.upper + column.upper), column.magnitude

        def magnitude() -> Tensor:
            inner = product(x.magnitude + NUDGE, weight.magnitude + NUDGE)
            return inner if size is None else inner + size

        return arithmetic.products(out, magnitude, terms + 1)

    return apply


function("conv_transpose1d")(_transposed("conv_transpose1d"))
function("conv_transpose2d")(_transposed("conv_transpose2d"))
