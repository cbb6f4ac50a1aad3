"""List the pictures of a workload and condition, a row each, in the order of the page.

The page loops over the rows; docs/report.md gets its explanation of each picture from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, stdev

from labctl.analysis.answer.view import View, only_label
from labctl.analysis.effects.cells import Scenario
from labctl.analysis.effects.intervals import quantile
from labctl.analysis.model import Level
from labctl.base.errors import BrokenError
from labctl.base.notation import quantity
from labctl.base.stream_record import FILE, PHASES, StreamRecord, read_stream
from labctl.base.units import Unit
from labctl.base.wording import counted
from labctl.report.page.axis import Axis, axis_of, y_of
from labctl.report.page.curves import curves
from labctl.report.page.dots import Invalid, dots
from labctl.report.page.forest import forest
from labctl.store.samples import base_name, labels_of
from labctl.store.trial import TrialStatus

# Draw a stream's and its competitor's bitrate over time: a panel per arm, the mean over blocks and
# its interval.
#
# A bin's interval is Student's t over the blocks' values of that bin, 95 %, each for itself: a
# band shows the uncertainty of the mean at each moment, and does not bound whole trials.


HEIGHT = 130
_GAP = 17 / HEIGHT
"""Share of the height that a number at the axis takes."""
_MOST_POINTS = 60
_FEW_POINTS = 18
_FEW_PLACES = 8
"""Points of a line, by the number of places on the page."""
_CONFIDENCE = 0.95
_RAW = f"files/{FILE}"
_METRIC = "stream_bitrate"
_KINDS = ("stream", "competitor")


@dataclass(frozen=True, slots=True)
class Moment:
    """Hold the mean over `blocks` blocks of one bin, in bit/s, and half its interval's width, which
    is None for a single block."""

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
    """Return the picture of a place; None if nothing was streamed or no record can be read, as in
    an archive."""
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
            continue  # the trial's own record has the problem
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


# Stack parts of a whole, per arm: the host's CPU time by thread, VM exits by reason.


_MOST_PARTS = 6
"""Most parts that have a colour each; more are joined as "other"."""
_LETTER, _LETTERS_AROUND = 2.5, 1
"""Percent of a narrow screen's width for a letter of a part's name, and for the space around the
name."""

_EXITS = (("exits", "VM exits"), ("exit_time", "Time in VM exits"))
"""Metrics by reason, and their words."""
_ADDED_UP = "Typical values, stacked"
_BETWEEN = "; from an exit to the next entry, HLT left out"

_THREADS = ("vcpu", "workload", "emulator", "iothread", "vhost", "labctl")
"""Threads whose host CPU time a guest (or, natively, the workload) and labctl cost."""


@dataclass(frozen=True, slots=True)
class Part:
    """Draw a piece of a bar: its place, length (percent) and colour. `label`: "" without room."""

    x: float
    width: float
    colour: int
    label: str


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    parts: tuple[Part, ...]
    total: str


@dataclass(frozen=True, slots=True)
class Stack:
    """Draw a stack per arm. `rows` are the table behind the picture, with all arms. `parts` is the
    legend, with `colours`. `name`: the whole, in a word. `key`: unique in the place."""

    key: str
    caption: str
    title: str
    name: str
    parts: tuple[str, ...]
    colours: tuple[int, ...]
    bars: tuple[Bar, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    description: str


def host_cpu(view: View, place: Scenario, shown: Collection[str]) -> Stack | None:
    """Return CPU seconds per second of the host, by thread; None if none was measured."""
    title = f"{place.title}: host CPU by thread"
    stack = _stack(view, place, title, _thread, _THREADS, shown, "Host CPU")
    if stack is None:
        return None
    caption = "CPU seconds per second, by thread; natively, of the workload."
    return replace(stack, key="cpu", caption=f"{caption} {_ADDED_UP}.")


def exits(view: View, place: Scenario, shown: Collection[str]) -> tuple[Stack, ...]:
    """Return VM exits by reason, their number and their time, each per operation if that was
    measured, else per second; () without a breakdown. If the run has more arms than fit a picture,
    only the number is drawn."""
    room = len(_EXITS) if len(shown) >= len(view.tunings) else 1
    told = [(_told_by_reason(view, place, base), base, what) for base, what in _EXITS[:room]]
    # One colour for a reason in both pictures: its rank by the larger of its two shares.
    shares: dict[str, float] = {}
    for metric, *_ in told:
        sizes = _sizes(_by_arm(view, place, partial(_reason, metric)))
        whole = sum(sizes.values())
        for part, size in sizes.items():
            shares[part] = max(shares.get(part, 0.0), size / whole if whole else 0.0)
    order = _largest_parts(shares)
    found = []
    for metric, base, what in told:
        per = "per second" if metric == base else "per operation"
        title = f"{place.title}: {what} {per} by reason"
        found.append(_stack(view, place, title, partial(_reason, metric), order, shown, what))
    there = [stack for stack in found if stack is not None]
    return tuple(
        replace(
            stack,
            key=f"exits-{number}",
            caption=f"{stack.title}. {_ADDED_UP}{_BETWEEN if number > 1 else ''}.",
        )
        for number, stack in enumerate(there, start=1)
    )


def _told_by_reason(view: View, place: Scenario, base: str) -> str:
    """Return `base` per operation if that is known by reason, else `base`, which is per second."""
    per_operation = f"{base}_per_op"
    known = (_reason(per_operation, level) for level in view.levels(place))
    return per_operation if any(known) else base


def no_exits(view: View, place: Scenario) -> str:
    """Return why there are no exits by reason, as one sentence."""
    why = dict.fromkeys(
        item.reason.rstrip(".")
        for item in view.judgement.unavailable
        if base_name(item.metric) == "exits" and place.workload in item.workloads
    )
    return f"{'; '.join(why) or 'not recorded in this run'}."


def _thread(level: Level) -> str | None:
    if base_name(level.metric) != "host_cpu":
        return None
    thread = labels_of(level.metric).get("thread")
    return thread if thread in _THREADS else None


def _reason(metric: str, level: Level) -> str | None:
    return only_label(level.metric, metric, "reason")


def _stack(
    view: View,
    place: Scenario,
    title: str,
    part_of: Callable[[Level], str | None],
    order: Sequence[str],
    drawn: Collection[str],
    name: str,
) -> Stack | None:
    by_arm = _by_arm(view, place, part_of)
    sizes = _sizes(by_arm)
    largest = max((sum(found.values()) for found in by_arm.values()), default=0.0)
    if largest <= 0:
        return None
    unit = next(level.unit for level in view.levels(place) if part_of(level) is not None)
    parts = [part for part in order if sizes.get(part)]
    shown = {arm: _joined(by_arm[arm], parts) for arm in view.tunings if arm in by_arm}
    names = [*parts, "other"] if any("other" in found for found in shown.values()) else parts
    colours = {part: number for number, part in enumerate((*order, "other"))}
    bars = tuple(
        _bar(arm, found, {name: colours[name] for name in names}, largest, unit)
        for arm, found in shown.items()
        if arm in drawn
    )
    return Stack(
        key="",
        caption="",
        title=title,
        name=name,
        parts=tuple(names),
        colours=tuple(colours[name] for name in names),
        bars=bars,
        rows=tuple(
            (
                arm,
                (
                    *(quantity(found[p], unit) if p in found else "" for p in names),
                    quantity(sum(found.values()), unit),
                ),
            )
            for arm, found in shown.items()
        ),
        description="; ".join(f"{bar.name} {bar.total}" for bar in bars),
    )


def _by_arm(
    view: View, place: Scenario, part_of: Callable[[Level], str | None]
) -> dict[str, dict[str, float]]:
    by_arm: dict[str, dict[str, float]] = {}
    for level in view.levels(place):
        part = part_of(level)
        if part is not None and math.isfinite(level.typical) and level.typical >= 0:
            by_arm.setdefault(level.tuning, {})[part] = level.typical
    return by_arm


def _sizes(by_arm: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return each part's sum over all arms."""
    sizes: dict[str, float] = {}
    for found in by_arm.values():
        for part, value in found.items():
            sizes[part] = sizes.get(part, 0.0) + value
    return sizes


