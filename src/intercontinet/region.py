"""Region: a box of named parameters. Boxes nest, clamp, shrink towards a point, and have a size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import final

import torch
from torch import Tensor, nn

from intercontinet.complaints import (
    check_names,
    crossed,
    nearest,
    one_edge,
    unreachable,
)
from intercontinet.errors import DeviceMismatch, InvalidModel, InvalidRegion, RegionMismatch, Violation
from intercontinet.interval import Interval
from intercontinet.record import Frozen
from intercontinet.state import State, digest, state_of


def _is_buffer(model: nn.Module | State, name: str) -> bool:
    """Whether a name is a buffer's; in a state dict, which does not say, whether it is one of running statistics."""
    if isinstance(model, nn.Module):
        return any(name == buffer for buffer, _ in model.named_buffers())
    return name.endswith(("running_mean", "running_var"))


def is_point(lower: Tensor, upper: Tensor) -> bool:
    """Whether both edges are the same to the bit: -0 and 0 are two values here."""
    return torch.equal(lower.view(torch.int32), upper.view(torch.int32))


LEAST_WIDTH = 2.0**-149  # the least distance between two numbers of float32


@dataclass(frozen=True)
class RegionSize:
    """How large a region is, over the entries that have finite edges.

    Attributes:
        entries: Number of such entries.
        radii: Sum of their radii.
        log_volume: Sum of the natural logarithms of their widths, where one that cannot move counts as ``LEAST_WIDTH``
            wide: a region that lies within another is never the larger one, however many weights have died.
        dead: Share of entries that can no longer move at all.
    """

    entries: int
    radii: float
    log_volume: float
    dead: float

    @property
    def mean_radius(self) -> float:
        return self.radii / self.entries if self.entries else math.nan


