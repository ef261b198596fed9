"""How `make docs` builds the site: docstrings by autodoc, the Markdown pages beside them; every warning is an error."""

from __future__ import annotations

import re

from sphinx.application import Sphinx

import intercontinet as icn

project = "InterContiNet"
author = "The InterContiNet developers"
version = release = icn.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.napoleon", "myst_parser"]
exclude_patterns = ["_build"]
nitpicky = True
nitpick_ignore_regex = [  # what others document, since no inventory is fetched; aliases; what is inside
    ("py:.*", r"(collections|pathlib|types|typing|nn|np|numpy|torch)\..*"),
    ("py:class", r"(.*\.)?(Data|Inputs|Margins|Plastic|RuleT|State)"),
    ("py:class", r"intercontinet\.learners\.exact_settings\..*"),
]

autodoc_inherit_docstrings = False
autodoc_member_order = "groupwise"
autodoc_type_aliases = {name: name for name in ("Data", "Inputs", "Margins", "Plastic", "State")}
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
myst_heading_anchors = 3

html_theme = "alabaster"
html_title = "InterContiNet"
html_theme_options = {"page_width": "1100px", "show_powered_by": False}
html_copy_source = False


def without_links_out(app: Sphinx, docname: str, source: list[str]) -> None:
    """Files of the repository that are no part of the site are named in place of links."""
    source[0] = re.sub(r"\[([^\]]+)\]\(\.\./([^)]+)\)", r"\1 (`\2`)", source[0])


def with_plain_names(app: Sphinx, *given: object) -> tuple[str | None, str | None]:
    """Signatures that name an alias inside a union, and a default that is made anew each time, as Python would."""
    signature, returns = (
        re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", part).replace("<factory>", "...")
        if isinstance(part, str)
        else None
        for part in given[-2:]
    )
    return signature, returns


def setup(app: Sphinx) -> None:
    app.connect("source-read", without_links_out)
    app.connect("autodoc-process-signature", with_plain_names)
