"""Write a trial's time line as one self-contained page: no network, no other file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from labctl.base.wording import printable
from labctl.report.templating import template
from labctl.report.timeline import timeline_words as words
from labctl.report.timeline.overview import LANE_HEIGHT, NAMES, STACKED, WIDTH, overview
from labctl.report.timeline.spans_data import MEASURED, Packed, Spans, packed, spans_of
from labctl.trace.model import Gap
from labctl.trace.timeline.lanes import State, Timeline

_SCRIPTS = ("timeline-data.js", "timeline-draw.js", "timeline-view.js")
_ROWS = 20
"""Rows of a table: the worst late wake-ups, the longest suspects."""
_MARKS = 2_000
"""Late wake-ups, and suspects, that the picture has: the worst and the longest."""

_MEASURED_TEXT = "running the measured task"
_SHORT = {
    State.GUEST: "guest",
    State.HOST: "host",
    State.EXIT: "exit",
    State.PREEMPTED: "waits",
    State.HALTED: "halted",
    State.TASK: "task",
    State.IDLE: "idle",
    State.UNKNOWN: "unknown",
}
_LETTERS = {"double scheduling": "D", "lock holder preempted": "L", "wake-up chain": "W"}


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Say which trial the page is about. `command` makes it again."""

    run: str
    trial: int
    attempt: int
    title: str
    facts: tuple[tuple[str, str], ...]
    command: str


def page(timeline: Timeline, about: About) -> str:
    """Return the page's HTML: below 5 MB, however many spans there are."""
    spans = spans_of(timeline)
    data = packed(spans)
    script = Markup("\n".join(template(name).render() for name in _SCRIPTS))  # noqa: S704 (ours)
    return template("timeline.html.j2").render(
        about=about,
        answer=words.answer(timeline),
        window=words.nanoseconds(timeline.end_ns - timeline.start_ns),
        clock_error=_error_text(timeline),
        clock_words=words.clock_words(timeline),
        lost=words.lost_words(timeline),
        problems=timeline.problems,
        coverage=timeline.coverage,
        sees_all=words.sees_all(timeline),
        late_count=words.late_count(timeline),
        listed=min(len(timeline.late), _MARKS),
        late=words.late_rows(timeline, _ROWS),
        worst=words.nanoseconds(max((late.latency_ns for late in timeline.late), default=0)),
        suspect_count=len(timeline.suspects),
        suspects=words.suspect_rows(timeline, _ROWS),
        letters=_LETTERS,
        gaps=[
            (words.moment(timeline, gap.start_ns), words.moment(timeline, gap.end_ns), side, gap)
            for side, gap in words.lost(timeline)[:_ROWS]
        ],
        gap_count=len(words.lost(timeline)),
        vcpus=words.vcpu_rows(timeline),
        figures=words.figure_rows(timeline),
        parts=words.part_words(timeline),
        native=words.is_native(timeline),
        cpu=_cpu(timeline),
        legend=_legend(spans),
        overview=overview(timeline, spans),
        lane_height=LANE_HEIGHT,
        columns=WIDTH,
        span_count=sum(len(one.start) for one in spans),
        grain=words.nanoseconds(data.grain_ns) if data.grain_ns else "",
        facts=_facts(timeline, spans, data),
        spans=Markup(data.data),  # noqa: S704 (base64)
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(f"\n{script}\n".encode()).digest()).decode(),
    )


def _error_text(timeline: Timeline) -> str:
    error = timeline.clock_error_ns
    return "" if error is None else f"± {words.nanoseconds(error)}"


def _cpu(timeline: Timeline) -> str:
    return "CPU" if words.is_native(timeline) else "vCPU"


def _categories() -> Iterator[tuple[str, str, str]]:
    """Key, words and a short word of each category, in the order of their numbers."""
    for state, key in zip(State, NAMES, strict=False):
        yield key, str(state), _SHORT[state]
    yield NAMES[MEASURED], _MEASURED_TEXT, "task"


def _legend(spans: Sequence[Spans]) -> list[tuple[str, str]]:
    """Key and words of the categories that the lanes have."""
    seen = {int(number) for one in spans for number in set(one.category.tolist())}
    return [
        (key, "running another task" if key == "task" and MEASURED in seen else text)
        for number, (key, text, _) in enumerate(_categories())
        if number in seen
    ]


def _facts(timeline: Timeline, spans: Sequence[Spans], data: Packed) -> dict[str, Any]:
    """Return what the script needs beside the spans; times in nanoseconds from the window's
    start."""
    begin = timeline.start_ns
    worst = words.worst_first(timeline.late)[:_MARKS]
    return {
        "window": max(1, timeline.end_ns - begin),
        "clock_error": timeline.clock_error_ns,
        "grain": data.grain_ns,
        "columns": WIDTH,
        "cpu": _cpu(timeline),
        "longest": max((late.latency_ns for late in timeline.late), default=0),
        "categories": [{"key": k, "text": t, "short": s} for k, t, s in _categories()],
        "stacked": STACKED,
        "parts": [
            {"index": i, "key": k, "text": t} for i, (k, t) in enumerate(words.part_words(timeline))
        ],
        "lanes": [
            {
                "title": printable(one.title),
                "side": one.lane.side,
                "vcpu": one.lane.vcpu,
                "count": count,
                "details": list(map(printable, one.lane.details)),
            }
            for one, count in zip(spans, data.counts, strict=True)
        ],
        "late": [
            {
                "id": f"late-{number}",
                "at": late.at_ns - begin,
                "end": late.at_ns - begin + late.latency_ns,
                "vcpu": late.vcpu,
                "task": printable(late.task),
                "latency": late.latency_ns,
                "parts": words.parts_of(late),
                "culprit": printable(late.culprit),
            }
            for number, late in enumerate(worst)
        ],
        "suspects": [
            {
                "id": f"suspect-{number}",
                "at": one.start_ns - begin,
                "end": one.end_ns - begin,
                "vcpu": one.vcpu,
                "kind": printable(one.kind),
                "letter": _LETTERS.get(one.kind, "?"),
                "text": printable(one.text),
            }
            for number, one in enumerate(words.longest_first(timeline.suspects)[:_MARKS])
        ],
        "gaps": [
            {"at": gap.start_ns - begin, "end": gap.end_ns - begin, "count": gap.count}
            for gap in _joined(timeline.gaps)
        ],
    }


def _joined(gaps: Sequence[Gap]) -> Iterator[Gap]:
    """Gaps without overlaps, in order: of whichever CPU."""
    last: Gap | None = None
    for gap in sorted(gaps, key=lambda gap: gap.start_ns):
        if last is not None and gap.start_ns <= last.end_ns:
            last = Gap(
                cpu=last.cpu,
                start_ns=last.start_ns,
                end_ns=max(last.end_ns, gap.end_ns),
                count=last.count + gap.count,
            )
            continue
        if last is not None:
            yield last
        last = gap
    if last is not None:
        yield last
