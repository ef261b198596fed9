"""The documents keep their word: their Python runs, their commands exist, their links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import intercontinet as icn
from intercontinet.bounds import known_layers
from intercontinet.bounds.registry import _RULES

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{path.name}-{number}")
    for path in DOCUMENTS
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.S))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_python_blocks_run(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    import_module("intercontinet.nets")  # whose rules are there to stay
    before = dict(_RULES)
    try:
        exec(compile(block, "document", "exec"), {"__name__": "__document__"})
    finally:
        _RULES.clear()
        _RULES.update(before)


def test_the_readme_example_certifies_saves_verifies_and_refuses(tmp_path: Path) -> None:
    block = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[0]
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "every floor holds" in done.stdout
    assert "left or right" in done.stdout
    assert "'0.weight' lies" in done.stdout
    assert len(icn.Certificate.load(tmp_path / "model.icn").tasks) == 2
    assert len([line for line in block.splitlines() if line.strip()]) <= 24


def test_make_targets_named_in_documents_exist() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"`?make (\w+)`?", "".join(p.read_text() for p in [*DOCUMENTS, ROOT / "CONTRIBUTING.md"])))
    assert named <= targets


def test_scripts_named_in_documents_exist() -> None:
    text = "".join(
        path.read_text() for path in [*DOCUMENTS, ROOT / "CONTRIBUTING.md", *ROOT.glob("results/*/notes.md")]
    )
    named = {f"{path}.py" for path in re.findall(r"\b((?:benchmarks|examples)/\w+)\.py", text)}
    named |= {f"{module.replace('.', '/')}.py" for module in re.findall(r"python -m (benchmarks\.\w+)", text)}
    assert "benchmarks/gaps.py" in named and not [name for name in sorted(named) if not (ROOT / name).is_file()]


def anchors_of(path: Path) -> set[str]:
    """What a heading can be linked to by: its words, in small letters, joined by dashes."""
    heads = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", path.read_text(), flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


LINKED = [*DOCUMENTS, *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "results/README.md"))]


@pytest.mark.parametrize("path", LINKED, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for link, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", path.read_text()):
        target = (path.parent / link) if link else path
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), f"{link}#{anchor}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_nothing_is_left_to_be_filled_in(path: Path) -> None:
    assert not re.search(r"^[A-Z]{3,}$|TODO|FIXME|XXX", path.read_text(), re.M)


def test_every_layer_that_has_a_rule_is_listed() -> None:
    text = (ROOT / "docs" / "method.md").read_text()
    for name in known_layers():
        generic = re.sub(r"(BatchNorm|Dropout)\dd", r"\1", re.sub(r"(Adaptive)?(Max|Avg)Pool\dd", "pooling", name))
        assert re.search(rf"\b{generic}\b", text), name


def test_every_public_name_has_a_docstring() -> None:
    for name in icn.__all__:
        if name != "__version__":
            assert getattr(icn, name).__doc__, name
