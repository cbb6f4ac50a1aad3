"""Read numbers and units as programs print them, and convert them to labctl's units."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from labctl.base.errors import BrokenError
from labctl.base.nearest import nearest
from labctl.base.units import Unit, why_no_unit

MOST_CHARACTERS = 100
"""Limit for one number's text."""

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)
_NOT_FINITE = re.compile(r"[+-]?(?:nan|inf|infinity)", re.I | re.ASCII)
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+", re.ASCII)
_QUANTITY = re.compile(r"\s*(?P<number>[+-]?[\d.]+(?:[eE][+-]?\d+)?)\s*(?P<unit>\S*)\s*", re.ASCII)


class NoValueError(Exception):
    """Say why there is no value although the output is whole: `nan`, too few samples."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Convert a unit that programs print: `factor` of labctl's own `unit`."""

    unit: Unit
    factor: float


_BYTES = {
    "B": 1.0,
    **{f"{prefix}B": 10.0 ** (3 * n) for n, prefix in enumerate("kMGT", start=1)},
    **{f"{prefix}iB": 1024.0**n for n, prefix in enumerate("KMGT", start=1)},
    "KB": 1000.0,
    "bit": 1 / 8,
    **{f"{prefix}bit": 10.0 ** (3 * n) / 8 for n, prefix in enumerate("kMGT", start=1)},
    "Kbit": 1000.0 / 8,
}

SCALES: dict[str, Scale] = {
    **{
        name: Scale(Unit.SECONDS, factor)
        for name, factor in {
            "ns": 1e-9,
            "us": 1e-6,
            "µs": 1e-6,
            "μs": 1e-6,
            "ms": 1e-3,
            "s": 1.0,
            "m": 60.0,
            "h": 3600.0,
        }.items()
    },
    **{
        name: Scale(Unit.PER_SECOND, factor)
        for name, factor in {"1/s": 1.0, "1/ms": 1e3, "1/us": 1e6, "1/min": 1 / 60}.items()
    },
    **{f"{name}/s": Scale(Unit.BYTES_PER_SECOND, factor) for name, factor in _BYTES.items()},
    **{
        name: Scale(Unit.HERTZ, factor)
        for name, factor in {"Hz": 1.0, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9}.items()
    },
    "count": Scale(Unit.COUNT, 1.0),
    "1": Scale(Unit.FRACTION, 1.0),
    "%": Scale(Unit.FRACTION, 0.01),
}
"""Units by their names; `m` is the minute, as wrk prints it."""

_SAME = {
    **dict.fromkeys(("sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("msec", "msecs", "milliseconds"), "ms"),
    **dict.fromkeys(("usec", "usecs", "microseconds"), "us"),
    **dict.fromkeys(("nsec", "nsecs", "nanoseconds"), "ns"),
    **dict.fromkeys(("min", "minutes"), "m"),
    **dict.fromkeys(("/s", "ops/s", "op/s", "rps", "tps", "req/s", "requests/s"), "1/s"),
    **dict.fromkeys(("Mbps", "Mbits/sec"), "Mbit/s"),
    **dict.fromkeys(("Gbps", "Gbits/sec"), "Gbit/s"),
    **dict.fromkeys(("percent", "pct"), "%"),
}
"""Other words for units of SCALES."""


def known_scale(word: str) -> Scale:
    """Return what one of labctl's units is; raises ValueError that names the nearest."""
    if found := SCALES.get(_SAME.get(word, word)):
        return found
    raise ValueError(f"unit '{word[:40]}' is not known. {nearest(word, SCALES)}")


def scale_of(word: str) -> Scale:
    """Return what a declared unit is: one of labctl's, else one of the program's own, which is
    never converted. Raises ValueError for a text that can't be a unit."""
    if found := SCALES.get(_SAME.get(word, word)):
        return found
    if why := why_no_unit(word):
        raise ValueError(f"unit '{word[:40]}': {why}")
    return Scale(Unit(word), 1.0)


def near_unit(word: str) -> str | None:
    """Return the unit of labctl's that an own one differs from in case only: 'MB/s' for 'mb/s'."""
    if word in SCALES or word in _SAME:
        return None
    if word[1:] == "b/s":  # bits, as the field writes them
        return f"{word[0]}bit/s" if f"{word[0]}bit/s" in SCALES else f"{word[0].upper()}B/s"
    return next((unit for unit in SCALES if unit.lower() == word.lower()), None)


def quantity(text: str) -> tuple[float, Scale | None]:
    """Return the number and the unit of a text like `55ms`, None for one without unit. Raises
    ValueError."""
    found = _QUANTITY.fullmatch(text[:MOST_CHARACTERS])
    if found is None or _NUMBER.fullmatch(found["number"]) is None:
        raise ValueError(f"'{text[:40]}' is no number with a unit: write it like '55ms'")
    return float(found["number"]), scale_of(found["unit"]) if found["unit"] else None


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
