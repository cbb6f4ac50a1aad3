"""Decode a run's output to text, in one place for all readers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol

from labctl.base.errors import BrokenError

STDOUT = "stdout"
STDERR = "stderr"
MOST_BYTES = 64 << 20
"""Limit for one text that a metric is read from: the default size of a run's folder."""
MOST_FILES = 1000
_END = 400
"""Characters of an output's end that an error shows."""

_COLOUR = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


class Output(Protocol):
    """Hold the output of one run of a program."""

    @property
    def stdout(self) -> str: ...

    @property
    def stderr(self) -> str: ...

    @property
    def files(self) -> Mapping[str, bytes]: ...


@dataclass(frozen=True, slots=True)
class Part:
    """Hold one text that a metric is read from, under its name for errors."""

    name: str
    text: str

    @property
    def end(self) -> str:
        """Return the last lines, for errors."""
        if not self.text.strip():
            return f"{self.name} is empty"
        shown = self.text[-_END:].rstrip()
        cut = "…" if len(self.text) > _END else ""
        return f"{self.name} ends with:\n{cut}{shown}"


def decoded(data: str | bytes) -> str:
    """Return text with every line's end as `\\n`, and without colours. A progress line that `\\r`
    overwrites becomes separate lines."""
    text = data.decode(errors="replace") if isinstance(data, bytes) else data
    text = text.removeprefix("\ufeff")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _COLOUR.sub("", text) if "\x1b" in text else text


def parts_of(output: Output, source: str) -> list[Part]:
    """Return the texts that `source` names: stdout, stderr, or files by a name or a glob, sorted by
    name. Raises BrokenError if there is none, and beyond a limit."""
    if source in (STDOUT, STDERR):
        return [_part(source, output.stdout if source == STDOUT else output.stderr)]
    names = sorted(name for name in output.files if name == source or fnmatchcase(name, source))
    if not names:
        there = ", ".join(sorted(output.files)[:20]) or "no file"
        raise BrokenError(f"no file '{source}'; the run left {there}")
    if len(names) > MOST_FILES:
        raise BrokenError(f"'{source}' matches {len(names)} files (limit: {MOST_FILES})")
    return [_part(name, output.files[name]) for name in names]


def _part(name: str, data: str | bytes) -> Part:
    if len(data) > MOST_BYTES:
        raise BrokenError(f"{name} is larger than {MOST_BYTES >> 20} MiB")
    return Part(name, decoded(data))


# Read numbers as programs print them.


MOST_CHARACTERS = 100
"""Limit for one number's text."""

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)
_NOT_FINITE = re.compile(r"[+-]?(?:nan|inf|infinity)", re.I | re.ASCII)
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+", re.ASCII)


class NoValueError(Exception):
    """Report a missing value in a complete output: `nan`, too few samples."""


def number_of(text: str, thousands: str | None = None) -> float:
    """Return the number in a text. `thousands`: the separator of groups of three digits. Raises
    NoValueError for nan and inf, BrokenError for what is not a number."""
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
                f"{stripped!r} has a comma, and 'thousands' is not set",
                hint="If the comma separates thousands, add 'thousands: \",\"'; otherwise make "
                "the program print a point.",
            )
        raise BrokenError(f"{stripped[:40]!r} is not a number")
    value = float(stripped)
    if not math.isfinite(value):
        raise NoValueError(f"the program printed '{stripped}', which is out of range.")
    return value


def printed_step(text: str) -> float:
    """Return the step of a printed number: 0.1 of '3.4'; 0 if it is unknown."""
    stripped = text.strip()
    if "e" in stripped or "E" in stripped:
        return 0.0
    return 10.0 ** -len(stripped.partition(".")[2])
