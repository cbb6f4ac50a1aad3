"""Describe a tuning as the rest of the program sees it, with the values of its knobs. Frozen."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal

from annotated_types import Ge, Le, Lt

from labctl.base.cpus import CpuSet
from labctl.base.quantities import DELAY, PERCENT

# Describe a tuning for the rest of the program: resolved, checked, frozen.
#
# Files in `domains/` become these values in `labctl.study.tunings`: a field is a key there, of the
# same type and within the same limits. They live here because both `study` and `domain` use them
# and may not import each other.


class Kind(StrEnum):
    GUEST = "guest"
    NATIVE = "native"


class Policy(StrEnum):
    """Name scheduling policies as libvirt and chrt(1) do (sched(7))."""

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
    """Hold a policy and, for fifo and rr, its priority (1 to 99; 0 for the others)."""

    policy: Policy
    priority: int = 0


PLAN = "plan"
"""Value for the CPUs of the pin plan."""


class Strategy(StrEnum):
    """Name how a pin plan chooses the vCPUs' CPUs."""

    COMPACT = "compact"
    """Hardware threads of neighbouring cores, sharing a last-level cache if possible."""
    SPREAD = "spread"
    """A core, then a cache, then a node of its own for each vCPU."""
    NODE = "node"
    """All on one NUMA node, with its memory; refused if none has room."""
    SIBLINGS = "siblings"
    """Compact, with vCPUs in pairs on the threads of a core, as the guest's topology shows them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """Hold pins: None leaves a thread free, "plan" takes the pin plan's CPUs, else these CPUs.
    `vhost`: the kernel's workers for network cards, which the plan puts on the emulator's CPUs.
    `partition`: what cpuset partition (cgroup v2) the vCPUs' CPUs become.

    `vcpus` and `iothreads` map the number (vCPUs from 0, iothreads from 1) to its CPUs. `strategy`:
    of the pin plan behind "plan".
    """

    vcpus: str | Mapping[int, CpuSet] | None = None
    emulator: str | CpuSet | None = None
    vhost: str | CpuSet | None = None
    iothreads: str | Mapping[int, CpuSet] | None = None
    partition: Literal["isolated"] | None = None
    strategy: Strategy = Strategy.COMPACT


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """Describe the guest's CPU; None leaves virt-install's default.

    `mode`: custom goes with a `model`. `topology`: the guest sees the sockets, cores and threads
    that its vCPUs are pinned to. `features`: by name.
    """

    mode: Literal["host-passthrough", "host-model", "maximum", "custom"] | None = None
    model: str | None = None
    topology: bool = False
    cache: Literal["passthrough", "emulate", "disable"] | None = None
    features: Mapping[str, Literal["force", "require", "optional", "disable", "forbid"]] = field(
        default_factory=dict
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KvmFeatures:
    """Hold the KVM features visible to the guest; None leaves the default."""

    hint_dedicated: bool | None = None
    poll_control: bool | None = None
    pv_ipi: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyperv:
    """Hold the Hyper-V enlightenments that KVM offers Windows; None leaves the default, which is
    none."""

    relaxed: bool | None = None
    vapic: bool | None = None
    spinlocks: Annotated[int, Ge(4095), Le(0xFFFFFFFF)] | None = None
    """Attempts at a lock before the guest tells the hypervisor; libvirt takes 4095 and more."""
    vpindex: bool | None = None
    runtime: bool | None = None
    synic: bool | None = None
    stimer: bool | None = None
    stimer_direct: bool | None = None
    """Timers that expire by an interrupt, without a message."""
    reset: bool | None = None
    frequencies: bool | None = None
    reenlightenment: bool | None = None
    tlbflush: bool | None = None
    ipi: bool | None = None
    evmcs: bool | None = None
    avic: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Describe the guest's memory; None and False leave the default.

    `numa`: over the node of the planned vCPUs. `cells`: the guest sees the NUMA nodes of its vCPUs.
    `free_page_reporting`: the guest reports free pages to the host through the balloon.
    """

    hugepages: Literal["2M", "1G"] | None = None
    locked: bool = False
    nosharepages: bool = False
    source: Literal["anonymous", "file", "memfd"] | None = None
    access: Literal["shared", "private"] | None = None
    numa: Literal["strict", "preferred", "interleave"] | None = None
    cells: bool = False
    balloon: bool = True
    free_page_reporting: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """Describe the data disk; None leaves libvirt's and QEMU's default. `bus`: scsi is a
    virtio-scsi controller."""

    cache: Literal["none", "writeback", "writethrough", "directsync", "unsafe"] | None = None
    io: Literal["threads", "native", "io_uring"] | None = None
    iothread: bool = False
    """True if iothreads serve the disks rather than the emulator thread: the first one the root
    disk, and the second, if there is one, the data disk."""
    iothread_mapping: bool = False
    """True if its queues are spread over all iothreads (libvirt 10, QEMU 9; on a virtio-scsi
    controller libvirt 11.2, QEMU 10)."""
    bus: Literal["virtio", "scsi"] = "virtio"
    format: Literal["raw", "qcow2"] = "raw"
    queues: Annotated[int, Ge(1), Le(64)] | None = None
    packed: bool | None = None
    discard: Literal["unmap", "ignore"] = "unmap"

    @property
    def durability(self) -> str:
        """Return where a completed write is, as `durability_of` its cache mode."""
        return durability_of(self.cache)


