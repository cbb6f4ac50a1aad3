"""Map a guest's clock to the host's, with a guaranteed error bound. Pure.

Both are CLOCK_MONOTONIC: they never step, and while neither is adjusted their difference is affine.
A reading (the host asks, the guest reads its clock, the host has the answer) shows that the host's
clock was between the two host times when the guest's was read (Cristian 1989, Probabilistic clock
synchronization). A line through all of these gates is a possible clock; there are many, and the
extremes of all of them are the bound (convex bounds: Duda et al. 1987).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labctl.base.channel import ClockReading
from labctl.base.errors import FileError
from labctl.base.kernel import ClockDiscipline
from labctl.store.trial import TrialFolder
from labctl.trace import files
from labctl.trace.model import Nanoseconds

RATE_LIMIT = 1e-3
"""Largest plausible difference of two clocks, seconds per second: NTP adjusts by up to 500 ppm
(adjtimex(2)), and a guest that calibrates its TSC errs by some hundred. Beyond it one was stopped
or set."""

_LAST_NS = 2**62
_CLOCK_NS = 1
"""Error of a clock that is read in whole nanoseconds."""

_Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockMap:
    """Map a guest's time to the host's: host = guest + offset_ns + (rate - 1) * (guest - at_ns).

    `error_ns`: the maximum error for any guest time from `at_ns` to `until_ns`, the first and the
    last reading. `rate`: host seconds per guest second.
    """

    at_ns: int
    until_ns: int
    offset_ns: int
    rate: float
    error_ns: int

    def to_host(self, guest_ns: Nanoseconds) -> Nanoseconds:
        """Return the host's CLOCK_MONOTONIC at these guest times, in nanoseconds."""
        # Not guest_ns * rate: nanoseconds since boot may have more digits than a float.
        drift: Nanoseconds = np.rint((guest_ns - self.at_ns) * (self.rate - 1)).astype(np.int64)
        return guest_ns + self.offset_ns + drift


def clock_map(readings: Sequence[ClockReading]) -> ClockMap | str:
    """Return the map from the guest's clock to the host's; a sentence if the readings do not fit
    two steady clocks.

    `readings`: in order, some before and some after the times to map.
    """
    told = [reading.machine_ns for reading in readings]
    if len(told) < 2 or told != sorted(told) or told[0] == told[-1]:
        return "the guest's clock was not read at two moments, or went backwards"
    if told[0] < 0 or told[-1] > _LAST_NS:
        return f"the guest's clock reads {told[-1]} ns, not a time since a boot"
    at, until = told[0], told[-1]
    base = readings[0].asked_ns - at
    # A line is two numbers: how far ahead the host is (less `base`) at the first reading and at the
    # last. Those two readings bound a rectangle, and each other reading cuts it.
    (left, right), (bottom, top) = _gate(readings[0], base), _gate(readings[-1], base)
    corners = [(left, bottom), (right, bottom), (right, top), (left, top)]
    for reading in readings[1:-1]:
        share = (reading.machine_ns - at) / (until - at)
        low, high = _gate(reading, base)
        corners = _cut(corners, 1 - share, share, high)
        corners = _cut(corners, share - 1, -share, -low)
    if not corners:
        return (
            "the readings of the guest's clock fit no steady clock: it, or the host's, was "
            "stopped or set during the trial"
        )
    rates = [(last - first) / (until - at) for first, last in corners]
    if min(rates) > RATE_LIMIT or max(rates) < -RATE_LIMIT:
        return (
            f"in {(until - at) / 1e9:.3f} s of the guest's clock the host's went "
            f"{min(rates, key=abs) * 100:+.2f} % further: one of them was stopped or set"
        )
    # The extremes over all possible lines are convex in time, so a bound at both ends also holds in
    # between.
    ends = [[corner[end] for corner in corners] for end in (0, 1)]
    first, last = ((min(end) + max(end)) / 2 for end in ends)
    return ClockMap(
        at_ns=at,
        until_ns=until,
        offset_ns=base + round(first),
        rate=1 + (last - first) / (until - at),
        # Plus a nanosecond of rounding, twice.
        error_ns=int(max(max(end) - min(end) for end in ends) / 2) + 2,
    )


def stored_clock_map(raw: TrialFolder) -> ClockMap | str:
    """Return the map of a trial's stored readings, with the adjustments of the host's clock
    included in the bound; a sentence if there is none.

    Raises BrokenError naming the file if it is invalid.
    """
    if not raw.has(files.CLOCKS):
        return "the guest's clock was not read"
    data: Any = raw.read_json(files.CLOCKS)
    try:
        found = clock_map([_reading(entry) for entry in data])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FileError(
            f"{raw.path / files.CLOCKS}: expected readings of two clocks, found something else "
            f"({error!r})"
        ) from error
    name = files.stored(raw, files.CLOCK_DISCIPLINE)
    if isinstance(found, str) or not raw.has(name):
        return found
    data = raw.read_json(name)
    try:
        disciplined = [
            ClockDiscipline(ppm=float(e["ppm"]), pending_ns=int(e["pending_ns"])) for e in data
        ]
        return replace(found, error_ns=found.error_ns + bent_ns(disciplined, found))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FileError(
            f"{raw.path / name}: expected the discipline of the host's clock, "
            f"found something else ({error!r})"
        ) from error


def bent_ns(steered: Sequence[ClockDiscipline], over: ClockMap) -> int:
    """Return how far a clock with these adjustments may deviate from a straight line between the
    readings.

    While its rate stays between these it deviates by at most a quarter of their difference: the
    worst case is the one rate for the first half, then the other. A pending correction of the
    kernel may have been added in full.
    """
    rates = [one.ppm for one in steered]
    span_ns = (over.until_ns - over.at_ns) * (max(rates) - min(rates)) / 1e6
    return math.ceil(span_ns / 4) + max(one.pending_ns for one in steered)


def to_json(reading: ClockReading) -> dict[str, int]:
    return {
        "asked_ns": reading.asked_ns,
        "machine_ns": reading.machine_ns,
        "answered_ns": reading.answered_ns,
    }


def _reading(entry: Mapping[str, Any]) -> ClockReading:
    return ClockReading(int(entry["asked_ns"]), int(entry["machine_ns"]), int(entry["answered_ns"]))


def _gate(reading: ClockReading, base: int) -> _Point:
    """Return the minimum and maximum of the host's lead over the guest, less `base`."""
    return (
        float(reading.asked_ns - reading.machine_ns - base - _CLOCK_NS),
        float(reading.answered_ns - reading.machine_ns - base + _CLOCK_NS),
    )


def _cut(corners: Sequence[_Point], a: float, b: float, limit: float) -> list[_Point]:
    """Return the part of a convex polygon where a * x + b * y <= limit (Sutherland & Hodgman
    1974)."""
    kept: list[_Point] = []
    beyond = [a * x + b * y - limit for x, y in corners]
    for here, there in itertools.pairwise([*range(len(corners)), 0]):
        if beyond[here] <= 0:
            kept.append(corners[here])
        if (beyond[here] <= 0) != (beyond[there] <= 0):
            share = beyond[here] / (beyond[here] - beyond[there])
            (x, y), (to_x, to_y) = corners[here], corners[there]
            kept.append((x + share * (to_x - x), y + share * (to_y - y)))
    return kept
