"""Read a trial's recordings: its traces, and the data that puts them on one time line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labctl.base.errors import BrokenError, UsageError
from labctl.store.samples import Reading
from labctl.store.trial import TrialFolder
from labctl.trace import files
from labctl.trace.clocks import ClockMap, stored_clock_map
from labctl.trace.files import GUEST_TRACE, HOST_TRACE, noted_problem
from labctl.trace.model import (
    ENTRY,
    EXIT,
    FORK,
    MIGRATE,
    SWITCH,
    TIMER_EXPIRE,
    TIMER_START,
    TO_QEMU,
    WAKEUP,
    WAKEUPS,
    WAKING,
    Events,
    Nanoseconds,
    Numbers,
    Trace,
)
from labctl.trace.perf.perfdata import read_trace, tracepoints
from labctl.trace.records import IN, OUT, OUT_RUNNABLE, WAKE, Records, batches, by_thread
from labctl.trace.threads import Numbering, Thread, Workload, stored_threads, stored_workload
from labctl.trace.timeline.lanes import Holes

# Infer wake-ups that were requested but that a trace does not show. Pure.
#
# The request is sched_waking, on the CPU that wakes. sched_wakeup, which puts the thread on a run
# queue, may be on another CPU, in its idle task, whose events a kernel may hide (`perf.switches`).


_NEVER = np.iinfo(np.int64).min
_FEW_OF = 8
"""Share of all requests up to which only those during the sleeps are searched: an eighth."""


def with_inferred_wakeups(trace: Trace) -> Trace:
    """Return the trace with a sched_wakeup for each sleep that ended without one, if no event was
    lost meanwhile: at the first request to wake the thread since it had last come or been woken, or
    when it fell asleep if that was later. It may have been queued later than that, by the time that
    the other CPU took to answer."""
    if not {SWITCH, WAKING, WAKEUP} <= trace.events.keys() or not len(trace.events[SWITCH]):
        return trace
    numbering = Numbering.of(trace)
    parts = list(_unexplained(trace, numbering))
    sleeps = _Sleeps(
        *(np.concatenate([getattr(p, n) for p in parts]) for n in _Sleeps.__dataclass_fields__)
    )
    if not len(sleeps.thread):
        return trace
    sleeps = sleeps.take(np.lexsort((sleeps.start_ns, sleeps.thread)))
    request_ns = _first_requests(trace.events[WAKING], numbering, sleeps)
    asked = request_ns < sleeps.end_ns
    asked &= Holes.of(trace.gaps).of_spans(sleeps.start_ns, sleeps.end_ns)[0] == sleeps.end_ns
    if not asked.any():
        return trace
    sleeps = sleeps.take(asked)
    at_ns = np.maximum(request_ns[asked], sleeps.start_ns)
    order = np.argsort(at_ns, kind="stable")
    cpu = sleeps.cpu[order]
    who = numbering.tids[sleeps.thread[order]]
    events = trace.events[WAKEUP].with_more(at_ns[order], cpu, 0, {"pid": who, "target_cpu": cpu})
    return replace(trace, events={**trace.events, WAKEUP: events})


@dataclass(frozen=True, slots=True)
class _Sleeps:
    """Hold sleeps that ended without a wake-up, as columns. `since_ns`: requests up to then are
    answered. `cpu`: where the thread came to after it."""

    thread: NDArray[Any]
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    since_ns: Nanoseconds
    cpu: Numbers

    def take(self, chosen: NDArray[Any]) -> _Sleeps:
        return _Sleeps(*(getattr(self, name)[chosen] for name in _Sleeps.__dataclass_fields__))


def _unexplained(trace: Trace, numbering: Numbering) -> Iterator[_Sleeps]:
    """Yield the sleeps of each batch."""
    count = len(numbering.tids)
    known = {what: np.full(count, _NEVER) for what in (IN, OUT, WAKE)}
    none = np.zeros(0, np.int64)
    held = Records(
        none.astype(numbering.number_of.dtype), none, none.astype(np.int8), none.astype(np.int16)
    )
    for batch in batches(trace, numbering):
        merged = by_thread(held, *batch)
        held = merged.take(np.flatnonzero(merged.is_last))
        yield _of_batch(merged, known)
        _note_last(merged, held, known)


def _note_last(records: Records, last: Records, known: dict[int, Nanoseconds]) -> None:
    """Record when each of these threads came, left and was woken last. `last`: each one's last
    record."""
    if not len(last.thread):
        return
    begins = np.append(0, np.flatnonzero(records.is_last)[:-1] + 1)
    for what, moments in known.items():
        time_ns = np.where(_is_what(records, what), records.time_ns, _NEVER)
        latest = np.maximum.reduceat(time_ns, begins)
        moments[last.thread] = np.maximum(moments[last.thread], latest)


def _of_batch(records: Records, known: dict[int, Nanoseconds]) -> _Sleeps:
    """Return the sleeps that end with a record of these. `known`: when each thread came, left and
    was woken last, before them."""
    what, thread, time_ns = records.what, records.thread, records.time_ns
    at = np.flatnonzero(
        (what[:-1] == OUT)
        & (what[1:] == IN)
        & (thread[1:] == thread[:-1])
        & (time_ns[1:] > time_ns[:-1])
    )
    if not len(at):
        # Copies, because a view would keep the batch in memory.
        nothing = time_ns[:0].copy()
        return _Sleeps(thread[:0].copy(), nothing, nothing, nothing, records.cpu[:0].copy())
    came_ns, left_ns, told_ns = (
        _last_before(records, what, at, known[what]) for what in (IN, OUT, WAKE)
    )
    # If a switch to it is missing, its answer may be missing as well.
    answered_ns = np.where(left_ns > came_ns, time_ns[at] - 1, np.maximum(came_ns, told_ns))
    return _Sleeps(thread[at], time_ns[at], time_ns[at + 1], answered_ns, records.cpu[at + 1])


def _last_before(
    records: Records, what: int, at: NDArray[np.intp], known_ns: Nanoseconds
) -> Nanoseconds:
    """Return when the threads of the records `at` last did this before."""
    own = np.flatnonzero(_is_what(records, what))
    place = np.searchsorted(own, at) - 1
    last = np.append(own, 0)[place]
    is_here = (place >= 0) & (records.thread[last] == records.thread[at])
    found: Nanoseconds = np.where(is_here, records.time_ns[last], known_ns[records.thread[at]])
    return found


def _is_what(records: Records, what: int) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = records.what == what
    return found | (records.what == OUT_RUNNABLE) if what == OUT else found


def _first_requests(waking: Events, numbering: Numbering, sleeps: _Sleeps) -> Nanoseconds:
    """Return when each of these threads was first requested to wake since the last answer; int64's
    largest if it was not before it came. `sleeps` are in order of thread."""
    found = np.full(len(sleeps.thread), np.iinfo(np.int64).max)
    begins = np.searchsorted(waking.time_ns, sleeps.since_ns, "right")
    counts = np.maximum(np.searchsorted(waking.time_ns, sleeps.end_ns, "left") - begins, 0)
    if int(counts.sum()) * _FEW_OF <= len(waking):
        sleep = np.repeat(np.arange(len(counts)), counts)
        row = np.arange(len(sleep)) + np.repeat(begins - (np.cumsum(counts) - counts), counts)
        own = waking.fields["pid"].take(row) == numbering.tids.take(sleeps.thread.take(sleep))
        which, firsts = np.unique(sleep[own], return_index=True)
        found[which] = waking.time_ns.take(row[own][firsts])
        return found
    threads, firsts = np.unique(sleeps.thread, return_index=True)
    place = np.full(len(numbering.tids) + 1, -1, numbering.number_of.dtype)  # with -1 for none
    place[threads] = np.arange(len(threads))
    number = place[numbering.number_of[numbering.within(waking.fields["pid"])]]
    own = np.flatnonzero(number >= 0)
    order = own[np.argsort(number[own], kind="stable")]
    ends = np.cumsum(np.bincount(number[own], minlength=len(threads)))
    for nth, (first, last) in enumerate(zip(firsts, [*firsts[1:], len(found)], strict=True)):
        times = waking.time_ns[order[ends[nth - 1] if nth else 0 : ends[nth]]]
        if len(times):
            after = np.searchsorted(times, sleeps.since_ns[first:last], "right")
            found[first:last] = np.append(times, found[first])[after]
    return found


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
        """Return the host's trace, why its file cannot be read, or None without a file."""
        return self._read(files.HOST)

    @cached_property
    def guest(self) -> Trace | str | None:
        """Return the guest's trace, as `host`; a guest may have written anything."""
        return self._read(files.GUEST)

    def _read(self, name: str) -> Trace | str | None:
        """Return everything that is used of the recorded events."""
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
    """Hold a trial's recordings. `host` or `guest`: None if nothing was recorded; natively there is
    no guest. `problems`: the recorders' messages, and unreadable parts."""

    host: Trace | None
    threads: Sequence[Thread]
    guest: Trace | None
    clock: ClockMap | str
    workload: Workload
    problems: Sequence[str]


def recordings(traces: Traces, program: str, readings: Iterable[Reading] = ()) -> Recordings:
    """Return the trial's recordings. `program`: labctl's name for the workload's program.
    `readings`: of its own output. Raises UsageError for a trial that was not traced, BrokenError
    naming an invalid file of labctl's own."""
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
