"""What is asked about examples: today's answers, certain ones, and passes that compute frozen layers once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import intercontinet as icn
from intercontinet import question as module
from intercontinet.criterion import Criterion, multi_label, regression
from intercontinet.errors import InvalidData
from intercontinet.question import Passes, Question, Tally, movable_in
from tests.tiny import blobs, fitted, mlp

HERE = torch.device("cpu")


def asked(model: nn.Module, x: Tensor, y: Tensor, criterion: Criterion | None = None) -> Question:
    return Question.of(model, (x, y), HERE, None, criterion)


def test_today_is_what_the_model_gets_right_and_what_it_predicts() -> None:
    model, (x, y) = mlp(outputs=3), blobs((0, 1, 2))
    right, predicted = asked(model, x, y).today(model)
    assert predicted is not None
    assert torch.equal(predicted, model(x).argmax(1)) and torch.equal(right, model(x).argmax(1) == y)


def test_a_tie_goes_to_the_first_as_argmax_has_it_and_is_never_certain() -> None:
    model = nn.Linear(2, 2)
    nn.init.ones_(model.weight)
    nn.init.zeros_(model.bias)
    x = torch.randn(6, 2)
    point = icn.Region.around(model, 0.0)
    for label in (0, 1):
        question = asked(model, x, torch.full((6,), label))
        right, predicted = question.today(model)
        assert bool(right.all()) == (label == 0)
        assert Passes(x, model, point, (), None, quick=False).tally(point, question, right, predicted) == Tally(0, 0)


def test_a_tally_is_what_two_counts_say() -> None:
    data = blobs((0, 1, 2), spread=1.0)
    model = fitted(data, mlp(outputs=3))
    region = icn.Region.around(model, 0.03)
    question = asked(model, *data)
    right, predicted = question.today(model)
    assert predicted is not None and not bool(right.all())
    passes = Passes(data[0], model, region, movable_in(region), None, quick=False)
    certain = int(passes.certain(region, question).sum())
    stable = int(passes.certain(region, asked(model, data[0], predicted)).sum())
    assert passes.tally(region, question, right, predicted) == Tally(certain, stable)
    assert certain < stable < len(data[1]), "the case must tell them apart"


@pytest.mark.parametrize("drift", [None, 0.0])
@pytest.mark.parametrize("quick", [False, True])
def test_pieces_and_baking_change_no_answer(quick: bool, drift: float | None) -> None:
    data = blobs(spread=1.0)
    model = fitted(data)
    region = icn.Region.around(model, {"2.weight": 0.2})
    question = asked(model, *data)
    whole = Passes(data[0], model, region, ["2.weight"], drift, quick).certain(region, question)
    pieces = Passes(data[0], model, region, ["2.weight"], drift, quick, size=7)
    assert torch.equal(whole, pieces.certain(region, question))
    assert torch.equal(whole, pieces.keep().certain(region, question))
    where, _ = pieces.one(torch.Generator().manual_seed(0))
    assert where.start % 7 == 0 and 0 <= where.start < len(data[1])


def test_what_takes_too_much_memory_is_computed_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    data, model = blobs(), mlp()
    region = icn.Region.around(model, {"2.weight": 0.2})
    monkeypatch.setattr(module, "HELD_AT_MOST", 10)
    passes = Passes(data[0], model, region, ["2.weight"], None, quick=False).keep()
    assert passes._kept is None
    assert torch.equal(
        passes.certain(region, asked(model, *data)),
        Passes(data[0], model, region, ["2.weight"], None, quick=False).certain(region, asked(model, *data)),
    )
    assert passes.one(torch.Generator())[0].start == 0


def test_movable_is_what_has_room() -> None:
    model = mlp()
    assert movable_in(icn.Region.around(model, {"0.bias": 0.1, "2.weight": 0.0})) == ["0.bias"]


@pytest.mark.parametrize(
    ("y", "criterion", "classes", "words"),
    [
        (torch.zeros(9, 2), regression(0.1), None, "expected one for each of 10 examples"),
        (torch.tensor(1.0), regression(0.1), None, "expected one for each of 10"),
        (torch.full((10, 2), torch.nan), regression(0.1), None, "a target is NaN"),
        (torch.zeros(10, 3), regression(0.1), None, "give one target an output"),
        (torch.zeros(10, 2), multi_label(), (0, 1), "classes= belongs to classification"),
        (torch.zeros(10, 2), Criterion("odd", lambda out, y: out.lower), None, "slack of criterion 'odd' gives"),
        (
            torch.zeros(10, 2),
            Criterion("yes", lambda out, y: out.lower[:, 0] > 0),
            None,
            "slack of criterion 'yes' is no",
        ),
        (torch.zeros(10), None, None, r"labels are float32.*y.long\(\)"),
        (torch.zeros(9, dtype=torch.int64), None, None, "one whole number for each of 10"),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    y: Tensor, criterion: Criterion | None, classes: tuple[int, ...] | None, words: str
) -> None:
    with pytest.raises(InvalidData, match=words):
        Question.of(mlp(), (torch.randn(10, 2), y), HERE, classes, criterion)
