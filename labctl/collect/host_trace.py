"""The host's scheduler events of a trial: how its threads waited for a CPU, and for whom.

Of a guest it is told of the vCPU threads, natively of the workload's. Only whole waits within the
measured window count: perf began before it and ended after.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from labctl.base.errors import BrokenError
from labctl.base.units import Better, Unit
from labctl.collect.snapshots import Snapshots, read_snapshots
from labctl.store.samples import Reading, Sample, Unavailable
from labctl.store.trial import TrialFolder
from labctl.trace import files
from labctl.trace.model import Trace
from labctl.trace.numbering import SWITCH, WAKEUPS
from labctl.trace.perfdata import read_trace
from labctl.trace.problems import noted_problem
from labctl.trace.sched import Delays, Schedule, ThreadSchedule, schedule
from labctl.trace.spans import MIGRATE
from labctl.trace.untold import WAKING

COLLECTOR = "host_trace"
FORK = "sched:sched_process_fork"

_WANTED = {
    SWITCH: ("prev_pid", "prev_state", "next_pid"),
    **dict.fromkeys(WAKEUPS, ("pid", "target_cpu")),
    WAKING: ("pid",),
    MIGRATE: ("pid", "dest_cpu"),
    FORK: ("parent_pid", "child_pid"),
}
_PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

_MOST_RIVALS = 5
"""That a trial names; the rest are one."""

_MOST_UNKNOWN = 0.01
"""Share of the threads' time; with more of it unknown there are no figures."""

