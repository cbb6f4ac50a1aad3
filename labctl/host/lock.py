"""Lock the host for one run at a time: two would measure each other."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from labctl.base.errors import BusyError, HostError
from labctl.base.json import parse_json
from labctl.base.trust import held

WAIT_S: Final = 600.0
"""Longest wait for the host's lock."""

_LOOK_S = 0.2


def flock_within(descriptor: int, seconds: float) -> bool:
    """Lock an open file for this process alone; return False if another still holds it after that
    time."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(min(_LOOK_S, seconds))


@contextmanager
def host_locked(
    path: Path,
    *,
    what: str,
    run_folder: Path | None = None,
    waiting: Callable[[BusyError], None] | None = None,
    wait_s: float = WAIT_S,
) -> Iterator[None]:
    """Hold the host's lock (`places.host_lock()`) for a block.

    The kernel releases it however the holder ends, so a stale file never blocks. If it is held,
    raises BusyError with its holder and since when; or calls `waiting` with that error, waits, and
    raises it after `wait_s` seconds. Raises HostError if the lock cannot be opened.
    """
    with os.fdopen(_opened(path), "r+", encoding="utf-8") as file:
        if not flock_within(file.fileno(), 0):
            busy = _busy(file.read())
            if waiting is None:
                raise busy
            waiting(busy)
            if not flock_within(file.fileno(), wait_s):
                raise busy
            file.seek(0)
        holder = {
            "pid": os.getpid(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
            "what": what,
            "run_folder": str(run_folder) if run_folder else None,
        }
        file.truncate()
        file.write(json.dumps(holder) + "\n")
        file.flush()
        try:
            yield
        finally:
            # Truncate, do not delete: another process may have it open and be waiting to lock it.
            os.ftruncate(file.fileno(), 0)


def _opened(path: Path) -> int:
    """Return the lock's file, in a folder that only its owner can read."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with held(path.parent.parent, path.parent.name) as folder:
            owner = os.fstat(folder).st_uid
            if owner != os.geteuid():
                raise HostError(
                    f"the folder of the lock, {path.parent}, belongs to user {owner}",
                    hint="Remove it, or run labctl as that user.",
                )
            os.fchmod(folder, 0o700)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            return os.open(path.name, flags, 0o600, dir_fd=folder)
    except OSError as error:
        needs_root = "this needs root: " if os.geteuid() else ""
        raise HostError(
            f"{needs_root}cannot open the lock {path}: {error.strerror}",
            hint="Run labctl as root, or name your own state folder with --state-dir.",
        ) from error


def _busy(text: str) -> BusyError:
    try:
        holder = parse_json(text)
        folder = f", into {holder['run_folder']}" if holder["run_folder"] else ""
        return BusyError(
            f"this host is in use: '{holder['what']}' (process {holder['pid']}) has been "
            f"running since {holder['since']}{folder}",
            hint=f"Wait until it is done, or end it with 'kill {holder['pid']}'.",
        )
    except (ValueError, KeyError, TypeError):
        # The holder has locked the file and not written to it yet, or is about to release it.
        return BusyError("another labctl is using this host", hint="Wait until it is done.")