@final
class Region:
    """A box in parameter space: a lower and an upper edge for every entry of every parameter.

    Edges are stored, never centre and radius, so that nesting is exact to the bit. An infinite edge means that nothing
    is promised about that entry yet. Regions are values: nothing changes one in place.

    Tensors that may not move are points, with equal edges; or, in a region that comes from a file, frozen: known by a
    digest of their bits alone. With the weights at hand, :meth:`with_values` makes points of them again.

    Args:
        lower: Lower edges, float32, by parameter name.
        upper: Upper edges, of the same names and shapes.
        frozen: Digests of the tensors that have no edges here, by name.

    >>> model = nn.Linear(2, 1)
    >>> region = Region.around(model, 0.1)
    >>> region.contains(model), Region.around(model, 0.05).within(region)
    (True, True)
    """

    __slots__ = ("frozen", "lower", "upper")

    def __init__(self, lower: State, upper: State, frozen: Mapping[str, Frozen] | None = None) -> None:
        self.frozen: Mapping[str, Frozen] = MappingProxyType(dict(frozen or {}))
        if lower.keys() != upper.keys():
            raise one_edge(sorted(lower.keys() ^ upper.keys())[0])
        if not lower and not self.frozen:
            raise InvalidRegion("a region needs at least one parameter")
        for name in self.frozen:
            if name in lower:
                raise InvalidRegion(f"'{name}' is frozen and has edges too: it is one or the other")
        for name, low in lower.items():
            up = upper[name]
            if low.shape != up.shape or low.dtype != torch.float32 or up.dtype != torch.float32:
                raise InvalidRegion(
                    f"the edges of '{name}' must be float32 tensors of one shape, not {low.dtype} {tuple(low.shape)} "
                    f"and {up.dtype} {tuple(up.shape)}"
                )
            if low.device != up.device:
                raise DeviceMismatch(f"the edges of '{name}' are on {low.device} and {up.device}: move both to one")
            if low.device.type == "meta":
                continue
            if not bool((low <= up).all()):
                raise crossed(name)
            if not bool(((low < torch.inf) & (up > -torch.inf)).all()):
                raise unreachable(name)
        self.lower: Mapping[str, Tensor] = MappingProxyType({name: t.detach().clone() for name, t in lower.items()})
        self.upper: Mapping[str, Tensor] = MappingProxyType({name: t.detach().clone() for name, t in upper.items()})

    @classmethod
    def around(cls, model: nn.Module | State, radius: float | Mapping[str, float | Tensor]) -> Region:
        """The box of all weights at most ``radius`` away from the model's.

        Args:
            model: A module or a state dict.
            radius: One number for all parameters, or a number or tensor for each name; names left out stay points.
                Buffers (running statistics) are always points.
        """
        state = state_of(model)
        if isinstance(radius, Mapping):
            for name in radius:
                if name not in state:
                    raise RegionMismatch(f"a radius is given for '{name}', which the model lacks{nearest(name, state)}")
                if _is_buffer(model, name):
                    raise InvalidRegion(
                        f"a radius is given for '{name}', a buffer: buffers are always points, leave it out"
                    )
            radii = {name: radius.get(name, 0.0) for name in state}
        else:
            radii = {name: 0.0 if _is_buffer(model, name) else radius for name in state}
        lower, upper = {}, {}
        for name, weight in state.items():
            size = torch.as_tensor(radii[name], dtype=torch.float32, device=weight.device)
            if not bool((size >= 0).all()):
                raise InvalidRegion(f"the radius of '{name}' is negative or NaN: a radius is zero or more")
            try:
                size = size.expand_as(weight)
            except RuntimeError:
                raise RegionMismatch(
                    f"the radius of '{name}' has shape {tuple(size.shape)}, its weights {tuple(weight.shape)}"
                ) from None
            resting = size == 0  # -0 + 0 is 0, and points keep their bits
            lower[name] = torch.where(resting, weight, weight - size)
            upper[name] = torch.where(resting, weight, weight + size)
        return cls(lower, upper)

    @classmethod
    def everything(cls, model: nn.Module) -> Region:
        """The region before any promise: every parameter is free, every buffer a point."""
        state = state_of(model)
        free = {name: torch.full_like(t, torch.inf) for name, t in state.items() if not _is_buffer(model, name)}
        return cls(
            {name: -free[name] if name in free else t for name, t in state.items()},
            {name: free.get(name, t) for name, t in state.items()},
        )

    def with_values(self, model: nn.Module | State) -> Region:
        """The same region with edges for everything: frozen tensors become points, their values the model's.

        Raises:
            Violation: A frozen tensor has changed.
        """
        if not self.frozen:
            return self
        state = self._unchanged(model)
        points = {name: state[name] for name in self.frozen}
        return Region(
            {name: points.get(name, self.lower.get(name, weight)) for name, weight in state.items()},
            {name: points.get(name, self.upper.get(name, weight)) for name, weight in state.items()},
        )

    def without_values(self) -> Region:
        """The same region with a digest in place of every point, as files hold it."""
        moving = [name for name, low in self.lower.items() if not is_point(low, self.upper[name])]
        points = {name: Frozen(tuple(t.shape), digest(t)) for name, t in self.lower.items() if name not in moving}
        return Region({n: self.lower[n] for n in moving}, {n: self.upper[n] for n in moving}, {**self.frozen, **points})

    def intervals(self, dtype: torch.dtype = torch.float32) -> dict[str, Interval]:
        """The edges as intervals, those of zero width as points.

        Converting edges to float64 is exact, so bounds computed there speak of the very same box.
        """
        for name in self.frozen:
            raise InvalidRegion(
                f"of the frozen '{name}' only a digest is known: take region.with_values(model) to compute with it"
            )
        boxes = {}
        for name, low in self.lower.items():
            lower = low.to(dtype)
            point = torch.equal(low, self.upper[name])
            boxes[name] = Interval.point(lower) if point else Interval(lower, self.upper[name].to(dtype))
        return boxes

    def check_fits(self, model: nn.Module | State) -> dict[str, Tensor]:
        """The model's state, after checking that this region speaks of exactly its names, shapes and device."""
        state = state_of(model)
        check_names({name: tuple(weight.shape) for name, weight in state.items()}, self._shapes())
        for name, low in self.lower.items():
            if state[name].device != low.device:
                raise DeviceMismatch(
                    f"'{name}' is on {state[name].device} and its region on {low.device}: use region.to(device)"
                )
        return state

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        edges = {name: tuple(low.shape) for name, low in self.lower.items()}
        return edges | {name: frozen.shape for name, frozen in self.frozen.items()}

    def _unchanged(self, model: nn.Module | State) -> dict[str, Tensor]:
        """The model's state, in which all frozen tensors are found unchanged."""
        state = self.check_fits(model)
        if changed := [name for name in self.frozen if self._outside(name, state[name])]:
            raise Violation(dict.fromkeys(changed, math.inf))
        return state

    def _outside(self, name: str, weight: Tensor) -> float:
        """How far outside a parameter lies: nothing or less if it does not, infinite if it is frozen and changed.

        Compared in float64, where differences of float32 numbers neither overflow nor vanish.
        """
        if weight.device.type == "meta":
            raise InvalidModel(f"'{name}' is on the meta device and has no values: load the weights first")
        if name in self.frozen:
            return 0.0 if digest(weight) == self.frozen[name].sha256 else math.inf
        if not weight.numel():
            return 0.0
        at = weight.double()
        return float(torch.maximum(self.lower[name].double() - at, at - self.upper[name].double()).max())

    def excess(self, model: nn.Module | State) -> dict[str, float]:
        """How far outside each parameter lies (largest entry), for those that do; in the model's order.

        Infinite for a frozen tensor that changed: by how much, its digest does not tell.
        """
        state = self.check_fits(model)
        distances = {name: self._outside(name, weight) for name, weight in state.items()}
        return {name: distance for name, distance in distances.items() if distance > 0}

    def contains(self, model: nn.Module | State) -> bool:
        """Whether every weight lies inside, edges included."""
        return not self.excess(model)

    def within(self, other: Region) -> bool:
        """Whether this box lies inside another, compared bit for bit.

        Raises:
            RegionMismatch: The regions are not of one model; or a tensor is frozen here and may move in the other, so
                that its digest does not tell: compare ``with_values(model)``.
        """
        self._check_alike(other)
        return all(self._within(name, other) for name in self._shapes())

    def _within(self, name: str, other: Region) -> bool:
        if name in other.frozen:
            return self._digest_of(name) == other.frozen[name].sha256
        low, up = other.lower[name], other.upper[name]
        if name not in self.frozen:
            return bool((low <= self.lower[name]).all() and (self.upper[name] <= up).all())
        if bool((low == -torch.inf).all() and (up == torch.inf).all()):
            return True
        if not is_point(low, up):
            raise RegionMismatch(
                f"'{name}' is frozen in one region and may move in the other, which its digest does not suffice to "
                "compare: take region.with_values(model) first"
            )
        return digest(low) == self.frozen[name].sha256

    def _digest_of(self, name: str) -> str | None:
        """The digest of a frozen tensor or of a point; none of what may move."""
        if name in self.frozen:
            return self.frozen[name].sha256
        return digest(self.lower[name]) if is_point(self.lower[name], self.upper[name]) else None

    def _check_alike(self, other: Region) -> None:
        own, others = self._shapes(), other._shapes()
        if own.keys() != others.keys():
            odd = sorted(own.keys() ^ others.keys())[0]
            raise RegionMismatch(f"only one of the two regions bounds '{odd}': they are not of one model")
        for name, shape in own.items():
            if shape != others[name]:
                shapes = f"{shape} in one region and {others[name]} in the other"
                raise RegionMismatch(f"'{name}' has shape {shapes}: they are not of one model")

    @torch.no_grad()
    def clamp_(self, model: nn.Module) -> None:
        """Move the parameters to the nearest point of the region.

        Raises:
            Violation: A frozen tensor has changed, which nothing here can move back; the model is left as it is.
        """
        state = self._unchanged(model)
        for name, low in self.lower.items():
            if is_point(low, self.upper[name]):
                state[name].copy_(low)
            else:
                torch.clamp(state[name], low, self.upper[name], out=state[name])

    def clamped_into(self, other: Region) -> Region:
        """This region's edges, clamped into another's: the result always lies within ``other``."""
        self._check_alike(other)
        frozen = dict(other.frozen)
        lower, upper = {}, {}
        for name, low in other.lower.items():
            if name not in self.frozen:
                edges = low, other.upper[name]
                resting = low == edges[1]  # where it takes over the bits, of which 0 has two sorts
                lower[name] = torch.where(resting, low, torch.clamp(self.lower[name], *edges))
                upper[name] = torch.where(resting, edges[1], torch.clamp(self.upper[name], *edges))
            elif self._within(name, other):
                frozen[name] = self.frozen[name]
            else:
                lower[name], upper[name] = low, other.upper[name]  # a point: no other lies within it
        return Region(lower, upper, frozen)

    def scaled(self, factor: float, about: nn.Module | State) -> Region:
        """Every edge moved to ``factor`` times its distance from a point of the region; infinite edges stay.

        Up to one, the result lies within this region; at zero it is the point itself.
        """
        if not 0 <= factor < math.inf:
            raise InvalidRegion(f"the factor is {factor}: a region is scaled by a finite number that is not negative")
        state = self.check_fits(about)

        def moved(edges: State) -> dict[str, Tensor]:
            out = {}
            for name, edge in edges.items():
                stays = edge.isinf() | (edge == state[name])
                away = torch.where(stays, 0, edge - state[name])
                out[name] = torch.where(stays, edge, state[name] + factor * away)
            return out

        box = Region(moved(self.lower), moved(self.upper), self.frozen)
        return box.clamped_into(self) if factor <= 1 else box

    def size(self, names: tuple[str, ...] | None = None) -> RegionSize:
        """How large the region is, over all parameters or over some."""
        radii, dead, entries, log_volume = 0.0, 0, 0, 0.0
        for name in names or tuple(self._shapes()):
            if name in self.frozen:
                resting = math.prod(self.frozen[name].shape)
                dead, entries = dead + resting, entries + resting
                continue
            width = (self.upper[name].double() - self.lower[name].double()).flatten()
            width = width[width.isfinite()]
            alive = width[width > 0]
            radii += float(width.sum()) / 2
            log_volume += float(alive.log().sum())
            dead += width.numel() - alive.numel()
            entries += width.numel()
        log_volume += dead * math.log(LEAST_WIDTH)
        return RegionSize(entries, radii, log_volume, dead / entries if entries else math.nan)

    def to(self, device: torch.device | str) -> Region:
        return Region(
            {n: t.to(device) for n, t in self.lower.items()},
            {n: t.to(device) for n, t in self.upper.items()},
            self.frozen,
        )

    def __repr__(self) -> str:
        size, resting = self.size(), f", {len(self.frozen)} of them frozen" if self.frozen else ""
        tensors = f"{len(self.lower) + len(self.frozen)} tensors{resting}"
        return f"Region({tensors}, {size.entries} bounded entries, mean radius {size.mean_radius:.3g})"