def _largest_parts(sizes: Mapping[str, float]) -> list[str]:
    ranked = sorted((part for part in sizes if sizes[part] > 0), key=lambda part: -sizes[part])
    return ranked if len(ranked) <= _MOST_PARTS + 1 else ranked[:_MOST_PARTS]


def _joined(found: Mapping[str, float], parts: Iterable[str]) -> dict[str, float]:
    kept = {part: found[part] for part in parts if part in found}
    rest = sum(value for part, value in found.items() if part not in kept)
    return {**kept, "other": kept.get("other", 0.0) + rest} if rest > 0 else kept


def _bar(
    arm: str, found: Mapping[str, float], colours: Mapping[str, int], largest: float, unit: Unit
) -> Bar:
    parts, x = [], 0.0
    for name, colour in colours.items():
        width = 100 * found.get(name, 0.0) / largest
        if width >= 0.05:
            text = name if width >= _LETTER * (len(name) + _LETTERS_AROUND) else ""
            parts.append(Part(round(x, 2), round(width, 2), colour, text))
        x += width
    return Bar(arm, tuple(parts), quantity(sum(found.values()), unit))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """Hold the input of a picture. `shown`: the arms that have room; `invalid`: the discarded
    attempts of the whole run."""

    view: View
    place: Scenario
    shown: Collection[str]
    invalid: Invalid


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Describe a picture.

    `shows`: how to read it. `draw` returns the values of each plot, () if there is nothing to draw;
    then `why_none` returns the reason, or "" and the page leaves the picture out. `template`:
    templates/report/pictures/TEMPLATE.html.j2, which draws the plots. `is_titled`: whether the
    title stands above them; else each plot has a heading. `leads`: whether the picture stands above
    the text, and shows all arms.
    """

    title: str
    shows: str
    template: str
    draw: Callable[[Sight], Sequence[object]]
    why_none: Callable[[Sight], str] = lambda _: ""
    is_titled: bool = True
    leads: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """Hold a picture's values for the template; `why_none` if it has no plots."""

    name: str
    heading: str
    template: str
    plots: Sequence[object]
    why_none: str

    @property
    def anchor(self) -> str:
        """Return the picture's identifier in its section."""
        return self.name.casefold().replace(",", "").replace(" ", "-")


