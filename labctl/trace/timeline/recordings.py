"""Read what a trial's collectors recorded: its traces, and what puts them on one time line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from labctl.base.errors import BrokenError, UsageError
from labctl.store.samples import Reading
from labctl.store.trial import TrialFolder
from labctl.trace import files
from labctl.trace.clocks import ClockMap, stored_clock_map
from labctl.trace.model import Trace
from labctl.trace.perf.perfdata import read_trace, tracepoints
from labctl.trace.problems import GUEST_TRACE, HOST_TRACE, noted_problem
from labctl.trace.threads import Thread, Workload, stored_threads, stored_workload
from labctl.trace.timeline.inferred_wakeups import with_inferred_wakeups
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

_WANTED: Mapping[str, Sequence[str]] = {
    SWITCH: ("prev_pid", "prev_state", "next_pid"),
    **dict.fromkeys(WAKEUPS, ("pid", "target_cpu")),
    WAKING: ("pid", "target_cpu"),
    MIGRATE: ("pid", "dest_cpu"),
    FORK: ("parent_pid", "child_pid"),
    TIMER_START: ("hrtimer", "expires"),
    TIMER_EXPIRE: ("hrtimer",),
    ENTRY: (),
    EXIT: ("exit_reason", "isa"),
    TO_QEMU: ("reason",),
}


class Traces:
    """Read a trial's traces, each once, when it is first needed."""

    def __init__(self, folder: TrialFolder) -> None:
        self.folder = folder

    @cached_property
    def host(self) -> Trace | str | None:
        """Return why the file can't be read, None where there is no file."""
        return self._read(files.HOST)

    @cached_property
    def guest(self) -> Trace | str | None:
        """Return the guest's trace, as `host`; a guest may have written anything."""
        return self._read(files.GUEST)

    def _read(self, name: str) -> Trace | str | None:
        """Return all that is used of what the file was to record."""
        path = self.folder.path / name
        if not self.folder.has(name):
            return None
        try:
            there = set(tracepoints(path))
            found = read_trace(path, {event: _WANTED[event] for event in _WANTED if event in there})
        except BrokenError as error:
            return f"{error.message.replace(str(path), name)}."
        problems = (problem.replace(str(path), name) for problem in found.problems)
        whole = with_inferred_wakeups(found)
        return replace(whole, where=name, problems=tuple(problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recordings:
    """Hold a trial's recordings. `host` or `guest`: None where nothing was recorded; natively there
    is no guest. `problems`: the recorders' messages, and unreadable parts."""

    host: Trace | None
    threads: Sequence[Thread]
    guest: Trace | None
    clock: ClockMap | str
    workload: Workload
    problems: Sequence[str]


def recordings(traces: Traces, program: str, readings: Iterable[Reading] = ()) -> Recordings:
    """Return the trial's recordings. `program`: labctl's name for the workload's program.
    `readings`: of its own output. Raises UsageError for a trial that wasn't traced, BrokenError
    naming a file of labctl's own that isn't what was written."""
    folder = traces.folder
    noted = [noted_problem(folder, recorder) for recorder in (HOST_TRACE, GUEST_TRACE)]
    problems = [f"{sentence}." for sentence in noted if sentence]
    problems += [sentence for sentence in (traces.host, traces.guest) if isinstance(sentence, str)]
    host = traces.host if isinstance(traces.host, Trace) else None
    guest = traces.guest if isinstance(traces.guest, Trace) else None
    if host is None and guest is None:
        reason = " ".join(problems) or "none was recorded."
        raise UsageError(
            f"trial {folder.path.name} has no trace to show: {reason}",
            hint="'labctl timeline RUN' lists the trials that have one.",
        )
    return Recordings(
        host=host,
        threads=stored_threads(folder) if host is not None else [],
        guest=guest,
        clock=stored_clock_map(folder),
        workload=stored_workload(folder, program, readings),
        problems=problems,
    )
