"""The knobs of a host by name: what each does, its values, and what has to be changed for one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from labctl.base.cpus import CpuSet, format_cpus, parse_cpus
from labctl.host.journal import Change
from labctl.host.tunables import CpuMask, FileValue

HOUSEKEEPING = "housekeeping"
"""The value of a knob that keeps something off the isolated CPUs."""

_MIB = 1024 * 1024


class Impossible(Exception):
    """Why a knob can't be set on this host: a sentence without its full stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where knobs are turned. `root`: of the host's files. `isolated`: the CPUs that are the
    guests' vCPUs', `housekeeping`: those that stay the host's."""

    root: Path = Path("/")
    housekeeping: CpuSet = frozenset()
    isolated: CpuSet = frozenset()

    def files(self, pattern: str) -> list[Path]:
        """What matches below the root, numbers in their order."""
        return sorted(self.root.glob(pattern), key=_natural)

    def text(self, path: str) -> str | None:
        try:
            return (self.root / path).read_text(encoding="utf-8").strip()
        except OSError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """`values`: what it takes, in words; `accepts` says whether a value is one of them.
    `changes` raises Impossible where this host can't have it."""

    name: str
    what: str
    values: str
    accepts: Callable[[str], bool]
    changes: Callable[[str, Place], Sequence[Change]]


def file_change(path: Path, value: str, *, optional: bool = False) -> Change:
    """Raises Impossible when the file isn't there, or nobody may write to it."""
    check_writable(path)
    return Change(tunable=FileValue(str(path)), value=value, optional=optional)


def follower(path: Path) -> list[Change]:
    """A file that the kernel changes along with others; [] where it isn't there."""
    return [Change(tunable=FileValue(str(path)), follows=True)] if path.exists() else []


def check_writable(path: Path) -> None:
    """Raises Impossible when the file isn't there, or nobody may write to it."""
    try:
        mode = path.stat().st_mode
    except OSError:
        raise Impossible(f"this kernel has no {path}") from None
    if not mode & 0o222:
        raise Impossible(f"this kernel lets nobody change {path}")


def _one_file(name: str, what: str, path: str, *values: str) -> Knob:
    return Knob(
        name=name,
        what=what,
        values=_or(values),
        accepts=lambda value: value in values,
        changes=lambda value, place: [file_change(place.root / path, value)],
    )


def _one_number(name: str, what: str, path: str, low: int, high: int) -> Knob:
    return Knob(
        name=name,
        what=what,
        values=f"a number from {low} to {high}",
        accepts=lambda value: _between(value, low, high),
        changes=lambda value, place: [file_change(place.root / path, value)],
    )


def _smt(value: str, place: Place) -> list[Change]:
    control = place.root / "sys/devices/system/cpu/smt/control"
    found = place.text("sys/devices/system/cpu/smt/control")
    if found not in ("on", "off"):
        # forceoff: by the command line; notsupported, notimplemented (ABI/testing/sysfs-devices-
        # system-cpu).
        raise Impossible(f"{control} says '{found or 'nothing'}'")
    if value == "off" and found == "on" and _cpuset_v1(place):
        # cgroup-v1/cpusets.rst: what is taken away by hotplug does not come back.
        raise Impossible(
            "CPUs that go offline are lost to the cpusets of cgroup v1, which this host has, "
            "until it reboots"
        )
    # An interrupt whose last CPU goes offline is given to all others, and stays with them.
    interrupts = place.files("proc/irq/[0-9]*/smp_affinity_list")
    return [
        *(change for path in interrupts for change in follower(path)),
        file_change(control, value),
    ]


def _cpuset_v1(place: Place) -> bool:
    for line in (place.text("proc/mounts") or "").splitlines():
        fields = line.split()
        if fields[2] == "cgroup":
            options = fields[3].split(",")
            if "cpuset" in options and "cpuset_v2_mode" not in options:
                return True
    return False


