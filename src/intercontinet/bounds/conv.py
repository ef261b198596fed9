"""Conv1d and Conv2d, with any stride, padding, dilation and groups: a matrix product over patches."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intercontinet.bounds.arithmetic import Arithmetic
from intercontinet.bounds.linear import TERMS_AT_ONCE, MatrixProduct, affine
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
