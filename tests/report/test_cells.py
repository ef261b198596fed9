"""Pooling: what may be pooled, and which record counts for a seed that several have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from intercontinet.learners.catalogue import METHODS, defaults_of
from intercontinet.report import record as reader
from intercontinet.report.cells import completed, difference, newest
from tests.report.records import record


def parsed(source: str = "a.json", **changes: Any) -> reader.Record:
    return reader.parse_record(json.dumps(record(**changes)), source, incomplete=True)


def sources(*records: reader.Record) -> dict[int, str]:
    found = newest(records)
    assert all(seed in taken.seeds and seed.seed == number for number, (taken, seed) in found.items())
    assert list(found) == sorted(found)
    return {number: taken.source for number, (taken, _) in found.items()}


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("scenario", "class"),
        ("variant", "wide"),
        ("dataset", "cifar-10"),
        ("settings", {"epochs": 3}),
        ("keep", 0.5),
        ("net", "alexnet"),
        ("test_examples", [50] * 5),
    ],
)
def test_records_that_differ_in_what_was_run_are_not_alike(what: str, value: Any) -> None:
    assert difference(parsed(), parsed(**{what: value})) == (what if hasattr(parsed(), what) else "key")


def test_records_of_other_seeds_times_and_machines_are_alike() -> None:
    other = {"seeds": (5,), "started": "2026-11-17T10:00:00+00:00", "commit": "0ddba11", "seconds": 1.0}
    assert difference(parsed(), parsed("b.json", complete=False, **other)) is None


@pytest.mark.parametrize("method", METHODS)
def test_a_record_has_the_defaults_of_settings_that_are_younger(method: str) -> None:
    old = completed(parsed(method=method, settings={"rate": 0.5}))
    assert old.settings == {**defaults_of(method), "rate": 0.5}
    assert {"rate"} != set(old.settings), "every method has settings"


@pytest.mark.parametrize("turned", [False, True])
def test_of_a_seed_that_was_run_twice_the_newest_counts(turned: bool) -> None:
    old = parsed("z.json", seeds=(2, 0, 1), started="2026-11-16T12:30:00+02:00")
    new = parsed("a.json", seeds=(1, 3), started="2026-11-16T11:00:00+00:00")  # later, though its clock shows less
    found = sources(*((new, old) if turned else (old, new)))
    assert found == {0: "z.json", 1: "a.json", 2: "z.json", 3: "a.json"}


def test_of_the_same_moment_the_last_by_name_counts() -> None:
    assert set(sources(parsed("b.json"), parsed("a.json")).values()) == {"b.json"}


def test_what_did_not_finish_counts_only_where_there_is_no_other() -> None:
    begun = parsed("b.json", seeds=(1, 2), complete=False, started="2026-11-17T10:00:00+00:00")
    assert sources(begun, parsed("a.json", seeds=(0, 1))) == {0: "a.json", 1: "a.json", 2: "b.json"}
    assert sources(begun) == {1: "b.json", 2: "b.json"}
