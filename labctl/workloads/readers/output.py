"""Turn what a run left into text, in one place for all readers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol

from labctl.base.errors import BrokenError

STDOUT = "stdout"
STDERR = "stderr"
MOST_BYTES = 64 << 20
"""Limit for one text that a metric is read from: the size of a run's folder, if nothing else is
said."""
MOST_FILES = 1000
_END = 400
"""Characters of an output's end that an error shows."""

_COLOUR = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


class Output(Protocol):
    """Hold what one run of a program left."""

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
    writes over becomes lines."""
    text = data.decode(errors="replace") if isinstance(data, bytes) else data
    text = text.removeprefix("\ufeff")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _COLOUR.sub("", text) if "\x1b" in text else text


def parts_of(output: Output, source: str) -> list[Part]:
    """Return the texts that `source` names: stdout, stderr, or files by a name or a glob, in the
    order of their names. Raises BrokenError where there is none, and beyond a limit."""
    if source in (STDOUT, STDERR):
        return [_part(source, output.stdout if source == STDOUT else output.stderr)]
    names = sorted(name for name in output.files if name == source or fnmatchcase(name, source))
    if not names:
        there = ", ".join(sorted(output.files)[:20]) or "no file"
        raise BrokenError(f"no file '{source}' was left; there is {there}")
    if len(names) > MOST_FILES:
        raise BrokenError(f"'{source}' names {len(names)} files, and {MOST_FILES} are read at most")
    return [_part(name, output.files[name]) for name in names]


def _part(name: str, data: str | bytes) -> Part:
    if len(data) > MOST_BYTES:
        raise BrokenError(f"{name} is larger than {MOST_BYTES >> 20} MiB")
    return Part(name, decoded(data))
