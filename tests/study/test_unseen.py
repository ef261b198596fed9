"""Runs of the paper's method with examples held back, and with rigid layers taken as computed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from intercontinet.errors import InvalidSetting
from intercontinet.report.record import read_record
from intercontinet.study import folder
from intercontinet.study.config import Config, configure
from intercontinet.study.run import Run, complete
from intercontinet.study.store import cells
from intercontinet.study.tables import certified_text


def quick(**settings: object) -> Config:
    short = {"centre_epochs": 2, "radii_epochs": 1, "optimizer": "adam", "rate": 0.01}
    return configure("digits", "domain", "intercontinet", seeds=(0, 1), tasks=2, settings={**short, **settings})


def test_records_and_certificates_tell_what_is_certain_of_unseen_examples(tmp_path: Path) -> None:
    run = Run(quick(held_out=0.1, unseen=0.1), "cpu", print)
    state = complete(run)
    summary = run.summary(state)
    (tmp_path / "summary.json").write_text(json.dumps({**summary, "variant": ""}))
    for row, seed in enumerate(read_record(tmp_path / "summary.json").seeds):
        certificate = run.certificate(state, row)
        assert certificate is not None
        for written, promised in zip(seed.floors, certificate.tasks, strict=True):
            assert written.unseen_total == promised.unseen_total is not None
            assert written.unseen_certified == promised.unseen_certified
            assert written.unseen_floor == promised.unseen_floor
            assert promised.unseen_total == promised.total // 10


def test_certificates_records_and_tables_say_what_they_take_as_computed(tmp_path: Path) -> None:
    run = Run(quick(rigid=1, drift=1e-5), "cpu", print)
    state = complete(run)
    for row in (0, 1):
        certificate = run.certificate(state, row)
        assert certificate is not None and {floor.drift for floor in certificate.tasks} == {1e-5}
    summary = run.summary(state)
    assert summary["settings"]["drift"] == 1e-5
    assert {floor["drift"] for seed in summary["seeds"] for floor in seed["floors"]} == {1e-5}
    (tmp_path / "record.json").write_text(json.dumps({**summary, "variant": ""}))
    (cell,) = cells([read_record(tmp_path / "record.json")]).values()
    assert certified_text(cell).endswith("(drift 1e-05)")


def test_streams_that_show_the_same_images_leave_none_unseen() -> None:
    with pytest.raises(InvalidSetting, match="shows the same images in every task"):
        configure("permuted-mnist", "domain", "intercontinet", settings={"unseen": 0.1})


@pytest.mark.parametrize(("method", "net"), [("exact", "levels-300-6"), ("intercontinet", "mlp-8")])
def test_no_bound_stands_on_examples_of_earlier_tasks(method: str, net: str, tmp_path: Path) -> None:
    """Else a net that knows them by heart would promise the same of new ones: here labels are noise."""
    generator = np.random.default_rng(0)
    x, y = generator.random((300, 20), np.float32), generator.integers(0, 2, 300)
    parts = {"x": np.concatenate([x, x, x + 2]), "y": np.tile(y, 3), "task": np.repeat([0, 1, 2], 300)}
    twice: dict[str, Any] = {f"{name}_{part}": v for name, v in parts.items() for part in ("train", "test")}
    np.savez(tmp_path / "same.npz", **twice)
    settings = {"keep": 0.8, "unseen": 0.2, "held_out": 0.1}
    epochs = None if method == "exact" else 2
    asked = configure(str(tmp_path / "same.npz"), "domain", method, net=net, settings=settings, epochs=epochs)
    run = Run(asked, "cpu", print)
    floors = run.summary(complete(run))["seeds"][0]["floors"]
    assert [floor["unseen_total"] for floor in floors] == [60, 60, 60]
    assert floors[1]["unseen_certified"] == 0 and floors[1]["certified"] > 0
    first = run.advance(run.begin())
    (tmp_path / "run").mkdir()
    folder.start(tmp_path / "run", run)
    folder.leave(tmp_path / "run", run, first)
    again = Run(asked, "cpu", print)
    taken_up = folder.resume(tmp_path / "run", again)
    assert taken_up is not None and len(taken_up.digests) == 300
    assert again.advance(taken_up).lines[0][-1]["floor"]["unseen_floor"] == 0.0
    older = again.taken_up(replace(taken_up, digests=taken_up.digests[:0]))
    assert torch.equal(older.digests, taken_up.digests), "folders from before learn it from the data"
