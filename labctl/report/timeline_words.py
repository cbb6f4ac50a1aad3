"""What a time line amounts to, in sentences and rows of tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from labctl.base.units import Unit
from labctl.base.wording import counted, quantity
from labctl.trace.lanes import Late, Suspect, Timeline

PARTS = (
    ("host", "waiting for a host CPU"),
    ("exit", "in VM exits"),
    ("queue", "behind other tasks of the guest"),
    ("other", "for other reasons"),
)
"""Of a late wake-up's time: `Late`'s fields without `_ns`, and their words."""

_ON_HOST = " (host)"
"""How a culprit's name ends that was a thread of the host."""
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


def nanoseconds(value: float) -> str:
    return quantity(value / 1e9, Unit.SECONDS)


def moment(timeline: Timeline, at_ns: int) -> str:
    """In milliseconds from the window's start."""
    return f"{(at_ns - timeline.start_ns) / 1e6:,.3f} ms"


def parts_of(late: Late) -> tuple[int, ...]:
    """In the order of PARTS, in nanoseconds."""
    return late.host_ns, late.exit_ns, late.queue_ns, late.other_ns


def shares(lates: Sequence[Late]) -> dict[str, float]:
    """Of all the time that these waited, the share of each of PARTS; {} when they didn't."""
    whole = sum(late.latency_ns for late in lates)
    if whole <= 0:
        return {}
    sums = [sum(column) for column in zip(*map(parts_of, lates), strict=True)]
    return {name: part / whole for (name, _), part in zip(PARTS, sums, strict=True)}


def worst_first(lates: Sequence[Late]) -> list[Late]:
    return sorted(lates, key=lambda late: (-late.latency_ns, late.at_ns, late.vcpu))


def answer(timeline: Timeline) -> tuple[str, ...]:
    """The trial in a sentence or three: where late wake-ups waited, and the worst of them."""
    if not timeline.late:
        return ("This trace names no late wake-up.",)
    if not shares(timeline.late):
        return (f"{counted(len(timeline.late), 'wake-up')} are marked, and none came late.",)
    worst = worst_first(timeline.late)[0]
    return (
        f"Of the time that the {len(timeline.late):,} slowest wake-ups waited, "
        f"{_share_words(timeline.late)}.",
        f"The worst came {nanoseconds(worst.latency_ns)} late, {moment(timeline, worst.at_ns)} "
        "into the measured window: "
        f"{_share_words([worst])}.",
    )


def _share_words(lates: Sequence[Late]) -> str:
    found, culprit = shares(lates), _culprit(lates)
    words: list[str] = []
    for name, text in sorted(PARTS, key=lambda part: -found[part[0]]):
        if round(100 * found[name]) > 0:
            verb = " was" if not words else ""
            who = f" (mostly {culprit} had it)" if name == "host" and culprit else ""
            words.append(f"{100 * found[name]:.0f} %{verb} {text}{who}")
    return ", ".join(words)


def _culprit(lates: Sequence[Late]) -> str:
    """Who on the host had the CPU in most of the time that these waited for it; "" when that isn't
    known."""
    waited: Counter[str] = Counter()
    for late in lates:
        if late.host_ns and late.culprit.endswith(_ON_HOST):
            waited[late.culprit.removesuffix(_ON_HOST)] += late.host_ns
    return waited.most_common(1)[0][0] if waited else ""


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


def lost_words(timeline: Timeline) -> str:
    lost = sum(gap.count for gap in timeline.gaps)
    if not timeline.gaps:
        return ""
    where = counted(len(timeline.gaps), "place")
    return (
        f"The recorder lost {lost:,} events in {where} (hatched in the picture): nothing is known "
        "there, and no span goes on across it."
    )


def late_rows(timeline: Timeline, most: int) -> list[LateRow]:
    return [
        LateRow(
            number=number,
            at=moment(timeline, late.at_ns),
            vcpu=late.vcpu,
            task=late.task,
            latency=nanoseconds(late.latency_ns),
            split=_split(late),
            parts=_parts_text(late),
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


def suspects_in_order(timeline: Timeline) -> list[Suspect]:
    return sorted(timeline.suspects, key=lambda one: (one.start_ns, one.vcpu, one.kind))


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
        for number, one in enumerate(suspects_in_order(timeline)[:most])
    ]


def figure_rows(timeline: Timeline) -> list[tuple[str, str]]:
    """Name and value of the trial's figures: names that end in `_s` are seconds, in `_share`
    shares."""
    return [(_figure_name(name), figure(name, value)) for name, value in timeline.figures.items()]


def _figure_name(name: str) -> str:
    return name.removesuffix("_s").replace("_", " ")


def figure(name: str, value: float) -> str:
    unit = Unit.FRACTION if name.endswith("share") else Unit.COUNT
    return quantity(value, Unit.SECONDS if name.endswith("_s") else unit)
