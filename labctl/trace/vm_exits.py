"""Pair the VM exits of a trace with the entries that ended them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from labctl.trace.model import ENTRY, EXIT, Nanoseconds, Numbers, Trace

WANTED = {EXIT: ("exit_reason", "isa"), ENTRY: ()}
"""Events that must have been read from the trace."""

_NEVER = np.iinfo(np.int64).max
_CODE_BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """Count exits of one kind: all of them, those that an entry ended, and the time of these in
    ns.
    """

    exits: int
    ended: int
    ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VmExits:
    """Hold the exits of one vCPU thread: columns of one length, in order of time. `entry_ns`: when
    the thread re-entered the guest; int64's largest if the trace has no entry before its next
    exit."""

    time_ns: Nanoseconds
    entry_ns: Nanoseconds
    isa: Numbers
    code: Numbers

    def within(self, start_ns: int, end_ns: int) -> VmExits:
        """Return the exits of this span. One that ends after it has no end."""
        own = (self.time_ns >= start_ns) & (self.time_ns < end_ns)
        cut = self._chosen(own)
        return replace(cut, entry_ns=np.where(cut.entry_ns < end_ns, cut.entry_ns, _NEVER))

    def after(self, moment_ns: int) -> VmExits:
        return self._chosen(self.time_ns > moment_ns)

    def by_code(self) -> dict[tuple[int, int], Took]:
        """Return exits by instruction set and code."""
        key = (self.isa.astype(np.int64) << _CODE_BITS) | (self.code.astype(np.int64) & 0xFFFFFFFF)
        is_ended = self.entry_ns != _NEVER
        keys, where = np.unique(key, return_inverse=True)
        exits = np.bincount(where, minlength=len(keys))
        ended = np.bincount(where[is_ended], minlength=len(keys))
        # Sums of whole numbers below 2^53, which a double holds exactly: a hundred days.
        took = (self.entry_ns - self.time_ns)[is_ended].astype(np.float64)
        ns = np.bincount(where[is_ended], weights=took, minlength=len(keys))
        return {
            (int(one) >> _CODE_BITS, int(one) & 0xFFFFFFFF): Took(
                exits=int(exits[at]), ended=int(ended[at]), ns=int(ns[at])
            )
            for at, one in enumerate(keys)
        }

    def _chosen(self, which: NDArray[np.bool_]) -> VmExits:
        return VmExits(
            time_ns=self.time_ns[which],
            entry_ns=self.entry_ns[which],
            isa=self.isa[which],
            code=self.code[which],
        )


def vm_exits(trace: Trace) -> dict[int, VmExits]:
    """Pair each exit with its thread's next entry; an exit followed by another exit has no end."""
    exits, entries = trace.events[EXIT], trace.events[ENTRY]
    found = {}
    for tid in np.unique(exits.tid).tolist():
        own = exits.tid == tid
        time_ns = exits.time_ns[own]
        entered = np.append(entries.time_ns[entries.tid == tid], _NEVER)
        next_entry = entered[np.searchsorted(entered, time_ns)]
        next_exit = np.append(time_ns[1:], _NEVER)
        found[tid] = VmExits(
            time_ns=time_ns,
            entry_ns=np.where(next_entry < next_exit, next_entry, _NEVER),
            isa=exits.fields["isa"][own],
            code=exits.fields["exit_reason"][own],
        )
    return found


def seen_by_perf(trace: Trace) -> dict[tuple[int, int], Took]:
    """Return the counts that `perf kvm stat` derives from the same trace, of all threads together:
    it knows a vCPU from its first entry on, and an exit by its end (tools/perf/builtin-kvm.c,
    per_vcpu_record and handle_end_event)."""
    entries = trace.events[ENTRY]
    sums: dict[tuple[int, int], Took] = {}
    for tid, exits in vm_exits(trace).items():
        entered = entries.time_ns[entries.tid == tid]
        if not len(entered):
            continue
        for key, took in exits.after(int(entered[0])).by_code().items():
            if took.ended:
                known = sums.get(key, Took(exits=0, ended=0, ns=0))
                sums[key] = Took(
                    exits=known.exits + took.ended,
                    ended=known.ended + took.ended,
                    ns=known.ns + took.ns,
                )
    return sums
