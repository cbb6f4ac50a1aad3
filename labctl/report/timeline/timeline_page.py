"""Write a trial's time line as one self-contained page: no network, no other file."""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from labctl.base.wording import printable
from labctl.report.templating import template
from labctl.report.timeline import timeline_words as words
from labctl.trace.model import Gap
from labctl.trace.timeline.lanes import Lane, State, Timeline

# Pack a time line's spans into columns of a page's data block, which its script unpacks.


MEASURED = len(State)
"""Category besides the states: running the task whose wake-ups are measured."""
CATEGORIES = MEASURED + 1

_TIME_BYTES, _DETAIL_BYTES = 6, 3
"""Limits: nanoseconds of three days, and more names than any trace has."""
_MOST_BYTES = 2_800_000
"""Limit on packed spans: as base64, with the rest, they keep a page below 5 MB."""
_MOST_SPANS = 1_200_000
"""Most spans that are packed: more never fit (each needs at least 2.5 bytes)."""
_FIRST_GRAIN_NS = 1_000


@dataclass(frozen=True, slots=True)
class Spans:
    """Hold a lane's spans in its window: whole nanoseconds from the window's start, and
    categories.
    """

    lane: Lane
    title: str
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    category: NDArray[np.int8]
    detail: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Packed:
    """Hold packed spans. `data`: base64 of gzip of the lanes' columns, one lane after the other.
    `counts`: spans of each lane. `grain_ns`: shorter spans were joined with their neighbours; 0 if
    none were."""

    data: str
    counts: tuple[int, ...]
    grain_ns: int


def spans_of(timeline: Timeline) -> list[Spans]:
    """Return every lane's spans, cut to the window: by vCPU, the host above the guest, other
    threads last."""
    measured = {late.task for late in timeline.late}
    lanes = sorted(timeline.lanes, key=lambda lane: (lane.vcpu < 0, lane.vcpu, lane.side != "host"))
    return [_spans(lane, timeline, measured) for lane in lanes]


def packed(spans: Sequence[Spans]) -> Packed:
    """Return the packed spans for a page; short ones are joined if all would take too much room."""
    grain, kept, most = 0, list(spans), _MOST_SPANS
    while True:
        if sum(int(_begins_run(one, grain).sum()) for one in spans) <= most:
            kept = [_joined_spans(one, grain) for one in spans] if grain else kept
            data = _bytes(kept)
            if len(data) <= _MOST_BYTES:
                break
            most = int(0.9 * _MOST_BYTES / len(data) * sum(len(one.start) for one in kept))
        grain = 2 * grain or _FIRST_GRAIN_NS
    return Packed(base64.b64encode(data).decode(), tuple(len(one.start) for one in kept), grain)


def _spans(lane: Lane, timeline: Timeline, measured: Collection[str]) -> Spans:
    window = timeline.end_ns - timeline.start_ns
    start = np.clip(lane.start_ns - timeline.start_ns, 0, window)
    end = np.clip(lane.end_ns - timeline.start_ns, 0, window)
    whose = np.array([name in measured for name in lane.details], dtype=bool)
    category = lane.state.astype(np.int8)
    if len(whose):
        of_task = lane.state == list(State).index(State.TASK)
        category[of_task & whose[lane.detail]] = MEASURED
    kept = end > start
    return Spans(lane, title_of(lane), start[kept], end[kept], category[kept], lane.detail[kept])


def title_of(lane: Lane) -> str:
    """Return the lane's title, with its side if the time line has two."""
    if lane.side == "guest":
        return f"{lane.title}, inside the guest"
    return f"{lane.title}, on its host" if lane.vcpu >= 0 and not _of_tasks(lane) else lane.title


def _of_tasks(lane: Lane) -> bool:
    """Return whether the lane shows the task of a CPU: natively the host's lanes do."""
    return bool(np.isin(list(State).index(State.TASK), lane.state))