def _hugepages(size_kib: int) -> Callable[[str, Place], list[Change]]:
    pool = f"sys/kernel/mm/hugepages/hugepages-{size_kib}kB"

    def changes(value: str, place: Place) -> list[Change]:
        change = file_change(place.root / pool / "nr_hugepages", value)
        more = int(value) - int(place.text(f"{pool}/nr_hugepages") or 0)
        free = re.search(r"^MemAvailable:\s+(\d+) kB", place.text("proc/meminfo") or "", re.M)
        if free and more * size_kib > int(free.group(1)):
            raise Impossible(
                f"{value} pages of {size_kib // 1024} MiB are more than the memory that is free"
            )
        return [change]

    return changes


def _governor(value: str, place: Place) -> list[Change]:
    changes: list[Change] = []
    for path in place.files("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"):
        available = place.text(f"{path.relative_to(place.root).parent}/scaling_available_governors")
        if available is not None and value not in available.split():
            raise Impossible(f"{path.parent} offers only the governors {available}")
        # With hardware-managed P-states the governor sets the preference as well
        # (Documentation/admin-guide/pm/intel_pstate.rst).
        changes += follower(path.with_name("energy_performance_preference"))
        changes.append(file_change(path, value))
    if not changes:
        raise Impossible("the kernel doesn't govern the frequency of this host's CPUs (no cpufreq)")
    return changes


def _c_states(value: str, place: Place) -> list[Change]:
    states = place.files("sys/devices/system/cpu/cpu[0-9]*/cpuidle/state[0-9]*/disable")
    if not states:
        raise Impossible("the kernel has no idle states to choose from (no cpuidle)")
    changes = []
    for path in states:
        latency = place.text(f"{path.relative_to(place.root).parent}/latency")
        if value == "all":
            changes.append(file_change(path, "0"))
        elif int(latency or 0) > int(value):
            changes.append(file_change(path, "1"))
    return changes


def _thp(value: str, place: Place) -> list[Change]:
    # Switching khugepaged on or off sets the memory that the kernel keeps free (mm/khugepaged.c,
    # set_recommended_min_free_kbytes); seen: 67584 kB with "madvise", 19832 kB with "never".
    return [
        *follower(place.root / "proc/sys/vm/min_free_kbytes"),
        file_change(place.root / "sys/kernel/mm/transparent_hugepage/enabled", value),
    ]


def _irq_affinity(value: str, place: Place) -> list[Change]:
    if _process_runs(place, "irqbalance"):
        raise Impossible("irqbalance runs, and moves interrupts back ('systemctl stop irqbalance')")
    default = CpuMask(str(place.root / "proc/irq/default_smp_affinity"))
    check_writable(Path(default.path))
    # New interrupts first, so that none is missed.
    changes = [Change(tunable=default, value=_off_isolated(default.read(), place))]
    for path in place.files("proc/irq/[0-9]*/smp_affinity_list"):
        tunable = FileValue(str(path))
        try:
            present = tunable.read()
        except OSError:
            continue
        # Timers, and queues that the driver has spread itself, can't be moved: EIO or EPERM.
        changes.append(Change(tunable=tunable, value=_off_isolated(present, place), optional=True))
    return changes


def _workqueues(value: str, place: Place) -> list[Change]:
    folder = "sys/devices/virtual/workqueue"
    changes = []
    for path in [*place.files(f"{folder}/cpumask"), *place.files(f"{folder}/*/cpumask")]:
        check_writable(path)
        tunable = CpuMask(str(path))
        changes.append(Change(tunable=tunable, value=_off_isolated(tunable.read(), place)))
    if not changes:
        raise Impossible("this kernel has no mask for its work queues")
    return changes


def _off_isolated(cpus: str, place: Place) -> str:
    left = parse_cpus(cpus) - place.isolated or place.housekeeping - place.isolated
    return format_cpus(left) or cpus


def _process_runs(place: Place, name: str) -> bool:
    return any(
        place.text(str(path.relative_to(place.root))) == name
        for path in place.files("proc/[0-9]*/comm")
    )


def _natural(path: Path) -> list[tuple[bool, int, str]]:
    parts = re.findall(r"\d+|\D+", str(path))
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]


def _between(value: str, low: int, high: int) -> bool:
    return bool(re.fullmatch(r"-?\d{1,18}", value)) and low <= int(value) <= high


