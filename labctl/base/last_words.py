"""Say what a failed program said."""

from __future__ import annotations

import re
from typing import Final

MARK: Final = "\x1e"
"""Begin of the lines that labctl's own loop prints between two runs (`workloads.loops`)."""


def last_words(output: bytes, lines: int = 1) -> str:
    """Return the last lines of a program's output, in one; none of labctl's own."""
    # Not splitlines(), which takes the mark for the end of a line.
    found = re.split(r"[\r\n]+", output.decode(errors="replace"))
    said = [line.strip() for line in found if line.strip() and line[0] != MARK]
    return "; ".join(said[-lines:])
