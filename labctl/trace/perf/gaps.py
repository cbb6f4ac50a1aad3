"""Find where perf lost events: between which two of the same CPU, and how many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labctl.trace.model import Gap, Nanoseconds

MAX_CPUS = 1 << 16
_NEVER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Hold a PERF_RECORD_LOST: at this place of the file `count` records of this CPU are
    missing.
    """

    at: int
    cpu: int
    count: int


class Gaps:
    """Find gaps. A CPU's records are in the file in the order of its own buffer, so its samples on
    either side of a loss bound it. Times don't: the kernel takes that of a PERF_RECORD_LOST after
    that of the sample which it makes room for (perf_output_begin in kernel/events/ring_buffer.c).
    """

    def __init__(self) -> None:
        self._last = np.full(MAX_CPUS, _NEVER, dtype=np.int64)
        self._found: list[tuple[int, int, int | None, int]] = []
        self._open: list[tuple[int, int, int]] = []  # no sample of the CPU has followed yet
        self._counted: Counter[int] = Counter()
        self._said: Counter[int] = Counter()

    def take(
        self,
        losses: Sequence[Loss],
        at: NDArray[np.int64],
        times: Nanoseconds,
        cpus: NDArray[np.int32],
    ) -> None:
        """Take the file's next records: losses, and samples at the ascending places `at`."""
        if losses or self._open:
            self._place(losses, at, times, cpus)
        if len(cpus) and (cpus == cpus[0]).all():
            self._last[cpus[0]] = times[-1]
        else:
            self._last[cpus] = times  # of equal indices the last one holds

    def _place(
        self,
        losses: Sequence[Loss],
        at: NDArray[np.int64],
        times: Nanoseconds,
        cpus: NDArray[np.int32],
    ) -> None:
        affected = {loss.cpu for loss in losses} | {cpu for cpu, _, _ in self._open}
        own = {cpu: np.flatnonzero(cpus == cpu) for cpu in affected}
        still_open = []
        for cpu, start, count in self._open:
            if len(own[cpu]):
                self._found.append((cpu, start, int(times[own[cpu][0]]), count))
            else:
                still_open.append((cpu, start, count))
        self._open = still_open
        for loss in losses:
            self._counted[loss.cpu] += loss.count
            mine = own[loss.cpu]
            following = int(np.searchsorted(at[mine], loss.at))
            before = times[mine[following - 1]] if following else self._last[loss.cpu]
            if following < len(mine):
                end = int(times[mine[following]])
                self._found.append((loss.cpu, int(before), end, loss.count))
            else:
                self._open.append((loss.cpu, int(before), loss.count))

    def lost_in_all(self, cpu: int, count: int) -> None:
        """Take perf's final sum of what one event lost on a CPU: it includes PERF_RECORD_LOST and
        later losses."""
        self._said[cpu] += count

    def gaps(self, start_ns: int, end_ns: int) -> tuple[Gap, ...]:
        """Return the gaps in order of time. `start_ns`, `end_ns`: of the trace, where no sample
        bounds a gap.
        """
        unbounded = [
            (cpu, int(self._last[cpu]), None, said - self._counted[cpu])
            for cpu, said in self._said.items()
            if said > self._counted[cpu]
        ]
        after = [(cpu, start, None, count) for cpu, start, count in self._open]
        found = []
        for cpu, start, end, count in [*self._found, *after, *unbounded]:
            first = start_ns if start == _NEVER else start
            last = end_ns if end is None else end
            # An interrupt's event may stand in the file before the one that it interrupted.
            found.append(
                Gap(cpu=cpu, start_ns=min(first, last), end_ns=max(first, last), count=count)
            )
        return tuple(sorted(found, key=lambda gap: (gap.start_ns, gap.end_ns, gap.cpu)))