_UNFIT = re.compile(r"[^\w.:+-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedThread:
    """A thread of the trial's machine, as threads.json has it."""

    tid: int
    role: str
    index: int


def parse(raw: TrialFolder) -> Iterator[Reading]:
    """sched_delay_p50/p95/p99/max{vcpu}, sched_delay, sched_unknown, preemptions, migrations,
    preempted_time{by}, cpu_time{thread} and lost_events. Nothing of a trial that wasn't traced.

    What can't be had of a trace is unavailable, with the reason. Raises BrokenError when the
    snapshots or threads.json aren't what was written.
    """
    problem = noted_problem(raw, COLLECTOR)
    if not raw.has(files.HOST) and problem is None:
        return
    snapshots = read_snapshots(raw)
    threads = _threads(raw)
    of = "workload" if snapshots.is_native else "vcpu"
    trace = _trace(raw, snapshots) if problem is None else problem
    if isinstance(trace, str):
        yield from _nothing(of, threads, trace)
        return
    if snapshots.is_native:
        threads = [*threads, *_children(trace, threads)]
    yield _sample("lost_events", trace.lost, Unit.COUNT, Better.NEITHER)
    window = (snapshots.before["monotonic_ns"], snapshots.after["monotonic_ns"])
    found = schedule(trace, [thread.tid for thread in threads], window=window)
    yield from _cpu_times(found, threads, snapshots.seconds)
    yield from _waiting(found, trace, threads, of, snapshots.seconds)


def read_host_trace(raw: TrialFolder) -> Trace:
    """The scheduler events. Raises BrokenError where the file isn't perf's, or not whole."""
    return read_trace(raw.path / files.HOST, _WANTED)


def _trace(raw: TrialFolder, snapshots: Snapshots) -> Trace | str:
    """Or why there is none to go by."""
    try:
        trace = read_host_trace(raw)
    except BrokenError as error:
        return error.message.replace(str(raw.path / files.HOST), files.HOST)
    if trace.problems:
        return trace.problems[0].replace(str(raw.path / files.HOST), files.HOST)
    if not len(trace.events[SWITCH]):
        return "perf recorded no switch on the trial's CPUs."
    # It was recording before the first snapshot and after the last one, with or without events.
    return replace(
        trace,
        start_ns=min(trace.start_ns, snapshots.before["monotonic_ns"]),
        end_ns=max(trace.end_ns, snapshots.after["monotonic_ns"]),
    )


def _threads(raw: TrialFolder) -> list[TracedThread]:
    rows = raw.read_json(files.THREADS)
    try:
        return [
            TracedThread(tid=int(row["tid"]), role=str(row["role"]), index=int(row["index"]))
            for row in rows
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise BrokenError(
            f"{raw.path / files.THREADS}: expected tid, role and index of each thread ({error!r})"
        ) from error


def _children(trace: Trace, threads: Sequence[TracedThread]) -> list[TracedThread]:
    """Threads and processes that these made, and those that they made."""
    known = {thread.tid for thread in threads}
    forks = trace.events[FORK]
    columns = (forks.fields["parent_pid"].tolist(), forks.fields["child_pid"].tolist())
    found = []
    for parent, child in zip(*columns, strict=True):
        if parent in known and child not in known:
            known.add(child)
            found.append(TracedThread(tid=child, role="workload", index=len(known) - 1))
    return found


def _waiting(
    found: Schedule, trace: Trace, threads: Sequence[TracedThread], of: str, seconds: float
) -> Iterator[Reading]:
    ours = [thread for thread in threads if thread.role == of]
    seen = {thread: found.threads[thread.tid] for thread in ours if thread.tid in found.threads}
    problem = _why_unknown(found, ours, seen, of, seconds)
    if problem is not None:
        yield from _no_waiting(of, ours, problem)
        return
    waited = sum(thread.delays.total_ns for thread in seen.values()) / 1e9
    unknown = sum(thread.unknown_ns for thread in seen.values()) / 1e9
    labels = {"of": of}
    yield _sample("sched_delay", waited / seconds, Unit.FRACTION, Better.LOWER, labels)
    yield _sample("sched_unknown", unknown / seconds, Unit.FRACTION, Better.LOWER, labels)
    for metric in ("preemptions", "migrations"):
        count = sum(getattr(thread, metric) for thread in seen.values())
        yield _sample(metric, count / seconds, Unit.PER_SECOND, Better.LOWER, labels)
    roles = {thread.tid: thread.role for thread in threads}
    for by, length_ns in _rivals(seen.values(), trace.names, roles):
        value = length_ns / 1e9 / seconds
        yield _sample("preempted_time", value, Unit.CPUS, Better.LOWER, {"by": by, **labels})
    for label, delays, missing in _delays(of, seen):
        yield from _percentiles(delays, missing, label)


def _why_unknown(
    found: Schedule,
    ours: Sequence[TracedThread],
    seen: Mapping[TracedThread, ThreadSchedule],
    of: str,
    seconds: float,
) -> str | None:
    if not seen or (of == "vcpu" and len(seen) < len(ours)):
        missing = sorted(thread.index for thread in ours if thread not in seen)
        names = ", ".join(f"{of} {index}" for index in missing) or f"a {of} thread"
        return f"the trace has no switch of {names}: it ran all along, or slept."
    unknown = sum(thread.unknown_ns for thread in seen.values()) / 1e9
    share = unknown / seconds / len(seen)
    if share > _MOST_UNKNOWN:
        why = f"perf lost {found.lost:,} events" if found.lost else "the kernel kept events back"
        return f"{why}, and what its threads did is unknown for {share:.0%} of the time."
    return None


def _delays(
    of: str, seen: Mapping[TracedThread, ThreadSchedule]
) -> Iterator[tuple[Mapping[str, str], Delays, int]]:
    """Of each vCPU; natively of all of the workload's threads together, which come and go. With
    the number of waits whose length isn't known."""
    if of == "vcpu":
        for thread, told in sorted(seen.items(), key=lambda item: item[0].index):
            yield {"vcpu": str(thread.index)}, told.delays, told.taken_up
        return
    all_of = [told.delays for told in seen.values()]
    joined = Delays(
        start_ns=np.concatenate([delays.start_ns for delays in all_of]),
        length_ns=np.concatenate([delays.length_ns for delays in all_of]),
        was_preempted=np.concatenate([delays.was_preempted for delays in all_of]),
    )
    yield {"of": of}, joined, sum(told.taken_up for told in seen.values())


def _percentiles(delays: Delays, missing: int, labels: Mapping[str, str]) -> Iterator[Reading]:
    count = len(delays.length_ns)
    for name, q in _PERCENTILES.items():
        key = _key(f"sched_delay_{name}", labels)
        value = delays.percentile(q)
        if missing > _MOST_UNKNOWN * (count + missing):
            reason = (
                f"the kernel kept back the ends of {missing:,} of {count + missing:,} waits, those "
                "of threads that an idle CPU took up."
            )
            yield Unavailable(metric=key, reason=reason)
        elif value is None:
            needed = round(20 / (1 - q))
            reason = f"there were {count:,} waits, and a percentile of that rank needs {needed:,}."
            yield Unavailable(metric=key, reason=reason)
        else:
            yield _sample(f"sched_delay_{name}", value / 1e9, Unit.SECONDS, Better.LOWER, labels)
    # A maximum says little without the number that it is the largest of.
    yield _sample("sched_delays", count, Unit.COUNT, Better.NEITHER, labels)
    if count:
        worst = int(delays.length_ns.max()) / 1e9
        yield _sample("sched_delay_max", worst, Unit.SECONDS, Better.LOWER, labels)
    else:
        reason = "nothing waited for a CPU in the measured window."
        yield Unavailable(metric=_key("sched_delay_max", labels), reason=reason)


def _rivals(
    seen: Iterable[ThreadSchedule], names: Mapping[int, str], roles: Mapping[int, str]
) -> list[tuple[str, int]]:
    """Who ran while they waited, longest first; the least of them together as "others"."""
    totals: Counter[str] = Counter()
    for thread in seen:
        for tid, length_ns in thread.rivals_ns.items():
            totals[_name(tid, names, roles)] += length_ns
    named = totals.most_common(_MOST_RIVALS)
    rest = sum(totals.values()) - sum(length_ns for _, length_ns in named)
    return [*named, ("others", rest)] if rest else named


def _name(tid: int, names: Mapping[int, str], roles: Mapping[int, str]) -> str:
    if tid <= 0:
        return "idle" if tid == 0 else "unknown"
    if tid in roles:
        return roles[tid]
    # The kernel's own are named by CPU and work: "kworker/1:2-events".
    return _UNFIT.sub("_", names.get(tid, "").partition("/")[0]) or "unknown"


def _cpu_times(
    found: Schedule, threads: Sequence[TracedThread], seconds: float
) -> Iterator[Reading]:
    by_role: dict[str, list[TracedThread]] = defaultdict(list)
    for thread in threads:
        by_role[thread.role].append(thread)
    for role, ours in by_role.items():
        labels = {"thread": role}
        seen = [found.threads[thread.tid] for thread in ours if thread.tid in found.threads]
        if not seen:
            reason = "the trace has no switch of such a thread: it ran all along, or slept."
            yield Unavailable(metric=_key("cpu_time", labels), reason=reason)
        else:
            value = sum(thread.on_cpu_ns for thread in seen) / 1e9 / seconds
            better = Better.NEITHER if role == "workload" else Better.LOWER
            yield _sample("cpu_time", value, Unit.CPUS, better, labels)


def _nothing(of: str, threads: Sequence[TracedThread], reason: str) -> Iterator[Unavailable]:
    yield Unavailable(metric="lost_events", reason=reason)
    for role in dict.fromkeys(thread.role for thread in threads):
        yield Unavailable(metric=_key("cpu_time", {"thread": role}), reason=reason)
    yield from _no_waiting(of, [thread for thread in threads if thread.role == of], reason)


def _no_waiting(of: str, ours: Sequence[TracedThread], reason: str) -> Iterator[Unavailable]:
    labels = {"of": of}
    for metric in ("sched_delay", "sched_unknown", "preemptions", "migrations", "preempted_time"):
        yield Unavailable(metric=_key(metric, labels), reason=reason)
    single = [{"vcpu": str(thread.index)} for thread in ours] if of == "vcpu" else [labels]
    for one in single:
        for name in (*_PERCENTILES, "max"):
            yield Unavailable(metric=_key(f"sched_delay_{name}", one), reason=reason)


def _sample(
    metric: str,
    value: float,
    unit: Unit,
    better: Better,
    labels: Mapping[str, str] | None = None,
) -> Sample:
    return Sample(
        metric=metric,
        value=value,
        unit=unit,
        better=better,
        labels=labels or {},
        source=files.HOST,
    )


def _key(metric: str, labels: Mapping[str, str]) -> str:
    return f"{metric}{{{','.join(f'{name}={value}' for name, value in sorted(labels.items()))}}}"
