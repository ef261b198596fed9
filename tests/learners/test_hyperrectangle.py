"""The method's formulas against naive ones in float64."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from intercontinet.bounds import Network
from intercontinet.engine.optimizer import SGD, Stride
from intercontinet.engine.parametrisation import Identity
from intercontinet.interval import Interval
from intercontinet.learners.hyperrectangle import (
    ABOVE,
    BELOW,
    SLOPE,
    Shift,
    centres_inside,
    lost,
    radii_objective,
    room,
)
from intercontinet.learners.method import cross_entropy
from tests.tiny import blobs, mlp


def parents(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Weights [2, 50] and the edges of a lopsided parent."""
    generator = torch.Generator().manual_seed(seed)
    weights, below, above = (torch.rand(2, 50, generator=generator, dtype=torch.float64) for _ in range(3))
    return weights, weights - below, weights + above


def test_room_is_the_distance_to_the_nearer_edge() -> None:
    weights, lower, upper = parents()
    for i in range(2):
        for j in range(50):
            w, low, up = float(weights[i, j]), float(lower[i, j]), float(upper[i, j])
            assert float(room(weights, lower, upper)[i, j]) == min(up - w, w - low)
    assert room(torch.tensor([2.0]), torch.tensor([0.0]), torch.tensor([1.0])).item() == 0, "never negative"


