"""Account for CPU time on the trial's CPUs that no known thread used (METHOD rule 24).

It is the busy time there minus the time of known threads *there*. Most threads may run either on
the trial's CPUs alone or on none of them, as their affinity shows. The others (hogs, the peer,
labctl, if the trial has fewer CPUs than they) have task clocks, which measure the share of their
time there. The totals are schedstat's under every tuning, because a task clock also counts time
taken by a hypervisor below this host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from labctl.base.cpus import CpuSet
from labctl.base.errors import BrokenError
from labctl.base.tuning import Level
from labctl.collect import runner_counts
from labctl.collect.collector import Collector, Snapshot, Target
from labctl.collect.snapshots import RAW, Snapshots, read_snapshots
from labctl.collect.threads import task_clock
from labctl.collect.threads.host_threads import (
    NEIGHBOUR,
    ROLES,
    Threads,
    Used,
    ended_cpu_s,
    read_threads,
)
from labctl.store.samples import HELPERS, VCPU, Reading, Unavailable, sample, sample_key
from labctl.store.trial import TrialFolder

_READ_BACK = (VCPU, *HELPERS)
"""Roles whose threads are on the trial's CPUs: a guest's CPUs are those that its threads may use,
and a guest whose threads may use others is not a valid trial."""

_NEGLIGIBLE = 0.01
"""CPU seconds per second whose place need not be known: the resolution of /proc/stat's 10 ms ticks
in a window of two seconds."""


class _Where(Enum):
    """Name where a thread may run."""

    INSIDE = auto()
    OUTSIDE = auto()
    BOTH = auto()


def parse(raw: TrialFolder) -> Iterator[Reading]:
    """Return host_busy and host_cpu{thread=other}, both of the trial's CPUs.

    `other` is a difference and may be a little below 0. Raises BrokenError when host.json (natively
    also runner.json) isn't whole.
    """
    snapshots = read_snapshots(raw)
    busy = snapshots.busy(snapshots.trial_cpus)
    yield sample("host_busy", busy, source=RAW)
    known = _known_s(raw, snapshots)
    labels = {"thread": "other"}
    if isinstance(known, str):
        yield Unavailable(metric=sample_key("host_cpu", labels), reason=known)
    else:
        yield sample("host_cpu", busy - known / snapshots.seconds, source=RAW, labels=labels)


def _known_s(raw: TrialFolder, snapshots: Snapshots) -> float | str:
    """Return the CPU seconds of known threads on the trial's CPUs, or a sentence on why they are
    unknown."""
    threads = read_threads(snapshots)
    clocks = _read_clocks(snapshots)
    # Natively the workload's threads end with the trial; they are bound to the trial's CPUs.
    total = runner_counts.read_counts(raw).cpu_s if snapshots.is_native else 0.0
    for role in ROLES:
        used = _used_s(snapshots, threads, role, clocks)
        if isinstance(used, str):
            return used
        total += used
    return total


def _used_s(snapshots: Snapshots, threads: Threads, role: str, clocks: _Clocks) -> float | str:
    spent = _spent(snapshots, threads, role)
    if spent is None:
        return "the CPU time of threads that ended during the trial is unknown."
    share = clocks.share(role, snapshots.trial_cpus)
    if isinstance(share, str):
        if spent[_Where.BOTH] / snapshots.seconds > _NEGLIGIBLE:
            return (
                f"{role} threads were not bound to the trial's CPUs, and their CPU time there is "
                f"unknown: {share}"
            )
        share = 0.0
    return spent[_Where.INSIDE] + share * spent[_Where.BOTH]


def _spent(snapshots: Snapshots, threads: Threads, role: str) -> dict[_Where, float] | None:
    """Return the CPU seconds of a role's threads by where they may run; None if unknown."""
    spent = dict.fromkeys(_Where, 0.0)
    if role == NEIGHBOUR and (beside := snapshots.beside) is not None:
        for used in beside:
            spent[_where(used.cpus, snapshots)] += used.cpu_s
        return spent
    found, ended = threads.of(role), threads.vanished_of(role)
    lost = ended_cpu_s(snapshots, threads, role)
    if lost is None:
        return None
    for thread in found:
        spent[_place(thread, snapshots)] += thread.run_ns / 1e9
    places = {_place(thread, snapshots) for thread in ended}
    spent[places.pop() if len(places) == 1 else _Where.BOTH] += lost
    return spent


