"""Choose which threads a snapshot looks at, and in what role."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from labctl.base.errors import BrokenError
from labctl.base.placed import known_slice_ns, set_slice
from labctl.base.process import thread_ids
from labctl.collect.collector import ThreadRef
from labctl.collect.table import RECORDERS
from labctl.collect.threads.thread_snapshots import OWN
from labctl.domain.readback import read_threads


def guest_threads(
    pid: int, vcpu_tids: Mapping[int, int], iothread_tids: Mapping[int, int]
) -> list[ThreadRef]:
    """Return QEMU's threads as they are now: its workers come and go."""
    return [
        ThreadRef(pid=pid, tid=state.tid, role=state.role, index=state.index)
        for state in read_threads(pid, vcpu_tids, iothread_tids)
    ]


def set_slices(tids: Iterable[int], slice_ns: int) -> None:
    """Set the time slice of threads; 0 leaves the kernel's. Raises BrokenError where another one is
    read back: a kernel before Linux 6.12 takes the call, and does nothing."""
    if not slice_ns:
        return
    wanted = f"a time slice of {slice_ns / 1e6:g} ms"
    for tid in tids:
        try:
            set_slice(tid, slice_ns)
        except OSError as error:
            raise BrokenError(f"thread {tid} can't have {wanted}: {error.strerror}") from error
        if (found := known_slice_ns(tid)) != slice_ns:
            has = "none" if found is None else f"{found / 1e6:g} ms"
            raise BrokenError(
                f"thread {tid} was given {wanted} and has {has}", hint="It takes Linux 6.12."
            )


def process_threads(pid: int, role: str) -> list[ThreadRef]:
    """Return a process's threads; [] when it is gone."""
    tids = thread_ids(pid)
    return [ThreadRef(pid=pid, tid=tid, role=role, index=n) for n, tid in enumerate(tids)]


def tree_threads(pid: int, role: str) -> list[ThreadRef]:
    """Return the threads of a process and of all its descendants (proc_pid_task_children(5))."""
    found = process_threads(pid, role)
    for child in _children(found):
        found += tree_threads(child, role)
    return found


def labctl_threads() -> list[ThreadRef]:
    """Return what measuring costs: our own, and those of the tools that record for us."""
    found = process_threads(os.getpid(), OWN)
    for child in _children(found):
        try:
            name = Path(f"/proc/{child}/comm").read_text().strip()
        except OSError:
            continue
        if name in RECORDERS:
            found += process_threads(child, OWN)
    return found


def _children(threads: Sequence[ThreadRef]) -> list[int]:
    found: list[int] = []
    for thread in threads:
        try:
            text = Path(f"/proc/{thread.pid}/task/{thread.tid}/children").read_text()
        except OSError:
            continue
        found += map(int, text.split())
    return found
