"""List the facts of a host or a guest, one row each, and compare versions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

# List the facts of a host or a guest, one row each: its key in run.json, its name for people, and
# which verdicts of a run no longer hold once it has changed.
#
# They are ordered by importance: facts that affect every figure come first.


class Rests(StrEnum):
    """Name a part of a tuning's changes, on which its verdicts depend."""

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
    # The basis of every figure.
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
    # Settings that affect every figure.
    Fact("mitigations", "mitigations", EVERYTHING),
    Fact("clocksource", "clock source", EVERYTHING),
    Fact("fair_scheduler", "scheduler"),
    Fact("hz", "timer frequency (HZ)"),
    Fact("preempt", "preemptible kernel"),
    Fact("preempt_dynamic", "preemption chosen at boot"),
    Fact("sched_ext", "scheduler extension", EVERYTHING),
    Fact("tuned_profile", "tuned's profile", EVERYTHING),
    Fact("other_guests", "other guests", EVERYTHING),
    # Speed and sharing of CPUs.
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
"""Facts that void nothing (the host's perf, its distribution) are recorded and compared."""

FACT_NAMES: Mapping[str, str] = {fact.key: fact.name for fact in FACTS}


# Compare version numbers as programs print them, number by number.


def is_older(found: str, wanted: str) -> bool:
    """Return whether version `found` is below `wanted`: "9.0.0" is not below "9.0".

    The text after the dotted numbers is the distribution's and does not count
    ("6.1.0-56-cloud").
    """
    ours, theirs = _numbers(found), _numbers(wanted)
    length = max(len(ours), len(theirs))
    return [*ours, *[0] * (length - len(ours))] < [*theirs, *[0] * (length - len(theirs))]


def upstream_release(release: str, version: str, signature: str = "") -> str:
    """Return the kernel.org release that a kernel is based on; `release` if nothing else is known.

    `release`, `version`: from uname(2). Debian numbers all of a series "6.1.0-N" and has "...
    Debian 6.1.176-1 (2026-11-01)" as version. `signature`: Ubuntu's /proc/version_signature,
    "Ubuntu 5.15.0-91.101-generic 5.15.131".
    """
    found = re.search(r"\bDebian (\d+\.\d+\.\d+)", version) or re.match(
        r"Ubuntu \S+ (\d+\.\d+\.\d+)\s*$", signature
    )
    return found[1] if found else release


def is_version(text: str) -> bool:
    """Return whether `text` is dotted numbers and nothing else."""
    return re.fullmatch(r"\d+(\.\d+)*", text) is not None


def _numbers(version: str) -> list[int]:
    leading = re.match(r"\d+(?:\.\d+)*", version)
    return [int(number) for number in leading.group().split(".")] if leading else []


# State on which hardware labctl's figures have been checked. This is the only place.


KVM_BUNDLES: tuple[str, ...] = ()
"""Bundles of `labctl selftest` from hosts where KVM works, by the name of their folder in
`tests/fixtures/selftest/`. A name is added with the folder and the tests that parse its files;
until then figures under KVM are unverified on hardware, and reports and docs say so."""

PMU_BUNDLES: tuple[str, ...] = ()
"""Likewise bundles of hosts whose PMU counts natively and in guests. A bundle may be in both."""


def kvm_caveat() -> str | None:
    """Return the caveat on every figure under KVM; None once a bundle from hardware shows KVM."""
    if KVM_BUNDLES:
        return None
    return (
        "KVM figures are unverified on hardware: labctl's own tests ran KVM only in an "
        "emulated host."
    )


def pmu_caveat() -> str | None:
    """Return the caveat on every hardware counter; None once a bundle shows a PMU."""
    if PMU_BUNDLES:
        return None
    return (
        "Hardware counters are unverified: labctl's own tests have not run on a host with "
        "a PMU that counts natively and in guests."
    )
