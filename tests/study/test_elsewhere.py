"""Runs on a device that is not the CPU come to the same, and leave what all seeds know on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from intercontinet.learners.catalogue import METHODS
from intercontinet.study import machine
from intercontinet.study.folder import leave, resume, start
from intercontinet.study.run import Run, complete
from intercontinet.study.state import State
from intercontinet.tasks import SCENARIOS, Scenario
from tests.elsewhere import elsewhere
from tests.study.runs import running, timeless, tiny

Prepare = Callable[[Run], object]


def test_devices_do_not_mix() -> None:
    x = torch.arange(6.0).view(2, 3)
    with elsewhere() as there:
        far = x.to(there)
        assert far.device == there and far.cpu().device == x.device
        assert torch.equal((far * 2)[:, [0, 2]].cpu(), (x * 2)[:, [0, 2]])
        mixes: tuple[Callable[[], object], ...] = (
            lambda: far + x,
            lambda: torch.nn.functional.linear(far, x),
            lambda: torch.stack([far.sum(), x.sum()]),
            lambda: x.sum().add_(far.sum()),
            lambda: x[torch.tensor([0]).to(there)],
            lambda: x.index_put_((torch.tensor([0]),), far[:1]),
            lambda: far.index_put_((torch.tensor([0]),), x[:1]),
        )
        for mix in mixes:
            with pytest.raises(RuntimeError, match="two devices"):
                mix()
        assert (far + x.sum()).device == there and far[torch.tensor([0])].device == there
        far[0] += 1
        assert far.tolist() == [[1, 2, 3], [3, 4, 5]] and x[0].tolist() == [0, 1, 2]


def finished(
    folder: Path, at: torch.device, method: str, scenario: Scenario, prepare: Prepare = lambda run: None, **changes: Any
) -> State:
    """One task, and from what is left of it the other."""
    config = tiny(method, scenario, seeds=(0, 1, 2))
    folder.mkdir()
    run = running(config, say=lambda text: None, **changes)
    assert run.device == at and all(tensor.device == at for tensor in run.nets.model.state_dict().values())
    prepare(run)
    start(folder, run)
    leave(folder, run, run.advance(run.begin()))
    state = resume(folder, run)
    assert len(list(folder.glob("seed-*/model.*"))) in (3, 6), "weights, and certificates of what promises"
    assert state is not None and state.done == 1
    state = complete(run, state)
    leave(folder, run, state)
    return state


def check(
    folder: Path, monkeypatch: pytest.MonkeyPatch, method: str, scenario: Scenario, prepare: Prepare = lambda run: None,
    **changes: Any,
) -> None:  # fmt: skip
    expected = finished(folder / "here", torch.device("cpu"), method, scenario, prepare, **changes)
    with elsewhere() as there:
        monkeypatch.setattr(machine, "chosen_device", lambda name: there)
        found = finished(folder / "there", there, method, scenario, prepare, **changes)
    held = {"weights": found.weights, **found.memory}
    assert all(type(tensor) is Tensor for tensor in held.values()), "seeds that wait take no room elsewhere"
    torch.testing.assert_close(held, {"weights": expected.weights, **expected.memory}, rtol=0, atol=0, equal_nan=True)
    assert timeless(found) == timeless(expected)
    for path in (folder / "here").glob("seed-*/model.*"):
        assert (folder / "there" / path.relative_to(folder / "here")).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("method", METHODS)
def test_a_run_elsewhere_comes_to_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, scenario: Scenario
) -> None:
    check(tmp_path, monkeypatch, method, scenario)


@pytest.mark.parametrize("method", ["sgd", "intercontinet"])
def test_so_do_seeds_that_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    def short_of_memory(run: Run) -> None:
        run.turns.at_once = 2

    check(tmp_path, monkeypatch, method, "domain", short_of_memory)


@pytest.mark.parametrize("changes", [{"curves": True}, {"argue": 20}], ids=["curves", "argue"])
def test_so_does_what_is_measured_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    check(tmp_path, monkeypatch, "intercontinet", "domain", **changes)
