"""Provide a machine with a tuning in force: a restored guest, or the tree natively.

The engine does not know which it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from labctl.base.channel import Channel, ClockReading
from labctl.base.cpus import CpuSet
from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError
from labctl.base.tuning import Kind, Sched, Tuning
from labctl.collect.collector import ThreadRef
from labctl.domain.asked import ExpectedThread


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Hold what a trial needs of its machine.

    `cpus` and `sched` are given to each command (natively; a guest's tuning acts on its threads).
    `trial_cpus`: host CPUs that the machine may run on. `problems`: what was read back and is not
    what was asked. `evidence`: file name to text or JSON value, stored with every trial.
    """

    tuning: Tuning
    kind: Kind
    channel: Channel
    data_paths: tuple[str, ...]
    trial_cpus: CpuSet
    siblings: CpuSet
    """Hardware threads that share a core with one of `trial_cpus`."""
    threads: Callable[[], list[ThreadRef]]
    counters: Callable[[], dict[str, Any]]
    """Counters beside threads: QEMU's statistics, out-of-memory kills."""
    first_clock: ClockReading | None = None
    """A guest's clock when it was resumed."""
    vcpu_tids: tuple[int, ...] = ()
    waits_for_faults: bool = False
    """True if a warm-up goes on until faults on the guest's memory are flat: only under KVM
    (docs/decisions/warm-up.md)."""
    peer: str | None = None
    """The address at which it finds the peers of workloads that have one."""
    cpus: CpuSet | None = None
    sched: Sched | None = None
    asked: tuple[ExpectedThread, ...] = ()
    """Settings read back before and after each trial: a guest's threads, natively the command."""
    host_problems: Callable[[], list[str]] = list
    """Tells what ended something that the tuning holds on the host; asked after each trial."""
    misplaced: Callable[[], list[str]] = list
    """Reads that back now, of a machine that lives on after a trial."""
    problems: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    boot: int = 0
    """Number of the boot that a guest comes from."""
    restored: bool = False

    def serves(self) -> bool:
        """Return whether the machine answers, and its threads are still what was asked: where
        they were changed, the trials that are left take another one."""
        try:
            self.channel.wait_ready(Deadline.after(30, "the machine's answer after a trial"))
        except BrokenError:
            return False
        return bool(self.problems) or not self.misplaced()
