"""Tell whether a run is being measured now: its folder is neither removed nor copied then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labctl.base.errors import HostError

if TYPE_CHECKING:
    from labctl.store.run_folder import RunFolder


def refuse_if_running(folder: RunFolder) -> None:
    """Raise HostError when a living labctl on this host writes into the folder."""
    from labctl.base.jsontext import parse_json
    from labctl.base.paths import host_lock

    try:
        with host_lock().open(encoding="utf-8") as lock:
            holder = parse_json(lock.read())
            if holder["run_folder"] != str(folder.path) or not _is_held(lock.fileno()):
                return
    except (OSError, ValueError, KeyError, TypeError):
        return  # nobody holds it, or its holder says nothing of a run
    raise HostError(
        f"run '{folder.name}' is being measured by process {holder['pid']} since {holder['since']}",
        hint=f"Wait until it is done, or end it with 'kill {holder['pid']}'.",
    )


def _is_held(lock: int) -> bool:
    """Return whether a living process holds the lock: after SIGKILL its text stays, the lock
    doesn't."""
    import fcntl

    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
