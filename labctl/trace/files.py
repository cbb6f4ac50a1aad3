"""Define the files in which a trial's folder holds its collectors' recordings."""

from __future__ import annotations

from labctl.store.trial import TrialFolder

FOLDER = "trace"
RUNNER = "runner.json"
"""Counts and times from the machine's own runner, in each trial at any level."""
HOST = "trace/host.perf.data"
"""perf's own file; the host's scheduler and KVM events, times of its CLOCK_MONOTONIC."""
GUEST = "trace/guest.perf.data"
"""The guest's scheduler and timer events, times of the guest's CLOCK_MONOTONIC."""
THREADS = "trace/threads.json"
"""Owners of the threads in the host's events: a list of {tid, pid, role, index, name}."""
CLOCKS = "trace/clocks.json"
"""Readings of both clocks, before and after the window: a list of {asked_ns, machine_ns,
answered_ns}, of which the first and the last are the host's."""
CLOCK_DISCIPLINE = "trace/clock-discipline.json"
"""Discipline of the host's clock at these two times, if the kernel reports it: a list of {ppm,
pending_ns}."""
EXITS = "trace/exits.json"
"""VM exits by reason, and those that went on to QEMU."""
PROBLEMS = "trace/problems.json"
"""Reasons why collectors recorded nothing, by name."""

_FORMER = {RUNNER: "side.json", CLOCK_DISCIPLINE: "trace/steering.json"}
"""Names of these files before 0.1.0 was released; runs that have them stay readable."""


def stored(folder: TrialFolder, name: str) -> str:
    """Return the file's name in a trial's folder: the former one if only that exists."""
    former = _FORMER[name]
    return former if folder.has(former) and not folder.has(name) else name


def has_trace(folder: TrialFolder) -> bool:
    """Return whether either side has a trace."""
    return folder.has(HOST) or folder.has(GUEST)
