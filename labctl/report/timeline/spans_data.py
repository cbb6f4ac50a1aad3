"""Pack a time line's spans into columns of a page's data block, which its script unpacks."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from labctl.trace.timeline.lanes import Lane, State, Timeline

MEASURED = len(State)
"""A category beside the states: running the task whose wake-ups are measured."""
CATEGORIES = MEASURED + 1

_TIME_BYTES, _DETAIL_BYTES = 6, 3
"""Nanoseconds of three days, and as many names as anything has."""
_MOST_BYTES = 2_800_000
"""Limit on packed spans: as base64, with all else, they keep a page below 5 MB."""
_MOST_SPANS = 1_200_000
"""More never fit (2.5 bytes each are few), so they aren't packed to find that out."""
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
    `counts`: spans of each lane. `grain_ns`: shorter spans were joined with their neighbours; 0
    where none were."""

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
    """Return the spans as a page holds them; short ones joined where they would take too much
    room."""
    grain, kept, most = 0, list(spans), _MOST_SPANS
    while True:
        if sum(int(_begins_run(one, grain).sum()) for one in spans) <= most:
            kept = [_joined(one, grain) for one in spans] if grain else kept
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
    """Return the lane's title, with its side where there are two of them."""
    if lane.side == "guest":
        return f"{lane.title}, inside the guest"
    return f"{lane.title}, on its host" if lane.vcpu >= 0 and not _of_tasks(lane) else lane.title


def _of_tasks(lane: Lane) -> bool:
    """Return whether it shows which task a CPU runs: natively that is the host's view."""
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
    """Return all lowest bytes, then all second ones, and so on: similar bytes compress well
    together.
    """
    return values.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :count].T.tobytes()


def _begins_run(spans: Spans, grain: int) -> NDArray[np.bool_]:
    """Return whether each span begins a run of those that are joined: runs have only spans shorter
    than `grain`, and end where nothing is known, and at each multiple of `grain`."""
    apart = np.ones(len(spans.start), dtype=bool)
    if grain and len(apart):
        short = spans.end - spans.start < grain
        cell = spans.start // grain
        apart[1:] = ~(short[1:] & short[:-1] & (cell[1:] == cell[:-1]))
        apart[1:] |= spans.start[1:] != spans.end[:-1]
    return apart


def _joined(spans: Spans, grain: int) -> Spans:
    """Join each run of short spans into one, of the category that took most of its time."""
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
