"""Metrics against a matrix that was worked out by hand, and where they mean nothing."""

from __future__ import annotations

import pytest

from intercontinet.errors import InvalidData
from intercontinet.report.metrics import (
    Matrix,
    accuracy_so_far,
    average_accuracy,
    backward_transfer,
    forgetting,
    forward_transfer,
)

MATRIX = [[0.9, 0.6, 0.4], [0.95, 0.8, 0.7], [0.7, 0.85, 1.0]]  # task 0 gets better before it is forgotten


def test_each_by_hand() -> None:
    assert average_accuracy(MATRIX) == pytest.approx((0.7 + 0.85 + 1.0) / 3)
    assert accuracy_so_far(MATRIX) == pytest.approx([0.9, (0.95 + 0.8) / 2, 0.85])
    assert forgetting(MATRIX) == pytest.approx(((0.95 - 0.7) + (0.8 - 0.85)) / 2)
    assert backward_transfer(MATRIX) == pytest.approx(((0.7 - 0.9) + (0.85 - 0.8)) / 2)
    assert forward_transfer(MATRIX, [0.5, 0.4, 0.3]) == pytest.approx(((0.6 - 0.4) + (0.7 - 0.3)) / 2)


def test_the_best_earlier_accuracy_may_come_before_the_task_was_learned() -> None:
    assert forgetting([[1.0, 0.9, 0.5], [1.0, 0.8, 0.5], [1.0, 0.7, 1.0]]) == pytest.approx((0.0 + 0.2) / 2)


@pytest.mark.parametrize("matrix", [[[0.9, 0.8, 0.7]], [[0.9]]], ids=["offline", "one task"])
def test_undefined_with_a_single_row(matrix: Matrix) -> None:
    assert forgetting(matrix) is None
    assert backward_transfer(matrix) is None
    assert forward_transfer(matrix, [0.5] * len(matrix[0])) is None
    assert average_accuracy(matrix) == pytest.approx(sum(matrix[0]) / len(matrix[0]))


@pytest.mark.parametrize("matrix", [[], [[]], [[1.0], [1.0]], [[1.0, 1.0], [1.0]]])
def test_what_is_no_matrix_is_refused(matrix: Matrix) -> None:
    for metric in (average_accuracy, accuracy_so_far, forgetting, backward_transfer):
        with pytest.raises(InvalidData, match="accuracy matrix"):
            metric(matrix)


def test_initial_accuracies_are_one_a_task() -> None:
    with pytest.raises(InvalidData, match="2 initial accuracies for 3 tasks"):
        forward_transfer(MATRIX, [0.5, 0.5])
