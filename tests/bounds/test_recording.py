"""Following forward passes: what is noted, what is refused and how that reads, and that models stay as they were."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrizations

import intercontinet as icn
from intercontinet.bounds import Arithmetic, Float32, Real, in_float64, leads, registry
from intercontinet.bounds.forward import Chain, Pass, forward
from intercontinet.bounds.recording import record
from intercontinet.bounds.tape import Known
from intercontinet.errors import InvalidData, InvalidModel, InvalidRegion, TrainingMode, UnsupportedLayer
from intercontinet.interval import Interval
from intercontinet.region import Region
from tests.strategies import weights_inside

HERE = str(Path(__file__))


@pytest.fixture
def own_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules registered by a test are forgotten after it."""
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))


class Net(nn.Module):
    """Two layers, and between them whatever is asked for: [batch, 4] -> [batch, 3]."""

    steps: Tensor
    causal: Tensor
    table: Tensor

    def __init__(self, between: Callable[..., Any] = lambda net, h: h, size: int = 4) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(size, 3)
        self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("causal", torch.tril(torch.ones(4, 4)))
        self.register_buffer("table", torch.arange(4.0), persistent=False)
        self.plain = torch.arange(4.0)
        self.between = between
        self.eval()

    def forward(self, x: Tensor) -> Any:
        return self.last(self.between(self, self.first(x)))


def inputs(batch: int = 3) -> Tensor:
    return torch.randn(batch, 4, generator=torch.Generator().manual_seed(7))


def state(model: nn.Module) -> tuple[dict[str, Tensor], list[bool], list[dict[str, Any]], list[int]]:
    modules = list(model.modules())
    copies = {name: t.detach().clone() for name, t in (*model.named_parameters(), *model.named_buffers())}
    same = [id(t) for t in (*model.parameters(), *model.buffers())]
    return copies, [m.training for m in modules], [dict(vars(m)) for m in modules], same


def check_unchanged(model: nn.Module, before: tuple[Any, ...]) -> None:
    after = state(model)
    assert before[1:] == after[1:]
    assert all(torch.equal(tensor, after[0][name]) for name, tensor in before[0].items())


@torch.no_grad()
def check_contained(model: nn.Module, x: Tensor | tuple[Tensor, ...], radius: float = 0.05) -> Interval:
    generator = torch.Generator().manual_seed(0)
    region = Region.around(model, radius)
    before = state(model)
    box = icn.bounds(model, region, x)
    check_unchanged(model, before)
    weights = weights_inside(region, 30, generator)
    given = x if isinstance(x, tuple) else (x,)
    for index in range(30):
        copies = tuple(part.clone() for part in given)
        assert box.contains(functional_call(model, {n: w[index] for n, w in weights.items()}, copies))
    return box


def looped(net: Net, h: Tensor) -> Tensor:
    total = torch.zeros_like(h)
    for i in range(h.shape[1]):
        if i % 2 == 0 and len(h) > 1:
            total = total + h.roll(i, 1)
    return total / h.size(1)


def written_by_parts(net: Net, h: Tensor) -> Tensor:
    out = torch.empty(len(h), 4)
    out[:, :2] = h[:, 2:]
    out[:, 2:] = h[:, :2] * 2
    return out


def parts_in_place(net: Net, h: Tensor) -> Tensor:
    out = torch.zeros_like(h)
    out[:, 1:] += h[:, :3]
    out[:, 0] = 1.0
    out[1][2:].mul_(-2.0)
    part = out[:, :2]
    part.add_(h[:, 2:])
    h[0, 1] += 0.3
    return out + h + part.repeat(1, 2)


def in_place(net: Net, h: Tensor) -> Tensor:
    h += 1
    h.mul_(net.table).relu_()
    h[:, 0] = -1.5
    return h


def masked(net: Net, h: Tensor) -> Tensor:
    scores = h[:, :, None] * h[:, None, :]
    scores = scores.masked_fill(net.causal[:4, :4] == 0, float("-inf"))
    return (scores.softmax(-1) @ h[:, :, None]).squeeze(-1)


def caught(net: Net, h: Tensor) -> Tensor:
    try:
        return h * float(h.sum() > 0)
    except TypeError:
        return h


