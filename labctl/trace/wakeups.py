"""When tasks were meant to run, were woken, and ran: from a machine's own events. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labctl.trace.keys import Keys, last
from labctl.trace.lane_spans import Flags, Holes
from labctl.trace.model import Nanoseconds, Numbers, Trace
from labctl.trace.tracepoints import STOPPED, SWITCH, TIMER_EXPIRE, TIMER_START, WAKEUP, WAKING

_WOKEN = (WAKING, WAKEUP)
"""The earlier one first."""

_LONGEST_LATENESS_NS = 60_000_000_000
"""Of a timer. Beyond it `expires` is no time of CLOCK_MONOTONIC, but of another clock."""
_RUNS, _SLEEPS, _COMES = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wakeups:
    """As columns of one length, by the recording machine's clock.

    `meant_ns`: when the timer was due that woke the task (`timed`); else when it was woken.
    `ran_ns`: when it was switched in next, on `cpu`.
    """

    tid: NDArray[np.int64]
    cpu: NDArray[np.int64]
    meant_ns: Nanoseconds
    woken_ns: Nanoseconds
    ran_ns: Nanoseconds
    timed: Flags

    def __len__(self) -> int:
        return len(self.tid)

    def within(self, start_ns: int, end_ns: int) -> Wakeups:
        """Those that were meant and came in a window."""
        return self.take((self.meant_ns >= start_ns) & (self.ran_ns <= end_ns))

    def take(self, chosen: Flags | NDArray[np.int64]) -> Wakeups:
        return Wakeups(
            tid=self.tid[chosen],
            cpu=self.cpu[chosen],
            meant_ns=self.meant_ns[chosen],
            woken_ns=self.woken_ns[chosen],
            ran_ns=self.ran_ns[chosen],
            timed=self.timed[chosen],
        )


def wakeups(trace: Trace, tids: Sequence[int]) -> tuple[Wakeups, int]:
    """Of some tasks, from the sleep before to the switch-in after; and how many more there were
    with events missing in between, of which nothing is known."""
    switches = trace.events.get(SWITCH)
    waking = next((trace.events[name] for name in _WOKEN if name in trace.events), None)
    if switches is None or waking is None or not len(switches) or not len(tids):
        return _none(), 0
    keys = Keys.of(tids, trace)
    left = np.isin(switches.fields["prev_pid"], tids)
    came = np.isin(switches.fields["next_pid"], tids)
    sleeps = (switches.fields["prev_state"][left] & STOPPED) != 0
    key = np.concatenate(
        (
            keys.key(switches.fields["prev_pid"][left], switches.time_ns[left]),
            keys.key(switches.fields["next_pid"][came], switches.time_ns[came]),
        )
    )
    what = np.concatenate(
        (np.where(sleeps, _SLEEPS, _RUNS), np.full(np.count_nonzero(came), _COMES))
    )
    cpu = np.concatenate((switches.cpu[left], switches.cpu[came]))
    in_order = np.lexsort((what, key))
    key, what, cpu = key[in_order], what[in_order], cpu[in_order]
    if not len(key):
        return _none(), 0
    own = np.flatnonzero(np.isin(waking.fields["pid"], tids))
    woken = keys.key(waking.fields["pid"][own], waking.time_ns[own])
    in_order = np.argsort(woken, kind="stable")
    own, woken = own[in_order], woken[in_order]
    after = np.searchsorted(key, woken, "right")
    before, then = np.maximum(after - 1, 0), np.minimum(after, len(key) - 1)
    fits = (after > 0) & (after < len(key)) & (what[before] == _SLEEPS)
    for other in (before, then):
        fits &= keys.number(key[other]) == keys.number(woken)
    # Of several within one sleep it is the first that woke it.
    fits[1:] &= after[1:] != after[:-1]
    own, before, then = own[fits], before[fits], then[fits]
    slept_ns, ran_ns = keys.time_ns(key[before]), keys.time_ns(key[then])
    kept = Holes.of(trace.gaps).of_spans(slept_ns, ran_ns)[0] == ran_ns
    # Who leaves before it came: the switch in between is missing.
    kept &= what[then] == _COMES
    # Times so far apart that keys don't hold them are made up.
    kept &= (slept_ns <= waking.time_ns[own]) & (waking.time_ns[own] <= ran_ns)
    own, slept_ns, ran_ns, then = own[kept], slept_ns[kept], ran_ns[kept], then[kept]
    tid, woken_ns = waking.fields["pid"][own].astype(np.int64), waking.time_ns[own]
    due_ns, timed = _due(trace, tid, woken_ns, waking.cpu[own], slept_ns)
    found = Wakeups(
        tid=tid,
        cpu=cpu[then].astype(np.int64),
        meant_ns=np.where(timed, due_ns, woken_ns),
        woken_ns=woken_ns,
        ran_ns=ran_ns,
        timed=timed,
    )
    return found, int(np.count_nonzero(~kept))


def _due(
    trace: Trace,
    tid: NDArray[np.int64],
    woken_ns: Nanoseconds,
    cpu: Numbers,
    slept_ns: Nanoseconds,
) -> tuple[Nanoseconds, Flags]:
    """When the timer was due that woke each task, and whether that is known.

    The timer that expired last on the CPU that woke the task, if that was while the task slept, and
    the task itself had started it: hrtimer_nanosleep() does so, and a tick's timer doesn't.
    """
    starts, expiries = trace.events.get(TIMER_START), trace.events.get(TIMER_EXPIRE)
    never = np.zeros(len(tid), dtype=np.int64), np.zeros(len(tid), dtype=bool)
    if starts is None or expiries is None or not len(starts) or not len(expiries):
        return never
    if not {"hrtimer", "expires"} <= starts.fields.keys() or "hrtimer" not in expiries.fields:
        return never
    by_cpu = Keys.of(expiries.cpu, trace)
    at = last(by_cpu.key(expiries.cpu, expiries.time_ns), by_cpu.key(cpu, woken_ns))
    expired_ns, timer = expiries.time_ns[at], expiries.fields["hrtimer"][at]
    known = (at >= 0) & (expiries.cpu[at] == cpu)
    known &= (expired_ns >= slept_ns) & (expired_ns <= woken_ns)
    by_timer = Keys.of(starts.fields["hrtimer"], trace)
    at = last(
        by_timer.key(starts.fields["hrtimer"], starts.time_ns), by_timer.key(timer, expired_ns)
    )
    due_ns = starts.fields["expires"][at].astype(np.int64)
    known &= (at >= 0) & (starts.fields["hrtimer"][at] == timer) & (starts.tid[at] == tid)
    known &= (due_ns <= expired_ns) & (expired_ns - due_ns < _LONGEST_LATENESS_NS)
    return due_ns, known


def _none() -> Wakeups:
    nothing = np.zeros(0, dtype=np.int64)
    return Wakeups(
        tid=nothing,
        cpu=nothing,
        meant_ns=nothing,
        woken_ns=nothing,
        ran_ns=nothing,
        timed=nothing.astype(bool),
    )
