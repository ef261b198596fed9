"""Region: a box of named parameters. Boxes nest, clamp, shrink towards a point, and have a size."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import final

import torch
from torch import Tensor, nn

from intercontinet.errors import DeviceMismatch, InvalidModel, InvalidRegion, RegionMismatch
from intercontinet.interval import Interval

State = Mapping[str, Tensor]


def state_of(model: nn.Module | State) -> dict[str, Tensor]:
    """The floating-point parameters and saved buffers that shape a model's output, by name, checked for use.

    Raises:
        InvalidModel: A tensor is not float32, or is not finite.
    """
    if isinstance(model, nn.Module):
        saved = model.state_dict(keep_vars=True)
        tensors: dict[str, Tensor] = dict(model.named_parameters())
        tensors.update({name: buffer for name, buffer in model.named_buffers() if name in saved})
    else:
        tensors = dict(model)
    state = {name: tensor.detach() for name, tensor in tensors.items() if tensor.is_floating_point()}
    if not state:
        raise InvalidModel("there is no floating-point parameter here: pass a module or its state dict")
    for name, tensor in state.items():
        if tensor.dtype != torch.float32:
            raise InvalidModel(
                f"'{name}' is {str(tensor.dtype).removeprefix('torch.')}, and certificates speak of float32 inference "
                "only: call model.float() first"
            )
        if tensor.device.type != "meta" and not bool(torch.isfinite(tensor).all()):
            raise InvalidModel(f"'{name}' holds NaN or infinite values: reload or retrain the model before going on")
    return state


def second_names(model: nn.Module) -> dict[str, str]:
    """Further names of parameters and buffers that occur more than once, each with the first, by which regions go."""
    first: dict[int, str] = {}
    names = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {name: first[id(tensor)] for name, tensor in names if first.setdefault(id(tensor), name) != name}


def _is_buffer(model: nn.Module | State, name: str) -> bool:
    """Whether a name is a buffer's; in a state dict, which does not say, whether it is one of running statistics."""
    if isinstance(model, nn.Module):
        return any(name == buffer for buffer, _ in model.named_buffers())
    return name.endswith(("running_mean", "running_var"))


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint at the name that was probably meant, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


