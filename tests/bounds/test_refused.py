"""Forward passes that cannot be followed: what is refused, how that reads, and that models stay as they were."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import intercontinet as icn
from intercontinet.errors import InvalidData, InvalidModel, TrainingMode, UnsupportedLayer
from intercontinet.interval import Interval
from intercontinet.region import Region
from tests.bounds.between import FINE, Net, check_unchanged, inputs, looped, state

HERE = str(Path(__file__))


def caught(net: Net, h: Tensor) -> Tensor:
    try:
        return h * float(h.sum() > 0)
    except TypeError:
        return h


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


def test_an_interval_of_whole_numbers_is_refused() -> None:
    model = Net(looped)
    rows = torch.zeros(3, 4, dtype=torch.int64)
    with pytest.raises(InvalidData, match="known exactly"):
        icn.bounds(model, Region.around(model, 0.1), Interval(rows, rows + 1))
