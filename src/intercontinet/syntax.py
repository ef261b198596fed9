"""A function's code as a hash that comments, docstrings, formatting and annotations do not change."""

from __future__ import annotations

import ast
import dis
import hashlib
import inspect
import tokenize
import types
from weakref import WeakKeyDictionary

_UNSPOKEN = {"annotation", "returns", "type_comment", "type_params", "ctx", "kind", "simple"}
_known: WeakKeyDictionary[types.FunctionType, tuple[types.CodeType, str]] = WeakKeyDictionary()


def code_digest(function: types.FunctionType) -> str:
    """SHA-256 of a function's syntax tree; of its bytecode, which differs among versions of Python, without source.

    What it calls is not part of it, nor are values that it refers to.
    """
    known = _known.get(function)
    if known is None or known[0] is not function.__code__:
        tree = _tree(function.__code__)
        text = _bytecode(function.__code__, function.__doc__) if tree is None else in_words(tree)
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        _known[function] = known = function.__code__, digest
    return known[1]


def in_words(node: object) -> str:
    """A syntax tree as text that is the same in all versions of Python.

    >>> one, other = ast.parse("def f(x: int) -> int: return x"), ast.parse("def f(x):\\n  'Nothing.'\\n  return (x)")
    >>> in_words(one) == in_words(other)
    True
    """
    if isinstance(node, list):
        return f"[{', '.join(in_words(part) for part in node if not _is_idle(part))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        node = ast.Assign(targets=[node.target], value=node.value)
    fields = sorted((name, value) for name, value in ast.iter_fields(node) if name not in _UNSPOKEN)
    spoken = [f"{name}={in_words(value)}" for name, value in fields if value is not None and value != []]
    return f"{type(node).__name__}({', '.join(spoken)})"


def _is_idle(node: object) -> bool:
    """Whether a statement does nothing: a docstring, or the mere annotation of a name."""
    if isinstance(node, ast.AnnAssign):
        return node.value is None
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _tree(code: types.CodeType) -> ast.AST | None:
    """The syntax tree of a function, if its source is at hand: a lambda's cannot be told from its neighbours'."""
    try:
        source = "".join(inspect.getsourcelines(code)[0])
        body = ast.parse(f"if 1:\n{source}" if source[:1].isspace() else source).body
    except (OSError, TypeError, SyntaxError, ValueError, IndexError, tokenize.TokenError):
        return None
    node = body[0] if body else None
    if isinstance(node, ast.If) and node.body:
        node = node.body[0]
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or node.name != code.co_name:
        return None
    arguments = [part.arg for part in (*node.args.posonlyargs, *node.args.args)]
    return node if tuple(arguments) == code.co_varnames[: code.co_argcount] else None


def _bytecode(code: types.CodeType, docstring: str | None = None) -> str:
    words = [_constant(part) for part in code.co_consts]
    if words and words[0] == repr(docstring) and not _loads_first(code):
        words[0] = "None"
    names = code.co_names, code.co_varnames, code.co_freevars
    return f"{code.co_code.hex()} {getattr(code, 'co_exceptiontable', b'').hex()} {words} {names}"


def _loads_first(code: types.CodeType) -> bool:
    """Whether the first constant, where docstrings lie, is used as well."""
    return any(step.opcode in dis.hasconst and step.arg == 0 for step in dis.get_instructions(code))


def _constant(value: object) -> str:
    if isinstance(value, types.CodeType):
        return _bytecode(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    return f"{{{', '.join(sorted(map(repr, value)))}}}" if isinstance(value, frozenset) else repr(value)