@pytest.mark.parametrize("shift", ["scaled", "plain"])
def test_centres_move_by_tanh_of_mu_times_the_room(shift: Shift) -> None:
    weights, lower, upper = parents()
    inside, mu = centres_inside(weights, lower, upper, shift)
    torch.testing.assert_close(inside.decode(mu), weights, rtol=1e-12, atol=1e-12)
    goal = 3 * torch.randn(2, 50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    reach = torch.minimum(upper - weights, weights - lower)
    slope = 1 if shift == "scaled" else reach  # of the centres by mu, where mu is 0
    inside.move_(mu, [-goal / slope], Stride(SGD(1.0)))  # to mu = goal
    expected = weights + torch.tanh(goal / reach if shift == "scaled" else goal) * reach
    moved = inside.decode(mu)
    torch.testing.assert_close(moved, expected, rtol=1e-12, atol=1e-12)
    assert bool(((lower - 1e-12 <= moved) & (moved <= upper + 1e-12)).all())


def test_where_nothing_is_promised_centres_are_free() -> None:
    weights, lower, upper = parents()
    nowhere = torch.full_like(lower, torch.inf)
    free, start = centres_inside(weights, -nowhere, nowhere, "scaled")
    assert isinstance(free, Identity) and torch.equal(start, weights)
    lower[:, :20], upper[:, :20] = -torch.inf, torch.inf
    some, mu = centres_inside(weights, lower, upper, "scaled")
    moved = some.decode(mu + 7.0).clone()
    torch.testing.assert_close(moved[:, :20], weights[:, :20] + 7.0)
    assert bool((moved[:, 20:] <= upper[:, 20:] + 1e-12).all())


def test_the_centre_loss_is_cross_entropy_and_its_statistic_accuracy() -> None:
    model, (x, y) = mlp(), blobs()
    weights = dict(model.named_parameters())
    objective = cross_entropy(Network(model), None)
    loss, statistics = objective(weights, {}, {"x": x, "y": y})
    torch.testing.assert_close(loss, F.cross_entropy(model(x), y))
    torch.testing.assert_close(statistics(), (model(x).argmax(1) == y).float().mean(0, keepdim=True))


def naive_margins(centre: dict[str, Tensor], radius: dict[str, Tensor], x: Tensor, y: Tensor, joint: bool) -> Tensor:
    low, up = ({n: centre[n] + sign * radius[n] for n in centre} for sign in (-1, 1))
    return margins_between(low, up, x, y, joint)


def margins_between(low: dict[str, Tensor], up: dict[str, Tensor], x: Tensor, y: Tensor, joint: bool) -> Tensor:
    """Worst leads of every class over the right one, by trying the corners of every single product."""

    def layer(h: tuple[Tensor, Tensor], w: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        corners = torch.stack([edge[:, None] * weight[None] for edge in h for weight in w])
        return corners.amin(0).sum(-1) + b[0], corners.amax(0).sum(-1) + b[1]

    hidden = layer((x, x), (low["0.weight"], up["0.weight"]), (low["0.bias"], up["0.bias"]))
    hidden = hidden[0].relu(), hidden[1].relu()
    w, b = (low["2.weight"], up["2.weight"]), (low["2.bias"], up["2.bias"])
    if not joint:
        lower, upper = layer(hidden, w, b)
        margins = upper - lower.gather(1, y[:, None])
    else:
        margins = torch.stack(
            [
                layer(
                    (hidden[0][i : i + 1], hidden[1][i : i + 1]),
                    (w[0] - w[1][y[i]], w[1] - w[0][y[i]]),
                    (b[0] - b[1][y[i]], b[1] - b[0][y[i]]),
                )[1][0]
                for i in range(len(x))
            ]
        )
    return margins.scatter(1, y[:, None], 0.0)


@pytest.mark.parametrize("joint", [True, False])
def test_the_radii_loss_is_worst_case_cross_entropy(joint: bool) -> None:
    model, (x, y) = mlp(outputs=3).double(), blobs(labels=(0, 1, 2))
    x = x.double()
    centre = {name: p.detach() for name, p in model.named_parameters()}
    radius = {name: (0.05 * torch.rand_like(p)).requires_grad_() for name, p in centre.items()}
    objective = radii_objective(Network(model), {}, (), None, joint)
    hits = torch.rand(48) < 0.5
    loss, statistics = objective(radius, centre, {"x": x, "y": y, "right": hits})
    margins = naive_margins(centre, radius, x, y, joint)
    expected = F.cross_entropy(margins, y)
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9)
    worst = (margins.scatter(1, y[:, None], -torch.inf) < 0).all(1).double().mean()
    torch.testing.assert_close(statistics(), torch.stack([worst, hits.double().mean()]))
    names = list(radius)
    ours, theirs = (torch.autograd.grad(which, [radius[n] for n in names]) for which in (loss, expected))
    for name, one, other in zip(names, ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10, msg=f"of {name}")


def test_a_frozen_head_and_resting_parameters_have_no_radius() -> None:
    model, (x, y) = mlp(), blobs()
    centre = {name: p.detach() for name, p in model.named_parameters()}
    head = ("2.weight", "2.bias")
    points = {"0.bias": Interval.point(centre.pop("0.bias"))}
    radius = {name: torch.full_like(p, 0.1) for name, p in centre.items()}
    batch = {"x": x, "y": y, "right": torch.ones(48)}
    frozen, _ = radii_objective(Network(model), points, head, None, True)(radius, centre, batch)
    zeroed = {name: torch.zeros_like(r) if name in head else r for name, r in radius.items()}
    expected, _ = radii_objective(Network(model), points, (), None, True)(zeroed, centre, batch)
    everywhere, _ = radii_objective(Network(model), points, (), None, True)(radius, centre, batch)
    torch.testing.assert_close(frozen, expected)
    assert float(everywhere) > float(frozen)


def test_asymmetric_edges_each_have_a_distance_and_a_gradient_of_their_own() -> None:
    model, (x, y) = mlp(outputs=3).double(), blobs(labels=(0, 1, 2))
    x = x.double()
    centre = {name: p.detach() for name, p in model.named_parameters()}
    below, above = ({n: (0.05 * torch.rand_like(p)).requires_grad_() for n, p in centre.items()} for _ in range(2))
    distances = {BELOW + n: t for n, t in below.items()} | {ABOVE + n: t for n, t in above.items()}
    objective = radii_objective(Network(model), {}, (), None, True, lost)
    loss, _ = objective(distances, centre, {"x": x, "y": y, "right": torch.ones(48)})
    low, up = {n: centre[n] - below[n] for n in centre}, {n: centre[n] + above[n] for n in centre}
    margins = margins_between(low, up, x, y, True)
    worst = [
        max(float(row[j]) for j in range(3) if j != int(label)) for row, label in zip(margins.detach(), y, strict=True)
    ]
    expected = sum(1 / (1 + math.exp(-SLOPE * lead)) for lead in worst) / 48
    assert loss.item() == pytest.approx(expected, rel=1e-9)
    ours, theirs = (torch.autograd.grad(which, list(distances.values())) for which in (loss, lost(margins, y)))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)
    assert any(float(gradient.abs().max()) > 0 for gradient in ours)


def test_clamped_centres_use_the_whole_parent_and_step_as_projected_gradients_do() -> None:
    weights, lower, upper = parents()
    inside, values = centres_inside(weights, lower, upper, "clamped")
    assert torch.equal(inside.decode(values.clone()), weights)
    assert torch.equal(inside.decode(values + 9), upper) and torch.equal(inside.decode(values - 9), lower)
    step, values = torch.rand(2, 50, dtype=torch.float64), values.clone()
    inside.move_(inside.decode(values), [step], Stride(SGD(1.0)))
    assert torch.equal(inside.decode(values), torch.maximum(weights - step, lower))
