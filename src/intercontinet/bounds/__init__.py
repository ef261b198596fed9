"""What a network can put out while its weights roam a box. One family of rules a file."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from intercontinet.bounds import (  # noqa: F401  (they register)
    activation,
    attention,
    conv,
    elementwise,
    embedding,
    linear,
    norm,
    pool,
    reduction,
    shape,
)
from intercontinet.bounds.arithmetic import Arithmetic, Float32, Real
from intercontinet.bounds.forward import Forward, chain, forward
from intercontinet.bounds.margins import certain, leads, worst_margins
from intercontinet.bounds.network import Network
from intercontinet.bounds.plain import check_bare, check_unhooked
from intercontinet.bounds.registry import known_layers, rule
from intercontinet.data import check_inputs
from intercontinet.errors import InvalidData
from intercontinet.interval import Interval
from intercontinet.region import Region

__all__ = [
    "Arithmetic",
    "Float32",
    "Forward",
    "Network",
    "Real",
    "bounds",
    "certain",
    "chain",
    "check_bare",
    "check_unhooked",
    "forward",
    "in_float64",
    "known_layers",
    "leads",
    "rule",
    "worst_margins",
]


@torch.no_grad()
def bounds(model: nn.Module, region: Region, x: Tensor | Interval | tuple[Tensor | Interval, ...]) -> Interval:
    """Between which values every output lies, for every weight in the region, as float32 inference computes it.

    Args:
        model: An ordinary module, evaluated (Dropout does nothing, BatchNorm must be in evaluation mode).
        region: The box its parameters roam.
        x: Inputs, [batch, ...], float32 or whole numbers, or an interval of inputs; a tuple for models that take
            several.

    Returns:
        Float64 edges of the model's output shape; infinite where float32 might overflow.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> x = torch.randn(5, 2)
    >>> out = bounds(model, Region.around(model, 0.01), x)
    >>> out.contains(model(x))
    True
    """
    check_bare(model)
    region = region.with_values(model)
    region.check_fits(model)
    device = next(iter(region.lower.values())).device
    given: tuple[Tensor | Interval, ...] = x if isinstance(x, tuple) else (x,)
    boxes = [part if isinstance(part, Interval) else Interval.point(part) for part in given]
    for box in boxes:
        check_inputs(box.lower, device)
        if not box.is_point:
            check_inputs(box.upper, device)
            if box.upper.shape != box.lower.shape or not bool((box.lower <= box.upper).all()):
                raise InvalidData("the input's lower edge lies above its upper edge, or has another shape")
    batch = forward(model, region.lower, [in_float64(box) for box in boxes])
    out = batch.outputs(region.intervals(torch.float64), Float32())
    return Interval(
        out.lower.nan_to_num(-torch.inf, torch.inf, -torch.inf), out.upper.nan_to_num(torch.inf, torch.inf, -torch.inf)
    )


def in_float64(x: Interval) -> Interval:
    """The same interval, exactly, in float64; known to be non-negative when every entry is. Row numbers stay whole."""
    if not x.lower.is_floating_point():
        return x
    nonnegative = bool((x.lower >= 0).all())
    if x.is_point:
        return Interval.point(x.lower.double(), nonnegative)
    return Interval(x.lower.double(), x.upper.double(), nonnegative)
