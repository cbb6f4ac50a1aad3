"""Reap the QEMU processes that libvirt's embedded driver starts in this process.

libvirt starts its QEMUs (guests, and those that it queries for capabilities) as daemons: their
parent is the host's init, and libvirt waits until one that ended is gone. Some containers' init
takes seconds, or tens of seconds, to reap it. So this process adopts them, and reaps them at
once.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labctl.base.errors import HostError

_PR_SET_CHILD_SUBREAPER = 36
"""linux/prctl.h"""

_PAUSE_S = 0.05
"""Time between two looks while there is a dead child that is not ours to reap, or no child at all.
While children live and none is dead, waitid(2) sleeps."""

_UNWANTED_S = 1.0
"""Time for which a dead QEMU that led its own session is left to a parent that may wait for it.
QEMU's `-daemonize` leaves one: it forks, leads a session, forks again and exits (os_daemonize).
libvirt probes capabilities that way and reaps none of them."""

_COMMAND = "qemu-system"
_started = threading.Lock()
_looking = threading.RLock()


def adopt_orphans() -> None:
    """Become the parent of daemons that are started below this process, and reap dead QEMUs among
    them. Once per process; raises HostError if the kernel refuses."""
    if not _started.acquire(blocking=False):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise HostError(f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(ctypes.get_errno())}")
    threading.Thread(target=_reap, name="orphans", daemon=True).start()


@contextmanager
def reaping_paused() -> Iterator[None]:
    """Leave dead children unreaped while inside: one that is not ours to reap makes the reaper look
    again and again, and labctl must not run in a measured window."""
    with _looking:
        yield


def _reap() -> None:
    dead_since: dict[int, float] = {}
    while True:
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            time.sleep(_PAUSE_S)
            with _looking:
                continue
        with _looking:
            now = time.monotonic()
            dead = {pid: leads for pid in _children() if (leads := _leads_as_dead(pid)) is not None}
            dead_since = {pid: dead_since.get(pid, now) for pid in dead}
            orphans = [
                pid
                for pid, leads in dead.items()
                if not leads or now - dead_since[pid] > _UNWANTED_S
            ]
            has_reaped = bool([pid for pid in orphans if _reaped(pid)])
        if not has_reaped:
            time.sleep(_PAUSE_S)


def _children() -> list[int]:
    """Return the children of all our threads (proc_pid_task_children(5)), dead ones included."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        try:
            found += [int(pid) for pid in (task / "children").read_text().split()]
        except OSError:
            continue  # the thread has ended
    return found


def _leads_as_dead(pid: int) -> bool | None:
    """Return whether a QEMU that has ended led its own session; None for any other process.

    A child that libvirt or labctl started is in our session or leads its own, and its starter waits
    for it. A daemon was forked once more and is in a session that it does not lead.
    """
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    except OSError:
        return None
    fields = rest.split()
    state, session = fields[0], int(fields[3])  # proc_pid_stat(5): fields 3 and 6
    is_qemu = name.partition("(")[2].startswith(_COMMAND)
    if not is_qemu or state != "Z" or session == os.getsid(0):
        return None
    return session == pid


def _reaped(pid: int) -> bool:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return False
    return True