def drawings(sight: Sight, *, leads: bool) -> Iterator[Drawing]:
    """Yield the pictures that have plots or a reason for having none."""
    for picture in PICTURES:
        if picture.leads is leads:
            plots = picture.draw(sight)
            why_none = "" if plots else picture.why_none(sight)
            if plots or why_none:
                yield Drawing(
                    name=picture.title,
                    heading=picture.title if picture.is_titled else "",
                    template=f"report/pictures/{picture.template}.html.j2",
                    plots=plots,
                    why_none=why_none,
                )


def _one(plot: object | None) -> Sequence[object]:
    return () if plot is None else (plot,)


PICTURES = (
    Picture(
        title="Change against baseline",
        shows="A row per tuning: the bar is the interval that decides, the large dot the "
        "estimate, the small dots single blocks (above 200 blocks, a line that covers nine "
        "in ten of them). The shaded strip is the noise floor: the interval of the A/A "
        "control. A change between the dotted lines is below the study's threshold. Native "
        "is last, for reference, with an arrow if it is outside the picture.",
        template="forest",
        draw=lambda at: _one(forest(at.view, at.place)),
        is_titled=False,
        leads=True,
    ),
    Picture(
        title="Cost on the host",
        shows="CPU seconds per second by thread: vCPUs, QEMU's emulator threads, iothreads, "
        "vhost workers and labctl itself; natively, the workload.",
        template="stacks",
        draw=lambda at: _one(host_cpu(at.view, at.place, at.shown)),
    ),
    Picture(
        title="Every trial, by block",
        shows="A panel per arm, with blocks from left to right; guests share one scale, native "
        "arms another. × is an invalid trial, at its value or, without a value, at the "
        "bottom. A dashed line marks the start of another boot. Above 60 blocks, adjacent "
        "blocks are joined: the dot is their median, the line their range.",
        template="dots",
        draw=lambda at: _one(dots(at.view, at.place, at.invalid, at.shown)),
    ),
    Picture(
        title="Latency by percentile",
        shows="A panel per tuning, with baseline and its native twin. Samples of different "
        "trials are never pooled: each point is the median over the blocks of one trial's "
        "percentile, and the band is the middle half of the blocks. A percentile with too "
        "few samples in a trial of an arm is only in the table. The largest latency is at "
        "the right; the caption gives the number and length of the trials.",
        template="curves",
        draw=lambda at: curves(at.view, at.place, at.shown),
        is_titled=False,
    ),
    Picture(
        title="Bitrate over time",
        shows="A stream that shares a link, and its competitor: a panel per arm. Each point is "
        "the mean over the blocks, the band its 95 % CI at that moment. Dashed lines "
        "separate the thirds: alone, with the competitor, alone again. It is drawn from "
        "the trials' raw files, so an archived run does not show it.",
        template="courses",
        draw=lambda at: _one(bitrates(at.view, at.place, at.shown)),
    ),
    Picture(
        title="VM exits by reason",
        shows="Their number and, if there is room for all arms, their time, per operation if "
        "that was measured, otherwise per second. If there are none, a sentence says why. "
        "If the host has an [exit price list](exits.md#exit-prices), a table compares the loss "
        "that Σ exits × price predicts with the measured loss.",
        template="exits",
        draw=lambda at: exits(at.view, at.place, at.shown),
        why_none=lambda at: no_exits(at.view, at.place),
    ),
)
