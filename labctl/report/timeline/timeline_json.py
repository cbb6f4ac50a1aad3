"""Export what a time line amounts to, as JSON for other programs: `labctl timeline --json`."""

from __future__ import annotations

from typing import Any

from labctl.report.timeline import timeline_words as words
from labctl.report.timeline.timeline_page import About
from labctl.trace.coverage import Coverage
from labctl.trace.timeline.lanes import Late, Suspect, Timeline

SCHEMA = 1


def timeline_json(timeline: Timeline, about: About) -> dict[str, Any]:
    """Return seconds everywhere; `at_s` counts from the start of the measured window."""

    def seconds(at_ns: int) -> float:
        return (at_ns - timeline.start_ns) / 1e9

    def late(one: Late) -> dict[str, Any]:
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

    def suspect(one: Suspect) -> dict[str, Any]:
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


def _coverage(coverage: Coverage | None) -> dict[str, Any] | None:
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