def durability_of(cache: str | None) -> str:
    """Return where a completed write is, as the cache mode that stands for it: "writethrough" (on
    the device), "none" (in its cache, until a flush), "writeback" (in the host's memory, until a
    flush) or "unsafe" (in the host's memory, flushed or not). See METHOD 10 and qemu-img(1), "cache
    modes"."""
    default = "writeback"  # QEMU's, since 1.2
    return "writethrough" if cache == "directsync" else cache or default


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Describe the network card; None leaves the default.

    `vhost`: served by the kernel (then over a tap device rather than QEMU's user network) or by
    QEMU; None: over the user network.
    """

    model: Literal["virtio", "e1000e"] = "virtio"
    vhost: bool | None = None
    queues: Annotated[int, Ge(1), Le(64)] | None = None
    packed: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestSide:
    """Hold settings inside the guest. `command_line`: words added to its kernel's. `tuned`: a
    profile of tuned. `elevator`: of its data disk. `sysfs`: path to value, written as root."""

    command_line: tuple[str, ...] = ()
    tuned: str | None = None
    elevator: str | None = None
    sysfs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Requires:
    """Hold requirements of host and guest, checked before anything starts; None and () require
    nothing. Versions are texts ("9.0"), compared number by number."""

    accelerator: Literal["kvm", "tcg"] | None = None
    """Accelerator of the guests."""
    libvirt: str | None = None
    """The oldest version, such as `"10.0"`."""
    qemu: str | None = None
    """The oldest version."""
    kernel: str | None = None
    """The oldest version of the host's."""
    cpus: Annotated[int, Ge(1)] | None = None
    """Number of usable CPUs."""
    nodes: Annotated[int, Ge(1)] | None = None
    """Number of NUMA nodes with memory and usable CPUs."""
    smt: bool = False
    """Cores with two usable hardware threads."""
    cpu_flags: tuple[str, ...] = ()
    """Flags of /proc/cpuinfo."""
    paths: tuple[str, ...] = ()
    """Paths that must exist."""
    programs: tuple[str, ...] = ()
    """Programs in the host's PATH."""
    command_line: tuple[str, ...] = ()
    """Words that the host's kernel was booted with."""
    hugepages: Literal["2M", "1G"] | None = None
    """Size of which enough pages are free for the guest, or can be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    name: str
    description: str
    kind: Kind
    sources: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    """Requirements on the host, in words."""
    risks: tuple[str, ...] = ()
    """Possible harm to guest or host, in words."""
    exercised_by: tuple[str, ...] = ()
    """Programs of workloads that use what it changes (docs/workloads.md)."""
    requires: Requires = field(default_factory=Requires)
    """Checkable part of `needs`."""
    restore: bool = True
    """True if a saved baseline may be restored with this tuning's XML; False: it boots for itself
    in each block (docs/decisions/boots-and-blocks.md)."""
    twin: str | None = None
    """Native tuning with a guest's placement and policy."""
    pin: Pin = field(default_factory=Pin)
    vcpu_sched: Sched | None = None
    """Policy of the vCPUs, natively of the workload itself."""
    vcpu_slice_ms: Annotated[float, Ge(0.1), Le(100), DELAY] | None = None
    """Time slice of the vCPUs, natively of the workload itself, under the fair scheduler, such as
    `3 ms` (sched_setattr(2), `sched_runtime`; Linux 6.12). By default the kernel's."""
    nice: Annotated[int, Ge(-20), Le(19)] | None = None
    """Nice value of all of QEMU's threads, natively of the workload itself, such as `-5`. By
    default the host's."""
    cpu_weight: Annotated[int, Ge(1), Le(10000)] | None = None
    """CPU weight of the whole guest against its neighbours' 100 (cgroup v2), natively of the
    workload itself, such as `400`. By default 100 as well."""
    emulator_sched: Sched | None = None
    iothread_sched: Sched | None = None
    iothreads: Annotated[int, Ge(0), Le(16)] = 0
    cpu: Cpu = field(default_factory=Cpu)
    kvm: KvmFeatures = field(default_factory=KvmFeatures)
    hyperv: Hyperv = field(default_factory=Hyperv)
    timers: Mapping[str, bool] = field(default_factory=dict)
    """libvirt's name of a timer or clock source to whether the guest has it."""
    memory: Memory = field(default_factory=Memory)
    disk: Disk = field(default_factory=Disk)
    network: Network = field(default_factory=Network)
    host: Mapping[str, str] = field(default_factory=dict)
    """Knob of the host (labctl.host.settings.knobs) to its value while a trial runs."""
    guest: GuestSide = field(default_factory=GuestSide)
    handicap_percent: Annotated[float, Ge(0), Lt(100), PERCENT] = 0.0
    """Share of the time during which the guest is stopped, in percent."""
    emulator: str | None = None
    """QEMU binary of its guest, which only you and root can write to. It needs `restore: false`."""
    kernel: str | None = None
    """Kernel that its guest boots, likewise; its modules are found as those of `--kernel`. By
    default the image's, or the run's."""
    initrd: str | None = None
    """Initrd of that kernel."""
    image: str | None = None
    """Recipe of the image that its guest boots, such as `debian-12`; natively the image's tree. A
    guest's needs `restore: false`, and its twin has the same image. By default the study's."""
    workload: str | None = None
    """Workload of the study that runs in place of the one that is measured."""

    @property
    def vcpu_slice_ns(self) -> int:
        """Return the requested time slice in ns, 0 for none."""
        return round((self.vcpu_slice_ms or 0) * 1e6)


OF_FAIR_SCHEDULER = ("vcpu_slice_ms", "nice", "cpu_weight")
"""Keys of a tuning that only the fair scheduler follows, and that no domain XML holds."""


# Define the values of each host knob: one table for setting it here and for reading it from a run,
# from which scripts and files for a roll-out are made.


HOUSEKEEPING = "housekeeping"
"""Value of a knob that keeps something off the isolated CPUs."""

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Values:
    """Hold the values of a knob. `text`: in words, for errors. `example`: one of them, "" if none
    is requested."""

    text: str
    accepts: Callable[[str], bool]
    example: str = ""


def one_of(*words: str) -> Values:
    listed = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
    return Values(listed, lambda value: value in words, words[0])


def number(low: int, high: int, *words: str) -> Values:
    """Return the values: a whole number in a range, or one of `words`."""
    said = "".join(f"'{word}', or " for word in words)
    return Values(
        f"{said}a number from {low} to {high}",
        lambda value: value in words or _is_between(value, low, high),
        str(max(low, 0)),
    )


def named(pattern: str, text: str, example: str = "") -> Values:
    """Return the values: a name that matches the pattern completely."""
    name = re.compile(pattern, re.ASCII)
    return Values(text, lambda value: name.fullmatch(value) is not None, example)


@dataclass(frozen=True, slots=True)
class HostProgram:
    """Describe a program of the host that runs while a tuning is in force. `check`: the command
    that succeeds while the program does its work. Both begin with the path of a file."""

    command: tuple[str, ...]
    check: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> HostProgram:
        """Return the program in a knob's value. Raises ValueError."""
        given = json.loads(text)
        if not isinstance(given, dict) or given.keys() != {"command", "check"}:
            raise ValueError("it has the keys 'command' and 'check'")
        parts = []
        for key in ("command", "check"):
            argv = shlex.split(given[key]) if isinstance(given[key], str) else []
            if not argv or not argv[0].startswith("/"):
                raise ValueError(f"'{key}' is a command that begins with the path of a file")
            parts.append(tuple(argv))
        return cls(*parts)


def _is_program(text: str) -> bool:
    try:
        HostProgram.of(text)
    except ValueError:
        return False
    return True


KNOB_VALUES: Mapping[str, Values] = {
    "smt": one_of("on", "off"),
    "hugepages-1G": number(0, 65536),
    "hugepages-2M": number(0, 32 * _MIB),
    "tuned": named(
        r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}( [A-Za-z0-9][A-Za-z0-9_.-]{0,99}){0,9}",
        "the name of a profile ('tuned-adm list')",
        "virtual-host",
    ),
    "governor": one_of(
        *("performance", "powersave", "schedutil", "ondemand", "conservative", "userspace")
    ),
    "c-states": number(0, 1_000_000, "all"),
    "thp": one_of("always", "madvise", "never"),
    "thp-defrag": one_of("always", "defer", "defer+madvise", "madvise", "never"),
    "ksm": one_of("0", "1", "2"),
    "swappiness": number(0, 200),
    "numa-balancing": one_of("0", "1", "2"),
    "halt-poll-ns": number(0, 10_000_000),
    "rt-runtime-us": number(-1, 1_000_000),
    "sched-autogroup": one_of("0", "1"),
    "timer-migration": one_of("0", "1"),
    "watchdog": one_of("0", "1"),
    "workqueues": one_of(HOUSEKEEPING),
    "irq-affinity": one_of(HOUSEKEEPING),
    "cpu-dma-latency": number(0, 1_000_000),
    "program": Values(
        "'command' and 'check', each a command that begins with the path of a file",
        _is_program,
        '{"command": "/bin/true", "check": "/bin/true"}',
    ),
}
"""Values by a knob's name in tunings."""

