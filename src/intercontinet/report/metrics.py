"""What an accuracy matrix says of a learner: how much it knows, forgets, and carries over.

``matrix[i][j]`` is the test accuracy on task j after learning task i, tasks counted from 0. It has T columns, one a
task, and K rows, one for each thing learned: K = T after a whole stream, K = 1 for one that learns all tasks at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from intercontinet.errors import InvalidData

Matrix = Sequence[Sequence[float]]


def average_accuracy(matrix: Matrix) -> float:
    """Mean accuracy over all tasks at the end: A = 1/T sum_j a[K-1, j].

    >>> average_accuracy([[1.0, 0.5], [0.75, 1.0]])
    0.875
    """
    _check(matrix)
    return _mean(matrix[-1])


def overall_accuracy(matrix: Matrix, sizes: Sequence[int]) -> float:
    r""":math:`\sum_j n_j a_{T,j} / \sum_j n_j`: over all test examples of all tasks, after the last one.

    >>> overall_accuracy([[1.0, 0.5], [0.75, 1.0]], [100, 300])
    0.9375
    """
    return sum(size * share for size, share in zip(sizes, matrix[-1], strict=True)) / sum(sizes)


def accuracy_so_far(matrix: Matrix) -> list[float]:
    """Mean accuracy over the tasks seen so far, after each one [K]: A_i = 1/(i+1) sum_{j<=i} a[i, j].

    >>> accuracy_so_far([[1.0, 0.5], [0.75, 1.0]])
    [1.0, 0.875]
    """
    _check(matrix)
    return [_mean(row[: i + 1]) for i, row in enumerate(matrix)]


def forgetting(matrix: Matrix) -> float | None:
    """How far old tasks fell from their best: F = 1/(K-1) sum_{j<K-1} (max_{i<K-1} a[i, j] - a[K-1, j]).

    None where nothing could be forgotten: fewer than two rows.

    >>> forgetting([[1.0, 0.5], [0.75, 1.0]])
    0.25
    >>> forgetting([[1.0, 0.5]]) is None
    True
    """
    old = _check(matrix) - 1
    if old < 1:
        return None
    return _mean([max(row[j] for row in matrix[:-1]) - matrix[-1][j] for j in range(old)])


def backward_transfer(matrix: Matrix) -> float | None:
    """What later tasks did to old ones since they were learned: B = 1/(K-1) sum_{j<K-1} (a[K-1, j] - a[j, j]).

    None where there is no later task: fewer than two rows.

    >>> backward_transfer([[1.0, 0.5], [0.75, 1.0]])
    -0.25
    >>> backward_transfer([[1.0, 0.5]]) is None
    True
    """
    old = _check(matrix) - 1
    if old < 1:
        return None
    return _mean([matrix[-1][j] - matrix[j][j] for j in range(old)])


def forward_transfer(matrix: Matrix, initial: Sequence[float]) -> float | None:
    """What earlier tasks did for those to come: W = 1/(K-1) sum_{0<j<K} (a[j-1, j] - initial[j]).

    None where nothing came earlier: fewer than two rows.

    Args:
        matrix: Accuracies [K, T].
        initial: Accuracy on each task before any learning [T].

    >>> forward_transfer([[1.0, 0.75], [0.75, 1.0]], initial=[0.5, 0.5])
    0.25
    >>> forward_transfer([[1.0, 0.75]], initial=[0.5, 0.5]) is None
    True
    """
    rows = _check(matrix)
    if len(initial) != len(matrix[0]):
        raise InvalidData(f"there are {len(initial)} initial accuracies for {len(matrix[0])} tasks: give one a task")
    if rows < 2:
        return None
    return _mean([matrix[j - 1][j] - initial[j] for j in range(1, rows)])


def _check(matrix: Matrix) -> int:
    """The number of rows, of a matrix that is one."""
    widths = {len(row) for row in matrix}
    if len(widths) != 1 or not 0 < len(matrix) <= min(widths):
        raise InvalidData(
            f"an accuracy matrix has a row for each task learned and a column for each task, at least one of each and "
            f"no more rows than columns; this one has {len(matrix)} row(s) of length {sorted(widths)}"
        )
    return len(matrix)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
