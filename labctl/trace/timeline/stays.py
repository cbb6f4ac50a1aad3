"""Find what tasks did between one of their switches and the next: ran, waited, or slept. Pure.

`spans` tells that of every thread of a host, in batches; this of a few tasks, at once.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labctl.trace.keys import Keys
from labctl.trace.model import Events, Gap, Nanoseconds, Numbers
from labctl.trace.timeline.lane_spans import Flags, Holes
from labctl.trace.tracepoints import ENDED, STOPPED, UNTOLD

RUNS, WAITS, SLEEPS, _ENDS = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stays:
    """Hold columns of one length, in order of task and time. `what`: RUNS from a switch to the
    task, WAITS or SLEEPS from one away from it; who left without it being told how may sleep. `cpu`
    and `then_cpu`: of the switch at either end. `then_runs`: the one at the end is one to the task.
    """

    tid: NDArray[np.int32]
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    what: NDArray[np.int8]
    cpu: Numbers
    then_cpu: Numbers
    then_runs: Flags

    @classmethod
    def of(cls, switches: Events, keys: Keys) -> Stays:
        """Return the stays of the tasks that are `keys.things`; what they did after their last
        switch is left out."""
        left = np.flatnonzero(np.isin(switches.fields["prev_pid"], keys.things))
        came = np.flatnonzero(np.isin(switches.fields["next_pid"], keys.things))
        state = switches.fields["prev_state"][left]
        what = np.full(len(left) + len(came), RUNS, np.int8)
        what[: len(left)] = np.where(state & STOPPED, SLEEPS, WAITS)
        what[: len(left)][(state & ENDED != 0) & (state != UNTOLD)] = _ENDS
        pids = switches.fields["prev_pid"][left], switches.fields["next_pid"][came]
        tid = np.concatenate(pids).astype(np.int32, copy=False)
        row = np.concatenate((left, came))
        del left, came, state, pids
        # Twice a stable sort; of two switches at one time the one away from the task comes first.
        order = np.argsort(switches.time_ns[row], kind="stable")
        number = np.searchsorted(keys.things, tid[order])
        few = len(keys.things) < 1 << 15  # of 16 bits it is a radix sort
        order = order[np.argsort(number.astype(np.int16) if few else number, kind="stable")]
        del number
        tid, what, row = tid[order], what[order], row[order]
        del order
        time_ns, cpu = switches.time_ns[row], switches.cpu[row]
        del row
        first = np.flatnonzero((tid[1:] == tid[:-1]) & (what[:-1] != _ENDS))
        return cls(
            tid=tid[first],
            start_ns=time_ns[first],
            end_ns=time_ns[first + 1],
            what=what[first],
            cpu=cpu[first],
            then_cpu=cpu[first + 1],
            then_runs=what[first + 1] == RUNS,
        )

    def is_whole(self, gaps: Collection[Gap]) -> Flags:
        """Return whether no switch of the task is missing in between: none that its next one
        presupposes, and none that may have been lost. Who runs on a CPU is for that CPU's events to
        tell."""
        runs = self.what == RUNS
        is_whole: Flags = runs != self.then_runs
        until_ns = Holes.of(gaps).of_spans(self.start_ns, self.end_ns)[0]
        is_whole &= runs | (until_ns == self.end_ns)
        for cpu in {gap.cpu for gap in gaps}:
            own = np.flatnonzero(runs & (self.cpu == cpu))
            until_ns = Holes.of(gaps, cpu).of_spans(self.start_ns[own], self.end_ns[own])[0]
            is_whole[own] &= until_ns == self.end_ns[own]
        return is_whole

    def came_ns(self, rows: NDArray[np.intp], begin_ns: int) -> Nanoseconds:
        """Return when each task had come to the CPU that it left then. `begin_ns`: of the trace,
        for who was there already."""
        before = np.maximum(rows - 1, 0)
        follows = (rows > 0) & (self.tid[before] == self.tid[rows])
        return np.where(follows, self.start_ns[before], begin_ns)

    def slept_again_ns(self, rows: NDArray[np.intp]) -> Nanoseconds:
        """Return when each task began to sleep after these ended; where it isn't seen to, the end
        of its last stay."""
        begins = np.flatnonzero(self.what == SLEEPS)
        lasts = np.flatnonzero(np.append(self.tid[1:] != self.tid[:-1], True))
        own_last = lasts[np.searchsorted(lasts, rows, "left")]
        following = np.searchsorted(begins, rows, "right")
        next_sleep = np.append(begins, len(self.tid))[following]
        is_own = next_sleep <= own_last
        at = np.where(is_own, next_sleep, own_last)
        return np.where(is_own, self.start_ns[at], self.end_ns[at])
