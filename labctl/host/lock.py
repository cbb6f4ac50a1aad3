"""One run at a time per host: two would measure each other."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from labctl.base.errors import BusyError, HostError
from labctl.base.jsontext import parse_json


@contextmanager
def host_locked(
    path: Path,
    *,
    what: str,
    run_folder: Path | None = None,
    waiting: Callable[[BusyError], None] | None = None,
) -> Iterator[None]:
    """Hold the host's lock (`places.host_lock()`) for a block.

    The kernel lets go of it however the holder ends, so a stale file never blocks. Where it is
    held, raises BusyError telling by whom and since when; or tells `waiting`, and waits.
    """
    try:
        # O_NOFOLLOW: without root the file lies in /tmp, where others may put links.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o644)
    except OSError as error:
        raise HostError(f"cannot open the lock {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "r+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            busy = _busy(file.read())
            if waiting is None:
                raise busy from None
            waiting(busy)
            fcntl.flock(file, fcntl.LOCK_EX)
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
            # Emptied, not deleted: another may have it open and be waiting to lock it.
            os.ftruncate(file.fileno(), 0)


def _busy(text: str) -> BusyError:
    try:
        holder = parse_json(text)
        folder = f", into {holder['run_folder']}" if holder["run_folder"] else ""
        return BusyError(
            f"this host is in use: '{holder['what']}' (process {holder['pid']}) runs since "
            f"{holder['since']}{folder}",
            hint=f"Wait until it is done, or end it with 'kill {holder['pid']}'.",
        )
    except (ValueError, KeyError, TypeError):
        # It has locked the file and not yet written to it, or is about to let go.
        return BusyError("another labctl is using this host", hint="Wait until it is done.")