@dataclass(frozen=True)
class RegionSize:
    """How large a region is, over the entries that have finite edges.

    Attributes:
        entries: Number of such entries.
        radii: Sum of their radii.
        log_volume: Sum of the natural logarithms of the widths of those that can still move.
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

    Args:
        lower: Lower edges, float32, by parameter name.
        upper: Upper edges, of the same names and shapes.

    >>> model = nn.Linear(2, 1)
    >>> region = Region.around(model, 0.1)
    >>> region.contains(model), Region.around(model, 0.05).within(region)
    (True, True)
    """

    __slots__ = ("lower", "upper")

    def __init__(self, lower: State, upper: State) -> None:
        if lower.keys() != upper.keys():
            odd = sorted(lower.keys() ^ upper.keys())[0]
            raise InvalidRegion(f"'{odd}' has only one edge: give a lower and an upper tensor for every name")
        if not lower:
            raise InvalidRegion("a region needs at least one parameter")
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
                raise InvalidRegion(
                    f"a lower edge of '{name}' is NaN or lies above its upper edge: radii must not be negative"
                )
            if not bool(((low < torch.inf) & (up > -torch.inf)).all()):
                raise InvalidRegion(f"no finite weight lies between the edges of '{name}': both are the same infinity")
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
                lower[name], upper[name] = weight - size.expand_as(weight), weight + size.expand_as(weight)
            except RuntimeError:
                raise RegionMismatch(
                    f"the radius of '{name}' has shape {tuple(size.shape)}, its weights {tuple(weight.shape)}"
                ) from None
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

    def intervals(self, dtype: torch.dtype = torch.float32) -> dict[str, Interval]:
        """The edges as intervals, those of zero width as points.

        Converting edges to float64 is exact, so bounds computed there speak of the very same box.
        """
        boxes = {}
        for name, low in self.lower.items():
            lower = low.to(dtype)
            point = torch.equal(low, self.upper[name])
            boxes[name] = Interval.point(lower) if point else Interval(lower, self.upper[name].to(dtype))
        return boxes

    def check_fits(self, model: nn.Module | State) -> dict[str, Tensor]:
        """The model's state, after checking that this region speaks of exactly its names, shapes and device."""
        state = state_of(model)
        for name, low in self.lower.items():
            if name not in state:
                raise RegionMismatch(f"the region bounds '{name}', which the model lacks{nearest(name, state)}")
            if state[name].shape != low.shape:
                raise RegionMismatch(
                    f"'{name}' has shape {tuple(state[name].shape)} in the model and {tuple(low.shape)} in the region"
                )
            if state[name].device != low.device:
                raise DeviceMismatch(
                    f"'{name}' is on {state[name].device} and its region on {low.device}: use region.to(device)"
                )
        for name in state:
            if name not in self.lower:
                raise RegionMismatch(f"the model's '{name}' has no edges in the region{nearest(name, self.lower)}")
        return state

    def excess(self, model: nn.Module | State) -> dict[str, float]:
        """How far outside each parameter lies (largest entry), for those that do; in the model's order.

        Compared in float64, where differences of float32 numbers neither overflow nor vanish.
        """
        state = self.check_fits(model)
        out = {}
        for name, weight in state.items():
            if weight.device.type == "meta":
                raise InvalidModel(f"'{name}' is on the meta device and has no values: load the weights first")
            at = weight.double()
            beyond = torch.maximum(self.lower[name].double() - at, at - self.upper[name].double())
            if bool((beyond > 0).any()):
                out[name] = float(beyond.max())
        return out

    def contains(self, model: nn.Module | State) -> bool:
        """Whether every weight lies inside, edges included."""
        return not self.excess(model)

    def within(self, other: Region) -> bool:
        """Whether this box lies inside another, compared bit for bit."""
        self._check_alike(other)
        return all(
            bool((other.lower[name] <= low).all() and (self.upper[name] <= other.upper[name]).all())
            for name, low in self.lower.items()
        )

    def _check_alike(self, other: Region) -> None:
        if self.lower.keys() != other.lower.keys():
            odd = sorted(self.lower.keys() ^ other.lower.keys())[0]
            raise RegionMismatch(f"only one of the two regions bounds '{odd}': they are not of one model")
        for name, low in self.lower.items():
            if low.shape != other.lower[name].shape:
                shapes = f"{tuple(low.shape)} in one region and {tuple(other.lower[name].shape)} in the other"
                raise RegionMismatch(f"'{name}' has shape {shapes}: they are not of one model")

    @torch.no_grad()
    def clamp_(self, model: nn.Module) -> None:
        """Move the parameters to the nearest point of the region."""
        state = self.check_fits(model)
        for name, weight in state.items():
            torch.clamp(weight, self.lower[name], self.upper[name], out=weight)

    def clamped_into(self, other: Region) -> Region:
        """This region's edges, clamped into another's: the result always lies within ``other``."""
        self._check_alike(other)
        pairs = {n: (other.lower[n], other.upper[n]) for n in self.lower}
        return Region(
            {n: torch.clamp(t, *pairs[n]) for n, t in self.lower.items()},
            {n: torch.clamp(t, *pairs[n]) for n, t in self.upper.items()},
        )

    def scaled(self, factor: float, about: nn.Module | State) -> Region:
        """Every edge moved to ``factor`` times its distance from a point of the region; infinite edges stay.

        Up to one, the result lies within this region; at zero it is the point itself.
        """
        if not 0 <= factor < math.inf:
            raise InvalidRegion(f"the factor is {factor}: a region is scaled by a finite number that is not negative")
        state = self.check_fits(about)

        def moved(edges: State) -> dict[str, Tensor]:
            return {
                n: torch.where(e.isinf(), e, state[n] + factor * torch.where(e.isinf(), 0, e - state[n]))
                for n, e in edges.items()
            }

        box = Region(moved(self.lower), moved(self.upper))
        return box.clamped_into(self) if factor <= 1 else box

    def size(self, names: tuple[str, ...] | None = None) -> RegionSize:
        """How large the region is, over all parameters or over some."""
        radii, dead, entries, log_volume = 0.0, 0, 0, 0.0
        for name in names or tuple(self.lower):
            width = (self.upper[name].double() - self.lower[name].double()).flatten()
            width = width[width.isfinite()]
            alive = width[width > 0]
            radii += float(width.sum()) / 2
            log_volume += float(alive.log().sum())
            dead += width.numel() - alive.numel()
            entries += width.numel()
        return RegionSize(entries, radii, log_volume, dead / entries if entries else math.nan)

    def to(self, device: torch.device | str) -> Region:
        return Region(
            {n: t.to(device) for n, t in self.lower.items()}, {n: t.to(device) for n, t in self.upper.items()}
        )

    def __repr__(self) -> str:
        size = self.size()
        return f"Region({len(self.lower)} tensors, {size.entries} bounded entries, mean radius {size.mean_radius:.3g})"
