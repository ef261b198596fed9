"""Code as a hash: what it does counts, how it is written does not."""

from __future__ import annotations

import ast
from types import FunctionType
from typing import Any

import pytest

from intercontinet.syntax import code_digest, in_words

PLAIN = "def f(x, y=1):\n    z = x\n    return z + y"


def typed(source: str) -> FunctionType:
    """A function without a source, as one types it at a prompt."""
    space: dict[str, Any] = {}
    exec(source, space)
    function: FunctionType = space["f"]
    return function


@pytest.mark.parametrize(
    "other",
    [
        "def f(x: int, y: int = 1) -> int:\n    z: int = x\n    return z + y",
        "def f(x,y=1):\n  'Words.'\n  w: int\n  z = (x)  # a comment\n  'more'\n\n  return (\n    z+y)",
    ],
)
def test_annotations_docstrings_comments_and_formatting_do_not_count(other: str) -> None:
    assert in_words(ast.parse(PLAIN)) == in_words(ast.parse(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [("z + y", "z - y"), ("y=1", "y=2"), ("y=1", "y=1.0"), ("y=1", "y=True"), ("y=1", "y=None"), ("z = x", "z = -x")],
)
def test_everything_else_counts(one: str, other: str) -> None:
    assert in_words(ast.parse(PLAIN)) != in_words(ast.parse(PLAIN.replace(one, other)))
    if "y=" not in one:  # a default is no part of the function's own code
        assert code_digest(typed(PLAIN)) != code_digest(typed(PLAIN.replace(one, other)))


def test_a_function_that_is_given_other_code_has_another_digest() -> None:
    one, other = typed(PLAIN), typed(PLAIN.replace("+", "-"))
    before = code_digest(one)
    one.__code__ = other.__code__
    assert before != code_digest(one) == code_digest(other)


def test_strings_over_several_lines_keep_their_indentation() -> None:
    def f() -> str:
        return """one
    two"""

    one: Any = f

    def f() -> str:  # type: ignore[no-redef]
        return """one
        two"""

    other: Any = f
    assert code_digest(one) != code_digest(other)
