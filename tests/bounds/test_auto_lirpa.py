"""Bounds of Linear networks against two others: a naive reference, and auto_LiRPA's, where it is installed.

auto_LiRPA propagates intervals of weights too (its IBP with weight perturbation). The last release on PyPI was made for
older versions of torch and numpy, so a few names that they dropped are put back while it is asked:

    pip install --no-deps auto_LiRPA==0.3 appdirs tqdm && pytest tests/bounds/test_auto_lirpa.py
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import intercontinet as icn
from intercontinet.bounds import Network, Real, in_float64
from tests.strategies import lopsided_region, points_inside

SIZES = ((5, 4), (5, 6, 3), (4, 7, 7, 3), (3, 6, 6, 6, 6, 2))
RADII = (0.0, 0.05, 0.6)
UNIT = 2.0**-24
TINY = 2.0**-126

Edges = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Case:
    """A chain of Linear layers with ReLUs between them, a lopsided box round its weights, and inputs."""

    model: nn.Sequential
    region: icn.Region
    x: icn.Interval

    @property
    def layers(self) -> list[tuple[Edges, Edges]]:
        """Weight and bias of each Linear layer, in float64."""
        low, up = ({n: t.double() for n, t in edges.items()} for edges in (self.region.lower, self.region.upper))
        paths = [name.removesuffix(".weight") for name in low if name.endswith("weight")]
        return [((low[f"{p}.weight"], up[f"{p}.weight"]), (low[f"{p}.bias"], up[f"{p}.bias"])) for p in paths]

    @property
    def ours(self) -> icn.Interval:
        """Over the reals: what rounding adds is another matter."""
        boxes = self.region.intervals(torch.float64)
        return Network(self.model).propagate(boxes, in_float64(self.x), Real(exact=True))


def case(sizes: tuple[int, ...], radius: float, wide_input: bool, seed: int) -> Case:
    generator = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    x = torch.randn(4, sizes[0], generator=generator)
    reach = torch.rand(x.shape, generator=generator) * 0.5
    box = icn.Interval(x - reach, x + reach) if wide_input else icn.Interval.point(x)
    return Case(model, lopsided_region(model, radius, generator), box)


CASES = {
    f"{'-'.join(map(str, sizes))}-{radius}-{'box' if wide else 'point'}": case(sizes, radius, wide, seed)
    for seed, sizes in enumerate(SIZES)
    for radius in RADII
    for wide in (False, True)
}


def naive(case: Case, rounding: bool = False) -> Edges:
    """Interval arithmetic as textbooks have it: every product at its four corners, one by one; then the sum.

    With ``rounding``, each layer adds what :class:`~intercontinet.bounds.Float32` states that it adds.
    """
    low, up = case.x.lower.double(), case.x.upper.double()
    for index, ((w_low, w_up), (b_low, b_up)) in enumerate(case.layers):
        if index:
            tiny = 64 * TINY if rounding else 0.0
            low, up = (low.clamp(min=0) - tiny).clamp(min=0), up.clamp(min=0) + tiny
        corners = torch.stack([x[:, None] * w[None] for x in (low, up) for w in (w_low, w_up)])
        slack = torch.zeros(())
        if rounding:
            size = torch.maximum(low.abs(), up.abs()) @ torch.maximum(w_low.abs(), w_up.abs()).T
            size = size + torch.maximum(b_low.abs(), b_up.abs())
            steps = (w_low.shape[1] + 3) * UNIT
            slack = size * steps / (1 - steps)
        low, up = corners.amin(0).sum(-1) + b_low - slack, corners.amax(0).sum(-1) + b_up + slack
    return low, up


def never_looser(ours: icn.Interval, low: Tensor, up: Tensor, share: float = 1e-12) -> bool:
    """Up to float64's own rounding, as a share of the largest edge."""
    slack = share * float(torch.maximum(low.abs(), up.abs()).max())
    return bool((ours.lower >= low - slack).all() and (ours.upper <= up + slack).all())


