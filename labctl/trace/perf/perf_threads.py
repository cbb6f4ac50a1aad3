"""Read from perf.data the threads' names and processes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from labctl.trace.model import Numbers

MAX_TID = 1 << 22
"""PID_MAX_LIMIT of include/linux/threads.h: no thread of a 64-bit Linux has a larger number."""

COMM_BYTES = 16
"""TASK_COMM_LEN of include/linux/sched.h."""

_IDLE = "swapper"
"""Name of the idle tasks in perf, one per CPU, all of which are thread 0."""


class Threads:
    """Collect threads in arrays by thread number, whose unused parts take no memory: a trace may
    name a thread ten million times."""

    def __init__(self) -> None:
        self._names = np.zeros((MAX_TID + 1, COMM_BYTES // 4), dtype=np.uint32)
        self._named_at = np.zeros(MAX_TID + 1, dtype=np.int64)
        self._order = np.zeros(MAX_TID + 1, dtype=np.int32)
        self._processes = np.zeros(MAX_TID + 1, dtype=np.int32)
        self._end = 1  # above all threads seen

    def run_in(self, tids: NDArray[np.int32], pids: NDArray[np.int32]) -> None:
        """Record the threads' processes; if records differ, the last one applies."""
        if len(tids) and tids.min() >= 0 and np.array_equal(self._processes.take(tids), pids):
            return
        known = (tids > 0) & (tids <= MAX_TID) & (pids > 0) & (pids <= MAX_TID)
        if not known.all():
            tids, pids = tids[known], pids[known]
        self._processes[tids] = pids
        self._end = max(self._end, 1 + int(tids.max(initial=0)))

    def runs_in(self, tid: int, pid: int) -> None:
        if 0 < tid <= MAX_TID and 0 < pid <= MAX_TID:
            self._processes[tid] = pid
            self._end = max(self._end, 1 + tid)

    def are_called(
        self,
        tids: Numbers,
        at: NDArray[np.int64],
        names: NDArray[np.uint32],
        starts: NDArray[np.int64],
        *,
        anew: bool,
    ) -> None:
        """Record names of threads from events at the ascending bytes `at` of the file; `starts` are
        the names' places in `names`. The last name applies; without `anew` only unnamed threads get
        one, which costs less."""
        if not anew:
            named_at = self._named_at.take(tids)
            if named_at.all():
                return
            nameless = np.flatnonzero(named_at == 0)
            tids, at, starts = tids[nameless], at[nameless], starts[nameless]
        places = tids.astype(np.intp)  # NumPy takes half the time for indices of its own type
        order = np.arange(len(tids), dtype=np.int32)
        # For a repeated index NumPy keeps the last value ("Assigning values to indexed arrays" of
        # its user guide).
        self._order[places] = order
        last = np.flatnonzero(self._order.take(places) == order)
        last = last[at[last] >= self._named_at[tids[last]]]
        self._end = max(self._end, 1 + int(tids.max(initial=0)))
        self._named_at[tids[last]] = at[last]
        self._names[tids[last]] = names[starts[last, np.newaxis] + np.arange(COMM_BYTES // 4)]

    def is_called(self, tid: int, at: int, name: bytes) -> None:
        """Record a thread's name from the record at byte `at` of the file."""
        if 0 < tid <= MAX_TID and at >= self._named_at[tid]:
            padded = name[:COMM_BYTES].ljust(COMM_BYTES, b"\0")
            self._end = max(self._end, 1 + tid)
            self._named_at[tid] = at
            self._names[tid] = np.frombuffer(padded, dtype="<u4")

    @property
    def names(self) -> dict[int, str]:
        named = np.flatnonzero(self._named_at[: self._end]).tolist()
        found = {
            tid: self._names[tid].tobytes().split(b"\0")[0].decode(errors="replace")
            for tid in named
        }
        return {**found, 0: _IDLE}

    @property
    def processes(self) -> dict[int, int]:
        tids = np.flatnonzero(self._processes[: self._end])
        return dict(zip(tids.tolist(), self._processes[tids].tolist(), strict=True))
