"""Which records may be pooled, and which of them counts for a seed that was run more than once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from intercontinet.learners.catalogue import defaults_of
from intercontinet.report.record import Record, SeedRecord

_ALIKE = ("key", "settings", "keep", "net", "tasks", "test_examples")


def completed(record: Record) -> Record:
    """With the defaults of settings that are younger than the record, which it had without knowing."""
    return replace(record, settings={**defaults_of(record.key.method), **record.settings})


def difference(first: Record, other: Record) -> str | None:
    """What two records differ in, so that a mean over the seeds of both would mean nothing; None where nothing."""
    return next((what for what in _ALIKE if getattr(first, what) != getattr(other, what)), None)


def newest(records: Iterable[Record]) -> dict[int, tuple[Record, SeedRecord]]:
    """Every seed once, in order, with the record that it is taken from.

    Of a seed that was run twice, the newest counts; one of a run that did not finish, only where there is no other.
    """
    taken: dict[int, tuple[Record, SeedRecord]] = {}
    for record in sorted(records, key=lambda it: (it.complete, it.started, it.source)):
        taken |= {seed.seed: (record, seed) for seed in record.seeds}
    return {seed: taken[seed] for seed in sorted(taken)}