KERNEL_WORD = named(
    r"[A-Za-z0-9_.-]{1,100}(=[A-Za-z0-9_.,:=+@/%-]{0,1000})?",
    "a word of the kernel's command line, without quotes, blanks and '$'",
)
"""Words for /etc/default/grub.d, which a shell reads, so no other characters are allowed."""

ELEVATOR = named(r"[a-z0-9][a-z0-9_-]{0,30}", "the name of an I/O scheduler")
SYSFS_PATH = named(
    r"/sys(/(?!\.\.?(/|$))[A-Za-z0-9_.:*-]{1,100}){1,20}", "a path below /sys without '..'"
)
SYSFS_VALUE = named(r"[A-Za-z0-9_+.,:-]{1,200}", "letters, digits and _+.,:-")
DISK = named(r"[a-z][a-z0-9]{0,15}", "a disk's target, such as vda")


def _is_between(value: str, low: int, high: int) -> bool:
    return bool(re.fullmatch(r"-?[0-9]{1,18}", value)) and low <= int(value) <= high


# Define how much a trial collects beside the workload's own output.


class Level(StrEnum):
    """Name the levels of collecting: each includes those before it, and costs the machine more."""

    COUNTERS = "counters"
    """Snapshots and hardware counters: nothing runs inside the measured window."""
    EXITS = "exits"
    """Also VM exits by reason, counted in the kernel."""
    TRACE = "trace"
    """Also every scheduling event of both sides."""

    def holds(self, other: Level) -> bool:
        order = list(Level)
        return order.index(self) >= order.index(other)
