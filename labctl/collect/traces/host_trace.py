"""Report from the host's scheduler events how a trial's threads waited for a CPU, and for whom.

These are a guest's vCPU threads, natively the workload's threads. Only complete waits within the
measured window count: perf started before it and ended after.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from labctl.base.tuning import Level
from labctl.collect.collector import Attaching, Collector, Target, ThreadRef
from labctl.collect.snapshots import Snapshots, read_snapshots
from labctl.collect.traces import perf_record
from labctl.collect.traces.recorded_events import trial_events
from labctl.collect.traces.waiting import no_waiting, waiting, why_unknown
from labctl.store.samples import Reading, Unavailable, sample, sample_key
from labctl.trace import files
from labctl.trace.files import HOST_TRACE, note_problem, noted_problem
from labctl.trace.model import SWITCH, Trace
from labctl.trace.sched import Schedule, has_switches, schedule
from labctl.trace.threads import Thread, process_tree, stored_threads
from labctl.trace.timeline.recordings import Traces


def parse(traces: Traces) -> Iterator[Reading]:
    """Return sched_delay_p50/p95/p99/max{vcpu}, sched_delay, sched_unknown, preemptions,
    migrations, preempted_time{by}, cpu_time{thread} and lost_events; nothing for a trial without a
    trace.

    Metrics that a trace cannot give are unavailable, with the reason. Raises BrokenError if the
    snapshots or threads.json are damaged.
    """
    raw = traces.folder
    problem = noted_problem(raw, HOST_TRACE)
    if not raw.has(files.HOST) and problem is None:
        return
    snapshots = read_snapshots(raw)
    threads = stored_threads(raw)
    of = "workload" if snapshots.is_native else "vcpu"
    trace = _covering(traces.host, snapshots) if problem is None else problem
    if isinstance(trace, str):
        yield from _nothing(of, threads, trace)
        return
    if snapshots.is_native:
        threads = [*threads, *_children(trace, threads)]
    yield sample("lost_events", trace.lost, source=files.HOST)
    window = (snapshots.before["monotonic_ns"], snapshots.after["monotonic_ns"])
    found = schedule(trace, [thread.tid for thread in threads], window=window)
    yield from _cpu_times(found, threads, snapshots.seconds)
    yield from waiting(found, trace.names, threads, of, snapshots.seconds, files.HOST)


def _covering(trace: Trace | str | None, snapshots: Snapshots) -> Trace | str:
    """Return the trace that covers the window, or why there is none."""
    if not isinstance(trace, Trace):
        return trace or f"there is no {files.HOST}."
    if trace.problems:
        return trace.problems[0]
    if not has_switches(trace):
        return "perf recorded no switch on the trial's CPUs."
    # It recorded from before the first snapshot to after the last one, with or without events.
    return replace(
        trace,
        start_ns=min(trace.start_ns, snapshots.before["monotonic_ns"]),
        end_ns=max(trace.end_ns, snapshots.after["monotonic_ns"]),
    )


def _children(trace: Trace, threads: Sequence[Thread]) -> list[Thread]:
    """Return the threads and processes that these made, and their descendants."""
    known = {thread.tid for thread in threads}
    made = frozenset().union(*(process_tree(trace, tid) for tid in known)) - known
    return [
        Thread(tid=tid, pid=tid, role="workload", index=index, name="")
        for index, tid in enumerate(sorted(made), start=len(known))
    ]


def _cpu_times(found: Schedule, threads: Sequence[Thread], seconds: float) -> Iterator[Reading]:
    by_role: dict[str, list[Thread]] = defaultdict(list)
    for thread in threads:
        by_role[thread.role].append(thread)
    for role, ours in by_role.items():
        labels = {"thread": role}
        problem = why_unknown(found, ours, role, seconds, when_it_ran=True)
        if problem is not None:
            yield Unavailable(metric=sample_key("cpu_time", labels), reason=problem)
        else:
            seen = [found.threads[thread.tid] for thread in ours if thread.tid in found.threads]
            value = sum(thread.on_cpu_ns for thread in seen) / 1e9 / seconds
            yield sample("cpu_time", value, source=files.HOST, labels=labels)


def _nothing(of: str, threads: Sequence[Thread], reason: str) -> Iterator[Unavailable]:
    yield Unavailable(metric="lost_events", reason=reason)
    for role in dict.fromkeys(thread.role for thread in threads):
        yield Unavailable(metric=sample_key("cpu_time", {"thread": role}), reason=reason)
    yield from no_waiting(of, [thread for thread in threads if thread.role == of], reason)


@contextmanager
def _attached(target: Target) -> Iterator[None]:
    """Store perf's file of the trial, with the owners of its threads; or why there is none."""
    before = _threads(target)
    with perf_record.recording(
        target.folder.path / files.HOST,
        trial_events(target),
        cpus=target.housekeeping(),
        limit_mib=target.room_mib if target.is_traced else 0,
    ) as recorded:
        yield
        after = _threads(target)
    if recorded.problem is not None:
        note_problem(target.folder, HOST_TRACE, recorded.problem)
    # Includes threads that have ended or started since. An id that was reused belongs to the last.
    target.folder.write_raw_json(files.THREADS, list((before | after).values()))


def _threads(target: Target) -> dict[int, dict[str, object]]:
    return {ref.tid: _told(ref) for ref in target.threads()}


def _told(ref: ThreadRef) -> dict[str, object]:
    try:
        name = Path(f"/proc/{ref.pid}/task/{ref.tid}/comm").read_text().strip()
    except OSError:
        name = ""
    return {"tid": ref.tid, "pid": ref.pid, "role": ref.role, "index": ref.index, "name": name}


TRACE = Collector(
    name="host-trace",
    order=70,
    level=Level.TRACE,
    gives="the host's scheduler: who waited for whom",
    why_unavailable=lambda _: perf_record.why_unavailable(SWITCH),
    attaching=Attaching.RECORDERS,
    attached=_attached,
    raw=(files.HOST, files.THREADS),
    recorders=("perf",),
    parse=lambda trial: parse(trial.traces),
)
