"""Margins, and what follows from them: both of the paper's theorems."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Bool, Float64
from torch import Tensor, nn
from torch.func import functional_call, vmap

import intercontinet as icn
from intercontinet.bounds import Arithmetic, Float32, Network, Real, certain, worst_margins
from intercontinet.bounds.margins import joint_margins
from intercontinet.interval import Interval
from intercontinet.region import Region
from tests.strategies import (
    Case,
    cases,
    corners,
    fits,
    lopsided_region,
    outputs_together,
    random_box,
    shake,
    weights_inside,
)

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")

LABELS = torch.tensor([0, 1, 2])


def margins_of(
    case: Case, labels: Tensor, arithmetic: Arithmetic, joint: bool = True, classes: Tensor | None = None
) -> Tensor:
    x = Interval.point(case.x.lower.double())
    x = x if case.x.is_point else Interval(case.x.lower.double(), case.x.upper.double())
    boxes = case.region.intervals(torch.float64)
    return worst_margins(Network(case.model), boxes, x, labels, arithmetic, classes, joint)


def labels_of(case: Case, seed: int) -> Tensor:
    return torch.randint(3, (case.x.shape[0],), generator=torch.Generator().manual_seed(seed))


def small_network(seed: int, act: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Twelve parameters at most, so that every corner of their box can be visited."""
    model = nn.Sequential(nn.Linear(1, 2, bias=False), act(), nn.Linear(2, 3))
    shake(model, torch.Generator().manual_seed(seed))
    return model


