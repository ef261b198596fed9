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


def test_layers_are_drawn_first_to_last_each_within_its_own_reach() -> None:
    """The starting weights of a seed, by their formula: no rearrangement of the code may change them."""
    generator = torch.Generator().manual_seed(7)
    net = mlp(9, [5, 4], 3, seed=7)
    assert [type(layer) for layer in net] == [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    for place, fan_in, fan_out in ((1, 9, 5), (3, 5, 4), (5, 4, 3)):
        expected = torch.empty(fan_out, fan_in).uniform_(-(fan_in**-0.5), fan_in**-0.5, generator=generator)
        assert torch.equal(net.get_parameter(f"{place}.weight"), expected)


def test_without_a_seed_weights_come_from_the_global_generator() -> None:
    torch.manual_seed(5)
    first = mlp(4, [3], 2)
    torch.manual_seed(5)
    second = mlp(4, [3], 2)
    assert all(map(torch.equal, first.parameters(), second.parameters()))
    assert not torch.equal(mlp(4, [3], 2).get_parameter("1.weight"), first.get_parameter("1.weight"))
