"""The paper's numbers, read again from its own source where that is at hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from intercontinet.report.paper import PUBLISHED, yardstick

SOURCE = Path(__file__).parents[3] / "shared" / "paper.tex"
LABELS = {"mnist": "tab:results_mnist", "fashion-mnist": "tab:results_fashionmnist", "cifar-10": "tab:results_cifar10"}
NAMES = {r"\our": "intercontinet-published"}


def numbers_in(source: str, label: str) -> dict[tuple[str, str], tuple[float, float]]:
    """Every row of the table with this label: (scenario, method) -> (mean, std)."""
    body = source.split(rf"\label{{{label}}}")[1].split(r"\bottomrule")[0].split(r"\midrule", 1)[1]
    found = {}
    for row in body.replace(r"\midrule", "").split(r"\\"):
        name, *cells = re.sub(r"\\bf|[{}$]|\s", "", row).split("&")
        for scenario, cell in zip(("task", "domain", "class"), cells, strict=False):
            mean, std = cell.split(r"\pm")
            found[scenario, NAMES.get(name, name.lower())] = float(mean), float(std)
    return found


def test_every_number_is_the_papers() -> None:
    if not SOURCE.exists():
        pytest.skip("the paper's source, paper.tex, is not at hand: its numbers were not read again")
    source = SOURCE.read_text(encoding="utf-8")
    found = {
        (dataset, *key): numbers
        for dataset, label in LABELS.items()
        for key, numbers in numbers_in(source, label).items()
    }
    assert len(found) == 3 * (10 + 10 + 8)
    assert found == {key: tuple(cell) for key, cell in PUBLISHED.items()}


def test_the_enforced_method_is_held_against_the_published_row_and_nothing_else_is() -> None:
    assert yardstick("mnist", "task", "intercontinet") == PUBLISHED["mnist", "task", "intercontinet-published"]
    assert yardstick("mnist", "task", "exact") is None
    assert yardstick("cifar-10", "class", "l2") is None
