"""Walking a module: which layers are taken, which are refused, how the refusal reads, and dropout by key."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from types import MethodType

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.utils import parametrizations

import intercontinet as icn
from intercontinet.bounds import Arithmetic, Float32, Network, Real, known_layers, registry, worst_margins
from intercontinet.errors import InvalidData, UnsupportedLayer
from intercontinet.interval import Interval
from intercontinet.noise import key_of
from intercontinet.region import Region


@pytest.fixture
def own_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules registered by a test are forgotten after it."""
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))


class Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x


class Doubled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = -2 * super().forward(input)
        return out


class Renamed(nn.Linear):
    """Another constructor, the same computation."""

    def __init__(self, size: int) -> None:
        super().__init__(size, size)


class Standardised(nn.Conv1d):
    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        out: Tensor = super()._conv_forward(input, weight - weight.mean(), bias)
        return out


class Residual(nn.Sequential):
    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = input + self[0](input)
        return out


def around(model: nn.Module, x: Tensor, radius: float = 0.1) -> Interval:
    return icn.bounds(model, Region.around(model, radius), x)


@pytest.mark.parametrize("conv", [False, True])
def test_running_steps_with_other_weights_equals_the_model_with_those_weights(conv: bool) -> None:
    torch.manual_seed(0)
    body = [nn.Conv1d(2, 3, 2), nn.Tanh(), nn.Flatten()] if conv else [nn.Flatten(), nn.Linear(8, 9)]
    model = nn.Sequential(nn.Sequential(*body), nn.ReLU(), nn.Linear(9, 2, bias=not conv))
    others = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    x = torch.randn(3, 2, 4)
    assert torch.equal(Network(model).run(others, x), functional_call(model, others, (x,)))
    head = {name: others[name] for name in others if name.startswith("2.")}
    assert torch.equal(Network(model).run(head, x), functional_call(model, head, (x,)))
    assert torch.equal(Network(model).run({}, x), model(x))


@pytest.mark.usefixtures("own_rules")
def test_a_users_rule_of_a_few_lines_takes_part_in_bounds() -> None:
    @icn.rule(Square)
    def square(layer: Square, parameters: Mapping[str, Interval], x: Interval, arithmetic: Arithmetic) -> Interval:
        low, up = x.lower.square(), x.upper.square()
        bottom = torch.where((x.lower < 0) & (x.upper > 0), 0.0, torch.minimum(low, up))
        return arithmetic.function(Interval(bottom, torch.maximum(low, up), nonnegative=True), x, ulps=1)

    model = nn.Sequential(nn.Linear(3, 4), Square(), nn.Linear(4, 2))
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    assert around(model, x).contains(model(x).detach())
    assert "Square" in known_layers()


def test_rules_of_other_tests_are_forgotten() -> None:
    assert "Square" not in known_layers()


@pytest.mark.usefixtures("own_rules")
def test_a_rule_may_have_parameters_of_its_own() -> None:
    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.by = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.by

    @icn.rule(Shift)
    def shift(layer: Shift, parameters: Mapping[str, Interval], x: Interval, arithmetic: Arithmetic) -> Interval:
        by = parameters["by"]
        out = Interval(x.lower + by.lower, x.upper + by.upper)
        return arithmetic.products(out, lambda: x.magnitude + by.magnitude, terms=2)

    out = around(Shift(), torch.zeros(1, 2), radius=0.5)
    torch.testing.assert_close(out.lower, torch.full((1, 2), 0.5, dtype=torch.float64), rtol=0, atol=1e-6)
    torch.testing.assert_close(out.upper, torch.full((1, 2), 1.5, dtype=torch.float64), rtol=0, atol=1e-6)


def test_a_layer_without_a_rule_is_named_by_its_path_with_those_that_have_one() -> None:
    model = nn.Sequential(OrderedDict(body=nn.Sequential(nn.Linear(2, 2), nn.Bilinear(2, 2, 2)), head=nn.Linear(2, 2)))
    with pytest.raises(UnsupportedLayer) as caught:
        Network(model)
    message = str(caught.value)
    assert "layer 'body.1' (Bilinear) has no rule" in message
    assert "@intercontinet.rule(Bilinear)" in message
    assert all(name in message for name in known_layers())


