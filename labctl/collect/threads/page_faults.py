"""Count page faults of a guest's vCPU threads: memory that the host provides at first touch.

If a vCPU touches a page that the host has not provided yet, the fault counts as its thread's, also
if KVM handles it (mm_account_fault in mm/memory.c, since Linux 5.9). Faults that only KVM had to
map, because the host had the page already, are `kvm_stat{name=pf_fixed}`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from labctl.base.errors import BrokenError
from labctl.collect.collector import Source
from labctl.collect.snapshots import RAW, Snapshots, read_snapshots
from labctl.store.samples import Reading, Unavailable, sample, sample_key
from labctl.store.trial import TrialFolder

_FIELDS = {"minor": 7, "major": 9}
"""Indices after the name: minflt and majflt, fields 10 and 12 of proc_pid_stat(5)."""


def faults(stat: str, where: str) -> dict[str, int]:
    """Return minor and major faults so far, from the text of /proc/PID/task/TID/stat.

    Raises BrokenError if it is something else.
    """
    # The name in parentheses may hold spaces and parentheses itself.
    fields = stat.rpartition(")")[2].split()
    if len(fields) <= max(_FIELDS.values()) or not all(
        fields[at].isdecimal() for at in _FIELDS.values()
    ):
        raise BrokenError(f"{where}: expected a thread's stat of /proc, found {stat[:120]!r}")
    return {kind: int(fields[at]) for kind, at in _FIELDS.items()}


def parse(raw: TrialFolder) -> Iterator[Reading]:
    """Return page_faults{kind=minor|major,of=vcpu} per second, over all vCPU threads.

    Raises BrokenError when host.json isn't whole.
    """
    snapshots = read_snapshots(raw)
    counted = _counted(snapshots)
    for kind in _FIELDS:
        labels = {"of": "vcpu", "kind": kind}
        if isinstance(counted, str):
            yield Unavailable(metric=sample_key("page_faults", labels), reason=counted)
        else:
            yield sample(
                "page_faults", counted[kind] / snapshots.seconds, source=RAW, labels=labels
            )


def _counted(snapshots: Snapshots) -> Mapping[str, int] | str:
    """Return the faults in the window by kind, or a sentence on why they are unknown."""
    if snapshots.is_native:
        return "natively there is no vCPU thread."
    before, after = (
        {row["tid"]: row for row in taken.get("threads", ()) if row.get("role") == "vcpu"}
        for taken in (snapshots.before, snapshots.after)
    )
    if not after or before.keys() != after.keys():
        return "no vCPU thread existed in the whole window."
    if not all("stat" in row for rows in (before, after) for row in rows.values()):
        return "an older labctl did not record this."
    return {
        kind: sum(
            _faults(after[tid], snapshots)[kind] - _faults(before[tid], snapshots)[kind]
            for tid in after
        )
        for kind in _FIELDS
    }


def _faults(row: Mapping[str, Any], snapshots: Snapshots) -> dict[str, int]:
    return faults(str(row["stat"]), snapshots.where)


PAGE_FAULTS = Source(order=40, parse=lambda trial: parse(trial.folder))
"""Derived from the snapshots of `threads`."""
