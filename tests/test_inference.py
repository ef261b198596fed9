"""Settings of torch that decide how products are rounded: set for a while, one thread at a time, and put back."""

from __future__ import annotations

from threading import Event, Thread

import pytest
import torch
from torch import nn

from intercontinet.inference import evaluated, products


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_settings_hold_inside_and_are_put_back_even_after_an_error(precision: str) -> None:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.enabled

    def interrupted() -> None:
        with products(precision, fast_convolutions=False):
            assert torch.get_float32_matmul_precision() == precision and not torch.backends.cudnn.enabled
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.enabled) == before


def test_an_exact_evaluation_is_not_disturbed_by_another_thread() -> None:
    model, entered, inside = nn.Linear(1, 1), Event(), Event()

    def other() -> None:
        entered.set()
        with products("high"):
            inside.set()

    with evaluated(model):
        thread = Thread(target=other)
        thread.start()
        assert entered.wait(5) and not inside.wait(0.1), "it waits for its turn"
        assert torch.get_float32_matmul_precision() == "highest" and not torch.backends.cudnn.enabled
    thread.join(5)
    assert inside.is_set()


def test_an_exact_evaluation_keeps_fast_convolutions_out_and_a_measuring_one_lets_them_in() -> None:
    model = nn.Linear(1, 1).train()
    for exact in (True, False):
        with evaluated(model, exact):
            assert torch.backends.cudnn.enabled is not exact and not torch.backends.cudnn.allow_tf32
            assert not model.training
    assert model.training