def test_a_model_that_is_itself_without_a_rule_is_said_to_be_so() -> None:
    with pytest.raises(UnsupportedLayer, match=r"the model itself \(Square\) has no rule"):
        Network(Square())


def test_every_layer_of_the_first_release_has_a_rule() -> None:
    names = (
        "Linear Conv1d Conv2d ReLU LeakyReLU ReLU6 Hardtanh Tanh Sigmoid Softplus ELU GELU SiLU Hardswish MaxPool1d "
    )
    names += "MaxPool2d AvgPool1d AvgPool2d AdaptiveAvgPool1d AdaptiveAvgPool2d Flatten Dropout Identity BatchNorm1d"
    assert set(names.split()) <= set(known_layers())


@pytest.mark.parametrize("layer", [Doubled(2, 2), Standardised(1, 1, 2), Residual(nn.Linear(2, 2))])
def test_a_subclass_that_computes_something_else_is_refused(layer: nn.Module) -> None:
    with pytest.raises(UnsupportedLayer, match=rf"layer '0' \({type(layer).__name__}\) has no rule"):
        Network(nn.Sequential(layer))


@pytest.mark.parametrize("layer", [nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))])
def test_a_layer_whose_own_forward_was_replaced_is_refused(layer: nn.Module) -> None:
    layer.forward = MethodType(lambda self, x: -x, layer)
    with pytest.raises(UnsupportedLayer, match="layer '0'"):
        Network(nn.Sequential(layer))


def test_a_subclass_with_the_same_computation_is_taken() -> None:
    model = nn.Sequential(Renamed(3), nn.ReLU())
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    assert around(model, x).contains(model(x).detach())


@pytest.mark.parametrize("at", ["", "0", "1"])
def test_forward_hooks_are_refused_wherever_they_are(at: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()))
    handle = model.get_submodule(at).register_forward_hook(lambda module, args, out: -out)
    with pytest.raises(UnsupportedLayer, match="forward hooks"):
        Network(model)
    handle.remove()
    handle = model.get_submodule(at).register_forward_pre_hook(lambda module, args: (-args[0],))
    with pytest.raises(UnsupportedLayer, match="forward hooks"):
        Network(model)
    handle.remove()
    assert len(Network(model).steps) == 2


def test_parametrizations_are_refused_with_the_way_out() -> None:
    model = nn.Sequential(nn.ReLU(), parametrizations.weight_norm(nn.Linear(2, 2)))
    with pytest.raises(UnsupportedLayer, match=r"layer '1'.*remove_parametrizations"):
        Network(model)


def test_nesting_changes_nothing() -> None:
    flat = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    nested = nn.Sequential(nn.Sequential(flat[0], nn.Sequential(flat[1])), nn.Sequential(), flat[2])
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    a, b = around(flat, x), around(nested, x)
    assert torch.equal(a.lower, b.lower) and torch.equal(a.upper, b.upper)


def test_a_layer_used_twice_and_a_tied_weight_are_covered() -> None:
    generator = torch.Generator().manual_seed(0)
    shared = nn.Linear(3, 3)
    tied = nn.Linear(3, 3)
    tied.weight = shared.weight
    model = nn.Sequential(shared, nn.Tanh(), shared, tied)
    region = Region.around(model, 0.2)
    x = torch.randn(4, 3, generator=generator)
    box = icn.bounds(model, region, x)
    for _ in range(50):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                low, up = region.lower[name], region.upper[name]
                parameter.copy_(torch.where(torch.rand(low.shape, generator=generator) < 0.5, low, up))
        assert box.contains(model(x).detach())


def test_the_model_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Dropout(inplace=True), nn.Linear(4, 2)).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x = torch.randn(4, 3)
    kept = x.clone()
    around(model, x)
    assert torch.equal(x, kept) and model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.usefixtures("own_rules")
