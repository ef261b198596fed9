"""A net with anything between its two layers, and whether its bounds hold and it is left as it was."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import intercontinet as icn
from intercontinet.interval import Interval
from intercontinet.region import Region
from tests.strategies import weights_inside


class Net(nn.Module):
    """Two layers, and between them whatever is asked for: [batch, 4] -> [batch, 3]."""

    steps: Tensor
    causal: Tensor
    table: Tensor

    def __init__(self, between: Callable[..., Any] = lambda net, h: h, size: int = 4) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(size, 3)
        self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("causal", torch.tril(torch.ones(4, 4)))
        self.register_buffer("table", torch.arange(4.0), persistent=False)
        self.plain = torch.arange(4.0)
        self.between = between
        self.eval()

    def forward(self, x: Tensor) -> Any:
        return self.last(self.between(self, self.first(x)))


def inputs(batch: int = 3) -> Tensor:
    return torch.randn(batch, 4, generator=torch.Generator().manual_seed(7))


def state(model: nn.Module) -> tuple[dict[str, Tensor], list[bool], list[dict[str, Any]], list[int]]:
    modules = list(model.modules())
    copies = {name: t.detach().clone() for name, t in (*model.named_parameters(), *model.named_buffers())}
    same = [id(t) for t in (*model.parameters(), *model.buffers())]
    return copies, [m.training for m in modules], [dict(vars(m)) for m in modules], same


def check_unchanged(model: nn.Module, before: tuple[Any, ...]) -> None:
    after = state(model)
    assert before[1:] == after[1:]
    assert all(torch.equal(tensor, after[0][name]) for name, tensor in before[0].items())


@torch.no_grad()
def check_contained(model: nn.Module, x: Tensor | tuple[Tensor, ...], radius: float = 0.05) -> Interval:
    generator = torch.Generator().manual_seed(0)
    region = Region.around(model, radius)
    before = state(model)
    box = icn.bounds(model, region, x)
    check_unchanged(model, before)
    weights = weights_inside(region, 30, generator)
    given = x if isinstance(x, tuple) else (x,)
    for index in range(30):
        copies = tuple(part.clone() for part in given)
        assert box.contains(functional_call(model, {n: w[index] for n, w in weights.items()}, copies))
    return box


def looped(net: Net, h: Tensor) -> Tensor:
    total = torch.zeros_like(h)
    for i in range(h.shape[1]):
        if i % 2 == 0 and len(h) > 1:
            total = total + h.roll(i, 1)
    return total / h.size(1)


def written_by_parts(net: Net, h: Tensor) -> Tensor:
    out = torch.empty(len(h), 4)
    out[:, :2] = h[:, 2:]
    out[:, 2:] = h[:, :2] * 2
    return out


def parts_in_place(net: Net, h: Tensor) -> Tensor:
    out = torch.zeros_like(h)
    out[:, 1:] += h[:, :3]
    out[:, 0] = 1.0
    out[1][2:].mul_(-2.0)
    part = out[:, :2]
    part.add_(h[:, 2:])
    h[0, 1] += 0.3
    return out + h + part.repeat(1, 2)


def in_place(net: Net, h: Tensor) -> Tensor:
    h += 1
    h.mul_(net.table).relu_()
    h[:, 0] = -1.5
    return h


def masked(net: Net, h: Tensor) -> Tensor:
    scores = h[:, :, None] * h[:, None, :]
    scores = scores.masked_fill(net.causal[:4, :4] == 0, float("-inf"))
    return (scores.softmax(-1) @ h[:, :, None]).squeeze(-1)


def remembered(net: Net, h: Tensor) -> Tensor:
    net.last_seen = h
    net.notes = ["seen"]  # type: ignore[assignment]
    return h


FINE: dict[str, Callable[[Any, Tensor], Any]] = {
    "nothing": lambda net, h: h,
    "residual": lambda net, h: h + net.first(h),
    "loop over shapes": looped,
    "by parts": written_by_parts,
    "in place": in_place,
    "parts in place": parts_in_place,
    "a mask from a buffer": masked,
    "dropout": lambda net, h: net.drop(F.dropout(h, training=net.training)),
    "batch norm": lambda net, h: net.norm(h),
    "keyword": lambda net, h: net.first(input=h),
    "functional": lambda net, h: F.linear(h, net.first.weight.T, bias=net.first.bias),
    "tied weights": lambda net, h: h @ net.first.weight + (h @ net.first.weight.t()).tanh(),
    "a buffer that is not saved": lambda net, h: h * net.table,
    "branch on mode": lambda net, h: h if not net.training else h.item(),
    "branch on a known number": lambda net, h: h * 2 if bool((net.table > 1).any()) else h,
    "attributes that are set": remembered,
    "no_grad inside": lambda net, h: torch.no_grad()(lambda: h + 1)(),
    "beside a thread that runs the same layers": lambda net, h: beside_a_thread(net, h),
    "unpacked": lambda net, h: torch.stack([*h]),
    "swapped weights": lambda net, h: functional_call(
        net.norm, {"weight": net.last.weight[0] * 3, "bias": h.mean(0)}, (h,)
    ),
    "times itself": lambda net, h: h * h - (h + 1) * (h + 1),
    "sum of a list": lambda net, h: sum([h, h.neg(), h * 0.3]),
    "assertions": lambda net, h: h if h.dim() == 2 and h.dtype == torch.float32 and h.shape[1] == 4 else h.nope,  # type: ignore[attr-defined]
}


def beside_a_thread(net: Net, h: Tensor) -> Tensor:
    with torch.no_grad():
        other = threading.Thread(target=lambda: net.last(torch.zeros(1, 4)))
        other.start()
        other.join()
    return h
