"""Say what a failed program said."""

from __future__ import annotations


def last_words(output: bytes, lines: int = 1) -> str:
    """Return the last lines of a program's output, in one."""
    text = output.decode(errors="replace").strip()
    return "; ".join(text.splitlines()[-lines:])
