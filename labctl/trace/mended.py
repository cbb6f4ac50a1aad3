"""Switches away from idle CPUs that a trace lacks, put back where they were. Pure.

Linux 6.18 was seen to record no switch of one CPU's idle task, for no reader: likely, though not
proven, its guard against events within events, each thread's own since 6.11
(perf_swevent_get_recursion_context), had stuck in it. But who wakes on an idle CPU runs at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from labctl.trace.keys import Keys
from labctl.trace.lane_spans import Holes
from labctl.trace.model import Events, Nanoseconds, Numbers, Trace
from labctl.trace.tracepoints import SWITCH, WAKEUPS, WAKING

_NEVER = np.iinfo(np.int64).max


def mended(trace: Trace) -> tuple[Trace, int]:
    """The trace with such switches, and how many: where a thread leaves a CPU that had gone idle,
    and was woken in between, it came when it was woken, or when the CPU went idle if that was
    later. Where it wasn't seen to be woken, or events were lost, nothing is put."""
    switches = trace.events.get(SWITCH)
    if switches is None or len(switches) < 2:
        return trace, 0
    by_cpu = np.argsort(switches.cpu, kind="stable")
    before, after = by_cpu[:-1], by_cpu[1:]
    left, came = switches.fields["prev_pid"], switches.fields["next_pid"]
    gone = (switches.cpu[before] == switches.cpu[after]) & (came[before] == 0) & (left[after] != 0)
    before, after = before[gone], after[gone]
    if not len(after):
        return trace, 0
    keys = Keys.of(left[after], trace)
    tid, until_ns = left[after], switches.time_ns[after]
    wanted = keys.key(tid, until_ns)
    # Since when each sleeps: none that came again meanwhile.
    out_ns = _last_before(keys, wanted, left, switches.time_ns)
    in_ns = _last_before(keys, wanted, came, switches.time_ns)
    woken_ns = _first_after(keys, tid, out_ns, [trace.events.get(name) for name in WAKEUPS])
    asked_ns = _first_after(keys, tid, out_ns, [trace.events.get(WAKING)])
    woken_ns = np.where(woken_ns < until_ns, woken_ns, asked_ns)
    found = (in_ns <= out_ns) & (woken_ns < until_ns)
    # What was lost may be that switch, or others.
    since_ns = np.minimum(np.where(out_ns < 0, until_ns, out_ns), switches.time_ns[before])
    found &= Holes.of(trace.gaps).of_spans(since_ns, until_ns)[0] == until_ns
    if not found.any():
        return trace, 0
    at_ns = np.maximum(woken_ns, switches.time_ns[before])[found]
    nobody = np.zeros(len(at_ns), dtype=np.int32)
    added = {name: np.zeros(len(at_ns), dtype=np.int64) for name in switches.fields}
    added["next_pid"] = tid[found].astype(np.int64)
    time_ns = np.concatenate((switches.time_ns, at_ns))
    order = np.argsort(time_ns, kind="stable")
    events = Events(
        time_ns=time_ns[order],
        cpu=np.concatenate((switches.cpu, switches.cpu[after][found]))[order],
        tid=np.concatenate((switches.tid, nobody))[order],
        fields={
            name: np.concatenate((column, added[name].astype(column.dtype)))[order]
            for name, column in switches.fields.items()
        },
    )
    return replace(trace, events={**trace.events, SWITCH: events}), len(at_ns)


def _last_before(
    keys: Keys, wanted: NDArray[np.int64], tid: Numbers, time_ns: Nanoseconds
) -> Nanoseconds:
    """When these things last happened to the thread of each wanted key, before it; -1 for never."""
    own = np.isin(tid, keys.things)
    known = np.sort(keys.key(tid[own], time_ns[own]))
    if not len(known):
        return np.full(len(wanted), -1)
    at = np.searchsorted(known, wanted) - 1
    fits = (at >= 0) & (keys.number(known[at]) == keys.number(wanted))
    found: Nanoseconds = np.where(fits, keys.time_ns(known[at]), -1)
    return found


def _first_after(
    keys: Keys, tid: Numbers, since_ns: Nanoseconds, kinds: Sequence[Events | None]
) -> Nanoseconds:
    """When each thread was first woken then or later; a moment that never comes for never."""
    pids, times = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for events in kinds:
        if events is not None:
            own = np.isin(events.fields["pid"], keys.things)
            pids.append(events.fields["pid"][own].astype(np.int64))
            times.append(events.time_ns[own])
    known = np.sort(keys.key(np.concatenate(pids), np.concatenate(times)))
    if not len(known):
        return np.full(len(tid), _NEVER)
    since = keys.key(tid, np.maximum(since_ns, keys.begin_ns))
    at = np.minimum(np.searchsorted(known, since), len(known) - 1)
    fits = (known[at] >= since) & (keys.number(known[at]) == keys.number(since))
    found: Nanoseconds = np.where(fits, keys.time_ns(known[at]), _NEVER)
    return found
