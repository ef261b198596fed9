"""Pages as a browser finds them, and the stores and runs that they are made of."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

from intercontinet.report.page import write_page
from tests.report.records import Record, record, write_run

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """What a browser would find: tags, attributes, text; every tag closed in its order."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(self.source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.words.append(data.strip())

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(filter(None, self.words)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def page_of(folder: Path, content: Record | None = None, lines: list[Record] | None = None) -> Page:
    return Page(write_page(write_run(folder / "run", record() if content is None else content, lines)))


def store(folder: Path, **records: Record) -> Path:
    for name, content in records.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def break_a_floor(content: Record, seed: int = 1, task: int = 2) -> Record:
    content["seeds"][seed]["floors"][task] |= {"certified": 9800, "kept": False}
    return content
