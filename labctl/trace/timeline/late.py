"""Find late wake-ups, and attribute each part of their latency. Pure.

The parts are lengths of disjoint sets of times, so that they add up to the latency exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labctl.trace.coverage import QUANTILE
from labctl.trace.model import Nanoseconds
from labctl.trace.timeline.host_lanes import Mapped
from labctl.trace.timeline.lanes import Lane, Late, Meter, State, in_states, meter, overlaps
from labctl.trace.timeline.wakeups import Wakeups

_HOST = " (host)"
ENOUGH = 400
"""Minimum number of wake-ups, so that 20 are beyond the quantile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Hold late wake-ups as columns, by the time line's clock."""

    tid: NDArray[np.int64]
    cpu: NDArray[np.int64]
    meant_ns: Nanoseconds
    woken_ns: Nanoseconds
    ran_ns: Nanoseconds
    host_ns: Nanoseconds
    main_loop_ns: Nanoseconds
    """Part of `host_ns` in which the vCPU was halted and QEMU's main loop, which should wake it,
    waited."""
    exit_ns: Nanoseconds
    queue_ns: Nanoseconds
    unsure_ns: Nanoseconds
    """Part of the rest that cannot be attributed: the host's side is unknown, or another task ran
    and this one may have been woken before or after."""

    def __len__(self) -> int:
        return len(self.tid)

    @property
    def latency_ns(self) -> Nanoseconds:
        return self.ran_ns - self.meant_ns

    @property
    def other_ns(self) -> Nanoseconds:
        return self.latency_ns - self.host_ns - self.exit_ns - self.queue_ns

    def of(self, part: str) -> Nanoseconds:
        """Return a part by its name: "host", "exit", "queue" or "other"."""
        column: Nanoseconds = getattr(self, f"{part}_ns")
        return column


def late_ones(found: Wakeups) -> Wakeups:
    """Return those at or above the 95th percentile of all latencies. A percentile is one of the
    values: the smallest latency that at least 95 % do not exceed."""
    if not len(found):
        return found
    threshold = np.quantile(found.latency_ns, QUANTILE, method="inverted_cdf")
    return found.take(found.latency_ns >= threshold)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """Hold lanes by the number of the CPU: `hosts`, of vCPUs on their host, and `tasks`, of CPUs as
    the guest sees them. `main_loop`: of QEMU's main thread, if it runs the guest's timers."""

    hosts: Mapping[int, Lane]
    tasks: Mapping[int, Lane]
    main_loop: Lane | None = None
    has_exits: bool = False
    is_native: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the parts of a latency that can be determined; the rest is among the others."""
        if self.is_native:
            return ("queue",)
        if not self.hosts:
            return ()
        return ("host", "exit", "queue") if self.has_exits else ("host", "queue")


def shared(late: Wakeups, sight: Sight, mapped: Mapped) -> Shared:
    """Return the parts of each wake-up's latency."""
    meant, woken, ran = mapped(late.meant_ns), mapped(late.woken_ns), mapped(late.ran_ns)
    host, loop, exits, queue, unsure = (np.zeros(len(late), dtype=np.int64) for _ in range(5))
    for number in np.unique(late.cpu).tolist():
        own = late.cpu == number
        lane = sight.hosts.get(number)
        if lane is not None:
            if sight.main_loop is not None:
                waited = _main_loop(lane, sight.main_loop).meter
                loop[own] = waited.between(meant[own], ran[own])
            host[own] = meter(lane, State.PREEMPTED).between(meant[own], ran[own]) + loop[own]
            exits[own] = meter(lane, State.EXIT).between(meant[own], ran[own])
            unsure[own] = meter(lane, State.UNKNOWN).between(meant[own], ran[own])
        if number in sight.tasks and (sight.is_native or lane is not None):
            tasks = sight.tasks[number]
            queued = _tasks(tasks, lane).meter.between(woken[own], ran[own])
            queue[own] = np.where(late.inferred[own], 0, queued)
            unsure[own] += np.where(late.inferred[own], queued, 0)
            unsure[own] += meter(tasks, State.UNKNOWN).between(woken[own], ran[own])
    rest = ran - meant - host - exits - queue
    return Shared(
        tid=late.tid,
        cpu=late.cpu,
        meant_ns=meant,
        woken_ns=woken,
        ran_ns=ran,
        host_ns=host,
        main_loop_ns=loop,
        exit_ns=exits,
        queue_ns=queue,
        unsure_ns=np.minimum(unsure, rest),
    )


