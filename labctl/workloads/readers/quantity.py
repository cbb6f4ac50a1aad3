"""Read numbers as programs print them."""

from __future__ import annotations

import math
import re

from labctl.base.errors import BrokenError

MOST_CHARACTERS = 100
"""Limit for one number's text."""

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)
_NOT_FINITE = re.compile(r"[+-]?(?:nan|inf|infinity)", re.I | re.ASCII)
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+", re.ASCII)


class NoValueError(Exception):
    """Say why there is no value although the output is whole: `nan`, too few samples."""


def number_of(text: str, thousands: str | None = None) -> float:
    """Return the number that a text is. `thousands`: what parts groups of three digits. Raises
    NoValueError for nan and inf, BrokenError for what is no number."""
    stripped = text.strip()
    if len(stripped) > MOST_CHARACTERS:
        raise BrokenError(f"a number of {len(stripped)} characters: {stripped[:40]!r}…")
    if _NOT_FINITE.fullmatch(stripped):
        raise NoValueError(f"the program printed '{stripped}'.")
    if thousands and thousands in stripped:
        whole, point, rest = stripped.partition(".")
        groups = whole.lstrip("+-").split(thousands)
        if not 1 <= len(groups[0]) <= 3 or any(len(group) != 3 for group in groups[1:]):
            raise BrokenError(f"{stripped!r} has no groups of three digits between '{thousands}'")
        stripped = whole.replace(thousands, "") + point + rest
    if not _NUMBER.fullmatch(stripped):
        if _DECIMAL_COMMA.fullmatch(stripped):
            raise BrokenError(
                f"{stripped!r} has a comma, and nothing says that it parts thousands",
                hint="Where it does, give 'thousands: \",\"'; else have the program print a point.",
            )
        raise BrokenError(f"{stripped[:40]!r} is no number")
    value = float(stripped)
    if not math.isfinite(value):
        raise NoValueError(f"the program printed '{stripped}', beyond what a number can hold.")
    return value


def printed_step(text: str) -> float:
    """Return the step that a printed number has: 0.1 of '3.4'; 0 where it can't be told."""
    stripped = text.strip()
    if "e" in stripped or "E" in stripped:
        return 0.0
    return 10.0 ** -len(stripped.partition(".")[2])