def test_a_last_layer_with_a_rule_of_its_own_is_not_taken_for_a_plain_linear_head() -> None:
    @icn.rule(Doubled)
    def doubled(layer: Doubled, parameters: Mapping[str, Interval], x: Interval, arithmetic: Arithmetic) -> Interval:
        out = registry._RULES[nn.Linear](layer, parameters, x, arithmetic)
        return arithmetic.function(Interval(-2 * out.upper, -2 * out.lower), out, ulps=2)

    model = nn.Sequential(Doubled(2, 2))
    assert Network(model).head is None
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    labels = torch.zeros(6, dtype=torch.long)
    out = model(x).detach().double()
    margins = worst_margins(
        Network(model),
        Region.around(model, 0.0).intervals(torch.float64),
        Interval.point(x.double()),
        labels,
        Float32(),
    )
    torch.testing.assert_close(margins[:, 1], out[:, 1] - out[:, 0], rtol=1e-5, atol=1e-5)


def test_the_head_is_the_last_layer_if_it_is_linear() -> None:
    linear = nn.Linear(2, 2)
    head = Network(nn.Sequential(nn.ReLU(), linear)).head
    assert head is not None and head.layer is linear and dict(head.names) == {"weight": "1.weight", "bias": "1.bias"}
    assert Network(nn.Sequential(linear, nn.ReLU())).head is None
    assert Network(nn.Sequential()).head is None


def test_a_claim_that_inputs_are_nonnegative_is_not_taken_on_trust() -> None:
    model = nn.Linear(2, 1)
    low, up = torch.full((1, 2), -2.0), torch.full((1, 2), 1.0)
    honest = icn.bounds(model, Region.around(model, 0.5), Interval(low, up))
    claimed = icn.bounds(model, Region.around(model, 0.5), Interval(low, up, nonnegative=True))
    assert torch.equal(honest.lower, claimed.lower) and torch.equal(honest.upper, claimed.upper)


def test_input_edges_in_the_wrong_order_or_shape_are_refused() -> None:
    model = nn.Linear(2, 1)
    region = Region.around(model, 0.1)
    with pytest.raises(InvalidData, match="lower edge lies above"):
        icn.bounds(model, region, Interval(torch.ones(1, 2), torch.zeros(1, 2)))
    with pytest.raises(InvalidData, match="another shape"):
        icn.bounds(model, region, Interval(torch.zeros(1, 2), torch.ones(3, 2)))


def test_bounds_of_everything_are_infinite_and_never_nan() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    out = icn.bounds(model, Region.everything(model), torch.zeros(2, 2))
    assert (out.lower == -torch.inf).all() and (out.upper == torch.inf).all()


def test_propagating_with_real_arithmetic_keeps_the_dtype() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    boxes = Region.around(model, 0.1).intervals()
    out = Network(model).propagate(boxes, Interval.point(torch.ones(4, 2)), Real())
    assert out.lower.dtype == torch.float32 and out.shape == (4, 1)


# Dropout by key.

NOISE = torch.tensor(key_of(1))


def dropped(layer: nn.Module, x: Tensor, noise: Tensor | None = NOISE) -> Tensor:
    return Network(nn.Sequential(layer)).run({}, x, noise)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_dropout_zeroes_its_share_of_single_values_and_scales_up_the_rest(share: float) -> None:
    x = 1 + torch.rand(100, 20, 5)
    out = dropped(nn.Dropout(share), x)
    kept = out != 0
    assert float(kept.float().mean()) == pytest.approx(1 - share, abs=0.02)
    torch.testing.assert_close(out[kept], x[kept] / (1 - share))
    for axis in ((0,), (1, 2)):
        along = kept.float().mean(axis)
        assert bool(((along > 0) & (along < 1)).all()), "scattered over examples and features"


