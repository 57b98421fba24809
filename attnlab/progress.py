"""Words for the person at the terminal, on stderr, so that stdout stays clean."""

import sys

__all__ = ["say", "show"]


def show(text: str) -> None:
    """Replace the current line of the terminal by `text`; nothing where stderr is no terminal, or closed."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def say(text: str) -> None:
    """One sentence on a line of its own; nothing where stderr is closed."""
    if sys.stderr is not None:
        print(text, file=sys.stderr, flush=True)
