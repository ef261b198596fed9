"""Parameters in one vector and back."""

from __future__ import annotations

import torch

from intercontinet.engine.layout import Layout

TENSORS = {"w": torch.randn(3, 2), "scalar": torch.tensor(7.0), "b": torch.randn(3)}


def test_flatten_then_unflatten_gives_the_same_tensors() -> None:
    layout = Layout.of(TENSORS)
    vector = layout.flatten(TENSORS)
    assert vector.shape == (10,)
    back = layout.unflatten(vector)
    assert list(back) == list(TENSORS)
    assert all(torch.equal(back[name], tensor) for name, tensor in TENSORS.items())


def test_the_order_is_the_layouts_own_and_leading_axes_stay() -> None:
    layout = Layout.of(TENSORS)
    shuffled = {name: TENSORS[name] for name in ("b", "w", "scalar")}
    assert torch.equal(layout.flatten(shuffled), layout.flatten(TENSORS))
    stack = torch.arange(2 * 5 * 10.0).reshape(2, 5, 10)
    parts = layout.unflatten(stack)
    assert {name: tuple(part.shape) for name, part in parts.items()} == {
        "w": (2, 5, 3, 2),
        "scalar": (2, 5),
        "b": (2, 5, 3),
    }
    assert torch.equal(parts["w"][1, 4], stack[1, 4, :6].reshape(3, 2))


def test_parts_are_views_that_follow_the_vector() -> None:
    stack = torch.zeros(2, 10)
    parts = Layout.of(TENSORS).unflatten(stack)
    stack.fill_(1.0)
    assert all(bool((part == 1).all()) for part in parts.values())
