"""A model as certificates speak of it: evaluated, in plain float32, in batches that memory holds."""

from __future__ import annotations

import random
from collections.abc import Callable
from threading import Event, Thread

import pytest
import torch
from torch import Tensor, nn

import intercontinet as icn
from intercontinet import inference
from intercontinet.errors import UnsupportedLayer
from intercontinet.inference import BYTES_A_BOUND, BYTES_AT_ONCE, check_alone, evaluated, examples_at_once
from intercontinet.precision import products
from intercontinet.question import Passes


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


class Odd(nn.Module):
    """A linear layer, and what is asked for after it: [batch, 4] -> [batch, 3]."""

    def __init__(self, after: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.after = nn.Linear(4, 3), after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.layer(x))


def drawn(h: Tensor) -> Tensor:
    return h * random.random()


@pytest.mark.parametrize(
    ("after", "complaint"),
    [
        (lambda h: h - h.mean(0), r"another output for example 0 by itself than in a batch of 24: it mixes"),
        (lambda h: h.softmax(0), "it mixes examples"),
        (lambda h: h if len(h) > 1 else -h, "it mixes examples"),
        (lambda h: torch.cat([h[:1], h[1:] * h[:1]]), "for example 8 by itself"),
        (drawn, "other outputs for the same inputs when it runs again"),
    ],
)
def test_models_that_mix_examples_or_draw_are_refused_wherever_something_is_promised(
    after: Callable[[Tensor], Tensor], complaint: str
) -> None:
    random.seed(0)
    torch.manual_seed(0)
    model, x = Odd(after), torch.randn(24, 4)
    data = x, torch.zeros(24, dtype=torch.int64)
    with pytest.raises(UnsupportedLayer, match=complaint):
        check_alone(model, x)
    for drift in (None, 0.0):
        region = icn.Region.around(model, 0.0)
        with pytest.raises(UnsupportedLayer, match=complaint):
            icn.certify(model, region, data, drift=drift)
        with pytest.raises(UnsupportedLayer, match=complaint):
            icn.protect(model, data, drift=drift, steps=0)


@pytest.mark.parametrize("after", [lambda h: h * torch.inf, lambda h: (h - h) / (h - h), lambda h: h * 0, torch.relu])
def test_others_pass_and_stay_as_they_are(after: Callable[[Tensor], Tensor]) -> None:
    model = Odd(after).train()
    check_alone(model, torch.randn(5, 4))
    check_alone(model, torch.randn(1, 4))
    assert model.training and model.layer.training


def test_pieces_are_as_large_as_memory_allows() -> None:
    assert examples_at_once(torch.zeros(9, 784)) == 512
    assert 8 < examples_at_once(torch.zeros(2, 3, 224, 224)) < 100
    tenth = BYTES_AT_ONCE // BYTES_A_BOUND // 10
    assert examples_at_once(torch.zeros(9, 784), recorded=tenth) == 10
    assert examples_at_once(torch.zeros(9, 784), recorded=100 * tenth) == 8
    model, x = Odd(torch.relu), torch.randn(40, 4)
    region = icn.Region.around(model, 0.0)
    passes = Passes(x, model, region, (), None, quick=False)
    assert passes.size == 512
    assert next(iter(passes))[1].recorded == 40 * (3 + 3)


def test_a_wide_model_is_bounded_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Odd(torch.relu), torch.randn(40, 4)
    region = icn.Region.around(model, 0.01)
    data = x, model(x).argmax(1)
    floor = icn.certify(model, region, data)
    monkeypatch.setattr(inference, "BYTES_AT_ONCE", 13 * 6 * BYTES_A_BOUND)
    for size, expected in ((None, 13), (5, 5)):
        passes = Passes(x, model, region, (), None, quick=False, size=size)
        assert next(len(x[where]) for where, _ in passes) == expected
    assert icn.certify(model, region, data) == floor
