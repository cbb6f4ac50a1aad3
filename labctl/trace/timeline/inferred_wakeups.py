"""Infer wake-ups that were requested but that a trace does not show. Pure.

What asks is sched_waking, on the CPU that wakes; what puts the thread on a run queue, sched_wakeup,
may be on another one, in its idle task, of which a kernel may tell nothing (`perfdata_switches`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from labctl.trace.keys import Keys
from labctl.trace.model import Trace
from labctl.trace.timeline.lane_spans import Holes
from labctl.trace.tracepoints import STOPPED, SWITCH, WAKEUP, WAKEUPS, WAKING

_Keys = NDArray[np.int64]


def with_inferred_wakeups(trace: Trace) -> Trace:
    """Return the trace with a sched_wakeup for each sleep that ended without one, no event lost
    meanwhile: when the thread was first asked to wake up since it had last come or been woken, or
    when it fell asleep if that was later. It may have been queued later than that, by as much as
    the other CPU took to answer."""
    if not {SWITCH, WAKING, WAKEUP} <= trace.events.keys() or not len(trace.events[SWITCH]):
        return trace
    switches, waking = trace.events[SWITCH], trace.events[WAKING]
    left, came = switches.fields["prev_pid"], switches.fields["next_pid"]
    keys = Keys.of(np.concatenate((left, came)), trace)
    if not keys.fits:
        return trace
    told_of = [trace.events[name] for name in WAKEUPS if name in trace.events]
    outs, ins = keys.key(left, switches.time_ns), keys.key(came, switches.time_ns)
    slept = np.sort(outs[(switches.fields["prev_state"] & STOPPED != 0) & (left != 0)])
    by_in = np.argsort(ins, kind="stable")
    outs, ins = np.sort(outs), ins[by_in]
    told = _known(keys, [(one.fields["pid"], one.time_ns) for one in told_of])
    asked = _known(keys, [(waking.fields["pid"], waking.time_ns)])
    # Each sleep ends with the thread's next switch, and that is one to it.
    place = np.minimum(np.searchsorted(ins, slept, "right"), len(ins) - 1)
    woke = ins[place]
    is_whole = (woke > slept) & (keys.number(woke) == keys.number(slept))
    is_whole &= np.searchsorted(outs, woke) == np.searchsorted(outs, slept, "right")
    is_whole &= np.searchsorted(told, woke, "right") == np.searchsorted(told, slept)
    slept, place, woke = slept[is_whole], place[is_whole], woke[is_whole]
    # What was asked for before it last came, or was woken, is answered.
    begin = keys.number(slept) * keys.length_ns - 1
    came_at, left_at = _before(ins, slept), _before(outs, slept - 1)
    since = np.maximum(begin, np.maximum(came_at, _before(told, slept)))
    # Where a switch to it is missing, so may be what answered.
    since = np.where((left_at > begin) & (left_at > came_at), slept - 1, since)
    first = np.searchsorted(asked, since, "right")
    request = np.append(asked, np.iinfo(np.int64).max)[first]
    at_ns, until_ns = keys.time_ns(np.maximum(request, slept)), keys.time_ns(woke)
    found = (request < woke) & (
        Holes.of(trace.gaps).of_spans(keys.time_ns(slept), until_ns)[0] == until_ns
    )
    if not found.any():
        return trace
    row = by_in[place[found]]
    order = np.argsort(at_ns[found], kind="stable")
    row = row[order]
    events = trace.events[WAKEUP].with_more(
        at_ns[found][order],
        switches.cpu[row],
        0,
        {"pid": came[row], "target_cpu": switches.cpu[row]},
    )
    return replace(trace, events={**trace.events, WAKEUP: events})


def _known(keys: Keys, parts: list[tuple[NDArray[np.int64] | NDArray[np.int32], _Keys]]) -> _Keys:
    """Return what happened to threads that switches tell of, in order."""
    found = [np.zeros(0, dtype=np.int64)]
    for pids, time_ns in parts:
        own = np.isin(pids, keys.things)
        found.append(keys.key(pids[own], time_ns[own]))
    return np.sort(np.concatenate(found))


def _before(known: _Keys, wanted: _Keys) -> _Keys:
    """Return the last of the known at or before each; -1 for none. It may be another thread's."""
    at = np.searchsorted(known, wanted, "right") - 1
    found: _Keys = np.where(at >= 0, np.append(known, -1)[at], -1)
    return found
