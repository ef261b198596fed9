"""The table of what each learner promises and still learns, from the records in the repository."""

from __future__ import annotations

from pathlib import Path

from intercontinet.study.guarantee import BELOW, STREAMS, rows

RESULTS = Path(__file__).parents[2] / "results"


def test_every_stream_has_a_row_and_what_is_below_it_stands_alone() -> None:
    found = rows(RESULTS)
    own = [row for row in found if row.key.method == "exact" and not row.key.variant]
    assert [(row.key.dataset, row.key.scenario) for row in own] == list(STREAMS)
    others = [row for row in found if row not in own]
    assert others and all((row.key.method, row.key.variant) in BELOW for row in others)
    widths = {len(row.texts()) for row in found}
    assert len(widths) == 1
    for row in others:
        texts = row.texts()
        assert texts[0].endswith(BELOW[row.key.method, row.key.variant]) and set(texts[-3:]) == {"-"}


def test_the_papers_method_says_what_it_was_held_to() -> None:
    """On CIFAR-10 its own settings keep a tenth, where the exact learner beside it keeps most."""
    by_stream = {(row.key.dataset, row.key.scenario): row.texts() for row in rows(RESULTS) if not row.key.variant}
    for (dataset, scenario), texts in by_stream.items():
        if dataset != "cifar-100":
            keep = {"cifar-10": "0.1"}.get(dataset, "0.9" if scenario == "task" else "0.8")
            keep = "0.9" if (dataset, scenario) == ("fashion-mnist", "class") else keep
            assert texts[-3].endswith(f"keep {keep}"), (dataset, scenario)
