"""Wake-ups that came late, and which part of each was whose. Pure.

The parts are lengths of sets of moments that have none in common, so that they add up to the
latency exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labctl.trace.lane_spans import Meter, in_states, meter, overlaps
from labctl.trace.lanes import Lane, Late, State
from labctl.trace.model import Nanoseconds
from labctl.trace.task_lanes import Mapped
from labctl.trace.wakeups import Wakeups

QUANTILE = 0.95
ENOUGH = 400
"""Wake-ups, for 20 of them to be beyond the quantile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Late wake-ups as columns, by the time line's clock."""

    tid: NDArray[np.int64]
    cpu: NDArray[np.int64]
    meant_ns: Nanoseconds
    woken_ns: Nanoseconds
    ran_ns: Nanoseconds
    host_ns: Nanoseconds
    exit_ns: Nanoseconds
    queue_ns: Nanoseconds

    def __len__(self) -> int:
        return len(self.tid)

    @property
    def latency_ns(self) -> Nanoseconds:
        return self.ran_ns - self.meant_ns

    @property
    def other_ns(self) -> Nanoseconds:
        return self.latency_ns - self.host_ns - self.exit_ns - self.queue_ns


def late_ones(found: Wakeups) -> Wakeups:
    """Those at or above the 95th percentile of all their latencies. A percentile is one of them:
    the smallest latency that at least 95 % don't exceed."""
    if not len(found):
        return found
    latency = found.ran_ns - found.meant_ns
    threshold = np.quantile(latency, QUANTILE, method="inverted_cdf")
    return found.take(latency >= threshold)


def shared(
    late: Wakeups, hosts: Mapping[int, Lane], tasks: Mapping[int, Lane], mapped: Mapped
) -> Shared:
    """Who had the time of each. `hosts`: lanes of vCPUs on their host, by the guest's number of
    the CPU; `tasks`: of CPUs as the guest sees them."""
    meant, woken, ran = mapped(late.meant_ns), mapped(late.woken_ns), mapped(late.ran_ns)
    host, exits, queue = (np.zeros(len(late), dtype=np.int64) for _ in range(3))
    for number in np.unique(late.cpu).tolist():
        own = late.cpu == number
        lane = hosts.get(number)
        if lane is not None:
            host[own] = meter(lane, State.PREEMPTED).between(meant[own], ran[own])
            exits[own] = meter(lane, State.EXIT).between(meant[own], ran[own])
        if number in tasks:
            had = _tasks(tasks[number], lane)
            queue[own] = Meter.of(had.start_ns, had.end_ns).between(woken[own], ran[own])
    return Shared(
        tid=late.tid,
        cpu=late.cpu,
        meant_ns=meant,
        woken_ns=woken,
        ran_ns=ran,
        host_ns=host,
        exit_ns=exits,
        queue_ns=queue,
    )


def described(
    late: Shared,
    rows: NDArray[np.int64],
    hosts: Mapping[int, Lane],
    tasks: Mapping[int, Lane],
    names: Mapping[int, str],
) -> tuple[Late, ...]:
    """Some of them, each with who had the CPU for the longest of it."""
    culprits = {}
    for number in np.unique(late.cpu[rows]).tolist():
        own = rows[late.cpu[rows] == number]
        culprits.update(_culprits(late, own, hosts.get(number), tasks.get(number)))
    columns = zip(
        *(
            column[rows].tolist()
            for column in (
                late.tid,
                late.cpu,
                late.meant_ns,
                late.latency_ns,
                late.host_ns,
                late.exit_ns,
                late.queue_ns,
                late.other_ns,
            )
        ),
        strict=True,
    )
    return tuple(
        Late(
            at_ns=at,
            vcpu=cpu,
            task=names.get(tid, f"task {tid}"),
            latency_ns=latency,
            host_ns=host,
            exit_ns=exits,
            queue_ns=queue,
            other_ns=other,
            culprit=culprits.get(row, ""),
        )
        for row, (tid, cpu, at, latency, host, exits, queue, other) in zip(
            rows.tolist(), columns, strict=True
        )
    )


@dataclass(frozen=True, slots=True)
class _Had:
    """Who had the CPU when. `name`: indices into `names`."""

    start_ns: Nanoseconds
    end_ns: Nanoseconds
    name: NDArray[np.int64]
    names: Sequence[str]


def _had(lane: Lane, state: State, where: str) -> _Had:
    """Those of a lane's spans that name somebody."""
    chosen = in_states(lane, state) & (np.array([*lane.details, ""])[lane.detail] != "")
    return _Had(
        lane.start_ns[chosen],
        lane.end_ns[chosen],
        lane.detail[chosen].astype(np.int64),
        [f"{name} ({where})" for name in lane.details],
    )


def _tasks(tasks: Lane, host: Lane | None) -> _Had:
    """When the guest's CPU ran a task and had a CPU itself."""
    had = _had(tasks, State.TASK, "guest" if host else "task")
    if host is None:
        return had
    runs = in_states(host, State.GUEST)
    start, end = host.start_ns[runs], host.end_ns[runs]
    span, at = overlaps(had.start_ns, had.end_ns, start, end)
    return _Had(
        np.maximum(had.start_ns[span], start[at]),
        np.minimum(had.end_ns[span], end[at]),
        had.name[span],
        had.names,
    )


def _culprits(
    late: Shared, rows: NDArray[np.int64], host: Lane | None, tasks: Lane | None
) -> dict[int, str]:
    """By row, who had the CPU for the longest: a thread of the host, an exit, or a task."""
    end = late.ran_ns[rows]
    asked: list[tuple[_Had, Nanoseconds]] = []
    if host is not None:
        asked.append((_had(host, State.PREEMPTED, "host"), late.meant_ns[rows]))
        asked.append((_had(host, State.EXIT, "exit"), late.meant_ns[rows]))
    if tasks is not None:
        asked.append((_tasks(tasks, host), late.woken_ns[rows]))
    names: list[str] = []
    parts: list[NDArray[np.int64]] = [np.zeros((3, 0), dtype=np.int64)]
    for had, since in asked:
        of, at = overlaps(since, end, had.start_ns, had.end_ns)
        length = np.minimum(had.end_ns[at], end[of]) - np.maximum(had.start_ns[at], since[of])
        parts.append(np.stack((of, had.name[at] + len(names), length)))
        names += had.names
    of, name, length = np.concatenate(parts, axis=1)
    pairs, place = np.unique(of * (len(names) + 1) + name, return_inverse=True)
    sums = np.bincount(place, weights=length)
    longest: dict[int, str] = {}
    # Each row's longest comes last, and stays.
    for pair in pairs[np.argsort(sums, kind="stable")].tolist():
        longest[int(rows[pair // (len(names) + 1)])] = names[pair % (len(names) + 1)]
    return longest
