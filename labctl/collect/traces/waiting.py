"""Measure how threads of a trial's machine waited for its CPUs, from the host's trace and the
guest's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from labctl.base.units import bears_unseen, samples_needed
from labctl.store.samples import HELPERS, VCPU, Reading, Unavailable, sample, sample_key
from labctl.trace.sched import Delays, Schedule, ThreadSchedule
from labctl.trace.threads import Thread

_PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

_MOST_RIVALS = 100
"""Limit on named preempting threads. In effect all are named, so that an unnamed thread is known
not to have run. Above the limit the rest count as one."""

_MOST_UNKNOWN = 0.05
"""Limit on the unknown share of the threads' time, above which figures are unavailable. Below it,
figures may be off by as much as `sched_unknown` says."""

_OURS = frozenset({"idle", "others", VCPU, *HELPERS, "workload"})
"""Names that labctl gives. Other threads may have such names, too."""

_UNFIT = re.compile(r"[^\w.:+-]+")


def waiting(
    found: Schedule,
    names: Mapping[int, str],
    threads: Sequence[Thread],
    of: str,
    seconds: float,
    source: str,
) -> Iterator[Reading]:
    """Return sched_delay and its percentiles, sched_delays, sched_delays_unseen, sched_unknown,
    preemptions, migrations and preempted_time{by} of the threads whose role is `of`, per second of
    a window of `seconds`.

    `names`: of all threads. `threads`: those of the trial, whose roles stand for their names.
    `source`: the raw file.
    """
    ours = [thread for thread in threads if thread.role == of]
    seen = {thread: found.threads[thread.tid] for thread in ours if thread.tid in found.threads}
    problem = why_unknown(found, ours, of, seconds)
    if problem is not None:
        yield from no_waiting(of, ours, problem)
        return
    waited = sum(thread.delays.total_ns for thread in seen.values()) / 1e9
    unknown = sum(thread.unknown_ns for thread in seen.values()) / 1e9
    labels = {"of": of}
    yield sample("sched_delay", waited / seconds, source=source, labels=labels)
    # A property of the recording: no tuning improves it.
    yield sample("sched_unknown", unknown / seconds, source=source, labels=labels)
    for metric in ("preemptions", "migrations"):
        count = sum(getattr(thread, metric) for thread in seen.values())
        yield sample(metric, count / seconds, source=source, labels=labels)
    roles = {thread.tid: thread.role for thread in threads}
    for by, length_ns in _preemptors(seen.values(), names, roles):
        value = length_ns / 1e9 / seconds
        yield sample("preempted_time", value, source=source, labels={"by": by, **labels})
    for label, delays, unseen in _delays(of, seen):
        yield from _percentiles(delays, unseen, label, source)


def why_unknown(
    found: Schedule, ours: Sequence[Thread], of: str, seconds: float, *, when_it_ran: bool = False
) -> str | None:
    """Return why the trace lacks what threads of this role did, or when exactly they ran; None if
    it has both."""
    seen = {thread: found.threads[thread.tid] for thread in ours if thread.tid in found.threads}
    if not seen or (of == "vcpu" and len(seen) < len(ours)):
        missing = sorted(thread.index for thread in ours if thread not in seen)
        names = ", ".join(f"{of} {index}" for index in missing) or f"a {of} thread"
        return f"the trace has no switch of {names}: it ran all along, or slept."
    unknown_ns = (t.may_have_run_ns if when_it_ran else t.unknown_ns for t in seen.values())
    unknown = sum(unknown_ns) / 1e9
    share = unknown / seconds / len(seen)
    if share > _MOST_UNKNOWN:
        why = f"perf lost {found.lost:,} events" if found.lost else "the kernel kept events back"
        return f"{why}, so the state of its threads is unknown for {share:.0%} of the time."
    return None


def _delays(
    of: str, seen: Mapping[Thread, ThreadSchedule]
) -> Iterator[tuple[Mapping[str, str], Delays, int]]:
    """Return the delays of each vCPU; natively those of all of the workload's threads together,
    which come and go. With them comes how many more there may have been, and which events are
    missing."""
    if of == "vcpu":
        for thread, told in sorted(seen.items(), key=lambda item: item[0].index):
            yield {"vcpu": str(thread.index)}, told.delays, told.unknown
        return
    all_of = [told.delays for told in seen.values()]
    joined = Delays(
        start_ns=np.concatenate([delays.start_ns for delays in all_of]),
        length_ns=np.concatenate([delays.length_ns for delays in all_of]),
        was_preempted=np.concatenate([delays.was_preempted for delays in all_of]),
    )
    yield {"of": of}, joined, sum(told.unknown for told in seen.values())


def _percentiles(
    delays: Delays, unseen: int, labels: Mapping[str, str], source: str
) -> Iterator[Reading]:
    count = len(delays.length_ns)
    hidden = f"{unseen:,} of {count + unseen:,} waits were not seen, and may be the longest."
    for name, q in _PERCENTILES.items():
        metric = f"sched_delay_{name}"
        value = delays.percentile(q)
        if not bears_unseen(q, count, unseen):
            yield Unavailable(metric=sample_key(metric, labels), reason=hidden)
        elif value is None:
            needed = samples_needed(q)
            reason = f"there were {count:,} waits, and a percentile of that rank needs {needed:,}."
            yield Unavailable(metric=sample_key(metric, labels), reason=reason)
        else:
            yield sample(metric, value / 1e9, source=source, labels=labels)
    # A maximum is meaningful only with the number of values.
    yield sample("sched_delays", count, source=source, labels=labels)
    yield sample("sched_delays_unseen", unseen, source=source, labels=labels)
    if not bears_unseen(_PERCENTILES["p95"], count, unseen):
        yield Unavailable(metric=sample_key("sched_delay_max", labels), reason=hidden)
    elif count:
        worst = int(delays.length_ns.max()) / 1e9
        yield sample("sched_delay_max", worst, source=source, labels=labels)
    else:
        reason = "nothing waited for a CPU in the measured window."
        yield Unavailable(metric=sample_key("sched_delay_max", labels), reason=reason)


def _preemptors(
    seen: Iterable[ThreadSchedule], names: Mapping[int, str], roles: Mapping[int, str]
) -> list[tuple[str, int]]:
    """Return the threads that ran while these waited, longest first; if there are very many, the
    shortest together as "others"."""
    totals: Counter[str] = Counter()
    for thread in seen:
        for tid, length_ns in thread.preempted_by_ns.items():
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
    found = _UNFIT.sub("_", names.get(tid, "").partition("/")[0]) or "unknown"
    return f"thread:{found}" if found in _OURS else found


def no_waiting(of: str, ours: Sequence[Thread], reason: str) -> Iterator[Unavailable]:
    """Yield why each metric of `waiting` is unavailable for these threads."""
    labels = {"of": of}
    for metric in ("sched_delay", "sched_unknown", "preemptions", "migrations", "preempted_time"):
        yield Unavailable(metric=sample_key(metric, labels), reason=reason)
    single = [{"vcpu": str(thread.index)} for thread in ours] if of == "vcpu" else [labels]
    for one in single:
        for name in (*_PERCENTILES, "max"):
            yield Unavailable(metric=sample_key(f"sched_delay_{name}", one), reason=reason)
