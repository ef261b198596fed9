"""``intercontinet`` and ``python -m intercontinet``: the command line, or word of what it lacks."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Without the extra ``cli`` it exits with 2, bad input: 1 would mean a broken promise."""
    try:
        from intercontinet.cli import main as command_line
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "intercontinet":
            raise
        print(
            f"error: the command line needs '{error.name}', which is not installed: pip install 'intercontinet[cli]'. "
            "Without it, intercontinet.verify(weights, certificate) does in Python what 'intercontinet verify' does.",
            file=sys.stderr,
        )
        sys.exit(2)
    command_line()


if __name__ == "__main__":
    main()
