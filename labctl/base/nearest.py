"""Name the nearest of the names that are allowed, for the hint of an error."""

from __future__ import annotations

from collections.abc import Iterable

_MANY = 30
"""More choices than an error should list."""

_LONG = 200
"""No name is nearest to a longer one: comparing takes the square of it."""


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Return 'Did you mean …?' and what is allowed, as one remedy; of many choices the nearest."""
    import difflib  # commands that find nothing wrong go without

    choices = sorted(set(allowed))
    name = name if len(name) <= _LONG else ""
    close = difflib.get_close_matches(name, choices, n=1)
    question = f"Did you mean '{close[0]}'? " if close else ""
    if len(choices) > _MANY:
        near = sorted(difflib.get_close_matches(name, choices, n=_MANY // 2, cutoff=0.3))
        return f"{question}Allowed, among {len(choices)}: {', '.join(near or choices[:_MANY])}."
    return f"{question}Allowed: {', '.join(choices) or 'nothing'}."
