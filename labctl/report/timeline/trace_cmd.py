"""Write a trial's traces in trace-cmd's format, for trace-cmd and KernelShark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from labctl.base.errors import BrokenError, HostError
from labctl.report.timeline.timeline_words import nanoseconds
from labctl.store.trial import TrialFolder
from labctl.trace import files
from labctl.trace.clocks import stored_clock_map
from labctl.trace.threads import stored_threads
from labctl.trace.tracedat import Guest, write_tracedat

HOST, GUEST = "host.dat", "guest.dat"


def write_trace_dat(trial: TrialFolder, folder: Path) -> list[str]:
    """Write HOST and GUEST into `folder`, which is made if need be: all that was recorded, at times
    of the host's CLOCK_MONOTONIC. Returns a sentence on each: that it was written, or why not.

    Raises BrokenError when a file of labctl's own isn't what was written, HostError when the
    folder can't be written to.
    """
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise HostError(f"cannot make the folder {folder}: {error.strerror}") from error
    said: list[str] = []
    guest_id = _guest(trial, folder / GUEST, said) if trial.has(files.GUEST) else None
    if trial.has(files.HOST):
        threads = stored_threads(trial)
        vcpus = {thread.index: thread.tid for thread in threads if thread.role == "vcpu"}
        guest = Guest(trace_id=guest_id, vcpu_tids=vcpus) if guest_id is not None else None
        source, target = trial.path / files.HOST, folder / HOST
        if _tried(lambda: write_tracedat(source, target, guest=guest), HOST, said) is not None:
            said.append(f"Wrote {target}")
    return said


def _guest(trial: TrialFolder, target: Path, said: list[str]) -> int | None:
    """Return the id of the file that was written."""
    clock = stored_clock_map(trial)
    if isinstance(clock, str):
        said.append(f"No {GUEST}, as its times can't be put on the host's clock: {clock}.")
        return None
    source, to_host = trial.path / files.GUEST, clock.to_host
    found = _tried(lambda: write_tracedat(source, target, to_host=to_host), GUEST, said)
    if found is not None:
        said.append(
            f"Wrote {target}, at the host's times, which are right to {nanoseconds(clock.error_ns)}"
        )
    return found


def _tried(write: Callable[[], int], name: str, said: list[str]) -> int | None:
    """Return none, and why, where the recording can't be read: what a guest wrote may be
    anything."""
    try:
        return write()
    except BrokenError as error:
        said.append(f"No {name}: {error.message}.")
        return None
