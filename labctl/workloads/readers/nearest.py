"""Find the line of an output that is nearest to a regular expression that matches nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from labctl.workloads.readers.output import STDERR, STDOUT, Output, decoded

_MOST_LINES = 2000
"""Last lines of a text that are compared."""
_LONGEST = 500
_SHOWN = 160

_NOT_LITERAL = re.compile(r"\\[A-Za-z]|\(\?P?<\w+>|\[[^\]]*\]|[(){}|^$*+?.]|\\")
_WORD = re.compile(r"[^\W_]{2,}|%")


def nearest_line(pattern: str, output: Output, source: str) -> str | None:
    """Return a sentence with the line that has most of a pattern's own words, preferably of the
    text that it is searched in; None if no line has any."""
    words = {word.lower() for word in _WORD.findall(_NOT_LITERAL.sub(" ", pattern))}
    best, found = 0, None
    for name, text in _texts(output, source):
        for line in reversed(text.splitlines()[-_MOST_LINES:]):
            there = line[:_LONGEST].lower()
            score = sum(len(word) for word in words if word in there)
            if score > best:
                best, found = score, (name, line)
    if found is None:
        return None
    name, line = found
    shown = line.strip()
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
    is_elsewhere = not (name == source or fnmatchcase(name, source))
    how = f" ('{name}:' before the pattern searches it)" if is_elsewhere else ""
    return f"The nearest line of {name} is '{shown}'{how}."


def _texts(output: Output, source: str) -> Iterator[tuple[str, str]]:
    """Yield names and texts of an output, those of `source` first."""
    texts: Mapping[str, str | bytes] = {
        STDOUT: output.stdout,
        STDERR: output.stderr,
        **output.files,
    }
    names = sorted(texts, key=lambda name: not (name == source or fnmatchcase(name, source)))
    for name in names:
        yield name, decoded(texts[name])