def the_same(ours: icn.Interval, low: Tensor, up: Tensor) -> bool:
    return never_looser(ours, low, up) and never_looser(icn.Interval(low, up), ours.lower, ours.upper)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bounds_are_those_of_a_naive_reference(case: Case) -> None:
    assert the_same(case.ours, *naive(case))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bounds_of_float32_are_wider_by_no_more_than_is_stated(case: Case) -> None:
    sound, (low, up) = icn.bounds(case.model, case.region, case.x), naive(case)
    assert (sound.lower < low).all() and (up < sound.upper).all()
    stated = naive(case, rounding=True)
    assert (low - sound.lower <= 1.001 * (low - stated[0]) + 1e-30).all()
    assert (sound.upper - up <= 1.001 * (stated[1] - up) + 1e-30).all()


def test_one_layer_on_a_point_is_exact() -> None:
    """Some weights of the box attain each edge."""
    one = case((5, 4), 0.6, wide_input=False, seed=9)
    (w_low, w_up), (_, b_up) = one.layers[0]
    x = one.x.lower.double()
    for row in range(len(x)):
        highest = torch.where(x[row] > 0, w_up, w_low) @ x[row] + b_up
        torch.testing.assert_close(one.ours.upper[row], highest, rtol=1e-13, atol=1e-13)


# --- auto_LiRPA


@pytest.fixture
def lirpa(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """auto_LiRPA, among the names that numpy 2 and newer torch no longer have, without its warnings."""
    sets = ModuleType("numpy.lib.arraysetops")
    sets.isin = np.isin  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, sets.__name__, sets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exporter = pytest.importorskip("torch.onnx._internal.torchscript_exporter._globals")
        helper = pytest.importorskip("torch.onnx.symbolic_helper")

        def set_opset(version: int) -> None:
            exporter.GLOBALS.export_onnx_opset_version = version

        monkeypatch.setattr(helper, "_set_opset_version", set_opset, raising=False)
        monkeypatch.setattr(torch._C.Node, "__getitem__", lambda n, k: getattr(n, n.kindOf(k))(k), raising=False)
        yield pytest.importorskip(
            "auto_LiRPA",
            reason="auto_LiRPA is not installed (the docstring of this file says how)",
            exc_type=ImportError,
        )


def theirs(lirpa: Any, case: Case, matmul: str = "default") -> Edges:
    """IBP with perturbed weights and inputs, in float64; its "economic" products need less memory and are looser."""

    def edges(low: Tensor, up: Tensor) -> Any:
        return lirpa.PerturbationLpNorm(norm=np.inf, eps=0, x_L=low, x_U=up)

    linear = [layer for layer in case.model if isinstance(layer, nn.Linear)]
    copies: list[nn.Module] = []
    for layer, (weight, bias) in zip(linear, case.layers, strict=True):
        copy = nn.Linear(layer.in_features, layer.out_features).double()
        copy.weight = lirpa.BoundedParameter(weight[0], edges(*weight))
        copy.bias = lirpa.BoundedParameter(bias[0], edges(*bias))
        copies += [copy, nn.ReLU()]
    low, up = case.x.lower.double(), case.x.upper.double()
    bounded = lirpa.BoundedModule(nn.Sequential(*copies[:-1]), low, bound_opts={"matmul": matmul})
    compute: Callable[..., Edges] = bounded.compute_bounds
    found = compute(x=(lirpa.BoundedTensor(low, edges(low, up)),), method="IBP")
    return found[0].detach(), found[1].detach()


@pytest.mark.parametrize("matmul", ["default", "economic"])
def test_bounds_are_never_looser_than_those_of_auto_lirpa(lirpa: Any, matmul: str) -> None:
    for case in CASES.values():
        assert never_looser(case.ours, *theirs(lirpa, case, matmul))


@pytest.mark.parametrize("radius", RADII)
def test_bounds_are_those_of_auto_lirpa_where_both_are_exact(lirpa: Any, radius: float) -> None:
    one = case((6, 5), radius, wide_input=False, seed=3)
    assert the_same(one.ours, *theirs(lirpa, one))


def test_bounds_of_auto_lirpa_hold_too(lirpa: Any) -> None:
    """Otherwise being inside them would say nothing."""
    deep = case(SIZES[2], 0.6, wide_input=False, seed=5)
    low, up = theirs(lirpa, deep)
    generator = torch.Generator().manual_seed(0)
    edges = {n: points_inside(t, deep.region.upper[n], 200, generator) for n, t in deep.region.lower.items()}
    for index in range(200):
        state = {name: stack[index].double() for name, stack in edges.items()}
        out = torch.func.functional_call(deep.model.double(), state, (deep.x.lower.double(),))
        assert ((low <= out) & (out <= up)).all()
