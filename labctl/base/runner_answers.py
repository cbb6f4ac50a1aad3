"""Check what a runner answers before it is believed: it runs where a guest's words come from."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labctl.base.errors import BrokenError

_LARGEST = 2**63
"""Largest count from a runner."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MOST_FILES = 5000
_MOST_SAID = 1 << 16
"""Bytes that are kept of a server's output."""
_MOST_NAME = 4096
"""Letters of a file's name."""
_MOST_THREADS = 100_000
_COUNTED = ("monotonic_ns", "pid", "tid")
"""Numbers beside the texts that a runner reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedProgram:
    """Hold the SHA-256 of each file that running a program takes, by its path on the machine; none
    where `problem` says why. `is_script`: what it starts itself is not among them."""

    files: Mapping[str, str]
    is_script: bool = False
    problem: str | None = None

    @property
    def path(self) -> str:
        """Return the program's own file, where the machine found it; there is one without a
        problem."""
        return next(iter(self.files))


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedServer:
    """Say how a server ended. `too_early`: by itself, before it was asked to. `output`: the end of
    what it printed."""

    name: str
    too_early: bool
    status: int
    output: bytes


def ended(machine: str, told: Any, most: int) -> list[EndedServer]:
    """Return how servers ended, at most `most`. Raises BrokenError."""
    try:
        if not isinstance(told, list) or len(told) > most:
            raise ValueError("no list of servers")
        return [
            EndedServer(
                name=str(one["name"])[:100],
                too_early=bool(one["too_early"]),
                status=whole(one["status"]),
                output=base64.b64decode(one["output"])[:_MOST_SAID],
            )
            for one in told
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise garbage(machine, told) from error


def hashed(told: Mapping[str, Any]) -> HashedProgram:
    """Return a program's files and their hashes. Raises ValueError, KeyError or AttributeError."""
    if "problem" in told:
        return HashedProgram(files={}, problem=str(told["problem"])[:400])
    files = {str(path): str(digest) for path, digest in told["files"].items()}
    if not 0 < len(files) <= _MOST_FILES or not all(map(_SHA256.fullmatch, files.values())):
        raise ValueError("no SHA-256")
    return HashedProgram(files=files, is_script=bool(told["is_script"]))


def garbage(machine: str, found: Any) -> BrokenError:
    """Return the error that says what a machine has answered with."""
    try:
        shown = str(found)[:200]
    except ValueError:  # Python writes no number of more than 4300 digits
        shown = "a number without an end"
    return BrokenError(f"{machine}: answered with {shown!r}")


def whole(value: Any) -> int:
    """Return a whole number of 64 bits; raises ValueError for anything else."""
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > _LARGEST:
        raise ValueError("no whole number")
    return value


def numbers(value: Any) -> dict[str, float]:
    """Return an object of finite numbers; raises ValueError for anything else."""
    if not isinstance(value, dict):
        raise ValueError("no object")
    for number in value.values():
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise ValueError("no number")
        if not abs(number) <= _LARGEST:
            raise ValueError("no number that anything counts")
    return value


def counters(value: Any) -> dict[str, str | int]:
    """Return texts of /proc with the time when they were read; raises ValueError for anything
    else."""
    if not isinstance(value, dict):
        raise ValueError("no object")
    for name, found in value.items():
        if name in _COUNTED:
            whole(found)
        elif not isinstance(found, str):
            raise ValueError("no text")
    return value


def cgroup(value: Any) -> dict[str, Any]:
    """Return what a runner says of a command's cgroup; raises ValueError for anything else."""
    files = {
        str(name)[:_MOST_NAME]: {at: _text(told[at]) for at in ("set", "found")}
        for name, told in value["files"].items()
    }
    if len(files) > _MOST_FILES:
        raise ValueError("more files than a cgroup has")
    return {
        "files": files,
        "member": _text(value["member"]),
        "cpu_stat": _text(value["cpu_stat"]),
        "oom_kills": whole(value["oom_kills"]),
    }


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("no text")
    return value[:_MOST_SAID]


def threads(value: Any) -> dict[str, list[dict[str, str | int]]]:
    """Return two lists of threads, ids and texts of /proc; raises ValueError for anything else."""
    found = {at: [counters(thread) for thread in value[at]] for at in ("before", "after")}
    if max(map(len, found.values())) > _MOST_THREADS:
        raise ValueError("more threads than a command has")
    return found
