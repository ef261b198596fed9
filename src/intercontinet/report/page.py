"""One HTML page of a run, or of a study: everything in it, nothing from elsewhere, no script."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from intercontinet.errors import InvalidSetting
from intercontinet.files import write_atomically
from intercontinet.report.reading import runs_in
from intercontinet.report.record import SUMMARY
from intercontinet.report.words import down, duration, mean, percent, plain, points, spread
from intercontinet.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment


def write_page(folder: Path, out: Path | None = None) -> Path:
    """Write the page of a run, or of all the records and runs in a folder, to ``out`` or else into the folder.

    Returns:
        Where the page is.

    Raises:
        InvalidData: There is no run in the folder, or a file of it is missing, damaged, foreign or too new.
        InvalidSetting: Jinja2 is not installed.
        WriteError: The page could not be written.
    """
    template = _templates().get_template("page.html")
    runs, unfinished = runs_in(folder)
    study = not (folder / SUMMARY).exists()
    page = template.render(
        runs=runs, study=study, folder=folder.resolve().name, unfinished=unfinished, version=__version__
    )
    target = folder / "report.html" if out is None else out
    write_atomically(target, page.encode("utf-8", "replace"))  # JSON can hold halves of characters
    return target


def _templates() -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise InvalidSetting("a page needs Jinja2: pip install 'intercontinet[cli]'") from None
    loader = PackageLoader("intercontinet.report")
    out = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    out.filters |= {"percent": percent, "down": down, "points": points, "spread": spread, "duration": duration}
    out.filters |= {"plain": plain, "fields": asdict, "short": short, "mean": mean}
    out.filters |= {"picture": Markup}  # our own SVG, which has escaped its words
    return out


def short(source: str) -> str:
    """A record by its file, or by its folder, where all files have one name.

    >>> short("results/table1/task-ewc-seeds-0-4.json"), short("runs/mine/summary.json")
    ('task-ewc-seeds-0-4.json', 'mine')
    """
    path = Path(source)
    return path.parent.name if path.name == SUMMARY else path.name
