"""Learning without forgetting against torch's divergence and plain PyTorch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from intercontinet.bounds import Network
from intercontinet.errors import InvalidSetting
from intercontinet.learners.lwf import LwF, distilled
from intercontinet.noise import key_of, mixed
from tests.learners.naive import (
    MODEL,
    OUTPUTS,
    QUICKLY,
    SEEDS,
    Extra,
    close,
    descend,
    every_output,
    learned_by,
    lessons,
    named,
    start,
)

PAIRS = ([0, 1], [2, 3], [4, 5])
Heads = list[tuple[list[int], list[int]]]  # outputs of a head; those among them that were seen


def distance(old: Tensor, heads: Heads, strength: float, temperature: float) -> Extra:
    """Of the new answers from the old ones: for each head, the mean over examples of sum q (log q - log p)."""

    def extra(values: Tensor, x: Tensor) -> Tensor:
        new, before = every_output(values, x), every_output(old, x).detach()
        total = torch.zeros((), dtype=torch.float64)
        for outputs, seen in heads:
            for a, b in zip(new, before, strict=True):
                p, q = (torch.softmax(logits[outputs] / temperature, dim=0) for logits in (a, b))
                for output in seen:
                    i = outputs.index(output)
                    total = total + q[i] * (q[i].log() - p[i].log()) / len(x)
        return strength * total

    return extra


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_tasks_in_turn_are_those_of_a_plain_loop(optimizer: str, heads: bool) -> None:
    """With one head, all outputs share a softmax and only those seen count; with many, each old head counts."""
    method, tasks = LwF(optimizer, **QUICKLY, strength=2.0, temperature=0.5), lessons(heads)
    found = learned_by(method, tasks)
    for row, seed in enumerate(SEEDS):
        values = start(seed)
        for k, (lesson, (weights, memory)) in enumerate(zip(tasks, found, strict=True)):
            seen = [output for pair in PAIRS[:k] for output in pair]
            old: Heads = [(pair, pair) for pair in PAIRS[:k]] if heads else [(list(range(OUTPUTS)), seen)]
            values = descend(method, values, lesson, seed, distance(values, old, 2.0, 0.5) if k else None)
            close(weights[row], values)
            assert torch.equal(memory["weights"], weights)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_the_loss_is_cross_entropy_and_torchs_divergence(temperature: float) -> None:
    values, old = start(0), start(1)
    lesson = lessons(heads=False)[2]
    heads = [(torch.tensor([0, 1]), torch.tensor([0, 1])), (None, torch.tensor([2, 4]))]
    objective = distilled(Network(MODEL), torch.tensor([4, 5]), heads, 0.7, temperature)
    fixed = {f"old/{name}": part for name, part in named(old).items()}
    loss, hits = objective(named(values), fixed, {"x": lesson.x, "y": lesson.y - 4})
    new, before = every_output(values, lesson.x), every_output(old, lesson.x)
    first = F.kl_div(
        F.log_softmax(new[:, :2] / temperature, 1), F.softmax(before[:, :2] / temperature, 1), reduction="sum"
    )
    log_p, q = F.log_softmax(new / temperature, 1), F.softmax(before / temperature, 1)
    second = F.kl_div(log_p[:, [2, 4]], q[:, [2, 4]], reduction="sum")
    expected = F.cross_entropy(new[:, 4:], lesson.y - 4) + 0.7 * (first + second) / len(lesson.x)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    assert float(hits()) == float((new[:, 4:].argmax(1) == lesson.y - 4).double().mean())


def test_near_the_old_weights_there_is_no_pull() -> None:
    """The divergence is least, and zero, where the new answers are the old ones."""
    values, lesson = start(0).requires_grad_(), lessons(heads=False)[1]
    objective = distilled(Network(MODEL), None, [(torch.tensor([0, 1]), torch.tensor([0, 1]))], 1.0, 0.5)
    fixed = {f"old/{name}": part for name, part in named(start(0)).items()}
    loss, _ = objective(named(values), fixed, {"x": lesson.x, "y": lesson.y})
    plain = F.cross_entropy(every_output(values, lesson.x), lesson.y)
    ours, theirs = (torch.autograd.grad(which, values)[0] for which in (loss, plain))
    close(ours, theirs)
    torch.testing.assert_close(loss, plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("old_drops", [False, True])
def test_the_old_net_answers_with_dropout_where_it_is_asked_to(old_drops: bool) -> None:
    """And with units of its own dropped, not those of the new net."""
    model = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 4)).double()
    network, lesson = Network(model), lessons(heads=False)[1]
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    others = {name: torch.randn_like(tensor) for name, tensor in weights.items()}
    batch = {"x": lesson.x, "y": lesson.y, "noise": torch.tensor(key_of(1))}
    objective = distilled(network, None, [(None, torch.tensor([0, 1]))], 1.0, 2.0, old_drops)
    loss, _ = objective(weights, {f"old/{name}": tensor for name, tensor in others.items()}, batch)
    new = network.run(weights, lesson.x, batch["noise"])
    same_units, dropped = (network.run(others, lesson.x, noise) for noise in (batch["noise"], mixed(batch["noise"])))
    assert not torch.allclose(dropped, same_units)
    old = dropped if old_drops else functional_call(model.eval(), others, (lesson.x,))
    log_p, q = torch.log_softmax(new / 2, 1)[:, :2], torch.softmax(old / 2, 1)[:, :2]
    expected = F.cross_entropy(new, lesson.y) + (q * (q.log() - log_p)).sum() / len(lesson.x)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)


def test_memory_is_the_old_weights_and_what_they_have_seen() -> None:
    for heads, tasks in ((True, [0, 0, 1, 1, 2, 2]), (False, [-1] * 6)):
        found = learned_by(LwF(**QUICKLY), lessons(heads))
        (weights, memory), entries = found[-1], start(0).numel()
        assert memory["weights"].shape == (2, entries) and torch.equal(memory["weights"], weights)
        assert memory["seen"].tolist() == [[[0, 1, 2, 3, 4, 5], tasks]] * 2, "one row a seed"


def test_classes_seen_twice_by_one_head_count_once() -> None:
    """Domains: the same two labels in every task."""
    tasks = [lessons(heads=False)[0]] * 3
    method = LwF(**QUICKLY, strength=2.0, temperature=0.5)
    found = learned_by(method, tasks, seeds=(3,))
    values = start(3)
    for k, (weights, _) in enumerate(found):
        old: Heads = [(list(range(OUTPUTS)), [0, 1])]
        values = descend(method, values, tasks[k], 3, distance(values, old, 2.0, 0.5) if k else None)
        close(weights[0], values)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_a_temperature_must_be_positive(temperature: float) -> None:
    with pytest.raises(InvalidSetting, match=r"temperature is .*; it must be positive"):
        LwF(temperature=temperature)
