"""Draw a stream's and its competitor's bitrate over time: a panel per arm, the mean over blocks and
its interval.

A bin's interval is Student's t over the blocks' values of that bin, 95 %, each for itself: a band
says how sure the mean of a moment is, not between which lines a whole trial stays.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from labctl.analysis.cells import Scenario
from labctl.analysis.intervals import quantile
from labctl.analysis.view import View
from labctl.base.errors import BrokenError
from labctl.base.notation import quantity
from labctl.base.stream_record import FILE, PHASES, StreamRecord, read_stream
from labctl.base.units import Unit
from labctl.base.wording import counted
from labctl.report.page.axis import Axis, axis_of, y_of
from labctl.store.trial import TrialStatus

HEIGHT = 130
_GAP = 17 / HEIGHT
"""Share of the height that a number at the axis takes."""
_MOST_POINTS = 60
_FEW_POINTS = 18
_FEW_PLACES = 8
"""Points of a line, in a page of so many places and of more."""
_CONFIDENCE = 0.95
_RAW = f"files/{FILE}"
_METRIC = "stream_bitrate"
_KINDS = ("stream", "competitor")


@dataclass(frozen=True, slots=True)
class Moment:
    """Hold the mean over `blocks` blocks of one bin, in bit/s, and half its interval's width; None
    of a single block."""

    mean: float
    half: float | None


@dataclass(frozen=True, slots=True)
class Course:
    """Draw one flow: `path` and `band` are SVG paths, `colour` its name's in the legend."""

    name: str
    colour: int
    path: str
    band: str


@dataclass(frozen=True, slots=True)
class CoursePanel:
    name: str
    courses: tuple[Course, ...]
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bitrates:
    """Draw all panels. `thirds`: where the phases meet, in percent of the width; `header` names the
    columns of `rows`, one per bin."""

    title: str
    heading: str
    names: tuple[tuple[int, str], ...]
    panels: tuple[CoursePanel, ...]
    ticks: tuple[tuple[float, str], ...]
    thirds: tuple[float, ...]
    levels: tuple[tuple[float, str], ...]
    header: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    blocks: str
    bin: str
    height: int = HEIGHT


def bitrates(view: View, place: Scenario, shown: Collection[str]) -> Bitrates | None:
    """Return the picture of a place; None where nothing was streamed, or where no record can be
    read: an archive's are not."""
    if not any(level.metric == _METRIC for level in view.levels(place)):
        return None
    by_arm = {arm: found for arm in view.tunings if (found := _records(view, place, arm))}
    first = next((records[0] for records in by_arm.values()), None)
    if first is None:
        return None
    most = _MOST_POINTS if len(view.places) <= _FEW_PLACES else _FEW_POINTS
    joined = math.ceil(len(first.stream_bit) / most)
    moments = {
        (arm, kind): _moments([_rates(record, kind) for record in records], joined)
        for arm, records in by_arm.items()
        for kind in _KINDS
        if kind == "stream" or first.has_competitor
    }
    ends = [m.mean + (m.half or 0) for of in moments.values() for m in of]
    axis = axis_of([0.0, *ends])
    bin_s = joined * first.bin_s
    kinds = [kind for kind in _KINDS if any(key[1] == kind for key in moments)]
    return Bitrates(
        title=f"Bitrate over time, {place.title}",
        heading="Bitrate over time",
        names=tuple((n, kind) for n, kind in enumerate(kinds)),
        panels=tuple(
            _panel(arm, {kind: moments[arm, kind] for kind in kinds}, axis)
            for arm in by_arm
            if arm in shown
        ),
        ticks=tuple(
            (y_of(axis, value, HEIGHT), text)
            for value, text in axis.ticks(Unit.BITS_PER_SECOND, _GAP)
        )
        if axis
        else (),
        thirds=tuple(round(100 * n / len(PHASES), 2) for n in range(1, len(PHASES))),
        levels=tuple((round(100 * (n + 0.5) / len(PHASES), 2), p) for n, p in enumerate(PHASES)),
        header=tuple(f"{arm}, {kind}" for arm, kind in moments),
        rows=tuple(
            (f"{n * bin_s:g} s", tuple(_cell(of[n]) if n < len(of) else "" for of in each))
            for each in [tuple(moments.values())]
            for n in range(max(map(len, each)))
        ),
        blocks=counted(max(map(len, by_arm.values())), "block"),
        bin=quantity(bin_s, Unit.SECONDS),
    )


def _records(view: View, place: Scenario, arm: str) -> list[StreamRecord]:
    """Return the records of an arm's valid trials, one per block: the last attempt counts."""
    found: dict[int, StreamRecord] = {}
    for trial in view.run.trials:
        record, cell = trial.record, trial.record.cell
        at = (cell.get("tuning"), cell.get("workload"), cell.get("condition"))
        if at != (arm, *place) or record.status is not TrialStatus.DONE:
            continue
        if trial.folder.archive is not None or not trial.folder.has(_RAW):
            continue
        try:
            found[record.block] = read_stream(trial.folder.read_text(_RAW), _RAW)
        except BrokenError:
            continue  # the trial itself says so
    length = max((len(one.stream_bit) for one in found.values()), default=0)
    return [one for one in found.values() if len(one.stream_bit) == length]


def _rates(record: StreamRecord, kind: str) -> Sequence[float]:
    return record.stream_bit if kind == "stream" else record.competitor_bit


def _moments(trials: Sequence[Sequence[float]], joined: int) -> list[Moment]:
    """Return mean and interval of each bin, `joined` of the records' bins together."""
    return [
        _moment([fmean(rates[at : at + joined]) for rates in trials])
        for at in range(0, len(trials[0]), joined)
    ]


def _moment(values: Sequence[float]) -> Moment:
    if len(values) < 2:
        return Moment(values[0], None)
    t = quantile((1 + _CONFIDENCE) / 2, len(values) - 1)
    return Moment(fmean(values), t * stdev(values) / math.sqrt(len(values)))


def _panel(arm: str, kinds: dict[str, list[Moment]], axis: Axis | None) -> CoursePanel:
    courses, said = [], []
    for colour, (kind, moments) in enumerate(kinds.items()):
        xs = [round(100 * (n + 0.5) / len(moments), 2) for n in range(len(moments))]
        line = [f"{x:g} {y_of(axis, m.mean, HEIGHT):g}" for x, m in zip(xs, moments, strict=True)]
        spread = [
            (x, m.mean, m.half) for x, m in zip(xs, moments, strict=True) if m.half is not None
        ]
        upper = [f"{x:g} {y_of(axis, mean + half, HEIGHT):g}" for x, mean, half in spread]
        lower = [f"{x:g} {y_of(axis, mean - half, HEIGHT):g}" for x, mean, half in reversed(spread)]
        band = f"M{'L'.join([*upper, *lower])}Z" if len(spread) > 1 else ""
        courses.append(Course(kind, colour, f"M{'L'.join(line)}", band))
        thirds = [moments[n * len(moments) // 3 : (n + 1) * len(moments) // 3] for n in range(3)]
        rates = [
            f"{quantity(fmean(m.mean for m in of), Unit.BITS_PER_SECOND)} {phase}"
            for phase, of in zip(PHASES, thirds, strict=True)
            if of
        ]
        said.append(f"{kind} {', '.join(rates)}")
    return CoursePanel(arm, tuple(courses), "; ".join(said))


def _cell(moment: Moment) -> str:
    text = quantity(moment.mean, Unit.BITS_PER_SECOND)
    return (
        text if moment.half is None else f"{text} ± {quantity(moment.half, Unit.BITS_PER_SECOND)}"
    )
