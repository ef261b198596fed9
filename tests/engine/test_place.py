"""Both ways of counting batches: they must tell the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from intercontinet.engine.place import WINDOW, InPython, InTensors, Place


def walked(place: Place, epochs: int, count: int, order: Tensor) -> list[tuple[list[int], int, list[float]]]:
    """Rows, position and means at every batch, with statistics that tell which batch it was."""
    told, batch = [], 0
    for _ in range(epochs):
        place.begin()
        for _ in range(count):
            rows, position = place.rows(order)[0].tolist(), int(place.position)
            batch += 1
            place.step(lambda number=batch: torch.tensor([[float(number)]]))  # type: ignore[misc]
            told.append((rows, position, place.means().flatten().tolist()))
    return told


@pytest.mark.parametrize("count", [3, 10, 14])
def test_python_and_tensors_count_alike(count: int) -> None:
    order = torch.randperm(4 * count, generator=torch.Generator().manual_seed(0))[None]
    recent = [torch.zeros(WINDOW, 1, 1) for _ in range(2)]
    places: list[Place] = [InPython(recent[0], count, 4, watched=True), InTensors(recent[1], 4)]
    one, other = (walked(place, 3, count, order) for place in places)
    assert one == other
    assert [rows for rows, _, _ in one[:count]] == order.view(count, 4).tolist()
    assert [position for _, position, _ in one[:count]] == list(range(0, 4 * count, 4))
    numbers = [float(n) for n in range(1, 3 * count + 1)]
    for n, (_, _, means) in enumerate(one, 1):
        last = numbers[max(0, n - WINDOW) : n]
        assert means == [pytest.approx(sum(last) / len(last))]


def test_statistics_that_nobody_looks_at_are_not_computed() -> None:
    asked: list[int] = []
    place = InPython(torch.zeros(WINDOW, 1, 1), count=25, size=2, watched=False)
    for epoch in range(2):
        place.begin()
        for batch in range(25):
            place.step(lambda number=25 * epoch + batch: asked.append(number) or torch.ones(1, 1))  # type: ignore
    assert asked == [*range(15, 25), *range(40, 50)]
