"""Float soundness where it hurts: near-ties, extreme scales, deep and wide layers, every summation order, other code.

Everything here computes in float32, in some order or form, and must stay inside ``icn.bounds``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import intercontinet as icn
from tests.orders import ORDERS, Array, Sum, array, dense, flushed, fused, inside, random_linear, single
from tests.strategies import lopsided_region, weights_inside

UNIT = 2.0**-24


@pytest.fixture(autouse=True)
def _quiet_numpy() -> Iterator[None]:
    with np.errstate(all="ignore"):  # overflow is among what is tried
        yield


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def implementations(layer: nn.Linear, x: Tensor) -> Iterator[tuple[str, Array]]:
    """One linear layer, computed in every order, with and without fused multiply-adds, by numpy and by torch."""
    rows, weight = array(x), array(layer.weight)
    bias = array(layer.bias) if layer.bias is not None else np.zeros(len(weight), np.float32)
    for name, add in ORDERS.items():
        yield name, dense(rows, weight, bias, add)
        yield f"{name}, bias first", dense(rows, weight, bias, add, bias_first=True)
    yield "fused", fused(rows, weight, bias)
    yield "flushed", flushed(rows, weight, bias)
    yield from ((name, array(out)) for name, out in products_of_torch(layer, x))


@torch.no_grad()
def products_of_torch(layer: nn.Linear, x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Whole, permuted and blocked products, with one thread and with two."""
    bias: Tensor | float = 0.0 if layer.bias is None else layer.bias
    order = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(0))
    halves = [part for part in torch.arange(x.shape[1]).tensor_split(3) if len(part)]
    for count in (1, 2):
        with threads(count):
            yield f"{count} threads", layer(x)
            yield f"permuted, {count} threads", x[:, order] @ layer.weight[:, order].T + bias
            parts = [x[:, part] @ layer.weight[:, part].T for part in halves]
            yield f"blocked, {count} threads", torch.stack(parts).sum(0) + bias


# --- One layer