def _bytes(spans: Sequence[Spans]) -> bytes:
    columns = bytearray()
    for one in spans:
        before = np.concatenate(([0], one.end[:-1])) if len(one.end) else one.end
        columns += _planes(one.start - before, _TIME_BYTES)
        columns += _planes(one.end - one.start, _TIME_BYTES)
        columns += _planes(one.detail.astype(np.int64), _DETAIL_BYTES)
        columns += one.category.tobytes()
    # Without the time of packing: the same trace gives the same page.
    return gzip.compress(columns, 6, mtime=0)


def _planes(values: NDArray[np.int64], count: int) -> bytes:
    """Return the lowest bytes of all numbers, then the second bytes, and so on: similar bytes
    compress well together.
    """
    return values.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :count].T.tobytes()


def _begins_run(spans: Spans, grain: int) -> NDArray[np.bool_]:
    """Return whether each span begins a run of joined spans. Runs have only spans shorter than
    `grain`, and end at gaps and at each multiple of `grain`."""
    apart = np.ones(len(spans.start), dtype=bool)
    if grain and len(apart):
        short = spans.end - spans.start < grain
        cell = spans.start // grain
        apart[1:] = ~(short[1:] & short[:-1] & (cell[1:] == cell[:-1]))
        apart[1:] |= spans.start[1:] != spans.end[:-1]
    return apart


def _joined_spans(spans: Spans, grain: int) -> Spans:
    """Join each run of short spans into one span of the category that took most of its time."""
    length = spans.end - spans.start
    if not len(length):
        return spans
    apart = _begins_run(spans, grain)
    first = np.flatnonzero(apart)
    last = np.append(first[1:], len(length)) - 1
    run = np.cumsum(apart) - 1
    time = np.zeros((len(first), CATEGORIES), dtype=np.int64)
    np.add.at(time, (run, spans.category), length)
    category = time.argmax(axis=1).astype(np.int8)
    # The longest span of that category names the run.
    rank = np.lexsort((length, spans.category == category[run], run))
    named = rank[np.append(np.flatnonzero(np.diff(run[rank])), len(rank) - 1)]
    return replace(
        spans,
        start=spans.start[first],
        end=spans.end[last],
        category=category,
        detail=spans.detail[named],
    )


# Draw a whole time line as a small picture without a script: each lane's shares over time.


WIDTH = 240
"""Columns that the window is cut into."""
LANE_HEIGHT = 26
_LEAST_HEIGHT = 2.0
"""Least height, so that even the shortest wait for a CPU is visible."""

NAMES = (
    "guest",
    "host",
    "exit",
    "waiting",
    "halted",
    "task",
    "idle",
    "unknown",
    "measured",
)
"""Names of the categories, for style sheet and script: the states in their order, then MEASURED."""

STACKED = (
    MEASURED,
    *(
        list(State).index(state)
        for state in (
            State.TASK,
            State.GUEST,
            State.EXIT,
            State.HOST,
            State.UNKNOWN,
            State.PREEMPTED,
        )
    ),
)
"""Categories from the bottom up. A halted or idle CPU is left blank."""


@dataclass(frozen=True, slots=True)
class OverviewLane:
    """Draw a lane. `areas`: CSS class and path of each category; `y`: the lane's top."""

    title: str
    y: int
    areas: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Overview:
    """Draw the overview. `gaps`: begin and width of each, in columns. `ticks`: places in percent,
    and their texts."""

    height: int
    lanes: tuple[OverviewLane, ...]
    gaps: tuple[tuple[float, float], ...]
    ticks: tuple[tuple[float, str], ...]


def overview(timeline: Timeline, spans: Sequence[Spans]) -> Overview:
    """Return the overview of the lanes of CPUs. Only the large picture has lanes of QEMU's other
    threads."""
    window = max(1, timeline.end_ns - timeline.start_ns)
    lanes = []
    for number, one in enumerate(one for one in spans if one.lane.vcpu >= 0):
        y = number * (LANE_HEIGHT + 4)
        lanes.append(OverviewLane(one.title, y, _areas(shares(one, window), y)))
    gaps = [
        (WIDTH * low / window, WIDTH * max(high - low, window / WIDTH) / window)
        for gap in timeline.gaps
        if (low := max(0, gap.start_ns - timeline.start_ns))
        < (high := min(window, gap.end_ns - timeline.start_ns))
    ]
    return Overview(len(lanes) * (LANE_HEIGHT + 4), tuple(lanes), tuple(gaps), _ticks(window))


