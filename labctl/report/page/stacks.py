"""Stack what adds up to a whole, per arm: the host's CPU time by thread, VM exits by reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from labctl.analysis.cells import Scenario
from labctl.analysis.model import Level
from labctl.analysis.view import View, only_label
from labctl.base.notation import quantity
from labctl.base.units import Unit
from labctl.store.samples import base_name, labels_of

_MOST_PARTS = 6
"""Parts with a colour of their own; more are joined as "other"."""
_LETTER, _LETTERS_AROUND = 2.5, 1
"""Percent of the width of a narrow screen that a letter of a part's name takes, and the letters'
room around it."""

_EXITS = (("exits", "VM exits"), ("exit_time", "Time in VM exits"))
"""Metrics by reason, and their words."""
_ADDED_UP = "Typical values, added up"
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
    """Draw a stack per arm. `rows` are the table behind the picture, with all arms; `parts` the
    legend, `colours` theirs; `name`: what it is of, in a word; `key`: its own among a place's."""

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
    """Return CPU seconds per second of the host, by thread; None where none was measured."""
    title = f"{place.title}: host CPU by thread"
    stack = _stack(view, place, title, _thread, _THREADS, shown, "Host CPU")
    if stack is None:
        return None
    caption = "CPU seconds per second, by thread; natively of the workload."
    return replace(stack, key="cpu", caption=f"{caption} {_ADDED_UP}.")


def exits(view: View, place: Scenario, shown: Collection[str]) -> tuple[Stack, ...]:
    """Return VM exits by reason, their number and their time, each per operation where that was
    measured, else per second; () without a breakdown. A run with more arms than fit a picture has
    only the number."""
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
    """Return `base` per operation where that is known by reason, else `base`, which is per
    second.
    """
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
    return f"{'; '.join(why) or 'they were not recorded in this run'}."


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
    """Return each part's, of all arms together."""
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
