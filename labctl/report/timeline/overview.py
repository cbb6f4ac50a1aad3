"""Draw a whole time line as a small picture without a script: each lane's shares over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labctl.report.timeline.spans_data import CATEGORIES, MEASURED, Spans
from labctl.trace.timeline.lanes import State, Timeline

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
"""Categories from the bottom up. A halted or idle CPU is drawn as nothing."""


@dataclass(frozen=True, slots=True)
class OverviewLane:
    """Draw a lane. `areas`: the CSS class and the path of each category; `y` where the lane
    begins.
    """

    title: str
    y: int
    areas: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Overview:
    """Draw the overview. `gaps`: where each begins and how wide it is, in columns. `ticks`: places
    in percent, and their texts."""

    height: int
    lanes: tuple[OverviewLane, ...]
    gaps: tuple[tuple[float, float], ...]
    ticks: tuple[tuple[float, str], ...]


def overview(timeline: Timeline, spans: Sequence[Spans]) -> Overview:
    """Return the overview of the lanes of CPUs; QEMU's other threads have theirs in the large
    picture alone."""
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
    """Rectangles over all columns where there is something, neighbours of one height as one."""
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
    """Return five moments or so, in milliseconds."""
    milliseconds = window / 1e6
    rough = milliseconds / 5
    magnitude = 10.0 ** np.floor(np.log10(rough))
    step = next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude >= rough)
    return tuple(
        (100 * moment / milliseconds, f"{moment:g}")
        for moment in (round(n * step, 9) for n in range(int(milliseconds / step) + 1))
    )
