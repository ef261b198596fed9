"""Runs that diverge, and runs that cannot be: told with what is wrong and the way out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from intercontinet.errors import InvalidSetting
from intercontinet.nets import build_net
from intercontinet.report.record import read_record
from intercontinet.study.run import Run, complete
from intercontinet.study.store import save_record
from intercontinet.tasks import Stream
from tests.study.runs import digits, running, tiny


def test_divergence_is_told_with_task_and_seeds_and_the_record_stays_readable(tmp_path: Path) -> None:
    words: list[str] = []
    run = running(tiny("sgd", "class", settings={"rate": 1e30}), say=words.append)
    summary = run.summary(complete(run))
    assert len(words) == 2
    assert "task 0/1/2/3/4 for seed(s) 0, 1" in words[0]
    assert "a lower rate" in words[0]
    assert [seed.diverged for seed in read_record(save_record(tmp_path, summary)).seeds] == ["0/1/2/3/4"] * 2
    json.dumps(summary, allow_nan=False)


def test_one_seed_that_diverged_leaves_the_others_alone() -> None:
    words: list[str] = []
    config = tiny(seeds=(0, 7))
    run = running(config, say=words.append)
    state = run.begin()
    state.weights[0] = torch.nan
    state = run.advance(state)
    assert ["seed(s) 0," in word for word in words] == [True]
    assert torch.isfinite(state.weights[1]).all()
    assert ["diverged" in seed for seed in run.summary(state)["seeds"]] == [True, False]


def test_intervals_that_diverge_are_an_error_that_names_the_rate() -> None:
    with pytest.raises(InvalidSetting, match="lower the learning rate"):
        complete(running(tiny("intercontinet", settings={"rate": 1e30})))


# Nets and devices.


@pytest.mark.parametrize("name", ["mlp", "mlp-0", "mlp-a", "mlp-²", "mlp--8", "alexnet-3", "resnet", ""])
def test_a_net_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(InvalidSetting, match=f"there is no net '{name}'"):
        built(name, digits("domain"))


def test_nets_have_the_widths_they_are_asked_for() -> None:
    def widths(name: str) -> list[tuple[int, ...]]:
        return [tuple(p.shape) for n, p in built(name, digits("class")).named_parameters() if "weight" in n]

    assert widths("mlp-8-4") == [(8, 64), (4, 8), (10, 4)]
    with pytest.raises(InvalidSetting, match="32 x 32"):
        built("alexnet", digits("class"))


def test_images_alone_can_be_augmented() -> None:
    with pytest.raises(InvalidSetting, match="augment"):
        running(tiny(augment=True))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Run(tiny(), "tpu"), "there is no device 'tpu'"),
        (lambda: Run(replace(tiny(), dataset="digit"), "cpu"), "did you mean 'digits'"),
        (lambda: Run(tiny(tasks=9), "cpu"), "too few for 9 task"),
    ],
)
def test_what_cannot_be_run_is_named(build: Callable[[], Run], words: str) -> None:
    with pytest.raises(InvalidSetting, match=words):
        build()


def built(name: str, tasks: Stream) -> torch.nn.Sequential:
    return build_net(name, tasks.shape, tasks.outputs, 0)
