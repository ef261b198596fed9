"""keep_inside: any training loop, held in a region; every step of its optimizers ends there."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from intercontinet.errors import InterContiNetError, InvalidModel, InvalidSetting, Violation
from intercontinet.region import Region
from intercontinet.state import state_of

WRAPPERS = ("_orig_mod", "module")  # what torch.compile, and DataParallel and its kin, call the model they wrap


class HasRegion(Protocol):
    """Something with a region, such as a certificate."""

    @property
    def region(self) -> Region: ...


@contextmanager
def keep_inside(
    model: nn.Module, optimizer: Optimizer | Iterable[Optimizer], region: Region | HasRegion
) -> Iterator[None]:
    """Hold any training loop in a region: inside the block, every ``optimizer.step()`` ends there.

    After each step, the parameters that the optimizer holds are moved to the nearest point of the region, and buffers
    (running statistics), which are points of it, are put back. When the block ends, by an exception too, the same is
    done for the whole model, whatever moved it. The optimizer's own state is left alone: momentum may go on pushing
    against an edge, which costs nothing but the time it takes to turn.

    Norm layers in training mode normalise by the batch, while the region fixes the statistics that the model will be
    evaluated with: one warning says so, and putting these layers into evaluation mode is the way out.

    Args:
        model: What is trained; a compiled or data-parallel wrapper is looked through.
        optimizer: One that holds parameters of the model, or several. Parameters of other models are left alone.
        region: A region that holds the model now, on any device, or a certificate of such a region.

    Raises:
        Violation: The model lies outside as the block begins.
        InvalidModel: A weight became NaN or infinite, or a parameter was replaced, moved or converted in the block. On
            a CPU, NaN is looked for at each step in one tensor, in turn (it spreads in a step or two); elsewhere, where
            looking means waiting, at the end.
        InvalidSetting: No optimizer was given, or none that holds a parameter of the model.

    >>> model = nn.Linear(2, 1)
    >>> region = Region.around(model, 0.1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=100.0)
    >>> with keep_inside(model, optimizer, region):
    ...     model(torch.ones(1, 2)).sum().backward()
    ...     optimizer.step()
    >>> region.contains(model), torch.equal(model.weight, region.lower["weight"])
    (True, True)
    """
    box = region if isinstance(region, Region) else region.region
    model = _unwrapped(model, box)
    keeper = _Keeper(model, _laid_out_like(model, box).with_values(model))
    handles = [one.register_step_post_hook(keeper.after_step) for one in _checked(optimizer, keeper)]
    try:
        yield
    except BaseException as error:
        try:
            keeper.finish()
        except InterContiNetError as left:
            if not isinstance(error, InterContiNetError):
                warnings.warn(f"{type(error).__name__} ended keep_inside, and not inside: {left}", stacklevel=3)
        raise
    else:
        keeper.finish()
    finally:
        for handle in handles:
            handle.remove()


def _unwrapped(model: nn.Module, region: Region) -> nn.Module:
    """The model by whose names the region goes."""
    named = (*region.lower, *region.frozen)
    while True:
        children = list(model.named_children())
        wrapper = children[0][0] if len(children) == 1 else ""
        if wrapper not in WRAPPERS or any(name.startswith(f"{wrapper}.") for name in named):
            return model
        model = children[0][1]


def _laid_out_like(model: nn.Module, region: Region) -> Region:
    """The region on the model's devices and in the memory order of its weights, where steps are quick."""
    state = state_of(model)

    def like(edge: Tensor, name: str) -> Tensor:
        weight = state.get(name, edge)
        if weight.shape != edge.shape or (weight.device == edge.device and weight.stride() == edge.stride()):
            return edge
        return torch.empty_like(weight).copy_(edge)

    lower = {name: like(edge, name) for name, edge in region.lower.items()}
    upper = {name: like(edge, name) for name, edge in region.upper.items()}
    if all(edge is region.lower[name] for name, edge in lower.items()) and all(
        edge is region.upper[name] for name, edge in upper.items()
    ):
        return region
    return Region(lower, upper, region.frozen)


def _checked(given: Optimizer | Iterable[Optimizer], keeper: _Keeper) -> list[Optimizer]:
    optimizers = [given] if isinstance(given, Optimizer) else list(given)
    for optimizer in optimizers:
        if not isinstance(optimizer, Optimizer):
            raise InvalidSetting(f"{type(optimizer).__name__} is no torch.optim.Optimizer: pass the one it steps")
    if not any(keeper.held_by(optimizer) for optimizer in optimizers):
        raise InvalidSetting(
            "no optimizer given holds a parameter of this model: make it from model.parameters() of the very model "
            "that is kept inside, not of a copy"
        )
    return optimizers