def losses_at_all_corners(model: nn.Module, region: Region, x: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of every example in float64 at every corner of the region: [corners, examples]."""
    sizes = {name: tensor.numel() for name, tensor in region.lower.items()}
    edges = [torch.cat([t.double().flatten() for t in side.values()]) for side in (region.lower, region.upper)]

    def losses(vector: Tensor) -> Tensor:
        parts = torch.split(vector, list(sizes.values()))
        state = {n: part.reshape(region.lower[n].shape) for n, part in zip(sizes, parts, strict=True)}
        return F.cross_entropy(functional_call(model, state, (x.double(),)), y, reduction="none")

    result: Tensor = vmap(losses)(corners(*edges))
    return result


@pytest.mark.parametrize("wide_input", [True, False])
@pytest.mark.parametrize("arithmetic", [Real(exact=True), Float32()], ids=["Real", "Float32"])
def test_one_layers_joint_margin_is_the_extreme_over_all_corners(wide_input: bool, arithmetic: Arithmetic) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, bias, x = (random_box(shape, generator) for shape in [(3, 2), (3,), (1, 2)])
    x = x if wide_input else Interval.point(x.lower)
    flat = [torch.cat([getattr(box, side).flatten() for box in (weight, bias)]) for side in ("lower", "upper")]
    logits = torch.cat(
        [F.linear(corners(x.lower, x.upper)[:, 0], c[:6].reshape(3, 2), c[6:]) for c in corners(*flat)]
    )  # [corners, classes]
    for label in range(3):
        margins = joint_margins(x, weight, bias, torch.tensor([label]), arithmetic)
        expected = (logits - logits[:, label : label + 1]).amax(0)
        torch.testing.assert_close(margins[0], expected, rtol=1e-5, atol=1e-5 if arithmetic.sound else 1e-12)
        assert (margins[0] >= expected - 1e-12).all()


@settings(deadline=None, max_examples=100, derandomize=True)
@given(case=cases, seed=st.integers(0, 1000), sound=st.booleans(), exact=st.booleans())
def test_joint_margins_are_never_looser_than_separate_ones(case: Case, seed: int, sound: bool, exact: bool) -> None:
    arithmetic = Float32() if sound else Real(exact=exact)
    labels = labels_of(case, seed)
    joint, separate = (margins_of(case, labels, arithmetic, joint=j) for j in (True, False))
    assert fits(joint, Float64[Tensor, "batch classes"])
    assert (joint <= separate + 1e-12 * (1 + separate.abs())).all()


def test_the_joint_margin_is_strictly_tighter_where_one_feature_feeds_both_classes() -> None:
    """z_0 = h and z_1 = 2 h + 1/2 with h in [0, 1]: z_1 leads by at least 1/2, yet separately it may trail by 1/2."""
    hidden = Interval(torch.zeros(1, 1).double(), torch.ones(1, 1).double(), nonnegative=True)
    weight, bias = torch.tensor([[1.0], [2.0]]).double(), torch.tensor([0.0, 0.5]).double()
    boxes = {"weight": Interval.point(weight), "bias": Interval.point(bias)}
    head = nn.Linear(1, 2)
    label = torch.tensor([1])
    joint, separate = (
        worst_margins(Network(head), boxes, hidden, label, Real(exact=True), joint=j) for j in (True, False)
    )
    assert joint.tolist() == [[-0.5, 0.0]]
    assert separate.tolist() == [[0.5, 0.0]]
    assert certain(joint, label).item() and not certain(separate, label).item()


@settings(deadline=None, max_examples=100, derandomize=True)
@given(case=cases, seed=st.integers(0, 1000), joint=st.booleans())
def test_no_float32_margin_inside_the_region_exceeds_its_bound(case: Case, seed: int, joint: bool) -> None:
    labels = labels_of(case, seed)
    margins = margins_of(case, labels, Float32(), joint)
    generator = torch.Generator().manual_seed(seed)
    outs = outputs_together(
        case.model, weights_inside(case.region, 40, generator), case.x.lower.expand(40, *case.x.shape)
    )
    own = outs.double().gather(2, labels.expand(40, -1)[..., None])
    assert (outs.double() - own <= margins).all()


@settings(deadline=None, max_examples=100, derandomize=True)
@given(case=cases, seed=st.integers(0, 1000), joint=st.booleans())
def test_an_example_that_is_certain_is_right_at_every_sampled_weight(case: Case, seed: int, joint: bool) -> None:
    with torch.no_grad():
        labels = case.model(case.x.centre).argmax(1)
    sure = certain(margins_of(case, labels, Float32(), joint), labels)
    assert fits(sure, Bool[Tensor, "batch"])
    generator = torch.Generator().manual_seed(seed)
    outs = outputs_together(
        case.model, weights_inside(case.region, 40, generator), case.x.lower.expand(40, *case.x.shape)
    )
    assert (outs.argmax(2) == labels)[:, sure].all()


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("act", [nn.ReLU, nn.Tanh, nn.GELU, nn.SiLU])
@pytest.mark.parametrize("radius", [0.0, 0.1, 0.7])
def test_theorem_one_the_worst_case_loss_is_at_least_the_loss_at_every_corner(
    act: Callable[[], nn.Module], radius: float, joint: bool
) -> None:
    model = small_network(3, act)
    region = lopsided_region(model, radius, torch.Generator().manual_seed(4))
    x = torch.tensor([[-1.5], [0.2], [2.0]])
    margins = margins_of(Case(model, region, Interval.point(x)), LABELS, Real(exact=True), joint)
    worst = F.cross_entropy(margins, LABELS, reduction="none")
    losses = losses_at_all_corners(model, region, x, LABELS)
    assert (losses <= worst + 1e-12).all()
    if radius == 0.0:
        torch.testing.assert_close(losses[0], worst)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(case=cases, seed=st.integers(0, 1000), joint=st.booleans())
def test_theorem_one_the_worst_case_loss_is_at_least_the_loss_at_any_weights(
    case: Case, seed: int, joint: bool
) -> None:
    labels = labels_of(case, seed)
    worst = F.cross_entropy(margins_of(case, labels, Float32(), joint), labels, reduction="none")
    generator = torch.Generator().manual_seed(seed)
    outs = outputs_together(
        case.model, weights_inside(case.region, 40, generator), case.x.lower.expand(40, *case.x.shape)
    )
    for out in outs.double():
        assert (F.cross_entropy(out, labels, reduction="none") <= worst * (1 + 1e-12) + 1e-12).all()


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_theorem_two_a_nested_regions_worst_loss_lies_between_its_own_losses_and_its_parents(
    seed: int, joint: bool
) -> None:
    model = small_network(seed)
    parent = lopsided_region(model, 0.6, torch.Generator().manual_seed(seed))
    child = parent.scaled(0.5, about=model)
    assert child.within(parent) and not parent.within(child)
    x = torch.tensor([[-1.5], [0.2], [2.0]])
    worst = {
        name: F.cross_entropy(
            margins_of(Case(model, region, Interval.point(x)), LABELS, Real(exact=True), joint),
            LABELS,
            reduction="none",
        )
        for name, region in (("child", child), ("parent", parent))
    }
    assert (losses_at_all_corners(model, child, x, LABELS).amax(0) <= worst["child"] + 1e-12).all()
    assert (worst["child"] < worst["parent"]).all()


@settings(deadline=None, max_examples=60, derandomize=True)
@given(case=cases, seed=st.integers(0, 1000), joint=st.booleans(), exact=st.booleans())
def test_theorem_two_margins_only_shrink_with_the_region(case: Case, seed: int, joint: bool, exact: bool) -> None:
    labels = labels_of(case, seed)
    arithmetic = Real(exact=exact)
    previous = margins_of(case, labels, arithmetic, joint)
    region = case.region
    for _ in range(3):
        region = region.scaled(0.6, about=case.model)
        margins = margins_of(Case(case.model, region, case.x), labels, arithmetic, joint)
        assert (margins <= previous + 1e-9 * (1 + previous.abs())).all()
        previous = margins


@pytest.mark.parametrize("joint", [True, False])
def test_certified_counts_never_fall_as_regions_shrink_and_never_exceed_an_accuracy_inside(joint: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    x = torch.randn(200, 4, generator=generator)
    with torch.no_grad():
        y = model(x).argmax(1)
    y[::10] = (y[::10] + 1) % 3  # some are wrong, so that no floor can be full
    region = lopsided_region(model, 0.3, generator)
    counts = []
    for _ in range(8):
        floor = icn.certify(model, region, (x, y), margins="joint" if joint else "separate")
        counts.append(floor.certified)
        outs = outputs_together(model, weights_inside(region, 60, generator), x.expand(60, 200, 4))
        right = (outs.argmax(2) == y).sum(1)
        assert floor.certified <= int(right.min())
        region = region.scaled(0.5, about=model)
    assert counts == sorted(counts)
    assert counts[0] < counts[-1] <= 180


@pytest.mark.parametrize("joint", [True, False])
def test_rounding_that_decides_a_tie_is_covered(joint: bool) -> None:
    """All classes hold the same terms in another order: over the reals they tie, in float32 any of them may lead."""
    generator = torch.Generator().manual_seed(3)
    terms = torch.randn(500, generator=generator)
    head = nn.Linear(500, 3, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.stack([terms[torch.randperm(500, generator=generator)] for _ in range(3)]))
    x = torch.ones(3, 500)
    margins = margins_of(Case(head, Region.around(head, 0.0), Interval.point(x)), LABELS, Float32(), joint)
    real = margins_of(Case(head, Region.around(head, 0.0), Interval.point(x)), LABELS, Real(exact=True), joint)
    with torch.no_grad():
        outs = head(x).double()
    leads = outs - outs.gather(1, LABELS[:, None])
    assert (leads <= margins).all()
    assert (leads > real + 1e-12).any()
    assert not certain(margins, LABELS).any()


def test_margins_among_some_classes_ignore_the_others() -> None:
    generator = torch.Generator().manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6))
    classes = torch.tensor([4, 1, 3])
    slim = nn.Sequential(model[0], nn.ReLU(), nn.Linear(5, 3))
    with torch.no_grad():
        for name in ("weight", "bias"):
            slim[2].get_parameter(name).copy_(model[2].get_parameter(name)[classes])
    x = Interval.point(torch.randn(3, 4, generator=generator))
    for joint in (True, False):
        for arithmetic in (Real(exact=True), Float32()):
            part = margins_of(Case(model, Region.around(model, 0.1), x), LABELS, arithmetic, joint, classes)
            whole = margins_of(Case(slim, Region.around(slim, 0.1), x), LABELS, arithmetic, joint)
            torch.testing.assert_close(part, whole, rtol=1e-12, atol=1e-12)


def test_without_a_linear_head_margins_are_separate() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh()).eval()
    case = Case(model, Region.around(model, 0.1), Interval.point(torch.randn(3, 2)))
    assert torch.equal(
        margins_of(case, LABELS, Float32(), joint=True), margins_of(case, LABELS, Float32(), joint=False)
    )


def test_the_fast_form_in_all_pairs_agrees_with_the_one_grouped_by_label() -> None:
    generator = torch.Generator().manual_seed(2)
    hidden, weight, bias = (random_box(shape, generator) for shape in [(7, 4), (3, 4), (3,)])
    labels = torch.tensor([0, 1, 2, 2, 1, 0, 0])
    pairs, grouped = (joint_margins(hidden, weight, bias, labels, a) for a in (Real(exact=True), Float32()))
    torch.testing.assert_close(pairs, grouped, rtol=1e-5, atol=1e-5)
    assert (pairs <= grouped).all()


def test_the_right_classs_own_margin_is_zero() -> None:
    model = small_network(0)
    case = Case(model, Region.around(model, 0.5), Interval.point(torch.ones(3, 1)))
    for joint in (True, False):
        assert margins_of(case, LABELS, Float32(), joint).gather(1, LABELS[:, None]).tolist() == [[0.0]] * 3


@pytest.mark.parametrize(
    ("margins", "sure"),
    [
        ([0.0, -1.0, -2.0], True),
        ([0.0, 0.0, -2.0], False),  # a tie may go either way
        ([0.0, -1.0, float("nan")], False),
        ([0.0, 1e-300, -1.0], False),
        ([5.0, -1.0, -1.0], True),  # the own entry does not count
    ],
)
def test_certain_means_every_other_class_trails(margins: list[float], sure: bool) -> None:
    assert certain(torch.tensor([margins], dtype=torch.float64), torch.tensor([0])).tolist() == [sure]
