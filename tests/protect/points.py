"""Weights in a region, and how many examples all of them get right."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

import intercontinet as icn

Weights = dict[str, Tensor]


def points(region: icn.Region, seed: int, count: int = 6) -> list[Weights]:
    """Corners of a region, points on its edges, and points inside."""
    generator = torch.Generator().manual_seed(seed)
    out = []
    for number in range(count):
        point = {}
        for name, low in region.lower.items():
            share = torch.rand(low.shape, generator=generator)
            if number % 3 < 2:
                share = share.round()
            if number % 3 == 1:
                share = torch.where(torch.rand(low.shape, generator=generator) < 0.5, share, 0.5)
            point[name] = torch.clamp(low + share * (region.upper[name] - low), low, region.upper[name])
        out.append(point)
    return out


def right_everywhere(model: nn.Module, weights: list[Weights], right: Callable[[Tensor], Tensor], *x: Tensor) -> int:
    """How many examples all of these weights get right: a naive count that no floor may exceed."""
    with torch.no_grad():
        return int(torch.stack([right(functional_call(model, one, x)) for one in weights]).all(0).sum())