def _place(thread: Used, snapshots: Snapshots) -> _Where:
    if thread.cpus is None and thread.role in _READ_BACK:
        return _Where.INSIDE
    # Without an affinity: anywhere.
    return _where(snapshots.online if thread.cpus is None else thread.cpus, snapshots)


def _where(cpus: CpuSet, snapshots: Snapshots) -> _Where:
    trial, allowed = snapshots.trial_cpus, cpus & snapshots.online
    if allowed <= trial:
        return _Where.INSIDE
    return _Where.BOTH if allowed & trial else _Where.OUTSIDE


@dataclass(frozen=True, slots=True)
class _Ran:
    """Hold the run time of a thread and its children, in ns: `everywhere`, and `on` some CPUs."""

    role: str
    everywhere: int
    on: Mapping[int, int]

    def since(self, then: _Ran) -> _Ran:
        return _Ran(
            self.role,
            self.everywhere - then.everywhere,
            {cpu: count - then.on[cpu] for cpu, count in self.on.items()},
        )

    def on_cpus(self, cpus: CpuSet) -> int:
        """Return its time on these CPUs, counted there or on all others that it may use."""
        counted = sum(self.on.values())
        return counted if self.on.keys() <= cpus else self.everywhere - counted


@dataclass(frozen=True, slots=True)
class _Clocks:
    """Hold the run times of threads between the snapshots. `problem`: why those of other threads
    are unknown."""

    ran: Sequence[_Ran]
    problem: str

    def share(self, role: str, cpus: CpuSet) -> float | str:
        """Return the share of this role's run time that was on these CPUs, or why it is unknown."""
        own = [ran for ran in self.ran if ran.role == role]
        everywhere = sum(ran.everywhere for ran in own)
        if everywhere <= 0:
            return self.problem
        return min(1.0, max(0.0, sum(ran.on_cpus(cpus) for ran in own) / everywhere))


def _read_clocks(snapshots: Snapshots) -> _Clocks:
    before, after = (taken.get(task_clock.KEY) for taken in (snapshots.before, snapshots.after))
    if before is None or after is None:
        return _Clocks((), "an older labctl measured this, without counts by CPU.")
    for taken in (before, after):
        if isinstance(taken, dict) and "unavailable" in taken:
            return _Clocks((), str(taken["unavailable"]))
    then, now = _rows(before, snapshots.where), _rows(after, snapshots.where)
    try:
        ran = [row.since(then[tid]) for tid, row in now.items()]
    except KeyError as error:
        raise BrokenError(
            f"{snapshots.where}: the snapshots have different task clocks: {error}"
        ) from error
    return _Clocks(ran, "they had no task clock.")


def _rows(taken: Any, where: str) -> dict[int, _Ran]:
    """Return rows by thread id."""
    try:
        return {
            int(row["tid"]): _Ran(
                str(row["role"]),
                int(row["everywhere"]),
                {int(cpu): int(count) for cpu, count in row["on"].items()},
            )
            for row in taken
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BrokenError(
            f"{where}: expected the counts of task clocks, found something else ({error!r})"
        ) from error


@contextmanager
def _attached(target: Target) -> Iterator[Snapshot]:
    with task_clock.counting(target.known_threads(), target.trial_cpus) as clocks:
        yield lambda _: clocks.read()


TASK_CLOCK = Collector(
    name="task-clock",
    order=20,
    level=Level.COUNTERS,
    gives="which CPUs unbound threads used",
    why_unavailable=lambda _: task_clock.why_unavailable(),
    attached=_attached,
    parse=lambda trial: parse(trial.folder),
)