def remembered(net: Net, h: Tensor) -> Tensor:
    net.last_seen = h
    net.notes = ["seen"]  # type: ignore[assignment]
    return h


FINE: dict[str, Callable[[Any, Tensor], Any]] = {
    "nothing": lambda net, h: h,
    "residual": lambda net, h: h + net.first(h),
    "loop over shapes": looped,
    "by parts": written_by_parts,
    "in place": in_place,
    "parts in place": parts_in_place,
    "a mask from a buffer": masked,
    "dropout": lambda net, h: net.drop(F.dropout(h, training=net.training)),
    "batch norm": lambda net, h: net.norm(h),
    "keyword": lambda net, h: net.first(input=h),
    "functional": lambda net, h: F.linear(h, net.first.weight.T, bias=net.first.bias),
    "tied weights": lambda net, h: h @ net.first.weight + (h @ net.first.weight.t()).tanh(),
    "a buffer that is not saved": lambda net, h: h * net.table,
    "branch on mode": lambda net, h: h if not net.training else h.item(),
    "branch on a known number": lambda net, h: h * 2 if bool((net.table > 1).any()) else h,
    "attributes that are set": remembered,
    "no_grad inside": lambda net, h: torch.no_grad()(lambda: h + 1)(),
    "beside a thread that runs the same layers": lambda net, h: beside_a_thread(net, h),
    "unpacked": lambda net, h: torch.stack([*h]),
    "swapped weights": lambda net, h: functional_call(
        net.norm, {"weight": net.last.weight[0] * 3, "bias": h.mean(0)}, (h,)
    ),
    "times itself": lambda net, h: h * h - (h + 1) * (h + 1),
    "sum of a list": lambda net, h: sum([h, h.neg(), h * 0.3]),
    "assertions": lambda net, h: h if h.dim() == 2 and h.dtype == torch.float32 and h.shape[1] == 4 else h.nope,  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("which", list(FINE))
def test_outputs_of_any_weights_lie_inside_and_the_model_is_as_before(which: str) -> None:
    check_contained(Net(FINE[which]), inputs())


def counted(net: Net, h: Tensor) -> Tensor:
    net.steps += 1
    return h


def replaced(net: Net, h: Tensor) -> Tensor:
    net.steps = net.steps + 1
    return h


def in_a_view(net: Net, h: Tensor) -> Tensor:
    net.causal[0].mul_(2)
    return h


def stale_view(net: Net, h: Tensor) -> Tensor:
    part = h[:, :2]
    h.add_(1)
    return torch.cat([part, part], 1)


def stale_base(net: Net, h: Tensor) -> Tensor:
    h.view(-1, 2, 2)[:, 0].add_(1)
    return h


def stale_sister(net: Net, h: Tensor) -> Tensor:
    left, right = h[:, :2], h[:, 1:3]
    left.add_(1)
    return torch.cat([left, right], 1)


def through_data(net: Net, h: Tensor) -> Tensor:
    h.data.add_(1)
    return h


def set_data(net: Net, h: Tensor) -> Tensor:
    h.data = h * 2
    return h


def in_a_thread(net: Net, h: Tensor) -> Tensor:
    out: list[Tensor] = []
    thread = threading.Thread(target=lambda: out.append(net.first(h).detach()))
    thread.start()
    thread.join()
    return out[0]


def written_in_a_thread(net: Net, h: Tensor) -> Tensor:
    thread = threading.Thread(target=lambda: h.mul_(2))
    thread.start()
    thread.join()
    return h


def beside_a_thread(net: Net, h: Tensor) -> Tensor:
    with torch.no_grad():
        other = threading.Thread(target=lambda: net.last(torch.zeros(1, 4)))
        other.start()
        other.join()
    return h


def script(what: Any) -> Any:
    """Compiled to what torch functions do not see."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(what)


def doubled(h: Tensor) -> Tensor:
    return h * 2


def double_in_place(h: Tensor) -> int:
    h.mul_(2)
    return 1


def hidden_write(net: Net, h: Tensor) -> Tensor:
    script(double_in_place)(h)
    return h


OUTSIDE = torch.ones(4)
REFUSED: dict[str, tuple[Callable[[Any, Tensor], Any], str]] = {
    "if": (lambda net, h: h if h.sum() > 0 else -h, "'gt'.*another branch.*rule.*freeze.*drift="),
    "if, equal": (lambda net, h: h if h[0, 0] == 0 else -h, "'eq'.*another branch"),
    "item": (lambda net, h: h * h.max().item(), "'item'.*turns values.*into Python.*freeze.*drift="),
    "float": (lambda net, h: h * float(h[0, 0]), "'float_'.*turns values"),
    "bool": (lambda net, h: h if h[0, 0] else -h, "'bool'.*turns values"),
    "numpy": (lambda net, h: h * h.numpy(), "'numpy'.*turns values"),
    "caught": (caught, "'gt'.*another branch"),
    "no rule": (lambda net, h: torch.erfinv(h), "'erfinv'.*has no rule"),
    "sort": (lambda net, h: h.sort(1)[0], "'sort'.*has no rule"),
    "random": (lambda net, h: h + torch.randn(4), "'randn'.*draws at random"),
    "dropout, always": (lambda net, h: F.dropout(h, 0.5, True), "'dropout'.*draws at random"),
    "random, in place": (lambda net, h: torch.zeros_like(h).uniform_() + h, "'uniform'.*draws at random"),
    "attention with dropout": (
        lambda net, h: F.scaled_dot_product_attention(h, h, h, None, 0.5),
        "draws at random",
    ),
    "a counter": (counted, "'add'.*changes a parameter or buffer"),
    "a new buffer": (replaced, "changes the buffers of Net"),
    "a view of a buffer": (in_a_view, "'mul'.*changes a parameter or buffer"),
    "a parameter in place": (lambda net, h: h + net.last.bias.mul_(1)[0], "'mul'.*changes a parameter or buffer"),
    "a stale view": (stale_view, "changed in place through another view"),
    "a stale base": (stale_base, "changed in place through another view"),
    "a stale sister": (stale_sister, "changed in place through another view"),
    "data, in place": (through_data, "changed in place through another view"),
    "data, set": (set_data, "'set_data'.*has no rule"),
    "global": (lambda net, h: h * OUTSIDE, "'mul'.*no parameter, buffer or input.*register_buffer"),
    "plain attribute": (lambda net, h: h * net.plain, "'mul'.*no parameter, buffer or input.*register_buffer"),
    "thread": (in_a_thread, "no parameter, buffer or input"),
    "thread, in place": (written_in_a_thread, "changed in place out of sight"),
    "script": (lambda net, h: script(doubled)(h), "runs out of sight"),
    "script, in place": (hidden_write, "runs out of sight"),
    "inference mode": (lambda net, h: torch.inference_mode()(lambda: h + 1)(), "an inference tensor"),
    "half": (lambda net, h: h.to(torch.bfloat16).float(), "gives bfloat16.*float32 alone"),
    "autocast": (
        lambda net, h: torch.autocast("cpu", torch.bfloat16)(lambda: net.first(h))().float(),
        "gives bfloat16",
    ),
    "running statistics": (
        lambda net, h: F.batch_norm(h, net.norm.running_mean, net.norm.running_var, training=True),
        "changes 'norm.running_mean' of the model",
    ),
    "max_norm": (lambda net, h: F.embedding(net.steps, net.first.weight, None, 0.1)[None], "changes in place"),
}


@pytest.mark.parametrize("which", list(REFUSED))
def test_what_cannot_be_promised_is_refused_and_the_model_is_as_before(which: str) -> None:
    between, complaint = REFUSED[which]
    model = Net(between)
    before = state(model)
    with pytest.raises(UnsupportedLayer, match=complaint):
        icn.bounds(model, Region.around(model, 0.1), inputs())
    if which != "max_norm":  # torch renorms rows before anybody could look
        check_unchanged(model, before)


@pytest.mark.parametrize("which", ["if", "item", "no rule", "random", "a counter", "global"])
def test_refusals_name_the_file_and_the_line(which: str) -> None:
    between, _ = REFUSED[which]
    model = Net(between)
    with pytest.raises(UnsupportedLayer) as refusal:
        icn.bounds(model, Region.around(model, 0.1), inputs())
    first = between.__code__.co_firstlineno
    lines = [first + offset for offset in range(4)]
    assert any(f"in {HERE}, line {line} " in str(refusal.value) for line in lines), refusal.value


def test_a_call_that_a_rule_does_not_cover_names_its_line_when_it_is_played() -> None:
    model = Net(lambda net, h: h.pow(2.5))
    with pytest.raises(UnsupportedLayer, match=rf"'pow' in {HERE}, line \d+: a power of 2\.5"):
        icn.bounds(model, Region.around(model, 0.1), inputs())


@pytest.mark.parametrize(
    "out", [lambda h: (h, h), lambda h: {"logits": h}, lambda h: None, lambda h: torch.ones(3).long()]
)
def test_anything_but_one_tensor_is_refused(out: Callable[[Tensor], Any]) -> None:
    class Several(Net):
        def forward(self, x: Tensor) -> Any:
            return out(super().forward(x))

    model = Several()
    with pytest.raises(InvalidModel, match="one float32 tensor: wrap the model"):
        icn.bounds(model, Region.around(model, 0.1), inputs())


def test_a_wrong_input_is_named_by_its_shape() -> None:
    model = Net(looped)
    with pytest.raises(InvalidData, match=r"input of shape \(3, 5\)"):
        icn.bounds(model, Region.around(model, 0.1), torch.zeros(3, 5))
    with pytest.raises(InvalidData, match=r"shape \(3, 4\), \(3, 4\)"):
        icn.bounds(model, Region.around(model, 0.1), (inputs(), inputs()))


def test_errors_of_the_models_own_leave_no_trace() -> None:
    def broken(net: Net, h: Tensor) -> Tensor:
        raise KeyError("mine")

    model = Net(broken)
    model.train()
    before = state(model)
    with pytest.raises(KeyError, match="mine"):
        icn.bounds(model, Region.around(model, 0.1), inputs())
    check_unchanged(model, before)


@pytest.mark.parametrize("training", [True, False])
def test_modes_of_every_module_come_back(training: bool) -> None:
    model = Net(FINE["dropout"])
    model.drop.train(training)
    model.first.train(not training)
    before = state(model)
    icn.bounds(model, Region.around(model, 0.1), inputs())
    check_unchanged(model, before)


def test_batch_norm_in_training_mode_is_refused_as_in_a_chain() -> None:
    model = Net(FINE["batch norm"]).train()
    with pytest.raises(TrainingMode, match=r"layer 'norm' \(BatchNorm1d\).*call model\.eval\(\)"):
        icn.bounds(model, Region.around(model, 0.1), inputs())


@pytest.mark.parametrize(
    "kind", ["hook", "pre-hook", "global", "parametrized", "forward", "compiled", "scripted", "norm"]
)
def test_models_that_do_not_do_what_their_code_says_are_refused(kind: str) -> None:
    model: nn.Module = Net(looped)
    assert isinstance(model, Net)
    remove: Callable[[], None] = lambda: None  # noqa: E731
    if kind == "hook":
        model.first.register_forward_hook(lambda m, given, out: out * 2)
    elif kind == "pre-hook":
        model.last.register_forward_pre_hook(lambda m, given: given)
    elif kind == "global":
        remove = nn.modules.module.register_module_forward_hook(lambda m, given, out: None).remove
    elif kind == "parametrized":
        parametrizations.weight_norm(model.first)
    elif kind == "forward":
        vars(model.last)["forward"] = torch.neg
    elif kind == "compiled":
        model.first.compile(backend="eager")
    elif kind == "scripted":
        model.first = script(nn.Linear(4, 4))
    else:
        model.words = nn.Embedding(3, 4, max_norm=1.0)
    complaints = {
        "global": "global forward hooks",
        "scripted": "is compiled",
        "norm": "max_norm",
        "forward": "forward of",
    }
    try:
        region = Region.around(model, 0.1)
        with pytest.raises(UnsupportedLayer, match=complaints.get(kind, kind.split("-")[-1])):
            icn.bounds(model, region, inputs())
    finally:
        remove()


def test_several_inputs_of_several_kinds() -> None:
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.fc = nn.Embedding(5, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor, rows: Tensor, there: Tensor) -> Tensor:
            out: Tensor = self.fc((x.unsqueeze(1) + self.words(rows)).masked_fill(~there[..., None], 0.0).sum(1))
            return out

    rows = torch.tensor([[0, 1], [4, 4], [2, 0]])
    check_contained(Several(), (inputs(), rows, rows > 0))
    wide = Interval(inputs(), inputs() + 0.5)
    model = Several()
    box = icn.bounds(model, Region.around(model, 0.0), (wide, rows, rows > 0))
    with torch.no_grad():
        for share in torch.linspace(0, 1, 9):
            assert box.contains(model(wide.lower.lerp(wide.upper, share).clamp(wide.lower, wide.upper), rows, rows > 0))


def test_an_interval_of_whole_numbers_is_refused() -> None:
    model = Net(looped)
    rows = torch.zeros(3, 4, dtype=torch.int64)
    with pytest.raises(InvalidData, match="known exactly"):
        icn.bounds(model, Region.around(model, 0.1), Interval(rows, rows + 1))


def test_a_parameter_used_twice_and_one_of_two_names() -> None:
    model = Net(lambda net, h: net.first(h), size=4)
    model.other = nn.Linear(4, 4)
    model.other.weight = model.first.weight
    model.between = lambda net, h: net.other(h) - net.first(h)
    check_contained(model, inputs())


def test_a_buffer_that_was_read_must_be_a_point_of_the_region() -> None:
    model = Net(FINE["a mask from a buffer"])
    point = Region.around(model, 0.0)
    for shift in ("upper", "both"):
        moved = {name: t + 1 if name == "causal" else t for name, t in point.upper.items()}
        region = Region(moved if shift == "both" else point.lower, moved)
        with pytest.raises(InvalidRegion, match=r"buffer 'causal'.*other values"):
            icn.bounds(model, region, inputs())


def test_inference_mode_around_it_is_no_hindrance() -> None:
    model, x = Net(looped), inputs()
    with torch.inference_mode():
        assert icn.bounds(model, Region.around(model, 0.1), x + 0).lower.isfinite().all()


@pytest.mark.usefixtures("own_rules")
def test_a_rule_for_a_whole_block_covers_what_is_inside() -> None:
    class Sign(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.inner = nn.Parameter(torch.ones(4)), nn.Linear(4, 4)

        def forward(self, x: Tensor, power: int = 1) -> dict[str, Tensor]:
            _ = self.inner(x)
            return {"sign": torch.sign(x) * self.scale if x.sum() > -1e9 else x, "same": x}

    @icn.rule(Sign)
    def sign(
        layer: Sign, parameters: Mapping[str, Interval], x: Interval, arithmetic: Arithmetic, power: int = 1
    ) -> dict[str, Interval]:
        assert set(parameters) == {"scale", "inner.weight", "inner.bias"} and power == 2
        size = parameters["scale"].magnitude.expand(x.shape)
        return {"sign": Interval(-size, size), "same": x}

    class Model(Net):
        def __init__(self) -> None:
            super().__init__(lambda net, h: self.choose(self.block(x=h, power=2)))
            self.block = Sign()

        def choose(self, parts: dict[str, Tensor]) -> Tensor:
            return parts["sign"] + 0.1 * parts["same"]

    check_contained(Model().eval(), inputs())


@pytest.mark.usefixtures("own_rules")
def test_a_rule_that_gives_another_shape_is_found_out() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    @icn.rule(Odd)
    def odd(layer: Odd, parameters: Mapping[str, Interval], x: Interval, arithmetic: Arithmetic) -> Interval:
        return x[:1]

    model = Net(lambda net, h: net.odd(h))
    model.odd = Odd()
    with pytest.raises(UnsupportedLayer, match=r"layer 'odd' \(Odd\): its rule gives \[1, 4\], and the model \[3, 4\]"):
        icn.bounds(model, Region.around(model, 0.1), inputs())


def unsupported(net: Net, h: Tensor) -> Tensor:
    return torch.erfinv(h.tanh() / 2) * (1.0 if float(h.sum()) > -1e9 else 2.0)


def head_region(model: nn.Module, radius: float = 0.1) -> Region:
    return Region.around(model, {"last.weight": radius, "last.bias": radius})


def played(model: nn.Module, region: Region, movable: list[str] | None, drift: float = 0.0) -> Pass:
    batch = forward(model, region.lower, [in_float64(Interval.point(inputs()))], movable, drift)
    assert isinstance(batch, Pass)
    return batch


@torch.no_grad()
def test_frozen_parts_are_taken_as_computed_whatever_they_are() -> None:
    model = Net(unsupported)
    region = head_region(model)
    with pytest.raises(UnsupportedLayer, match=r"'float_'|'erfinv'"):
        icn.bounds(model, region, inputs())
    features = unsupported(model, model.first(inputs()))
    boxes = region.intervals(torch.float64)
    batch = played(model, region, ["last.weight", "last.bias"])
    assert len(batch.tape.notes) == 1 and batch.ends_linear and batch.head_names == ("last.weight", "last.bias")
    hidden = batch.head(boxes, Float32())[0]
    assert hidden.is_point and torch.equal(hidden.lower, features.double())
    out = batch.outputs(boxes, Float32())
    naive = F.linear(features, model.last.weight, model.last.bias).double()
    room = 0.1 * (features.abs().sum(1, keepdim=True) + 1).double()
    torch.testing.assert_close(out.upper, naive + room, rtol=0, atol=1e-5)
    torch.testing.assert_close(out.lower, naive - room, rtol=0, atol=1e-5)


@pytest.mark.parametrize("drift", [1e-4, 0.1])
def test_drift_widens_what_was_computed_by_a_share_of_each_examples_largest_entry(drift: float) -> None:
    model = Net(lambda net, h: torch.erfinv(h.tanh() / 2))
    region, names = head_region(model), ["last.weight", "last.bias"]
    boxes = region.intervals(torch.float64)
    features = played(model, region, names).head(boxes, Float32())[0].lower
    hidden = played(model, region, names, drift).head(boxes, Float32())[0]
    slack = drift * features.abs().amax(1, keepdim=True)
    torch.testing.assert_close(hidden.upper, features + slack)
    torch.testing.assert_close(hidden.lower, features - slack)
    tight, wide = (played(model, region, names, d).outputs(boxes, Float32()) for d in (0.0, drift))
    assert bool((wide.lower < tight.lower).all() and (tight.upper < wide.upper).all())


@pytest.mark.parametrize(
    ("between", "complaint"),
    [
        (lambda net, h: F.one_hot(h.argmax(1), 4).float(), "'argmax'.*decides by values that frozen layers compute"),
        (lambda net, h: h * (h > 0), "'gt'.*decides by values"),
        (lambda net, h: h if h.sum() > -1e9 else -h, "'gt'.*decides by values.*drift=0"),
        (lambda net, h: h * float(h.max()), "'float_'.*decides by values"),
        (lambda net, h: h.gather(1, h.sort(1)[1]) + h, "indices"),
        (lambda net, h: h.long().float(), "'long'.*decides by values"),
    ],
)
def test_with_drift_nothing_may_be_decided_by_what_drifts(between: Callable[..., Any], complaint: str) -> None:
    model = Net(between)
    names = ["last.weight", "last.bias"]
    played(model, head_region(model), names)
    with pytest.raises(UnsupportedLayer, match=complaint):
        played(model, head_region(model), names, 1e-5)


def test_with_drift_inputs_constants_and_extremes_may_decide() -> None:
    def decided(net: Net, h: Tensor) -> Tensor:
        return h.max(1, keepdim=True)[0] + h.masked_fill(net.causal[0] == 0, 0.0)

    model = Net(decided)
    assert played(model, head_region(model), ["last.weight"], 1e-5).ends_linear


def test_inputs_and_frozen_weights_do_not_drift() -> None:
    model = Net(lambda net, h: h * net.table.exp())
    region = Region.around(model, {"first.weight": 0.1})
    tape = played(model, region, ["first.weight"], drift=0.5).tape
    known = [leaf for note in tape.notes for leaf in (*note.args, *note.kwargs.values()) if isinstance(leaf, Known)]
    assert [leaf.computed for leaf in known] == [False, True]  # the input, and what was computed from a table
    flattened = Net(lambda net, h: h)
    flattened.first = nn.Sequential(nn.Flatten(), nn.Linear(4, 4))  # type: ignore[assignment]
    tape = played(flattened, Region.around(flattened, {"first.1.weight": 0.1}), ["first.1.weight"], 0.5).tape
    assert isinstance(tape.notes[0].args[0], Known) and not tape.notes[0].args[0].computed


def test_what_moves_is_followed_through_frozen_layers() -> None:
    model = Net(lambda net, h: h.relu())
    region = Region.around(model, {"first.bias": 0.2})
    boxes = region.intervals(torch.float64)
    full, some = (played(model, region, names).outputs(boxes, Float32()) for names in (None, ["first.bias"]))
    assert bool((full.lower <= some.lower).all() and (some.upper <= full.upper).all())
    torch.testing.assert_close(full.upper, some.upper, rtol=0, atol=1e-5)
    unseen = Net(unsupported)
    with pytest.raises(UnsupportedLayer, match=r"'float_'|'erfinv'"):
        played(unseen, Region.around(unseen, {"first.bias": 0.2}), ["first.bias"])


def test_with_drift_inputs_must_be_points() -> None:
    model = Net(looped)
    wide = Interval(inputs(), inputs() + 1)
    with pytest.raises(InvalidData, match="known exactly"):
        forward(model, Region.around(model, 0.1).lower, [wide], ["last.bias"], 0.0)


@pytest.mark.parametrize("movable", [["last.weight"], ["first.bias", "last.bias"], []])
@pytest.mark.parametrize("arithmetic", [Float32(), Real(exact=True)])
@pytest.mark.parametrize("chained", [True, False])
def test_bounds_that_were_computed_for_good_are_the_same_bounds(
    movable: list[str], arithmetic: Arithmetic, chained: bool
) -> None:
    model: nn.Module = Net(lambda net, h: net.norm(h.relu()))
    if chained:
        assert isinstance(model, Net)
        layers = nn.Sequential()
        for name, layer in (("first", model.first), ("relu", nn.ReLU()), ("norm", model.norm), ("last", model.last)):
            layers.add_module(name, layer)
        model = layers.eval()
    region = Region.around(model, dict.fromkeys(movable, 0.1))
    boxes = region.intervals(torch.float64)
    batch = forward(model, region.lower, [in_float64(Interval.point(inputs()))])
    assert isinstance(batch, Chain if chained else Pass)
    baked = batch.baked(boxes, arithmetic, movable)
    labels = torch.tensor([0, 1, 2])
    for radius in (0.1, 0.3):  # other boxes of what moves
        other = Region.around(model, dict.fromkeys(movable, radius)).intervals(torch.float64)
        one, two = batch.outputs(other, arithmetic), baked.outputs(other, arithmetic)
        assert torch.equal(one.lower, two.lower) and torch.equal(one.upper, two.upper)
        assert torch.equal(leads(batch, other, labels, arithmetic), leads(baked, other, labels, arithmetic))
    assert baked.ends_linear and baked.held > 0


def test_baking_computes_what_is_below_once() -> None:
    model = Net(lambda net, h: (h.relu() + h) @ net.first.weight)
    region = head_region(model)
    batch = played(model, region, None)
    baked = batch.baked(region.intervals(torch.float64), Float32(), ["last.weight"])
    assert isinstance(baked, Pass) and len(batch.tape.notes) == 5 and len(baked.tape.notes) == 1
    assert baked.held == 3 * 4 * 8 * 2  # the lower and the upper edge of [3, 4] in float64


def test_two_threads_may_follow_one_model_while_a_third_runs_it() -> None:
    model, x = Net(in_place), inputs()
    region = Region.around(model, 0.05)
    expected = icn.bounds(model, region, x)
    wrong: list[str] = []
    with torch.no_grad():
        out = model(x)

    def bound() -> None:
        for _ in range(15):
            box = icn.bounds(model, region, x)
            if not (torch.equal(box.lower, expected.lower) and torch.equal(box.upper, expected.upper)):
                wrong.append("bounds")

    def run() -> None:
        with torch.no_grad():
            for _ in range(150):
                if not torch.equal(model(x), out):
                    wrong.append("outputs")

    threads = [threading.Thread(target=work) for work in (bound, bound, run)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and all("forward" not in vars(module) for module in model.modules())


def test_notes_hold_no_more_than_what_is_still_needed() -> None:
    """Every value is dropped after its last use; what nothing uses at once."""
    model = Net(lambda net, h: h.max(1, keepdim=True)[0].expand(-1, 4) + h)
    tape = record(model, [inputs()], list(Region.around(model, 0.0).lower))
    boxes = Region.around(model, 0.0).intervals(torch.float64)
    values = tape._played(len(tape.notes), boxes, [in_float64(Interval.point(inputs()))], Float32())
    assert len(values) == 1
