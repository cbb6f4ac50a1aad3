"""Number things and moments as one, so that each thing's events stand in one row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labctl.trace.model import Nanoseconds, Numbers, Trace

_MOST = 2**62


@dataclass(frozen=True, slots=True)
class Keys:
    """Hold keys. `things`: in order, each once."""

    things: Numbers
    begin_ns: int
    length_ns: int

    @classmethod
    def of(cls, things: ArrayLike, trace: Trace) -> Keys:
        """Make keys for moments of a trace's events. Raises ValueError when it has none."""
        times = [events.time_ns for events in trace.events.values() if len(events)]
        begin = min(int(time[0]) for time in times)
        end = max(int(time[-1]) for time in times)
        return cls(np.unique(np.asarray(things)), begin, end - begin + 1)

    @property
    def fits(self) -> bool:
        """Return whether one number holds both: a guest may write of so many things and times that
        it doesn't."""
        return len(self.things) * self.length_ns <= _MOST

    def key(self, thing: Numbers, time_ns: Nanoseconds) -> NDArray[np.int64]:
        """Return the keys of things that are among `things`."""
        number = np.searchsorted(self.things, thing).astype(np.int64)
        return number * self.length_ns + (time_ns - self.begin_ns)

    def number(self, key: NDArray[np.int64]) -> NDArray[np.int64]:
        return key // self.length_ns

    def time_ns(self, key: NDArray[np.int64]) -> Nanoseconds:
        return key % self.length_ns + self.begin_ns


def last(keys: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return which of `keys` is the greatest that isn't above each wanted one; -1 for none."""
    if not len(keys):
        return np.full(len(wanted), -1)
    in_order = np.argsort(keys, kind="stable")
    place = np.searchsorted(keys[in_order], wanted, "right") - 1
    found: NDArray[np.int64] = np.where(place >= 0, in_order[np.maximum(place, 0)], -1)
    return found
