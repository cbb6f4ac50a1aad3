"""Choose which threads a trace's scheduler events are looked through for, numbered."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labctl.trace.model import Trace
from labctl.trace.tracepoints import SWITCH, WAKEUPS

_PART = 1 << 16
"""Events that are looked at a time: it bounds the memory."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Numbering:
    """Number threads from 0, in order of their ids. `number_of[tid]` is -1 for all others."""

    tids: NDArray[np.int32]
    number_of: NDArray[Any]

    def within(self, tids: NDArray[Any]) -> NDArray[Any]:
        """Return the keys, with 0 for those that are too large to be looked up."""
        return np.where(tids < len(self.number_of), tids, 0)

    @classmethod
    def of(cls, trace: Trace, tids: Collection[int] | None = None) -> Numbering:
        """Number these threads, or all that a trace's scheduler events name; never the idle task
        (0)."""
        columns = [trace.events[SWITCH].fields[name] for name in ("prev_pid", "next_pid")]
        columns += [trace.events[name].fields["pid"] for name in WAKEUPS if name in trace.events]
        highest = max((int(column.max()) for column in columns if len(column)), default=0)
        is_wanted = np.zeros(highest + 1, dtype=bool)
        if tids is None:
            for column in columns:
                for begin in range(0, len(column), _PART):
                    # NumPy takes half the time for indices of its own type.
                    is_wanted[column[begin : begin + _PART].astype(np.intp)] = True
        else:
            is_wanted[[tid for tid in tids if 0 < tid <= highest]] = True
        is_wanted[0] = False
        found = np.flatnonzero(is_wanted).astype(np.int32)
        # Few threads have numbers of 16 bits.
        number_of = np.full(highest + 1, -1, np.int16 if len(found) < 2**15 else np.int32)
        number_of[found] = np.arange(len(found))
        return cls(found, number_of)
