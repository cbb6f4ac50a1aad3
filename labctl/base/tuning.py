"""A tuning as the rest of the program sees it: resolved, checked, frozen.

Files in `domains/` become these values in `labctl.study.tunings`. They live here because both
`study` and `domain` speak of them and may not import each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from labctl.base.cpus import CpuSet


class Kind(StrEnum):
    GUEST = "guest"
    NATIVE = "native"


class Policy(StrEnum):
    """Scheduling policies by the names that libvirt and chrt(1) use (sched(7))."""

    OTHER = "other"
    FIFO = "fifo"
    RR = "rr"
    BATCH = "batch"
    IDLE = "idle"

    @property
    def realtime(self) -> bool:
        return self in (Policy.FIFO, Policy.RR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sched:
    """A policy and, for fifo and rr, its priority (1 to 99; 0 for the others)."""

    policy: Policy
    priority: int = 0


PLAN = "plan"
"""Pin where the pin plan says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """What is pinned: None leaves it free, "plan" takes the pin plan's CPUs, else these CPUs.

    `vcpus` and `iothreads` map the number (vCPUs from 0, iothreads from 1) to its CPUs.
    """

    vcpus: str | Mapping[int, CpuSet] | None = None
    emulator: str | CpuSet | None = None
    iothreads: str | Mapping[int, CpuSet] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """The data disk's driver attributes; None leaves libvirt's and QEMU's default."""

    cache: str | None = None
    io: str | None = None
    iothread: bool = False
    """Whether the disks are served by iothread 1 rather than by the emulator thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    name: str
    description: str
    kind: Kind
    sources: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    """What a host must have for it, in words."""
    risks: tuple[str, ...] = ()
    """What it can do to guest or host, in words."""
    restore: bool = True
    """Whether a saved baseline may be restored with this tuning's XML (METHOD: "What may be
    restored"); False: it boots for itself in each block."""
    twin: str | None = None
    """For a guest: the native tuning with its placement and policy."""
    pin: Pin = field(default_factory=Pin)
    vcpu_sched: Sched | None = None
    """For native: the policy of the workload itself."""
    emulator_sched: Sched | None = None
    iothread_sched: Sched | None = None
    iothreads: int = 0
    disk: Disk = field(default_factory=Disk)
    handicap_percent: float = 0.0
    """Share of the time during which the guest is stopped, in percent."""
