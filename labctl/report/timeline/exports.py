"""Export a time line as JSON, or a trial's traces in trace-cmd's format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from labctl.base.errors import BrokenError, HostError
from labctl.report.timeline import timeline_words as words
from labctl.report.timeline.timeline_page import About
from labctl.report.timeline.timeline_words import nanoseconds
from labctl.store.trial import TrialFolder
from labctl.trace import files
from labctl.trace.clocks import stored_clock_map
from labctl.trace.coverage import Coverage
from labctl.trace.threads import stored_threads
from labctl.trace.timeline.lanes import Late, Suspect, Timeline
from labctl.trace.tracedat import Guest, write_tracedat

# Export a time line's results as JSON for other programs: `labctl timeline --json`.


SCHEMA = 1


def timeline_json(timeline: Timeline, about: About) -> dict[str, object]:
    """Return all times in seconds; `at_s` counts from the start of the measured window."""

    def seconds(at_ns: int) -> float:
        return (at_ns - timeline.start_ns) / 1e9

    def late(one: Late) -> dict[str, object]:
        return {
            "at_s": seconds(one.at_ns),
            "vcpu": one.vcpu,
            "task": one.task,
            "latency_s": one.latency_ns / 1e9,
            **{
                f"{name}_s": part / 1e9
                for (name, _), part in zip(words.PARTS, words.parts_of(one), strict=True)
            },
            "culprit": one.culprit or None,
            "behind_s": {name: length / 1e9 for name, length in one.behind_ns.items()},
        }

    def suspect(one: Suspect) -> dict[str, object]:
        return {
            "at_s": seconds(one.start_ns),
            "duration_s": (one.end_ns - one.start_ns) / 1e9,
            "vcpu": one.vcpu,
            "kind": one.kind,
            "text": one.text,
        }

    error = timeline.clock_error_ns
    return {
        "schema": SCHEMA,
        "run": about.run,
        "trial": about.trial,
        "attempt": about.attempt,
        "answer": list(words.answer(timeline)),
        "window_s": (timeline.end_ns - timeline.start_ns) / 1e9,
        "clock_error_s": None if error is None else error / 1e9,
        "figures": dict(timeline.figures),
        "late_shares": words.late_shares(timeline),
        "late_share_bounds": {name: list(ends) for name, ends in timeline.late_bounds.items()},
        "coverage": _coverage(timeline.coverage),
        "late": [late(one) for one in words.worst_first(timeline.late)],
        "suspects": [suspect(one) for one in words.longest_first(timeline.suspects)],
        "lost_events": [
            {
                "at_s": seconds(gap.start_ns),
                "duration_s": (gap.end_ns - gap.start_ns) / 1e9,
                "side": side,
                "cpu": gap.cpu,
                "count": gap.count,
            }
            for side, gap in words.lost(timeline)
        ],
        "problems": list(timeline.problems),
    }


def _coverage(coverage: Coverage | None) -> dict[str, object] | None:
    if coverage is None:
        return None
    own = coverage.own
    return {
        "seen": coverage.seen,
        "inferred": coverage.inferred,
        "unseen": coverage.unseen,
        "unseen_s": coverage.unseen_ns / 1e9,
        "is_enough": coverage.is_enough,
        "worst_seen_s": coverage.worst_ns / 1e9,
        "own_wakeups": None if own is None else own.wakeups,
        "own_worst_s": None if own is None else own.worst_ns / 1e9,
        "lacks_worst": coverage.lacks_worst,
    }


# Write a trial's traces in trace-cmd's format, for trace-cmd and KernelShark.


HOST, GUEST = "host.dat", "guest.dat"


def write_trace_dat(trial: TrialFolder, folder: Path) -> list[str]:
    """Write HOST and GUEST, the complete recordings, into `folder`, which is created if missing.
    Times are of the host's CLOCK_MONOTONIC. Returns a sentence on each: that it was written, or why
    it was not.

    Raises BrokenError if a file of labctl has changed since it was written, HostError if the folder
    can't be written to.
    """
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise HostError(f"cannot make the folder {folder}: {error.strerror}") from error
    said: list[str] = []
    guest_id = _guest(trial, folder / GUEST, said) if trial.has(files.GUEST) else None
    if trial.has(files.HOST):
        threads = stored_threads(trial)
        vcpus = {thread.index: thread.tid for thread in threads if thread.role == "vcpu"}
        guest = Guest(trace_id=guest_id, vcpu_tids=vcpus) if guest_id is not None else None
        source, target = trial.path / files.HOST, folder / HOST
        if _tried(lambda: write_tracedat(source, target, guest=guest), HOST, said) is not None:
            said.append(f"Wrote {target}")
    return said


def _guest(trial: TrialFolder, target: Path, said: list[str]) -> int | None:
    """Return the id of the file that was written."""
    clock = stored_clock_map(trial)
    if isinstance(clock, str):
        said.append(f"No {GUEST}: its times cannot be mapped to the host's clock: {clock}.")
        return None
    source, to_host = trial.path / files.GUEST, clock.to_host
    found = _tried(lambda: write_tracedat(source, target, to_host=to_host), GUEST, said)
    if found is not None:
        said.append(f"Wrote {target}, in the host's times (error ± {nanoseconds(clock.error_ns)})")
    return found


def _tried(write: Callable[[], int], name: str, said: list[str]) -> int | None:
    """Return no events, and the reason, if the recording can't be read: a guest may have written
    anything."""
    try:
        return write()
    except BrokenError as error:
        said.append(f"No {name}: {error.message}.")
        return None
