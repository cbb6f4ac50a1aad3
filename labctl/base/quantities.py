"""Read quantities as people write them, in options, in YAML files and as units of metrics: '10s',
'3 ms', '2G', '5 %', '16 MB/s'."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labctl.base.errors import nearest
from labctl.base.units import Unit, why_no_unit

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core.core_schema import CoreSchema

_LONGEST = 100
"""Maximum characters of a quantity."""
_QUANTITY = re.compile(
    r"\s*(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?)\s*(?P<unit>\S*)\s*", re.ASCII
)


def _parts(text: str) -> tuple[float | None, str]:
    """Return the number and the unit of a text; None if it is not a quantity."""
    found = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    return (float(found["number"]), found["unit"]) if found else (None, "")


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
"""Synonyms for units of SCALES."""


def known_scale(word: str) -> Scale:
    """Return the scale of a unit of labctl's; raises ValueError that names the nearest."""
    if found := SCALES.get(_SAME.get(word, word)):
        return found
    raise ValueError(f"unknown unit '{word[:40]}'. {nearest(word, SCALES)}")


def scale_of(word: str) -> Scale:
    """Return the scale of a declared unit: one of labctl's, else one of the program's own, which is
    never converted. Raises ValueError for a text that cannot be a unit."""
    if found := SCALES.get(_SAME.get(word, word)):
        return found
    if why := why_no_unit(word):
        raise ValueError(f"unit '{word[:40]}': {why}")
    return Scale(Unit(word), 1.0)


def near_unit(word: str) -> str | None:
    """Return labctl's unit that a program's own one matches except for case: 'MB/s' for 'mb/s'."""
    if word in SCALES or word in _SAME:
        return None
    if word[1:] == "b/s":  # bits, in the usual notation
        return f"{word[0]}bit/s" if f"{word[0]}bit/s" in SCALES else f"{word[0].upper()}B/s"
    return next((unit for unit in SCALES if unit.lower() == word.lower()), None)


def quantity(text: str) -> tuple[float, Scale | None]:
    """Return the number and the unit of a text like `55ms`, None for one without unit. Raises
    ValueError."""
    number, unit = _parts(text)
    if number is None:
        raise ValueError(f"expected a number with a unit, such as '55ms', got '{text[:40]}'")
    return number, scale_of(unit) if unit else None


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """Read a kind of quantity of options and keys. As metadata of a pydantic field it converts a
    text with a unit to the number that the key holds.

    `base`: the unit of a bare number; `units`: factors to it, by their names in lower case.
    """

    name: str
    base: str
    units: Mapping[str, float]
    examples: str

    def read(self, text: str) -> float:
        """Return the number of a text in the base unit. Raises ValueError that names the units."""
        number, unit = _parts(text)
        factor = self.units.get(unit.lower()) if unit else 1.0
        if number is None or factor is None or not math.isfinite(number):
            raise ValueError(
                f"expected a {self.name} such as {self.examples} (a bare number: {self.base}), got "
                f"'{text[:40]}'"
            )
        # 0.3 s of '300 ms', not 0.30000000000000004.
        return float(f"{number * factor:.12g}")

    def whole(self, text: str) -> int:
        """Return the same if it is a whole number of the base unit; else raise ValueError."""
        number = self.read(text)
        if not number.is_integer():
            raise ValueError(f"expected whole {self.base}, got '{text[:40]}' ({number:g})")
        return int(number)

    @property
    def pattern(self) -> str:
        """Return the pattern of a text with a unit, for JSON Schemas."""
        return rf"^\s*[0-9.]+\s*({'|'.join(sorted(self.units))})\s*$"

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        from pydantic_core import core_schema  # commands without such files do not load it

        inner = handler(source)
        read = self.whole if inner["type"] == "int" else self.read

        def number_of(value: object) -> object:
            # A quoted number stays an error: it has no unit.
            is_bare = isinstance(value, str) and not _parts(value)[1]
            return read(value) if isinstance(value, str) and not is_bare else value

        return core_schema.no_info_before_validator_function(number_of, inner)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, object]:
        return {"anyOf": [handler(schema), {"type": "string", "pattern": self.pattern}]}


TIME = Kind(
    "time",
    "seconds",
    {
        **{word.lower(): scale.factor for word, scale in SCALES.items() if scale.unit == "s"},
        **{word: SCALES[same].factor for word, same in _SAME.items() if same in ("s", "ms", "us")},
        **dict.fromkeys(("min", "minute", "minutes"), 60.0),
        **dict.fromkeys(("hour", "hours"), 3600.0),
        "d": 86_400.0,
    },
    "10s, 3 ms or 10m",
)
SIZE = Kind(
    "size",
    "MiB",
    {
        "b": 2.0**-20,
        "bytes": 2.0**-20,
        # As libvirt reads them: K and KiB are 1024 bytes, KB is 1000.
        **{prefix: 1024.0 ** (n - 2) for n, prefix in enumerate("kmgt", start=1)},
        **{f"{prefix}ib": 1024.0 ** (n - 2) for n, prefix in enumerate("kmgt", start=1)},
        **{f"{prefix}b": 1000.0**n / 2**20 for n, prefix in enumerate("kmgt", start=1)},
    },
    "2G or 512 MiB",
)
PERCENT = Kind("percentage", "percent", {"%": 1.0, "percent": 1.0}, "5 %")
BIT_RATE = Kind(
    "bit rate",
    "Mbit/s",
    {f"{prefix}bit/s": 1000.0 ** (n - 2) for n, prefix in enumerate(("", "k", "m", "g", "t"))},
    "100 Mbit/s",
)
KINDS = (TIME, SIZE, PERCENT, BIT_RATE)
DELAY = Kind(
    "time", "milliseconds", {unit: 1000 * factor for unit, factor in TIME.units.items()}, "20 ms"
)
"""Times whose bare number is in milliseconds."""
