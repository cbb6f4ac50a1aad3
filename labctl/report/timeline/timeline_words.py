"""Write a time line's results as sentences and rows of tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from labctl.base.notation import quantity
from labctl.base.units import Unit
from labctl.base.wording import counted
from labctl.trace.coverage import Bounds
from labctl.trace.model import Gap
from labctl.trace.timeline.lanes import Late, State, Suspect, Timeline
from labctl.trace.timeline.suspects import BLOCKED

PARTS = (
    ("host", "waiting for a host CPU"),
    ("exit", "in VM exits"),
    ("queue", "behind other tasks of the guest"),
    ("other", "for other reasons"),
)
"""Parts of a late wake-up's time: `Late`'s fields without `_ns`, and their words."""
NATIVE_PARTS = (*PARTS[:2], ("queue", "behind other tasks"), PARTS[3])

_NAMED = 2
"""Most threads that are named as having had the CPU, and the least share of the time of each."""
_NAMED_SHARE = 0.1
_OF_VCPU = re.compile(r"vcpu(\d+)_(\w+)_share")
_SMALL_ERROR = 0.1
"""Clock error, as a share of a late wake-up, up to which it is not mentioned."""


@dataclass(frozen=True, slots=True)
class LateRow:
    """Show a late wake-up as text. `split`: CSS class, begin and width (percent) of each part."""

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
    """Return whether the lanes show tasks, but not a guest's."""
    task = list(State).index(State.TASK)
    return all(lane.side == "host" for lane in timeline.lanes) and any(
        bool((lane.state == task).any()) for lane in timeline.lanes
    )


def is_blind(timeline: Timeline) -> bool:
    """Return whether only the guest's side is known, so that causes of its tasks' waits are
    unknown.
    """
    return bool(timeline.lanes) and all(lane.side == "guest" for lane in timeline.lanes)


def shows_guest(timeline: Timeline) -> bool:
    return any(lane.side == "guest" for lane in timeline.lanes)


def part_words(timeline: Timeline) -> tuple[tuple[str, str], ...]:
    return NATIVE_PARTS if is_native(timeline) else PARTS


def nanoseconds(value: float) -> str:
    return quantity(value / 1e9, Unit.SECONDS)


def moment(timeline: Timeline, at_ns: int) -> str:
    """Return a moment in milliseconds from the window's start."""
    return f"{(at_ns - timeline.start_ns) / 1e6:,.3f} ms"


def parts_of(late: Late) -> tuple[int, ...]:
    """Return the parts in the order of PARTS, in nanoseconds."""
    return late.host_ns, late.exit_ns, late.queue_ns, late.other_ns


def lost(timeline: Timeline) -> list[tuple[str, Gap]]:
    """Return the recorders' losses by side, the host's first."""
    return [
        *(("host", gap) for gap in timeline.gaps),
        *(("guest", gap) for gap in timeline.guest_gaps),
    ]


def lost_words(timeline: Timeline) -> str:
    """Return the number of lost events; without the host's side its losses are unknown."""
    count = sum(gap.count for _, gap in lost(timeline))
    if is_blind(timeline):
        return f"guest {count:,}, host unknown"
    return f"{count:,}"


def late_shares(timeline: Timeline) -> dict[str, float]:
    """Return the known share of each of PARTS in the waiting time of late wake-ups; {} if they did
    not wait, or if only the guest's side is known, which does not show the parts.

    The shares are of all late wake-ups, even if only the longest are listed. The time of a part
    that can't be measured (exits under emulation, say) counts as other parts, and its share is 0.
    """
    if is_blind(timeline):
        return {}
    told = {name: timeline.figures.get(f"late_{name}_share") for name, _ in PARTS}
    if timeline.coverage is None and told["other"] is None:
        return _shares(timeline.late)
    if all(share is None for share in told.values()):
        return {}
    return {
        name: share or 0.0
        for name, share in told.items()
        if share is not None or name not in timeline.late_bounds
    }


def _late_bounds(timeline: Timeline) -> dict[str, Bounds]:
    """Return the same shares, each as its least and its greatest possible value."""
    return {name: (0.0, 0.0) for name, _ in PARTS} | (
        dict(timeline.late_bounds) or _exactly(late_shares(timeline))
    )


def _exactly(shares: Mapping[str, float]) -> dict[str, Bounds]:
    return {name: (share, share) for name, share in shares.items()}


def _shares(lates: Sequence[Late]) -> dict[str, float]:
    waited = sum(late.latency_ns for late in lates)
    if waited <= 0:
        return {}
    sums = [sum(column) for column in zip(*map(parts_of, lates), strict=True)]
    return {name: part / waited for (name, _), part in zip(PARTS, sums, strict=True)}


def worst_first(lates: Sequence[Late]) -> list[Late]:
    return sorted(lates, key=lambda late: (-late.latency_ns, late.at_ns, late.vcpu))


def answer(timeline: Timeline) -> tuple[str, ...]:
    """Return the trial in some sentences: causes of late wake-ups, the worst of them, the longest
    time that a vCPU was blocked, and the share of wake-ups that the trace shows."""
    coverage = timeline.coverage
    if not timeline.late and not is_native(timeline) and not shows_guest(timeline):
        told = "Late wake-ups are unknown without the guest's side of the trace."
        return (f"{told}{_waited(timeline)}",)
    said: tuple[str, ...]
    if not timeline.late and (coverage is None or coverage.is_enough):
        said = (f"This trace has no late wake-ups.{_waited(timeline)}",)
    elif is_blind(timeline):
        said = (
            "Without the host's side of the trace, it is unknown what late wake-ups waited for.",
            *_of_the_worst(timeline),
        )
    elif coverage is not None and not coverage.is_enough:
        said = (
            f"Unknown what the slowest 5 % of wake-ups waited for: {coverage.why_unknown}.",
            *_of_the_worst(timeline),
        )
    else:
        said = (_lead(timeline), *_of_the_worst(timeline))
    return (*said, *_longest_blocked(timeline), *_coverage_words(timeline))


