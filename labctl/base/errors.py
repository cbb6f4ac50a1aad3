"""Define the errors that a user sees: a sentence, a remedy, an exit code.

Exit codes: 0 done, 1 a check or a host of a fleet failed, 2 wrong usage or file (damaged and cut
ones too), 3 the host can't do it, 4 it broke; of `labctl ab`, 125 it can't tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import IntEnum


class ExitCode(IntEnum):
    DONE = 0
    FOUND = 1
    USAGE = 2
    HOST = 3
    BROKE = 4
    OPEN = 125
    """A commit that `git bisect run` skips."""


class LabctlError(Exception):
    """Serve as the base of all expected failures.

    `message` names what was requested and what was found; `hint` is the remedy.
    """

    exit_code = ExitCode.BROKE

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(LabctlError):
    """Report that the command line or a file that the user wrote is wrong; nothing was started."""

    exit_code = ExitCode.USAGE


class HostError(LabctlError):
    """Report that the host cannot do it (no QEMU, no permission, no memory, no space)."""

    exit_code = ExitCode.HOST


class BrokenError(LabctlError):
    """Report that something broke (a guest died, a tool printed garbage)."""

    exit_code = ExitCode.BROKE


class FileError(BrokenError):
    """Report that a stored file is damaged, cut off, changed or foreign.

    In the middle of a trial or a report it is handled as anything else that broke. If it ends a
    command, the file is wrong, not labctl."""

    exit_code = ExitCode.USAGE


class DifferenceError(LabctlError):
    """Report that a check found another content than expected."""

    exit_code = ExitCode.FOUND


class DeadlineError(BrokenError):
    """Report that something took longer than its deadline."""


class BusyError(HostError):
    """Report that another labctl holds a lock or file that this one needs."""


# Find the nearest of the allowed names, for the hint of an error.


_MANY = 30
"""More choices than an error should list."""

_PARTS = re.compile(r"[-_+.{}]")
"""Separators of a name's parts."""

_LONG = 200
"""Longest name to compare: comparing takes quadratic time."""


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Return 'Did you mean …?' and the allowed names, as one remedy; of many choices only the
    nearest."""
    import difflib  # commands that find nothing wrong do not load it

    choices = sorted(set(allowed))
    if not choices:
        return "There are none."
    name = name if len(name) <= _LONG else ""
    close = difflib.get_close_matches(name, choices, n=1) or _by_part(name, choices)
    question = f"Did you mean '{close[0]}'? " if close else ""
    if len(choices) > _MANY:
        near = sorted({*close, *difflib.get_close_matches(name, choices, n=_MANY // 6)})
        return (
            f"{question}Some of the {len(choices)} allowed: {', '.join(near or choices[:_MANY])}."
        )
    return f"{question}Allowed: {', '.join(choices)}."


def _by_part(name: str, choices: Sequence[str]) -> list[str]:
    """Return choices with one part that is nearly `name`: 'latency_p95' for 'p95',
    'governor-performance' for 'governer'."""
    import difflib

    return [
        choice
        for choice in choices
        if name and difflib.get_close_matches(name, _PARTS.split(choice), n=1, cutoff=0.75)
    ][: _MANY // 6]