@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    inputs=st.integers(1, 70),
    spread=st.sampled_from([0, 2, 6]),
    weights=st.integers(-44, 30),
    values=st.integers(-44, 30),
    radius=st.sampled_from([0.0, 1e-6, 0.1]),
    seed=st.integers(0, 2**31),
)
def test_every_order_and_scale_stays_inside(
    inputs: int, spread: int, weights: int, values: int, radius: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    layer = random_linear(inputs, 3, seed, spread)
    for parameter in layer.parameters():
        parameter.data = (parameter.double() * 10.0**weights).float().clamp(-3e38, 3e38)
    x = (torch.randn(2, inputs, generator=generator).double() * 10.0**values).float().clamp(-3e38, 3e38)
    region = lopsided_region(layer, radius * 10.0**weights, generator)
    box = icn.bounds(layer, region, x)
    points = weights_inside(region, 2, generator)
    for index in range(2):
        layer.load_state_dict({name: stack[index] for name, stack in points.items()})
        for name, out in implementations(layer, x):
            assert inside(box, out), name


@pytest.mark.parametrize("cancelling", [False, True])
def test_a_hundred_thousand_terms(cancelling: bool) -> None:
    layer = random_linear(100_000, 2, seed=1, spread=2)
    x = torch.rand(2, 100_000, generator=torch.Generator().manual_seed(2)) + 0.5
    if cancelling:  # the second half takes the first half back
        layer.weight.data[:, 50_000:], x[:, 50_000:] = -layer.weight.data[:, :50_000], x[:, :50_000]
    box = icn.bounds(layer, icn.Region.around(layer, 0.0), x)
    spread = []
    for name, out in implementations(layer, x):
        assert inside(box, out), name
        spread.append(out)
    assert np.ptp(np.stack(spread), axis=0).max() > 0, "the orders do differ"


def test_subnormal_numbers_flushed_by_the_processor_stay_inside() -> None:
    layer = random_linear(20, 3, seed=3)
    layer.weight.data *= 1e-25
    layer.bias.data *= 1e-42
    x = 1e-15 * torch.randn(4, 20, generator=torch.Generator().manual_seed(4))
    box = icn.bounds(layer, icn.Region.around(layer, 0.0), x)
    assert inside(box, layer(x))
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush subnormal numbers")
    try:
        with torch.no_grad():
            out = layer(x)
    finally:
        torch.set_flush_denormal(False)
    assert inside(box, out)


# --- Near-ties


class Residual(nn.Module):
    """No chain: its passes are recorded."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        half = 0.5 * x
        result: Tensor = self.head(half + half)
        return result


def near_ties(terms: int, seed: int) -> tuple[nn.Linear, Tensor]:
    """Two logits that sum the same products in another order and differ by some ulps, more with every example."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(terms, generator=generator)
    layer = nn.Linear(terms + 1, 2, bias=False)
    layer.weight.data[0, :terms] = values
    layer.weight.data[1, :terms] = values[torch.randperm(terms, generator=generator)]
    layer.weight.data[:, terms] = torch.tensor([1.0, 0.0])
    x = torch.ones(64, terms + 1)
    rounding = (terms + 8) * UNIT * float(values.abs().sum())
    x[:, terms] = torch.linspace(0, 2, 64) ** 3 * rounding  # by how much the first class leads
    return layer, x


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize(("terms", "seed"), [(3, 0), (20, 1), (300, 2)])
def test_a_tie_that_some_order_turns_is_never_certified(terms: int, seed: int, recorded: bool) -> None:
    head, x = near_ties(terms, seed)
    model = Residual(head) if recorded else head
    outs = np.stack([out for _, out in implementations(head, x)])
    turned = outs[..., 0].min(0) <= outs[..., 1].max(0)
    floors = [
        icn.certify(model, icn.Region.around(model, 0.0), (x[i : i + 1], torch.zeros(1, dtype=torch.long)))
        for i in range(len(x))
    ]
    certain = np.array([floor.certified == 1 for floor in floors])
    assert turned[0] and not certain[turned].any()
    assert certain[-1], "a lead well beyond rounding is certain"


def test_a_region_of_one_ulp_counts() -> None:
    """The very same weights but for their last bit, towards the wrong class."""
    head = nn.Linear(2, 2, bias=False)
    head.weight.data = torch.tensor([[1.0, 1.0], [1.0, 1.0]])
    head.weight.data[0, 0] = 1 + 64 * UNIT
    x, y = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    assert icn.certify(head, icn.Region.around(head, 0.0), (x, y)).certified == 1
    wider = icn.Region(
        head.state_dict(), {"weight": torch.nextafter(head.weight + 62 * UNIT, head.weight + 1).detach()}
    )
    assert icn.certify(head, wider, (x, y)).certified == 0


# --- Deep networks


def deep(activation: Callable[[], nn.Module], layers: int, width: int, seed: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for index in range(layers):
        layer = random_linear(width, width, seed * 1000 + index)
        layer.weight.data *= (2 / width) ** 0.5
        layer.bias.data *= 0.1
        parts += [layer, activation()]
    return nn.Sequential(*parts, random_linear(width, 3, seed))


NUMPY: dict[type[nn.Module], Callable[[Array], Array]] = {
    nn.ReLU: lambda x: np.maximum(x, np.float32(0)),
    nn.Tanh: lambda x: single(np.tanh(x)),
    nn.Sigmoid: lambda x: single(np.float32(1) / (np.float32(1) + np.exp(-x))),
    nn.SiLU: lambda x: single(x / (np.float32(1) + np.exp(-x))),
}


def by_numpy(model: nn.Sequential, x: Tensor, add: Sum | None) -> Array:
    """The network as numpy computes it; with fused multiply-adds where no order is given."""
    out = array(x)
    for layer in model:
        if isinstance(layer, nn.Linear):
            weight, bias = array(layer.weight), array(layer.bias)
            out = fused(out, weight, bias) if add is None else dense(out, weight, bias, add)
        else:
            out = NUMPY[type(layer)](out)
    return out


@pytest.mark.parametrize("activation", NUMPY)
def test_fifty_layers_in_every_order(activation: type[nn.Module]) -> None:
    model = deep(activation, 50, 12, seed=1)
    x = torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
    box = icn.bounds(model, icn.Region.around(model, 0.0), x)
    assert box.lower.isfinite().all()
    for add in (*ORDERS.values(), None):
        assert inside(box, by_numpy(model, x, add))
    for count in (1, 2):
        with threads(count), torch.no_grad():
            assert inside(box, model(x))


@pytest.mark.slow
def test_wider_and_deeper() -> None:
    layer = random_linear(1_000_000, 2, seed=5, spread=3)
    x = torch.randn(1, 1_000_000, generator=torch.Generator().manual_seed(6))
    box = icn.bounds(layer, icn.Region.around(layer, 0.0), x)
    for name, out in implementations(layer, x):
        assert inside(box, out), name
    for seed in range(10):
        model = deep(nn.ReLU, 200, 16, seed)
        x = torch.randn(2, 16, generator=torch.Generator().manual_seed(seed))
        box = icn.bounds(model, icn.Region.around(model, 0.0), x)
        for add in (*ORDERS.values(), None):
            assert inside(box, by_numpy(model, x, add))
