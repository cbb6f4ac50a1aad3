"""Define the files of a trial's recordings, and store why a collector recorded nothing."""

from __future__ import annotations

from labctl.base.errors import FileError
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


# Store the problems of a trial's collectors, one sentence each.


HOST_TRACE, GUEST_TRACE, VM_EXITS = "host_trace", "guest_trace", "exits"
"""Names of collectors in PROBLEMS."""

SIZE_LIMIT = "size limit"
"""Words of every sentence on a recording that became too large, perf's own included."""


def note_problem(raw: TrialFolder, collector: str, sentence: str) -> None:
    """Store a collector's sentence on its problem beside those of the trial's others."""
    known = _problems(raw) if raw.has(PROBLEMS) else {}
    raw.write_raw_json(PROBLEMS, {**known, collector: sentence})


def noted_problem(raw: TrialFolder, collector: str) -> str | None:
    """Return a collector's sentence; None if it recorded, or never ran. Raises BrokenError naming
    the file if it is invalid."""
    if not raw.has(PROBLEMS):
        return None
    sentence = _problems(raw).get(collector)
    return None if sentence is None else str(sentence)


def _problems(raw: TrialFolder) -> dict[str, object]:
    found = raw.read_json(PROBLEMS)
    if not isinstance(found, dict):
        raise FileError(f"{raw.path / PROBLEMS}: expected a sentence by collector")
    return found
