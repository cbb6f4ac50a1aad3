"""Watch faults on a guest's memory, which stop once all of it has been touched (METHOD rule 6).

A restore leaves two kinds of them. QEMU's main thread writes the saved pages, so that the host has
them, but KVM's own page tables are empty: a vCPU's first touch of each is a fault that KVM fixes
(`pf_fixed`). Pages of zeros are not written at all: their first touch is a minor fault of the vCPU
thread as well, and under TCG, which has no page tables of its own, that alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from labctl.base.errors import BrokenError
from labctl.collect import kvm_stats, page_faults
from labctl.run.guests.bench import Bench

MINOR, KVM = "minor", "kvm"


def faults_so_far(bench: Bench) -> dict[str, int]:
    """Return faults by kind over all vCPUs: MINOR of a guest, and KVM where KVM reports them; {}
    natively.
    """
    if not bench.vcpu_tids:
        return {}
    found = {MINOR: sum(map(_minor, bench.vcpu_tids))}
    fixed = kvm_stats.page_faults(bench.counters())
    return found if fixed is None else {**found, KVM: fixed}


def change(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return the change of the kinds that both know: QEMU may cease to tell KVM's."""
    return {kind: after[kind] - before[kind] for kind in before if kind in after}


def _minor(tid: int) -> int:
    # Below task: /proc/TID itself counts for the whole process.
    path = Path(f"/proc/{tid}/task/{tid}/stat")
    try:
        text = path.read_text()
    except OSError as error:
        raise BrokenError(f"the guest's vCPU thread {tid} is gone") from error
    return page_faults.faults(text, str(path))[MINOR]
