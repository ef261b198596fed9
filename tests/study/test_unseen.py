"""Runs of the paper's method with examples held back, and with rigid layers taken as computed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from intercontinet.errors import InvalidSetting
from intercontinet.report.record import read_record
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