def shares(spans: Spans, window: int) -> NDArray[np.float64]:
    """Return, for each of WIDTH columns of the window, the share of its time by category."""
    edges = np.linspace(0, window, WIDTH + 1)
    found = np.zeros((CATEGORIES, WIDTH))
    for category in range(CATEGORIES):
        its = spans.category == category
        if not its.any():
            continue
        start, end = spans.start[its], spans.end[its]
        spent = np.cumsum(end - start)
        # Time spent up to each span's start and end, and in between in proportion.
        moments = np.column_stack((start, end)).ravel()
        before = np.column_stack((spent - (end - start), spent)).ravel()
        found[category] = np.diff(np.interp(edges, moments, before)) * WIDTH / window
    return found


def _areas(found: NDArray[np.float64], y: int) -> tuple[tuple[str, str], ...]:
    areas = []
    floor = np.zeros(WIDTH)
    for category in STACKED:
        height = found[category] * LANE_HEIGHT
        if not height.any():
            continue
        if category == list(State).index(State.PREEMPTED):
            height = np.where(height > 0, np.maximum(height, _LEAST_HEIGHT), 0)
            floor = np.minimum(floor, LANE_HEIGHT - height)
        areas.append((NAMES[category], _path(floor, floor + height, y + LANE_HEIGHT)))
        floor = floor + height
    return tuple(areas)


def _path(low: NDArray[np.float64], high: NDArray[np.float64], bottom: int) -> str:
    """Return the path of a rectangle for each column that has a height; neighbours of one height
    share a rectangle."""
    ends = np.round(np.stack((bottom - high, bottom - low)), 1)
    drawn = ends[1] > ends[0]
    changes = np.flatnonzero(np.any(np.diff(ends, axis=1) != 0, axis=0)) + 1
    path = []
    for first, last in zip([0, *changes], [*changes, WIDTH], strict=True):
        if drawn[first]:
            top, base = ends[:, first]
            path.append(f"M{first} {base:g}V{top:g}H{last}V{base:g}z")
    return "".join(path)


def _ticks(window: int) -> tuple[tuple[float, str], ...]:
    """Return about five moments, in milliseconds."""
    milliseconds = window / 1e6
    rough = milliseconds / 5
    magnitude = 10.0 ** np.floor(np.log10(rough))
    step = next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude >= rough)
    return tuple(
        (100 * moment / milliseconds, f"{moment:g}")
        for moment in (round(n * step, 9) for n in range(int(milliseconds / step) + 1))
    )


_SCRIPTS = ("timeline-data.js", "timeline-draw.js", "timeline-view.js")
_ROWS = 20
"""Rows of a table: the worst late wake-ups, the longest suspects."""
_MARKS = 2_000
"""Limit on late wake-ups (the worst) and on suspects (the longest) in the picture."""

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
_LETTERS = {
    "double scheduling": "D",
    "blocked vCPU": "B",
    "lock holder preempted": "L",
    "wake-up chain": "W",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Name the page's trial. `command` writes the page again."""

    run: str
    trial: int
    attempt: int
    title: str
    facts: tuple[tuple[str, str], ...]
    command: str


def page(timeline: Timeline, about: About) -> str:
    """Return the page's HTML, which stays below 5 MB for any number of spans."""
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


def _facts(timeline: Timeline, spans: Sequence[Spans], data: Packed) -> dict[str, object]:
    """Return the script's data besides the spans; times in nanoseconds from the window's start."""
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
            for gap in _joined_gaps(timeline.gaps)
        ],
    }


def _joined_gaps(gaps: Sequence[Gap]) -> Iterator[Gap]:
    """Return the gaps of all CPUs, merged and in order."""
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
