"""The multi-layer perceptron."""

from __future__ import annotations

import torch
from torch import nn

from intercontinet.nets import mlp


def test_a_seed_fixes_the_weights_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    first, second, other = mlp(4, [3], 2, seed=1), mlp(4, [3], 2, seed=1), mlp(4, [3], 2, seed=2)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(first.state_dict()["1.weight"], other.state_dict()["1.weight"])
    assert torch.equal(torch.rand(1), expected)


def test_biases_start_at_zero_and_weights_inside_one_over_root_fan_in() -> None:
    for layer in mlp(9, [5, 4], 3, seed=0):
        if isinstance(layer, nn.Linear):
            assert not layer.bias.any()
            assert float(layer.weight.detach().abs().max()) <= layer.in_features**-0.5
