"""AlexNet for small images: its layers, its starting weights, and that it can be certified."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import intercontinet as icn
from intercontinet.bounds import Network
from intercontinet.nets import alexnet

LAYERS = [
    "Conv2d(3, 64, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1))",
    "ReLU()",
    "MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)",
    "Conv2d(64, 192, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))",
    "ReLU()",
    "MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)",
    "Conv2d(192, 384, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))",
    "ReLU()",
    "Conv2d(384, 256, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))",
    "ReLU()",
    "Conv2d(256, 256, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))",
    "ReLU()",
    "MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)",
    "Flatten(start_dim=1, end_dim=-1)",
    "Dropout(p=0.5, inplace=False)",
    "Linear(in_features=1024, out_features=4096, bias=True)",
    "ReLU()",
    "Dropout(p=0.5, inplace=False)",
    "Linear(in_features=4096, out_features=4096, bias=True)",
    "ReLU()",
    "Linear(in_features=4096, out_features=10, bias=True)",
]


@pytest.fixture(scope="module")
def net() -> nn.Sequential:
    """Drawn once: it is large."""
    return alexnet(10, seed=1)


def test_its_layers_are_those_of_the_paper(net: nn.Sequential) -> None:
    assert [repr(layer) for layer in net] == LAYERS
    assert sum(p.numel() for p in net.parameters()) == 23_272_266
    assert net.training and all(p.requires_grad and p.dtype == torch.float32 for p in net.parameters())
    assert Network(net).drops


def test_an_image_shrinks_from_layer_to_layer(net: nn.Sequential) -> None:
    x = torch.rand(2, 3, 32, 32)
    sizes = [tuple(x.shape[1:])]
    for layer in net:
        x = layer(x)
        if isinstance(layer, (nn.Conv2d, nn.MaxPool2d, nn.Linear)):
            sizes.append(tuple(x.shape[1:]))
    assert sizes == [
        (3, 32, 32), (64, 16, 16), (64, 8, 8), (192, 8, 8), (192, 4, 4), (384, 4, 4), (256, 4, 4), (256, 4, 4),
        (256, 2, 2), (4096,), (4096,), (10,),
    ]  # fmt: skip


def test_a_seed_fixes_the_weights_and_leaves_the_global_generator_alone(net: nn.Sequential) -> None:
    before = torch.get_rng_state()
    again, other = alexnet(10, seed=1), alexnet(10, channels=1, seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(torch.equal, net.parameters(), again.parameters()))
    assert other.get_parameter("0.weight").shape == (64, 1, 3, 3)
    assert not torch.equal(other.get_parameter("3.weight"), net.get_parameter("3.weight"))


def test_biases_start_at_zero_and_weights_fill_one_over_root_fan_in(net: nn.Sequential) -> None:
    for layer, fan_in in [(net[0], 27), (net[3], 576), (net[8], 3456), (net[15], 1024), (net[20], 4096)]:
        assert isinstance(layer, (nn.Linear, nn.Conv2d)) and layer.bias is not None and not layer.bias.any()
        largest = float(layer.weight.detach().abs().max())
        assert 0.98 * fan_in**-0.5 < largest <= fan_in**-0.5


def test_it_can_be_certified(net: nn.Sequential) -> None:
    """Evaluated, though it trains: a head that leans to class 7 so far that even the worst rounding, which adds up to
    hundreds through eight layers in any order, cannot make up for it; and two labels."""
    bias = net.get_parameter("20.bias")
    with torch.no_grad():
        bias[7] = 2000
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    floor = icn.certify(net.train(), icn.Region.around(net, {"20.bias": 100.0}), (x, torch.tensor([7, 3])))
    assert (floor.certified, floor.correct, floor.total) == (1, 1, 2)
    assert net.training
    with torch.no_grad():
        bias.zero_()
