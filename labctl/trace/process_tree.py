"""Find which of a trace's threads are a workload's."""

from __future__ import annotations

from collections.abc import Iterable

from labctl.trace.model import Trace
from labctl.trace.tracepoints import FORK


def process_tree(trace: Trace, root: int) -> frozenset[int]:
    """Return the threads of process `root` and of all that it has started, as far as the trace saw
    them start. The kernel calls a new thread a fork, too (include/trace/events/sched.h)."""
    found = {root, *(tid for tid, pid in trace.processes.items() if pid == root)}
    for parent, child in _forks(trace):
        if parent in found:
            found.add(child)
    return frozenset(found)


def _forks(trace: Trace) -> Iterable[tuple[int, int]]:
    if FORK not in trace.events:
        return ()
    fields = trace.events[FORK].fields
    return zip(fields["parent_pid"].tolist(), fields["child_pid"].tolist(), strict=True)
