"""List the facts of a host or a guest, a row each: its key in run.json, its name for people, and
which verdicts of a run no longer hold once it has changed.

The order is that of importance: what every figure is made by comes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Rests(StrEnum):
    """Hold what a tuning changes, and so what its verdicts rest on beside what all rest on."""

    PLACEMENT = "placement"
    """Pins: which CPUs its threads have."""
    SCHEDULING = "scheduling"
    """Policies and priorities."""
    CPU = "CPU"
    """The guest's CPU, timers, KVM's features, halt polling, the guest's kernel."""
    MEMORY = "memory"
    DISK = "disk"
    NETWORK = "network"
    HOST = "host settings"


EVERYTHING = frozenset(Rests)
_ON_CPUS = frozenset({Rests.PLACEMENT, Rests.SCHEDULING, Rests.CPU, Rests.HOST})
_ON_SHARES = frozenset({Rests.PLACEMENT, Rests.SCHEDULING, Rests.HOST})
_ON_MEMORY = frozenset({Rests.MEMORY, Rests.HOST})
_ON_DISK = frozenset({Rests.DISK, Rests.HOST})


@dataclass(frozen=True, slots=True)
class Fact:
    """Describe a fact. `key`: in run.json. `voids`: once it has changed, verdicts on tunings that
    change one of these.
    """

    key: str
    name: str
    voids: frozenset[Rests] = frozenset()


FACTS = (
    # What every figure is made by.
    Fact("accelerator", "accelerator", EVERYTHING),
    Fact("kernel_release", "kernel", EVERYTHING),
    Fact("kernel_version", "kernel build", EVERYTHING),
    Fact("kernel_config", "kernel configuration", EVERYTHING),
    Fact("kernel_options", "kernel options", EVERYTHING),
    Fact("qemu", "QEMU", EVERYTHING),
    Fact("libvirt", "libvirt", EVERYTHING),
    # The machine.
    Fact("cpu_model", "CPU", EVERYTHING),
    Fact("cpu_flags", "CPU flags", EVERYTHING),
    Fact("microcode", "microcode", EVERYTHING),
    Fact("topology", "topology", EVERYTHING),
    Fact("cpus_online", "CPUs online", EVERYTHING),
    Fact("cpus_allowed", "CPUs for labctl", EVERYTHING),
    Fact("numa_nodes", "NUMA nodes", EVERYTHING),
    Fact("smt", "SMT", EVERYTHING),
    Fact("hypervisor_vendor", "hypervisor below", EVERYTHING),
    # What every figure passes through.
    Fact("mitigations", "mitigations", EVERYTHING),
    Fact("clocksource", "clock source", EVERYTHING),
    Fact("fair_scheduler", "scheduler"),
    Fact("hz", "timer frequency (HZ)"),
    Fact("preempt", "preemptible kernel"),
    Fact("preempt_dynamic", "preemption chosen at boot"),
    Fact("sched_ext", "scheduler extension", EVERYTHING),
    Fact("tuned_profile", "tuned's profile", EVERYTHING),
    Fact("other_guests", "other guests", EVERYTHING),
    # How fast CPUs are and how they are shared.
    Fact("governor", "governor", _ON_CPUS),
    Fact("frequency_driver", "frequency driver", _ON_CPUS),
    Fact("turbo", "turbo", _ON_CPUS),
    Fact("idle_driver", "idle driver", _ON_CPUS),
    Fact("halt_poll_ns", "halt polling", _ON_CPUS),
    Fact("cpus_isolated", "isolated CPUs", _ON_SHARES),
    Fact("no_hz_full", "tickless CPUs"),
    Fact("sched_autogroup", "autogroups", _ON_SHARES),
    Fact("sched_rt_runtime_us", "real-time throttling", _ON_SHARES),
    Fact("sched_rt_period_us", "real-time period", _ON_SHARES),
    Fact("rt_group_sched", "real-time groups"),
    Fact("cgroups", "cgroups", _ON_SHARES),
    # Memory and disk.
    Fact("memory_bytes", "memory", _ON_MEMORY),
    Fact("thp", "transparent huge pages", _ON_MEMORY),
    Fact("thp_defrag", "their defragmentation", _ON_MEMORY),
    Fact("huge_pages", "huge pages", _ON_MEMORY),
    Fact("ksm", "KSM", _ON_MEMORY),
    Fact("numa_balancing", "NUMA balancing", _ON_MEMORY | {Rests.PLACEMENT}),
    Fact("swap_bytes", "swap", _ON_MEMORY),
    Fact("swappiness", "swappiness", _ON_MEMORY),
    Fact("state_folder", "state folder's disk", _ON_DISK),
    Fact("block_schedulers", "elevators", _ON_DISK),
    Fact("root_file_system", "root file system"),
    Fact("os", "distribution"),
    Fact("perf", "perf"),
)
"""Those that void nothing (the host's perf, its distribution) are recorded and compared."""

FACT_NAMES: Mapping[str, str] = {fact.key: fact.name for fact in FACTS}
