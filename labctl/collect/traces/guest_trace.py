"""Analyse the guest's own scheduler from the recording of the guest's perf."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from labctl.base.tuning import Kind, Level
from labctl.collect.collector import Attaching, Collector, Here, why_no_image
from labctl.collect.traces.guest_recorder import guest_tracing
from labctl.collect.traces.waiting import no_waiting, waiting
from labctl.store.samples import Reading, Unavailable, sample
from labctl.trace import files
from labctl.trace.clocks import ClockMap, stored_clock_map
from labctl.trace.files import GUEST_TRACE, noted_problem
from labctl.trace.model import SWITCH, Trace
from labctl.trace.sched import has_switches, schedule
from labctl.trace.threads import Thread, Window, process_tree, stored_window
from labctl.trace.timeline.recordings import Traces

_ROLE = "workload"
"""Role of the workload's threads, which wait for the guest's CPUs here. Natively the host's trace
has the same role, and they wait for the host's."""

_OF_GUEST = {"of": "guest"}
_OF_TRACE = ("ctx_switches{of=guest}", "lost_events{of=guest}")


def parse(traces: Traces, *, kind: str) -> Iterator[Reading]:
    """Return clock_error, the waits of the workload's threads for the guest's CPUs (`waiting`, with
    `of=workload`), ctx_switches{of=guest} and lost_events{of=guest} for a guest's trial at level
    `trace`; nothing for other trials.

    `kind`: "guest" or "native". Raises BrokenError if a file of labctl's own is incomplete.
    """
    raw = traces.folder
    problem = noted_problem(raw, GUEST_TRACE)
    if kind == "native":
        if raw.has(files.HOST):
            yield from _unavailable("natively there is no guest.", "clock_error", *_OF_TRACE)
        return
    if problem is None and not raw.has(files.GUEST) and not raw.has(files.CLOCKS):
        return
    yield _clock_error(stored_clock_map(raw))
    window = stored_window(raw)
    trace = _covering(traces.guest, window) if problem is None else problem
    if isinstance(trace, str):
        reason = f"{trace.removesuffix('.')}."
        yield from no_waiting(_ROLE, (), reason)
        yield from _unavailable(reason, *_OF_TRACE)
        return
    yield from _readings(trace, window)


def _covering(trace: Trace | str | None, window: Window) -> Trace | str:
    """Return the trace that covers the window, or why there is none."""
    if not isinstance(trace, Trace):
        return trace or "there is no trace of the guest"
    if trace.problems:
        return trace.problems[0]
    if not has_switches(trace):
        return "the guest's perf recorded no switch"
    if trace.start_ns <= window.start_ns and window.end_ns <= trace.end_ns:
        return trace
    covered_ns = min(trace.end_ns, window.end_ns) - max(trace.start_ns, window.start_ns)
    return (
        f"the guest's trace covers {max(0, covered_ns) / 1e9:.1f} s of the workload's "
        f"{window.seconds:.1f} s"
    )


def _readings(trace: Trace, window: Window) -> Iterator[Reading]:
    threads = [
        Thread(tid=tid, pid=window.pid, role=_ROLE, index=index, name="")
        for index, tid in enumerate(sorted(process_tree(trace, window.pid)))
    ]
    inside = (window.start_ns, window.end_ns)
    found = schedule(trace, [thread.tid for thread in threads], window=inside)
    yield from waiting(found, trace.names, threads, _ROLE, window.seconds, files.GUEST)
    times = trace.events[SWITCH].time_ns
    switches = int(np.count_nonzero((times >= window.start_ns) & (times <= window.end_ns)))
    rate = switches / window.seconds
    yield sample("ctx_switches", rate, source=files.GUEST, labels=_OF_GUEST)
    yield sample("lost_events", trace.lost, source=files.GUEST, labels=_OF_GUEST)


def _clock_error(found: ClockMap | str) -> Reading:
    if isinstance(found, str):
        return Unavailable(metric="clock_error", reason=f"{found}.")
    error_s = found.error_ns / 1e9
    return sample("clock_error", error_s, source=files.CLOCKS)


def _unavailable(reason: str, *metrics: str) -> Iterator[Unavailable]:
    for metric in metrics:
        yield Unavailable(metric=metric, reason=reason)


def _why_unavailable(at: Here) -> str | None:
    if at.tree is not None and not (at.tree / "usr/bin/perf").exists():
        return "the guest image has no perf."
    return why_no_image(at)


TRACE = Collector(
    name="guest-trace",
    order=80,
    level=Level.TRACE,
    gives="the guest's scheduler",
    sides=(Kind.GUEST,),
    why_unavailable=_why_unavailable,
    attaching=Attaching.BEFORE_COMMAND,
    attached=guest_tracing,
    raw=(files.GUEST, files.CLOCKS, files.CLOCK_DISCIPLINE),
    parse=lambda trial: parse(trial.traces, kind=trial.kind),
)