@pytest.mark.parametrize(("layer", "size"), [(nn.Dropout1d(0.3), (7,)), (nn.Dropout2d(0.3), (3, 4))])
def test_dropout_of_channels_drops_them_whole(layer: nn.Module, size: tuple[int, ...]) -> None:
    x = 1 + torch.rand(200, 10, *size)
    out = dropped(layer, x)
    kept = (out != 0).flatten(2)
    assert torch.equal(kept.any(2), kept.all(2))
    assert float(kept.float().mean()) == pytest.approx(0.7, abs=0.04)
    torch.testing.assert_close(out[out != 0], x[out != 0] / 0.7)


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.Dropout1d(0.5), nn.Dropout2d(0.5)])
def test_nothing_is_dropped_without_noise_or_in_evaluation_mode(layer: nn.Module) -> None:
    x = torch.randn(4, 3, 2, 2) if isinstance(layer, nn.Dropout2d) else torch.randn(4, 3, 2)
    assert torch.equal(dropped(layer, x, noise=None), x)
    assert not torch.equal(dropped(layer, x), x)
    assert torch.equal(dropped(layer.eval(), x), x)


def test_a_share_of_none_or_all_is_dropped_exactly() -> None:
    x = torch.randn(4, 3)
    assert torch.equal(dropped(nn.Dropout(0.0), x), x)
    assert torch.equal(dropped(nn.Dropout(1.0), x), torch.zeros(4, 3))
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(dropped(nn.Dropout(1.0), leaf).sum(), leaf)
    assert torch.equal(slope, torch.zeros(4, 3))


def test_the_key_and_the_place_decide_what_is_dropped_and_nothing_else_does() -> None:
    x = torch.ones(30, 30)
    after = torch.get_rng_state()
    first = dropped(nn.Dropout(0.5), x)
    assert torch.equal(torch.get_rng_state(), after), "torch's generator takes no part"
    torch.rand(1)
    assert torch.equal(dropped(nn.Dropout(0.5), x), first)
    assert not torch.equal(dropped(nn.Dropout(0.5), x, torch.tensor(key_of(2))), first)
    twice = Network(nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))).run({}, x, NOISE)
    assert 0.2 < float((twice != 0).float().mean()) < 0.3, "two layers drop independently"
    inplace = nn.Dropout(0.5, inplace=True)
    assert torch.equal(dropped(inplace, x), first) and torch.equal(x, torch.ones(30, 30))


def test_keyed_dropout_is_the_same_alone_or_stacked_and_gradients_follow_the_mask() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2))
    network, x = Network(model), torch.randn(5, 3)
    noises = torch.tensor([key_of(seed) for seed in range(3)])
    stacked = vmap(lambda noise: network.run({}, x, noise))(noises)
    for row, noise in zip(stacked, noises, strict=True):
        torch.testing.assert_close(row, network.run({}, x, noise))
    assert not torch.allclose(stacked[0], stacked[1])
    values = torch.randn(6, 6, requires_grad=True)
    out = dropped(nn.Dropout(0.5), values)
    (slope,) = torch.autograd.grad(out.sum(), values)
    assert torch.equal(slope, torch.where(out != 0, 2.0, 0.0))


def test_a_network_says_whether_it_drops() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout2d(0.5)), nn.Dropout(0.5))
    assert Network(model.train()).drops and not Network(model.eval()).drops
    model[2].train()
    assert Network(model).drops
    assert not Network(nn.Sequential(nn.Linear(2, 2), nn.ReLU()).train()).drops


def test_bounds_while_training_drop_nothing_and_leave_the_global_generator_alone() -> None:
    plain = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    model = nn.Sequential(plain[0], nn.Dropout(0.5), plain[1], nn.Dropout(0.5), plain[2]).train()
    x, after = Interval.point(torch.randn(5, 3)), torch.get_rng_state()
    labels = torch.zeros(5, dtype=torch.long)
    found = []
    for net in (plain, model):
        boxes = Region.around(net, 0.1).intervals()
        out = Network(net).propagate(boxes, x, Real())
        found.append((out.lower, out.upper, worst_margins(Network(net), boxes, x, labels, Real())))
    assert all(map(torch.equal, *found))
    assert torch.equal(torch.get_rng_state(), after)
