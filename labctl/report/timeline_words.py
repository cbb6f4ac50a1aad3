"""What a time line amounts to, in sentences and rows of tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from labctl.base.units import Unit
from labctl.base.wording import counted, quantity
from labctl.trace.lanes import Late, State, Suspect, Timeline
from labctl.trace.model import Gap

PARTS = (
    ("host", "waiting for a host CPU"),
    ("exit", "in VM exits"),
    ("queue", "behind other tasks of the guest"),
    ("other", "for other reasons"),
)
"""Of a late wake-up's time: `Late`'s fields without `_ns`, and their words."""
NATIVE_PARTS = (*PARTS[:2], ("queue", "behind other tasks"), PARTS[3])

_NAMED = 2
"""Of those who had a CPU that was waited for, and each with this share of the time or more."""
_NAMED_SHARE = 0.1
_OF_VCPU = re.compile(r"vcpu(\d+)_(\w+)_share")
_SMALL_ERROR = 0.1
"""Share of a late wake-up that the clock error may be without a word about it."""


@dataclass(frozen=True, slots=True)
class LateRow:
    """A late wake-up as text. `split`: the CSS class, where it begins and its width (percent)."""

    number: int
    at: str
    vcpu: int
    task: str
    latency: str
    split: tuple[tuple[str, float, float], ...]
    parts: str
    culprit: str


@dataclass(frozen=True, slots=True)
class SuspectRow:
    number: int
    kind: str
    at: str
    vcpu: int
    length: str
    text: str


def is_native(timeline: Timeline) -> bool:
    """Whether its lanes show tasks, and no guest's."""
    task = list(State).index(State.TASK)
    return all(lane.side == "host" for lane in timeline.lanes) and any(
        bool((lane.state == task).any()) for lane in timeline.lanes
    )


def is_blind(timeline: Timeline) -> bool:
    """Whether the guest's side alone is known: what its tasks waited for isn't, then."""
    return bool(timeline.lanes) and all(lane.side == "guest" for lane in timeline.lanes)


def shows_guest(timeline: Timeline) -> bool:
    return any(lane.side == "guest" for lane in timeline.lanes)


def part_words(timeline: Timeline) -> tuple[tuple[str, str], ...]:
    return NATIVE_PARTS if is_native(timeline) else PARTS


def nanoseconds(value: float) -> str:
    return quantity(value / 1e9, Unit.SECONDS)


def moment(timeline: Timeline, at_ns: int) -> str:
    """In milliseconds from the window's start."""
    return f"{(at_ns - timeline.start_ns) / 1e6:,.3f} ms"


def parts_of(late: Late) -> tuple[int, ...]:
    """In the order of PARTS, in nanoseconds."""
    return late.host_ns, late.exit_ns, late.queue_ns, late.other_ns


def lost(timeline: Timeline) -> list[tuple[str, Gap]]:
    """What recorders lost, and on which side: the host's first."""
    return [
        *(("host", gap) for gap in timeline.gaps),
        *(("guest", gap) for gap in timeline.guest_gaps),
    ]


def lost_words(timeline: Timeline) -> str:
    """How many events; without the host's side nobody knows what is missing of it."""
    count = sum(gap.count for _, gap in lost(timeline))
    if is_blind(timeline):
        return f"guest {count:,}, host unknown"
    return f"{count:,}"


def late_shares(timeline: Timeline) -> dict[str, float]:
    """Of all the time that late wake-ups waited, the share of each of PARTS; {} when they didn't,
    or when only the guest's side is known, which can't tell.

    Of all of them, also where the longest alone are listed. A part that can't be told of (exits
    under emulation, say) is among the others, and 0 itself.
    """
    if is_blind(timeline):
        return {}
    told = {name: timeline.figures.get(f"late_{name}_share") for name, _ in PARTS}
    if told["other"] is None:
        return _shares(timeline.late)
    return {name: share or 0.0 for name, share in told.items()}


def _shares(lates: Sequence[Late]) -> dict[str, float]:
    waited = sum(late.latency_ns for late in lates)
    if waited <= 0:
        return {}
    sums = [sum(column) for column in zip(*map(parts_of, lates), strict=True)]
    return {name: part / waited for (name, _), part in zip(PARTS, sums, strict=True)}


def worst_first(lates: Sequence[Late]) -> list[Late]:
    return sorted(lates, key=lambda late: (-late.latency_ns, late.at_ns, late.vcpu))


def answer(timeline: Timeline) -> tuple[str, ...]:
    """The trial in a sentence or three: where late wake-ups waited, and the worst of them."""
    found = late_shares(timeline)
    if not timeline.late and not is_native(timeline) and not shows_guest(timeline):
        told = "Late wake-ups can't be told without the guest's side of the trace."
        return (f"{told}{_waited(timeline)}",)
    if not timeline.late:
        return (f"This trace names no late wake-up.{_waited(timeline)}",)
    worst, parts = worst_first(timeline.late)[0], part_words(timeline)
    if is_blind(timeline):
        return (
            "What late wake-ups waited for can't be told without the host's side of the trace.",
            f"{_late_words(timeline)} The worst came {nanoseconds(worst.latency_ns)} late, "
            f"{moment(timeline, worst.at_ns)} into the trace.",
        )
    if not found:
        return (f"{counted(len(timeline.late), 'wake-up')} are marked, and none came late.",)
    return (
        f"Of the time that the slowest 5 % of wake-ups waited, "
        f"{_share_words(found, parts, _behind(timeline.late))}.",
        f"{_late_words(timeline)} The worst came {nanoseconds(worst.latency_ns)} late, "
        f"{moment(timeline, worst.at_ns)} into the trace: "
        f"{_share_words(_shares([worst]), parts, _behind([worst]))}.",
    )


