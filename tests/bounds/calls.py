"""Calls of every torch function with a rule: those that move entries, those with exact bounds, and the others."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intercontinet as icn
from intercontinet.interval import Interval
from intercontinet.region import Region

NOTHING = torch.zeros(1, 1)  # an input that no function looks at
Binary = Callable[[Tensor, Tensor], Tensor]


class Of(nn.Module):
    """A function of two parameters."""

    def __init__(self, f: Binary, p: Tensor, q: Tensor) -> None:
        super().__init__()
        self.f, self.p, self.q = f, nn.Parameter(p), nn.Parameter(q)

    def forward(self, x: Tensor) -> Tensor:
        return self.f(self.p, self.q)


def mask() -> Tensor:
    return torch.as_tensor([[True, False, True], [False, False, True]])


def rows() -> Tensor:
    return torch.as_tensor([[0, 1, 0], [2, 2, 1]])


# Each moves the entries of p [2, 3] (or of a view of it) about.
MOVES: dict[str, Binary] = {
    "reshape": lambda p, q: p.reshape(3, -1),
    "view": lambda p, q: p.view(6),
    "permute": lambda p, q: p.permute(1, 0),
    "transpose": lambda p, q: p.transpose(-1, 0),
    "swapaxes": lambda p, q: p.swapaxes(0, 1),
    "swapdims": lambda p, q: p.swapdims(0, 1),
    "movedim": lambda p, q: p.movedim(0, 1),
    "moveaxis": lambda p, q: p.moveaxis(0, 1),
    "flatten": lambda p, q: torch.flatten(p),
    "unflatten": lambda p, q: p.unflatten(1, (3, 1)),  # type: ignore[no-untyped-call]
    "ravel": lambda p, q: p.ravel(),
    "squeeze": lambda p, q: p[:1].squeeze(0),
    "unsqueeze": lambda p, q: p.unsqueeze(-1),
    "expand": lambda p, q: p.expand(2, -1, -1),
    "expand_as": lambda p, q: p[:1].expand_as(q),
    "view_as": lambda p, q: p.view_as(q),
    "reshape_as": lambda p, q: p.reshape_as(q),
    "broadcast_to": lambda p, q: p.broadcast_to(2, 2, 3),
    "repeat": lambda p, q: p.repeat(2, 1),
    "tile": lambda p, q: p.tile(2),
    "repeat_interleave": lambda p, q: p.repeat_interleave(2, dim=1),
    "roll": lambda p, q: p.roll(1, 1),
    "flip": lambda p, q: p.flip(-1),
    "fliplr": lambda p, q: p.fliplr(),
    "flipud": lambda p, q: p.flipud(),
    "rot90": lambda p, q: p.rot90(),
    "chunk": lambda p, q: p.chunk(2)[1],
    "split": lambda p, q: p.split([1, 2], dim=1)[1],  # type: ignore[no-untyped-call]
    "tensor_split": lambda p, q: p.tensor_split(2, 1)[0],
    "unbind": lambda p, q: [*p][1],
    "getitem": lambda p, q: p[..., None, 1:],
    "select": lambda p, q: p.select(1, -1),
    "narrow": lambda p, q: p.narrow(1, 1, 2),
    "index_select": lambda p, q: p.index_select(1, rows()[0]),
    "gather": lambda p, q: p.gather(1, rows()),
    "take_along_dim": lambda p, q: p.take_along_dim(rows(), 1),
    "contiguous": lambda p, q: p.T.contiguous(),
    "clone": lambda p, q: p.clone(),
    "detach": lambda p, q: p.detach(),
    "T": lambda p, q: p.T,
    "mT": lambda p, q: p.mT,
    "t": lambda p, q: p.t(),
    "H": lambda p, q: p.H,
    "mH": lambda p, q: p.mH,
    "data": lambda p, q: p.data,
    "unfold": lambda p, q: p.unfold(1, 2, 1),
    "pixel_shuffle": lambda p, q: F.pixel_shuffle(p[:, :2].reshape(1, 4, 1, 1), 2),
    "pixel_unshuffle": lambda p, q: F.pixel_unshuffle(p[:, :2].reshape(1, 1, 2, 2), 2),
    "channel_shuffle": lambda p, q: F.channel_shuffle(p[None], 2),
    "diagonal": lambda p, q: p.diagonal(),
    "tril": lambda p, q: p.tril(),
    "triu": lambda p, q: p.triu(1),
    "positive": lambda p, q: +p,
    "to": lambda p, q: p.to(torch.float32),
    "float": lambda p, q: p.float(),
    "type": lambda p, q: p.type(torch.float32),
    "type_as": lambda p, q: p.type_as(q),
    "cpu": lambda p, q: p.cpu(),
    "dropout": lambda p, q: F.dropout(p, 0.5, False),
    "dropout1d": lambda p, q: F.dropout1d(p[None], training=False),
    "dropout2d": lambda p, q: F.dropout2d(p[None, None], training=False),
    "dropout3d": lambda p, q: F.dropout3d(p[None, None, None], training=False),
    "alpha_dropout": lambda p, q: F.alpha_dropout(p, training=False),
    "feature_dropout": lambda p, q: torch.feature_dropout(p, 0.5, False),
    "feature_alpha_dropout": lambda p, q: F.feature_alpha_dropout(p, training=False),
    "cat": lambda p, q: torch.cat([p, q], -1),
    "stack": lambda p, q: torch.stack([p, q], 1),
    "hstack": lambda p, q: torch.hstack([p, q]),
    "hstack, flat": lambda p, q: torch.hstack([p[0], q[0]]),
    "vstack": lambda p, q: torch.vstack([p, q[0]]),
    "where": lambda p, q: torch.where(mask(), p, q),
    "masked_fill": lambda p, q: p.masked_fill(mask(), 0.5),
    "setitem": lambda p, q: _with(p.clone(), (slice(None), 1), q[:, 0]),
    "pad": lambda p, q: F.pad(p, (1, 2), value=-0.5),
    "embedding": lambda p, q: F.embedding(rows()[:1] % 2, p),
    "neg": lambda p, q: -p,
}


def _squared(t: Tensor) -> Tensor:
    t *= t
    return t


def _with(t: Tensor, index: object, value: Tensor | float) -> Tensor:
    t[index] = value  # type: ignore[index]
    return t


# Functions of p [2, 3] and q [2, 3] whose bounds are exact over the reals: the extremes over all corners.
EXACT: dict[str, Binary] = {
    "add": lambda p, q: p + q,
    "add, alpha": lambda p, q: torch.add(p, q, alpha=-2),
    "add, number": lambda p, q: 0.1 + p,
    "add, in place": lambda p, q: p.clone().add_(q),
    "add, whole numbers": lambda p, q: p + rows(),
    "add, alpha of whole numbers": lambda p, q: torch.add(p, rows(), alpha=3),
    "sub": lambda p, q: p - q,
    "sub, alpha": lambda p, q: torch.sub(p, q, alpha=0.3),
    "sub, numbers": lambda p, q: p - 0.7,
    "rsub": lambda p, q: 1.3 - p,
    "rsub, alpha": lambda p, q: torch.rsub(p, q, alpha=2),
    "mul": lambda p, q: p * q,
    "mul, broadcast": lambda p, q: p * q[:1, :1],
    "mul, number": lambda p, q: -0.3 * p,
    "mul, mask": lambda p, q: p * mask(),
    "mul, itself": lambda p, q: p * p,
    "div": lambda p, q: p / (q + 4),
    "div, number": lambda p, q: p / 3,
    "div, negative": lambda p, q: p / (q - 4),
    "rdiv": lambda p, q: 2 / (q + 4),
    "reciprocal": lambda p, q: (q + 4).reciprocal(),
    "pow": lambda p, q: p**3,
    "pow, even": lambda p, q: p.pow(4),
    "pow, one": lambda p, q: p**1,
    "pow, root": lambda p, q: (p + 4) ** 0.5,
    "pow, inverse root": lambda p, q: (p + 4) ** -0.5,
    "pow, inverse": lambda p, q: (p + 4) ** -1,
    "square": lambda p, q: p.square(),
    "sqrt": lambda p, q: (p + 4).sqrt(),
    "rsqrt": lambda p, q: (p + 4).rsqrt(),
    "log": lambda p, q: (p + 4).log(),
    "exp": lambda p, q: p.exp(),
    "abs": lambda p, q: p.abs(),
    "clamp": lambda p, q: p.clamp(-0.3, 0.9),
    "clamp, above": lambda p, q: p.clamp(max=0.1),
    "clamp_min": lambda p, q: p.clamp_min(-0.2),
    "clamp_max": lambda p, q: torch.clamp_max(p, 0.3),
    "minimum": lambda p, q: torch.minimum(p, q),
    "maximum": lambda p, q: torch.maximum(p, q),
    "fmin": lambda p, q: torch.fmin(p, q),
    "fmax": lambda p, q: torch.fmax(p, q),
    "sum": lambda p, q: p.sum(),
    "sum, dim": lambda p, q: p.sum(-1),
    "sum, no dims": lambda p, q: p.sum(dim=[]),
    "mul_, itself": lambda p, q: _squared(p.clone()),
    "sum, dims": lambda p, q: p.sum((0, 1), keepdim=True),
    "mean": lambda p, q: p.mean(),
    "mean, dim": lambda p, q: p.mean(dim=0, keepdim=True),
    "amax": lambda p, q: p.amax(1),
    "amin": lambda p, q: p.amin((0, -1)),
    "max": lambda p, q: p.max(),
    "max, dim": lambda p, q: p.max(dim=1, keepdim=True).values,
    "max, two": lambda p, q: torch.max(p, q),
    "min": lambda p, q: p.min(0)[0],
    "min, two": lambda p, q: torch.min(p, other=q),
    "softmax": lambda p, q: p.softmax(-1),
    "softmax, first dim": lambda p, q: F.softmax(p, dim=0),
    "log_softmax": lambda p, q: p.log_softmax(1),
    "relu": lambda p, q: p.relu(),
    "relu, in place": lambda p, q: F.relu(p.clone(), True),
    "relu6": lambda p, q: F.relu6(p * 9),
    "hardtanh": lambda p, q: F.hardtanh(p, -0.2, 0.4),
    "leaky_relu": lambda p, q: F.leaky_relu(p, 0.3),
    "tanh": lambda p, q: p.tanh(),
    "sigmoid": lambda p, q: torch.sigmoid_(p.clone()),
    "elu": lambda p, q: F.elu(p, 0.7),
    "softplus": lambda p, q: F.softplus(p, 2.0),
    "leaky_relu, settings that are truth values": lambda p, q: F.leaky_relu(p, False),
    "hardtanh, settings that are truth values": lambda p, q: F.hardtanh(p, False, True),
    "elu, in place": lambda p, q: F.elu(p.clone(), 0.7, True),
    "celu": lambda p, q: F.celu(p, 0.7),
    "selu": lambda p, q: F.selu(p),
    "hardsigmoid": lambda p, q: F.hardsigmoid(4 * p),
    "as layers": lambda p, q: nn.SELU()(nn.CELU(0.3)(nn.Hardsigmoid()(p))),
    "prelu": lambda p, q: F.prelu(p, q[0, :1].abs()),
    "glu": lambda p, q: F.glu(torch.cat([p, q], 1)),
    "softmin": lambda p, q: F.softmin(p, 1),
    "addmm, a point": lambda p, q: torch.addmm(q, torch.ones(2, 2), p),
    "rms_norm": lambda p, q: F.rms_norm(p, (3,)),
    "batch_norm": lambda p, q: F.batch_norm(p, torch.zeros(3), torch.ones(3), eps=0.5),
    "linear": lambda p, q: F.linear(p.detach() * 0 + 2, q),
    "matmul, a point": lambda p, q: torch.ones(2, 2) @ p,
    "rmatmul": lambda p, q: p[:, :2].__rmatmul__(torch.ones(3, 2)),
    "einsum, a point": lambda p, q: torch.einsum("ij,jk->ik", torch.ones(2, 2), p),
    "conv1d": lambda p, q: F.conv1d(torch.ones(1, 2, 5), p[None]),
    "conv2d": lambda p, q: F.conv2d(torch.ones(1, 1, 3, 4), p[None, None], q[0, :1]),
    "conv_transpose1d": lambda p, q: F.conv_transpose1d(torch.ones(1, 2, 4), p[:, None], stride=2),
    "conv_transpose2d": lambda p, q: F.conv_transpose2d(torch.ones(1, 1, 2, 2), p[None, None], q[0, :1], 2, 1, 1),
    "max_pool1d": lambda p, q: F.max_pool1d(p, 2, 1),
    "max_pool2d": lambda p, q: F.max_pool2d(p[None], (1, 2)),
    "avg_pool1d": lambda p, q: F.avg_pool1d(p, 2, 1),
    "avg_pool2d": lambda p, q: F.avg_pool2d(p[None], (1, 3)),
    "adaptive_max_pool1d": lambda p, q: F.adaptive_max_pool1d(p, 2),
    "adaptive_max_pool2d": lambda p, q: F.adaptive_max_pool2d(p[None], 1),
    "adaptive_avg_pool1d": lambda p, q: F.adaptive_avg_pool1d(p, 2),
    "adaptive_avg_pool2d": lambda p, q: F.adaptive_avg_pool2d(p[None], (None, 1)),
}
# Functions whose bounds may be wider than need be.
LOOSE: dict[str, Binary] = {
    "sin": lambda p, q: (3 * p).sin(),
    "cos": lambda p, q: (3 * p).cos(),
    "gelu": lambda p, q: F.gelu(p, approximate="tanh"),
    "silu": lambda p, q: F.silu(p),
    "hardswish": lambda p, q: F.hardswish(p),
    "matmul": lambda p, q: p @ q.T,
    "addmm": lambda p, q: torch.addmm(q[0, 0], p, q.T),
    "prelu, a channel": lambda p, q: F.prelu(p[..., None], q[0]),
    "einsum": lambda p, q: torch.einsum("ij,kj->ik", p, q),
    "einsum, list": lambda p, q: torch.einsum("ij, ij -> j", [p, q]),
    "layer_norm": lambda p, q: F.layer_norm(p, (2, 3), eps=1e-3),
    "group_norm": lambda p, q: F.group_norm(p, 1, q[0], q[1]),
    "instance_norm": lambda p, q: F.instance_norm(p[None]),
    "scaled_dot_product_attention": lambda p, q: F.scaled_dot_product_attention(p, q, p),
    "a norm by hand": lambda p, q: p * torch.rsqrt(p.pow(2).mean(-1, keepdim=True) + 1e-3) * q[0],
    "a clipped score": lambda p, q: (p @ q.T).clamp(-1, 1).abs().sqrt(),
    "clamp, all below zero": lambda p, q: p.abs().clamp(max=-0.5),
    "softmax, masked": lambda p, q: p.masked_fill(mask(), -torch.inf).softmax(-1),
    "softmax, a large negative mask": lambda p, q: (p + mask() * -1e9).softmax(-1),
    "softmax, an additive mask": lambda p, q: (p + torch.zeros(2, 3).masked_fill(mask(), -torch.inf)).softmax(1),
}
ALL = MOVES | EXACT | LOOSE


def box_of(f: Binary, region: Region) -> Interval:
    return icn.bounds(Of(f, region.lower["p"], region.lower["q"]), region, NOTHING)


def region_of(p: Tensor, q: Tensor, width: float) -> Region:
    model = Of(lambda p, q: p, p, q)
    free = torch.tensor([1.0, 0.0, 0.0])  # fewer corners to visit
    return Region.around(model, {"p": width * torch.rand(p.shape) * p.abs(), "q": width * torch.rand(q.shape) * free})
