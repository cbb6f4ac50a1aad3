"""Define the errors that a user sees: a sentence, a remedy, an exit code.

Exit codes: 0 done, 1 a check or a host of a fleet failed, 2 wrong usage or file, 3 the host can't
do it, 4 it broke.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    DONE = 0
    FOUND = 1
    USAGE = 2
    HOST = 3
    BROKE = 4


class LabctlError(Exception):
    """Serve as the base of all expected failures.

    `message` names what was asked and what was found; `hint` says what to do about it.
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
    """Report that the host can't do it (no QEMU, no permission, no memory, no space)."""

    exit_code = ExitCode.HOST


class BrokenError(LabctlError):
    """Report that something broke (a guest died, a tool printed garbage)."""

    exit_code = ExitCode.BROKE


class DeadlineError(BrokenError):
    """Report that something took longer than its deadline."""


class BusyError(HostError):
    """Report that another labctl holds a lock or file that this one needs."""