def _waited(timeline: Timeline) -> str:
    """How long vCPUs waited for a host CPU, as the rest of an answer; "" where there are none."""
    waited = [
        value
        for name, value in timeline.figures.items()
        if (match := _OF_VCPU.fullmatch(name)) and match[2] == "preempted"
    ]
    if not waited:
        return ""
    ends = dict.fromkeys(quantity(share, Unit.FRACTION) for share in (min(waited), max(waited)))
    return f" Its vCPUs waited for a host CPU for {' to '.join(ends)} of the time."


def late_count(timeline: Timeline) -> int:
    """Of all late wake-ups, listed or not."""
    return int(timeline.figures.get("late_wakeups", len(timeline.late)))


def _late_words(timeline: Timeline) -> str:
    late, figures = late_count(timeline), timeline.figures
    whole = f" of {int(figures['wakeups']):,}" if "wakeups" in figures else ""
    least = figures.get("late_threshold_s")
    waited = f", each {quantity(least, Unit.SECONDS)} late or more" if least is not None else ""
    return f"These are {late:,}{whole} wake-ups{waited}."


def _share_words(found: dict[str, float], parts: tuple[tuple[str, str], ...], behind: str) -> str:
    words: list[str] = []
    for name, text in sorted(parts, key=lambda part: -found[part[0]]):
        if round(100 * found[name]) > 0:
            verb = " was" if not words else ""
            who = behind if name == "host" else ""
            words.append(f"{100 * found[name]:.0f} %{verb} {text}{who}")
    return ", ".join(words)


def _behind(lates: Sequence[Late]) -> str:
    """Who on the host had the CPU that these waited for, and for how much of that time; "" when
    that isn't known."""
    whole = sum(late.host_ns for late in lates)
    had: Counter[str] = Counter()
    for late in lates:
        had.update(late.behind_ns)
    named = [
        f"{100 * length / whole:.0f} % behind {name}"
        for name, length in had.most_common(_NAMED)
        if length >= _NAMED_SHARE * whole > 0
    ]
    return f" ({', '.join(named)})".replace("%", "% of that", 1) if named else ""


def clock_words(timeline: Timeline) -> str:
    """How far the guest's side may be off, and what that means for the reader."""
    if timeline.clock_error_ns is None:
        return ""
    error = nanoseconds(timeline.clock_error_ns)
    text = (
        f"The guest's times come from the guest's clock and are right to ± {error}: what host and "
        "guest did closer together than that can't be put in order."
    )
    typical = sorted(late.latency_ns for late in timeline.late)[len(timeline.late) // 2 :][:1]
    if typical and timeline.clock_error_ns > _SMALL_ERROR * typical[0]:
        text += (
            f" That is much beside a typical late wake-up of {nanoseconds(typical[0])}: read the "
            "split of single ones with care."
        )
    return text


def late_rows(timeline: Timeline, most: int) -> list[LateRow]:
    return [
        LateRow(
            number=number,
            at=moment(timeline, late.at_ns),
            vcpu=late.vcpu,
            task=late.task,
            latency=nanoseconds(late.latency_ns),
            split=() if is_blind(timeline) else _split(late),
            parts="unknown" if is_blind(timeline) else _parts_text(late),
            culprit=late.culprit,
        )
        for number, late in enumerate(worst_first(timeline.late)[:most])
    ]


def _split(late: Late) -> tuple[tuple[str, float, float], ...]:
    found = []
    at = 0.0
    for (name, _), part in zip(PARTS, parts_of(late), strict=True):
        width = 100 * part / max(1, late.latency_ns)
        if part > 0:
            found.append((name, round(at, 2), round(width, 2)))
        at += width
    return tuple(found)


def _parts_text(late: Late) -> str:
    return ", ".join(
        f"{name} {nanoseconds(part)}"
        for (name, _), part in zip(PARTS, parts_of(late), strict=True)
        if part > 0
    )


def longest_first(suspects: Sequence[Suspect]) -> list[Suspect]:
    return sorted(suspects, key=lambda one: (one.start_ns - one.end_ns, one.start_ns, one.vcpu))


def suspect_rows(timeline: Timeline, most: int) -> list[SuspectRow]:
    return [
        SuspectRow(
            number=number,
            kind=one.kind,
            at=moment(timeline, one.start_ns),
            vcpu=one.vcpu,
            length=nanoseconds(one.end_ns - one.start_ns),
            text=one.text,
        )
        for number, one in enumerate(longest_first(timeline.suspects)[:most])
    ]


def vcpu_rows(timeline: Timeline) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """What each vCPU's time went to: the columns' heads, then per vCPU the shares."""
    found: dict[str, dict[str, float]] = {}
    for name, value in timeline.figures.items():
        if match := _OF_VCPU.fullmatch(name):
            found.setdefault(match[1], {})[match[2]] = value
    heads = list(dict.fromkeys(state for shares in found.values() for state in shares))
    return heads, [
        (f"vCPU {number}", [quantity(shares.get(state), Unit.FRACTION) for state in heads])
        for number, shares in found.items()
    ]


def figure_rows(timeline: Timeline) -> list[tuple[str, str]]:
    """Name and value of the other figures: names that end in `_s` are seconds, in `_share` shares,
    others counts."""
    return [
        (name.removesuffix("_s").replace("_", " "), _figure(name, value))
        for name, value in timeline.figures.items()
        if not _OF_VCPU.fullmatch(name)
    ]


def _figure(name: str, value: float) -> str:
    if name.endswith("_s"):
        return quantity(value, Unit.SECONDS)
    return quantity(value, Unit.FRACTION) if name.endswith("_share") else f"{value:,.0f}"
