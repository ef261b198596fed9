"""How the command line ends: this package's errors, files and memory that give out, in one line and an exit code."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import NoReturn

import typer

from intercontinet.errors import InterContiNetError, Violation, memory_gave_out

OF_FILES = (errno.EACCES, errno.EPERM, errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EROFS, errno.ENAMETOOLONG)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # why output can fail; a closed pipe ends it quietly


@contextmanager
def exit_codes() -> Iterator[None]:
    """1 for a violation, 2 for everything else that somebody can mend; a fault of ours stays a traceback."""
    _never_stumble()
    try:
        yield
    except Violation as error:
        _end(f"violation: {error}", 1)
    except InterContiNetError as error:
        _end(f"error: {error}", 2)
    except (MemoryError, RuntimeError) as error:
        if not memory_gave_out(error):
            raise
        first = (str(error).splitlines() or [""])[0]
        how = "use fewer" if isinstance(error, MemoryError) or "CPU" in first else "use --device cpu, fewer"
        told = ". ".join(first.split(". ")[:2]).rstrip(".")  # how much was asked for; torch has much more to say
        _end(f"error: out of memory: {how} seeds or a smaller net{f' ({told})' if told else ''}", 2)
    except OSError as error:
        if error.filename is None and error.errno in NO_ROOM:
            _end(f"error: cannot write the output: {error.strerror}", 2)
        if not isinstance(error.filename, str | bytes) or error.errno not in (*OF_FILES, *NO_ROOM):
            raise
        words = f"cannot read or write {error.filename!s}: {error.strerror}. Check it and the folder it is in"
        _end(f"error: {words}", 2)


def _end(words: str, code: int) -> NoReturn:
    typer.secho(words, fg="red", err=True)
    sys.exit(code)


def _never_stumble() -> None:
    """Have characters that a terminal or file cannot show become question marks, rather than end the command."""
    for stream in (sys.stdout, sys.stderr):
        # stderr's own handler, "backslashreplace", never fails either, and says which character it was
        if isinstance(stream, TextIOWrapper) and stream.errors != "backslashreplace":
            stream.reconfigure(errors="replace")
