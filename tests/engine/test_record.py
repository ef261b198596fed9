"""Recording a step: only on a GPU, where what a replay does must be what the step does."""

from __future__ import annotations

import pytest
import torch

from intercontinet.engine.record import recorded


def test_elsewhere_than_on_a_gpu_a_step_is_left_alone_and_not_tried() -> None:
    count = torch.zeros(1)

    def step() -> None:
        count.add_(1)

    assert recorded(step, [count], torch.device("cpu")) is step
    assert float(count) == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_recorded_step_counts_from_where_it_was_and_sees_what_changes() -> None:
    device = torch.device("cuda")
    values, by = torch.zeros(3, device=device), torch.ones(3, device=device)

    def step() -> None:
        values.add_(by)

    take = recorded(step, [values], device)
    assert take is not step and values.tolist() == [0, 0, 0], "the trial step is undone"
    take()
    by.fill_(10)
    take()
    assert values.tolist() == [11, 11, 11]
