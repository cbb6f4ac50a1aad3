"""What a trial's collectors recorded for its time line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from labctl.base.errors import BrokenError, UsageError
from labctl.store.trial import TrialFolder
from labctl.trace import files
from labctl.trace.clocks import ClockMap, stored_clock_map
from labctl.trace.model import Trace
from labctl.trace.perfdata import read_trace, tracepoints
from labctl.trace.problems import noted_problem
from labctl.trace.threads import Thread, Workload, stored_threads, stored_workload
from labctl.trace.tracepoints import (
    ENTRY,
    EXIT,
    FORK,
    MIGRATE,
    SWITCH,
    TIMER_EXPIRE,
    TIMER_START,
    TO_QEMU,
    WAKEUPS,
    WAKING,
)

_RECORDERS = ("host_trace", "guest_trace")
_SCHEDULER: Mapping[str, Sequence[str]] = {
    SWITCH: ("prev_pid", "prev_state", "next_pid"),
    **dict.fromkeys(WAKEUPS, ("pid", "target_cpu")),
    WAKING: ("pid", "target_cpu"),
    MIGRATE: ("pid", "dest_cpu"),
    FORK: ("parent_pid", "child_pid"),
    TIMER_START: ("hrtimer", "expires"),
    TIMER_EXPIRE: ("hrtimer",),
}
_KVM: Mapping[str, Sequence[str]] = {
    ENTRY: (),
    EXIT: ("exit_reason", "isa"),
    TO_QEMU: ("reason",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recordings:
    """`host` or `guest`: None where nothing was recorded; natively there is no guest. `problems`:
    what the recorders said."""

    host: Trace | None
    threads: Sequence[Thread]
    guest: Trace | None
    clock: ClockMap | str
    workload: Workload
    problems: Sequence[str]


def recordings(folder: TrialFolder, program: str) -> Recordings:
    """`program`: what labctl calls the workload's. Raises UsageError for a trial that wasn't
    traced, BrokenError naming a file of labctl's own that isn't what was written."""
    noted = [noted_problem(folder, recorder) for recorder in _RECORDERS]
    problems = [f"{sentence}." for sentence in noted if sentence]
    host = _trace(folder, files.HOST, {**_SCHEDULER, **_KVM}, problems)
    guest = _trace(folder, files.GUEST, _SCHEDULER, problems)
    if host is None and guest is None:
        reason = " ".join(problems) or "none was recorded."
        raise UsageError(
            f"trial {folder.path.name} has no trace to show: {reason}",
            hint="'labctl sweep STUDY --collect trace' records one with each trial.",
        )
    return Recordings(
        host=host,
        threads=stored_threads(folder) if host is not None else [],
        guest=guest,
        clock=stored_clock_map(folder),
        workload=stored_workload(folder, program),
        problems=problems,
    )


def _trace(
    folder: TrialFolder, name: str, wanted: Mapping[str, Sequence[str]], problems: list[str]
) -> Trace | None:
    """What of `wanted` the file was to record. A file that can't be read is a problem."""
    path = folder.path / name
    if not folder.has(name):
        return None
    try:
        there = set(tracepoints(path))
        return read_trace(path, {event: wanted[event] for event in wanted if event in there})
    except BrokenError as error:
        problems.append(f"{error.message}.")
        return None