def described(
    late: Shared,
    rows: NDArray[np.int64],
    sight: Sight,
    names: Mapping[int, str],
) -> tuple[Late, ...]:
    """Return some of them, each with the thread that had the CPU for most of it."""
    culprits: dict[int, str] = {}
    behind: dict[int, dict[str, int]] = {}
    for number in np.unique(late.cpu[rows]).tolist():
        own = rows[late.cpu[rows] == number]
        for row, who in _who_had_it(late, own, number, sight):
            culprits.setdefault(row, "".join(who[:2]))
            if who.where == _HOST:
                behind.setdefault(row, {})[who.name] = who.length_ns
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
            behind_ns=behind.get(row, {}),
        )
        for row, (tid, cpu, at, latency, host, exits, queue, other) in zip(
            rows.tolist(), columns, strict=True
        )
    )


class _Who(NamedTuple):
    name: str
    where: str
    length_ns: int


@dataclass(frozen=True, slots=True)
class _Had:
    """Hold which thread had a CPU when. `name`: indices into `names`."""

    start_ns: Nanoseconds
    end_ns: Nanoseconds
    name: NDArray[np.int64]
    names: Sequence[str]

    @classmethod
    def of(cls, lane: Lane, state: State) -> _Had:
        chosen = in_states(lane, state)
        name = lane.detail[chosen].astype(np.int64)
        return cls(lane.start_ns[chosen], lane.end_ns[chosen], name, lane.details)

    def during(self, lane: Lane, state: State) -> _Had:
        """Return the part that overlaps a state of another lane."""
        chosen = in_states(lane, state)
        start, end = lane.start_ns[chosen], lane.end_ns[chosen]
        span, at = overlaps(self.start_ns, self.end_ns, start, end)
        return _Had(
            np.maximum(self.start_ns[span], start[at]),
            np.minimum(self.end_ns[span], end[at]),
            self.name[span],
            self.names,
        )

    @property
    def meter(self) -> Meter:
        return Meter.of(self.start_ns, self.end_ns)


def _tasks(tasks: Lane, host: Lane | None) -> _Had:
    """Return when the guest's CPU ran a task, and had a CPU itself."""
    had = _Had.of(tasks, State.TASK)
    return had if host is None else had.during(host, State.GUEST)


def _main_loop(host: Lane, main_loop: Lane) -> _Had:
    """Return the threads that had the CPU that QEMU's main loop waited for, while the vCPU was
    halted."""
    return _Had.of(main_loop, State.PREEMPTED).during(host, State.HALTED)


def _who_had_it(
    late: Shared, rows: NDArray[np.int64], cpu: int, sight: Sight
) -> Iterator[tuple[int, _Who]]:
    """Return by row who had the CPU for how long, the longest first: threads of the host, exits,
    and tasks."""
    host, tasks = sight.hosts.get(cpu), sight.tasks.get(cpu)
    meant, woken, ran = late.meant_ns[rows], late.woken_ns[rows], late.ran_ns[rows]
    asked: list[tuple[_Had, str, Nanoseconds]] = []
    if host is not None:
        asked.append((_Had.of(host, State.PREEMPTED), _HOST, meant))
        asked.append((_Had.of(host, State.EXIT), " (exit)", meant))
        if sight.main_loop is not None:
            asked.append((_main_loop(host, sight.main_loop), _HOST, meant))
    if tasks is not None and (sight.is_native or host is not None):
        asked.append((_tasks(tasks, host), " (guest)" if host else " (task)", woken))
    number: dict[tuple[str, str], int] = {}
    parts: list[NDArray[np.int64]] = [np.zeros((3, 0), dtype=np.int64)]
    for had, where, since in asked:
        of, at = overlaps(since, ran, had.start_ns, had.end_ns)
        length = np.minimum(had.end_ns[at], ran[of]) - np.maximum(had.start_ns[at], since[of])
        names = [(name, where) for name in had.names]
        numbers = np.array([number.setdefault(name, len(number)) for name in names] or [0])
        parts.append(np.stack((of, numbers[had.name[at]], length)))
    of, name, length = np.concatenate(parts, axis=1)
    pairs, place = np.unique(of * (len(number) + 1) + name, return_inverse=True)
    sums = np.bincount(place, weights=length)
    names = list(number)
    # For equal ones the last.
    in_order = np.argsort(sums, kind="stable")[::-1]
    for pair, length in zip(pairs[in_order].tolist(), sums[in_order].tolist(), strict=True):
        name, where = names[pair % (len(number) + 1)]
        if name:
            yield int(rows[pair // (len(number) + 1)]), _Who(name, where, round(length))
