"""What counts as right: within a tolerance, above a threshold, or by a user's own rule."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import intercontinet as icn
from intercontinet.criterion import Criterion, multi_label, regression
from intercontinet.errors import InvalidData, InvalidSetting
from intercontinet.interval import Interval

NUMBERS = st.floats(-100, 100, width=32)


@given(st.tuples(NUMBERS, NUMBERS, NUMBERS), st.floats(0, 50), st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_regression_holds_exactly_where_every_point_is_near(
    numbers: tuple[float, float, float], tolerance: float, shares: list[float]
) -> None:
    a, b, target = numbers
    box = Interval(torch.tensor([[min(a, b)]]).double(), torch.tensor([[max(a, b)]]).double())
    within, y = regression(tolerance), torch.tensor([[target]])
    ends = [within.holds(Interval.point(edge), y).item() for edge in (box.lower, box.upper)]
    assert within.holds(box, y).item() == all(ends)
    if all(ends):
        for share in shares:
            assert within.holds(Interval.point(box.lower.lerp(box.upper, share).clamp(box.lower, box.upper)), y).item()


@given(st.tuples(NUMBERS, NUMBERS), NUMBERS, st.booleans())
def test_multi_label_holds_exactly_where_every_point_is_on_the_right_side(
    numbers: tuple[float, float], threshold: float, wanted: bool
) -> None:
    low, up = min(numbers), max(numbers)
    labels, y = multi_label(threshold), torch.tensor([[wanted]])
    box = Interval(torch.tensor([[low]]).double(), torch.tensor([[up]]).double())
    assert labels.holds(box, y).item() == (low > threshold if wanted else up <= threshold)


def test_a_value_on_the_threshold_is_not_above_it() -> None:
    for threshold in (0.0, 0.1, -3.0, 2.0**-149):
        labels = multi_label(threshold)
        on = Interval.point(torch.tensor([[threshold]], dtype=torch.float64))
        assert labels.holds(on, torch.tensor([[0]])).item() and not labels.holds(on, torch.tensor([[1]])).item()
        above = Interval.point(torch.tensor([[threshold]]).double().nextafter(torch.tensor(9.0).double()))
        assert labels.holds(above, torch.tensor([[0]])).item() is False


def test_predictions_are_what_outputs_would_be_right_for() -> None:
    for threshold in (0.0, 0.1, 1 / 3):
        labels = multi_label(threshold)
        assert labels.predicted is not None
        near = torch.tensor([threshold])
        out = torch.stack([near.nextafter(torch.tensor(-9.0)), near, near.nextafter(torch.tensor(9.0))])
        y = labels.predicted(out)
        holds = labels.holds(Interval.point(out.double()), y)
        assert bool((holds | (out.squeeze(1).double() - threshold).abs().lt(2.0**-149)).all())
        assert y.flatten().tolist() == [float(value > threshold) for value in out.flatten().double().tolist()]
    assert regression(1.0).predicted is None


@pytest.mark.parametrize("criterion", [regression(10.0), multi_label()])
def test_unknown_outputs_are_never_right(criterion: Criterion) -> None:
    for value in (torch.nan, torch.inf):
        box = Interval(torch.tensor([[-value, 0.0]]).double(), torch.tensor([[value, 0.0]]).double())
        assert not criterion.holds(box, torch.tensor([[1, 0]])).item()


def test_one_wrong_output_makes_an_example_wrong() -> None:
    out = Interval.point(torch.tensor([[[1.0, -1.0], [2.0, 3.0]], [[1.0, -1.0], [2.0, -3.0]]]))
    y = torch.tensor([[[1, 0], [1, 1]], [[1, 0], [1, 1]]])
    assert multi_label().holds(out, y).tolist() == [True, False]
    assert regression(2.0).holds(out, y.float()).tolist() == [True, False]


def test_targets_may_leave_out_a_last_dimension_of_one_and_no_other() -> None:
    out = Interval.point(torch.tensor([[1.0], [2.0]]))
    assert regression(0.1).holds(out, torch.tensor([1.0, 2.0])).all()
    for wrong in (torch.zeros(2, 2), torch.zeros(1, 2), torch.zeros(2, 1, 1)):
        with pytest.raises(InvalidData, match="one target an output"):
            regression(0.1).holds(out, wrong)


@pytest.mark.parametrize("tolerance", [-1.0, float("nan"), float("inf")])
def test_senseless_settings_are_refused(tolerance: float) -> None:
    with pytest.raises(InvalidSetting, match="tolerance is"):
        regression(tolerance)
    if tolerance != -1.0:
        with pytest.raises(InvalidSetting, match="threshold is"):
            multi_label(tolerance)


def test_names_say_exactly_what_was_asked() -> None:
    assert regression(0.123456789).name == "regression within 0.123456789"
    assert multi_label(2).name == "multi-label above 2"


@pytest.mark.parametrize("slack", [lambda out, y: out.lower, lambda out, y: 1.0])
def test_a_slack_of_another_shape_is_named(slack: object) -> None:
    odd = Criterion("odd", slack)  # type: ignore[arg-type]
    with pytest.raises(InvalidData, match=r"criterion 'odd' gives .*expected \[2\]"):
        odd.holds(Interval.point(torch.zeros(2, 3)), torch.zeros(2))


def test_floors_by_criteria_count_what_no_weight_of_the_region_breaks() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 2)), torch.randn(60, 3)
    region = icn.Region.around(model, 0.05)
    with torch.no_grad():
        out = model(x)
    room = 0.05 * (x.abs().sum(1, keepdim=True) + 1)
    y = out + torch.randn(60, 2) * 0.3
    certain = ((out - y).abs() + room <= 0.6).all(1)
    floor = icn.certify(model, region, (x, y), criterion=regression(0.6))
    assert floor.certified == int(certain.sum()) and 0 < floor.certified < floor.correct < 60
    wanted = (y > 0).long()
    certain = torch.where(wanted == 1, out - room > 0, out + room <= 0).all(1)
    floor = icn.certify(model, region, (x, wanted), criterion=multi_label())
    assert floor.certified == int(certain.sum()) and 0 < floor.certified < floor.correct < 60

    def largest(out: Interval, y: Tensor) -> Tensor:
        return 2.0 - out.magnitude.amax(1)

    floor = icn.certify(model, region, (x, y), criterion=Criterion("small", largest))
    assert floor.certified == int(((out.abs() + room).amax(1) <= 2).sum()) > 0