def _longest_blocked(timeline: Timeline) -> tuple[str, ...]:
    blocked = [one for one in longest_first(timeline.suspects) if one.kind == BLOCKED[0]]
    return tuple(f"A vCPU is blocked: {one.text}." for one in blocked[:1])


def _lead(timeline: Timeline) -> str:
    if not any(late.latency_ns for late in timeline.late):
        return f"{counted(len(timeline.late), 'wake-up')} are marked; none was late."
    if not late_shares(timeline):
        return (
            "Unknown what the slowest 5 % of wake-ups waited for: the trace does not show "
            "more than a tenth of that time."
        )
    told = _share_words(_late_bounds(timeline), part_words(timeline), _behind(timeline.late))
    return f"Of the waiting time of the slowest 5 % of wake-ups, {told}."


def _of_the_worst(timeline: Timeline) -> tuple[str, ...]:
    """Return the delays of late wake-ups, with the worst of them; nothing if there are no wake-ups,
    or no late ones."""
    if not timeline.late or not any(late.latency_ns for late in timeline.late):
        return ()
    worst = worst_first(timeline.late)[0]
    which = "The worst" if sees_all(timeline) else "The worst that was seen"
    words = f"{which} came {nanoseconds(worst.latency_ns)} late, {moment(timeline, worst.at_ns)} "
    if is_blind(timeline):
        return (f"{_late_words(timeline)} {words}into the trace.",)
    told = _share_words(_exactly(_shares([worst])), part_words(timeline), _behind([worst]))
    return (f"{_late_words(timeline)} {words}into the trace: {told}.",)


def sees_all(timeline: Timeline) -> bool:
    """Return whether the worst wake-up in the trace is the worst of the trial."""
    coverage = timeline.coverage
    return coverage is None or (not coverage.unseen and not coverage.lacks_worst)


def _coverage_words(timeline: Timeline) -> tuple[str, ...]:
    """Say how many of all wake-ups the trace shows, beside the count of the measuring program."""
    coverage = timeline.coverage
    if coverage is None or not coverage.total:
        return ()
    said = f"The trace shows {coverage.text}."
    own = coverage.own
    if own is not None and coverage.lacks_worst:
        said += (
            f" {own.program} itself measured a latency of {nanoseconds(own.worst_ns)}, "
            "which none of the recorded wake-ups explains."
        )
    return (said,)


def _waited(timeline: Timeline) -> str:
    """Return how long vCPUs waited for a host CPU, as the rest of an answer; "" without vCPUs.
    Unknown time may have been such time."""
    vcpus: dict[str, dict[str, float]] = {}
    for name, value in timeline.figures.items():
        if match := _OF_VCPU.fullmatch(name):
            vcpus.setdefault(match[1], {})[match[2]] = value
    least = [shares["preempted"] for shares in vcpus.values() if "preempted" in shares]
    if not least:
        return ""
    most = [s["preempted"] + s.get("unknown", 0.0) for s in vcpus.values() if "preempted" in s]
    ends = dict.fromkeys(quantity(share, Unit.FRACTION) for share in (min(least), max(most)))
    return f" Its vCPUs waited for a host CPU for {' to '.join(ends)} of the time."


def late_count(timeline: Timeline) -> int:
    """Count all late wake-ups, listed or not."""
    return int(timeline.figures.get("late_wakeups", len(timeline.late)))


def _late_words(timeline: Timeline) -> str:
    late, figures = late_count(timeline), timeline.figures
    seen = "" if sees_all(timeline) else " that were seen"
    whole = f" of {int(figures['wakeups']):,}" if "wakeups" in figures else ""
    least = figures.get("late_threshold_s")
    waited = f", each {quantity(least, Unit.SECONDS)} late or more" if least is not None else ""
    return f"These are {late:,}{whole} wake-ups{seen}{waited}."


def _share_words(
    found: Mapping[str, Bounds], parts: tuple[tuple[str, str], ...], behind: str
) -> str:
    words: list[str] = []
    for name, text in sorted(parts, key=lambda part: -sum(found[part[0]])):
        least, most = (f"{100 * end:.0f}" for end in found[name])
        if most != "0":
            verb = " was" if not words else ""
            who = behind if name == "host" else ""
            share = most if least == most else f"{least} to {most}"
            words.append(f"{share} %{verb} {text}{who}")
    return ", ".join(words)


def _behind(lates: Sequence[Late]) -> str:
    """Return the host's threads that had the CPU for which these wake-ups waited, with their shares
    of that time; "" if they are unknown."""
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
    """Return the error bound of the guest's times, and its meaning for the reader."""
    if timeline.clock_error_ns is None:
        return ""
    error = nanoseconds(timeline.clock_error_ns)
    text = (
        f"The guest's times come from the guest's clock, with an error of ± {error}: the "
        "order of host and guest events closer together than that is unknown."
    )
    typical = sorted(late.latency_ns for late in timeline.late)[len(timeline.late) // 2 :][:1]
    if typical and timeline.clock_error_ns > _SMALL_ERROR * typical[0]:
        text += (
            " That is large compared with a typical late wake-up of "
            f"{nanoseconds(typical[0])}: treat the split of a single wake-up with care."
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
    """Return the shares of each vCPU's time: the columns' heads, then a row per vCPU."""
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