def _or(values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else f"{', '.join(values[:-1])} or {values[-1]}"


TABLE: tuple[Knob, ...] = (
    # In the order in which they are turned, and undone in reverse.
    # SMT first: files of its CPUs go and come with it.
    Knob(
        name="smt",
        what="the second hardware thread of each core",
        values="on or off",
        accepts=lambda value: value in ("on", "off"),
        changes=_smt,
    ),
    # Then memory in one piece, the larger first, before anything else takes it apart.
    Knob(
        name="hugepages-1G",
        what="how many huge pages of 1 GiB are set aside",
        values="a number from 0 to 65536",
        accepts=lambda value: _between(value, 0, 65536),
        changes=_hugepages(1024 * 1024),
    ),
    Knob(
        name="hugepages-2M",
        what="how many huge pages of 2 MiB are set aside",
        values="a number from 0 to 33554432",
        accepts=lambda value: _between(value, 0, 32 * _MIB),
        changes=_hugepages(2048),
    ),
    # tuned comes here (labctl.host.knobs): single knobs have the last word over its profiles.
    Knob(
        name="governor",
        what="how the kernel chooses a CPU's frequency",
        values="performance, powersave, schedutil, ondemand, conservative or userspace",
        accepts=lambda value: (
            value
            in ("performance", "powersave", "schedutil", "ondemand", "conservative", "userspace")
        ),
        changes=_governor,
    ),
    Knob(
        name="c-states",
        what="how long a CPU may take to leave an idle state, in microseconds",
        values="'all', or a number from 0 to 1000000",
        accepts=lambda value: value == "all" or _between(value, 0, 1_000_000),
        changes=_c_states,
    ),
    Knob(
        name="thp",
        what="who gets transparent huge pages",
        values="always, madvise or never",
        accepts=lambda value: value in ("always", "madvise", "never"),
        changes=_thp,
    ),
    _one_file(
        "thp-defrag",
        "how far the kernel goes to make a transparent huge page",
        "sys/kernel/mm/transparent_hugepage/defrag",
        *("always", "defer", "defer+madvise", "madvise", "never"),
    ),
    _one_file(
        "ksm",
        "whether equal pages are merged (2: stop, and take merged ones apart)",
        "sys/kernel/mm/ksm/run",
        *("0", "1", "2"),
    ),
    _one_number(
        "swappiness", "how readily memory is swapped out", "proc/sys/vm/swappiness", 0, 200
    ),
    _one_file(
        "numa-balancing",
        "whether memory follows its tasks between NUMA nodes (2: between tiers of memory)",
        "proc/sys/kernel/numa_balancing",
        *("0", "1", "2"),
    ),
    _one_number(
        "halt-poll-ns",
        "how long KVM waits for a halted vCPU before it lets its CPU go, in nanoseconds",
        "sys/module/kvm/parameters/halt_poll_ns",
        *(0, 10_000_000),
    ),
    _one_number(
        "rt-runtime-us",
        "how much of each second real-time tasks may take, in microseconds (-1: all)",
        "proc/sys/kernel/sched_rt_runtime_us",
        *(-1, 1_000_000),
    ),
    _one_file(
        "sched-autogroup",
        "whether a session's tasks weigh as one",
        "proc/sys/kernel/sched_autogroup_enabled",
        *("0", "1"),
    ),
    _one_file(
        "timer-migration",
        "whether timers move from idle CPUs to busy ones",
        "proc/sys/kernel/timer_migration",
        *("0", "1"),
    ),
    _one_file(
        "watchdog",
        "whether the kernel watches for CPUs that hang (soft and hard lockups)",
        # The master switch: it leaves soft_watchdog's and nmi_watchdog's own settings alone.
        "proc/sys/kernel/watchdog",
        *("0", "1"),
    ),
    # Last, when everything that brings CPUs, interrupts and work queues is done.
    Knob(
        name="workqueues",
        what="the CPUs that the kernel's own unbound work runs on",
        values=HOUSEKEEPING,
        accepts=lambda value: value == HOUSEKEEPING,
        changes=_workqueues,
    ),
    Knob(
        name="irq-affinity",
        what="the CPUs that take interrupts",
        values=HOUSEKEEPING,
        accepts=lambda value: value == HOUSEKEEPING,
        changes=_irq_affinity,
    ),
)