@final
@dataclass(frozen=True, eq=False)
class _Part:
    """A parameter or buffer as the block began, where it sits in the model, and its edges."""

    name: str
    place: Mapping[str, Tensor | None]  # a module's own parameters or buffers
    key: str  # its name there
    tensor: Tensor
    lower: Tensor
    upper: Tensor
    point: bool
    buffer: bool

    def fits(self, tensor: Tensor) -> bool:
        """Whether a tensor can be held against the edges."""
        edge = self.lower
        return tensor.dtype == edge.dtype and tensor.device == edge.device and tensor.shape == edge.shape

    def checked(self, tensor: Tensor | None) -> Tensor:
        """What sits in its place, unless that is something else; buffers may be replaced by their like."""
        if tensor is None or not (self.buffer or tensor is self.tensor):
            change = "was taken out of the model" if tensor is None else "was replaced by another parameter"
            raise InvalidModel(
                f"'{self.name}' {change} inside keep_inside, which cannot follow it: change the model before the "
                "block, and make the optimizer from its new parameters"
            )
        if not self.fits(tensor):
            was, is_ = (f"{str(t.dtype)[6:]} {tuple(t.shape)} on {t.device}" for t in (self.lower, tensor))
            raise InvalidModel(
                f"'{self.name}' was {was} and became {is_} inside keep_inside: move or convert the model "
                "before the block"
            )
        return tensor


@final
class _Move:
    """The way back inside, for some tensors: laid out once, and good for as long as they keep their places.

    By way of ``.data``, which autograd does not count as a change: a step has already told it of the weights it moved,
    and a graph still waiting for its backward pass need not be refused for the sake of weights that stayed.
    """

    def __init__(self, parts: list[tuple[_Part, Tensor]]) -> None:
        self._seen = [(part.place, part.key, tensor, tensor.data_ptr()) for part, tensor in parts]
        rows = [(part.point, (tensor.data, part.lower, part.upper)) for part, tensor in parts]
        self._points = _columns([row for point, row in rows if point])
        self._near = [row for point, row in reversed(rows) if not point and row[0].device.type == "cpu"]
        self._far = _columns([row for point, row in rows if not point and row[0].device.type != "cpu"])

    def holds(self) -> bool:
        """Whether each tensor is where it was, in the model and in memory."""
        return all(
            place.get(key) is tensor and tensor.data_ptr() == pointer for place, key, tensor, pointer in self._seen
        )

    def __call__(self) -> None:
        """Move every tensor to the nearest point of its box."""
        values, edges, _ = self._points
        if values:
            torch._foreach_copy_(values, edges)
        for weight, lower, upper in self._near:  # last first: what an optimizer wrote last is still in the cache
            torch.clamp(weight, lower, upper, out=weight)
        weights, lowers, uppers = self._far
        if weights:  # few launches for all of them
            torch._foreach_maximum_(weights, lowers)
            torch._foreach_minimum_(weights, uppers)


def _columns(rows: list[tuple[Tensor, Tensor, Tensor]]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]


@final
class _Keeper:
    """What happens after each step, and at the end."""

    def __init__(self, model: nn.Module, region: Region) -> None:
        excess = region.excess(model)
        if excess:
            raise Violation(excess)
        self._model, self._region = model, region
        parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        parts = []
        for name, lower in region.lower.items():
            path, _, key = name.rpartition(".")
            owner, buffer = model.get_submodule(path), name in buffers
            tensor = buffers[name] if buffer else parameters[name]
            place = owner._buffers if buffer else owner._parameters
            upper = region.upper[name]
            parts.append(_Part(name, place, key, tensor, lower, upper, torch.equal(lower, upper), buffer))
        self._parameters = {id(part.tensor): part for part in parts if not part.buffer}
        self._buffers = [part for part in parts if part.buffer]
        self._norms = [
            (name, module)
            for name, module in model.named_modules()
            if isinstance(module, _NormBase) and module.running_mean is not None
        ]
        self._moves: dict[int, tuple[list[_Part], _Move]] = {}  # by optimizer
        self._steps = 0

    def held_by(self, optimizer: Optimizer) -> list[_Part]:
        """The model's parameters that an optimizer may move."""
        known = self._parameters
        return [known[id(one)] for group in optimizer.param_groups for one in group["params"] if id(one) in known]

    def after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The hook of an optimizer."""
        held = self.held_by(optimizer)
        before, move = self._moves.get(id(optimizer), ([], None))
        if move is None or before != held or not move.holds():
            move = _Move([(part, part.checked(part.place.get(part.key))) for part in (*held, *self._buffers)])
            self._moves[id(optimizer)] = held, move
        move()
        if held:
            self._look_for_nan(held[self._steps % len(held)])
            self._steps += 1
        self._warn_of_statistics()

    def _look_for_nan(self, part: _Part) -> None:
        if part.lower.device.type == "cpu" and not bool(part.tensor.detach().isfinite().all()):
            state_of(self._model)  # raises, and names the first that is not finite

    def _warn_of_statistics(self) -> None:
        training = [name for name, module in self._norms if module.training]
        if training:
            self._norms = []
            more = f" and {len(training) - 1} more layer(s) normalise" if len(training) > 1 else " normalises"
            warnings.warn(
                f"'{training[0]}'{more} by the batch while training, but the region fixes the running statistics that "
                "the model is evaluated with: call .eval() on such layers after model.train(), to train what will run",
                stacklevel=4,
            )

    def finish(self) -> None:
        """Move all that fits inside, and raise where that is not the whole model or some of it has no value."""
        now = {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}
        parts = [(part, now.get(part.name)) for part in (*self._parameters.values(), *self._buffers)]
        _Move([(part, tensor) for part, tensor in parts if tensor is not None and part.fits(tensor)])()
        for part, tensor in parts:
            part.checked(tensor)
        self._region.check_fits(self._model)
