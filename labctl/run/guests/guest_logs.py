"""Read what guests leave behind: their consoles, and what QEMU said when it ended."""

from __future__ import annotations

import os
import re
from pathlib import Path

_LINES = 8
_WIDTH = 160
_BYTES = 64 * 1024
_LIMIT_BYTES = 16 * 1024 * 1024

_TOLD_OF_ANY_GUEST = re.compile(r": (starting up|Domain id=\d+ is tainted)")
_COMMANDS_END = "-msg timestamp=on"
"""The last of the options that libvirt starts QEMU with, and notes in the log."""


def bound(log: Path) -> None:
    """Bound the console's log: a guest may write without end, and the host's disk has one."""
    try:
        if log.stat().st_size > _LIMIT_BYTES:
            os.truncate(log, 0)
    except FileNotFoundError:
        pass


def console_end(log: Path) -> str:
    """Return what a guest printed last, as lines below a sentence (`base.wording.without_logs`)."""
    return _told("Its console", _end_of(log))


def how_it_ended(qemu_log: Path, console_log: Path) -> str:
    """Return the same of a guest whose QEMU is gone, with what QEMU, or libvirt of it, said at
    last."""
    lines = _end_of(qemu_log)
    said = _told("QEMU's log", None if lines is None else _of_the_last_guest(lines))
    return f"{said}{console_end(console_log)}"


def _told(what: str, lines: list[str] | None) -> str:
    if lines is None:
        return f"\n{what} can't be read."
    if not lines:
        return f"\n{what} says nothing."
    last = "\n".join(f"  {line[:_WIDTH]}" for line in lines[-_LINES:])
    return f"\n{what} ends:\n{last}"


def _of_the_last_guest(lines: list[str]) -> list[str]:
    starts = [number for number, line in enumerate(lines) if line.startswith(_COMMANDS_END)]
    since = lines[starts[-1] + 1 :] if starts else lines
    return [line for line in since if not _TOLD_OF_ANY_GUEST.search(line)]


def _end_of(log: Path) -> list[str] | None:
    """Return the last lines that aren't empty; None where there is no such file."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _BYTES))
            lines = file.read(_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return None
    return [line.strip() for line in lines if line.strip()]
