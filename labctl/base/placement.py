"""Check where a guest's threads may run and under which policies, and read their actual
placement."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lxml import etree

from labctl.base.cpus import CpuSet, format_cpus, parse_cpus
from labctl.base.errors import UsageError
from labctl.base.tuning import Policy, Sched
from labctl.base.xmldiff import parse

# Check where a guest's threads may run and under which policies: find settings that would hang the
# guest, starve its host, or keep libvirt from starting it. Pure.
#
# The rules apply to a tuning with its pin plan (`domain/pinning/pin_check.py`) and to finished
# domain XML, whoever wrote it: every configuration that labctl makes passes through them.


RT_PERIOD_US = 1_000_000
"""The kernel's default of sched_rt_period_us, which sched_rt_runtime_us is a part of."""

RT_RUNTIME_US = 950_000
"""The kernel's default of sched_rt_runtime_us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinProblem:
    """Describe a problem with pins. `refused`: it would hang guest or host, or is impossible;
    otherwise it only affects results."""

    text: str
    hint: str
    refused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCpus:
    """Describe a host's CPUs. `usable`: where unpinned threads run; `pinnable`: where threads may
    be pinned; `housekeeping`: those that the pin plan leaves to the host; `memory_nodes`: NUMA
    nodes with memory, None where that is unknown; `rt_runtime_us`: sched_rt_runtime_us (-1:
    real-time threads are not throttled).
    """

    present: CpuSet
    online: CpuSet
    usable: CpuSet
    pinnable: CpuSet
    isolated: CpuSet
    housekeeping: CpuSet
    memory_nodes: CpuSet | None
    rt_runtime_us: int


@dataclass(frozen=True, slots=True)
class Thread:
    """Say where a thread may run, and under which policy (None: SCHED_OTHER)."""

    cpus: CpuSet
    sched: Sched | None = None

    @property
    def realtime(self) -> bool:
        return self.sched is not None and self.sched.policy.realtime


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestThreads:
    """Hold the threads of a guest. `emulator` is None natively, where a vCPU is a CPU's share of
    the workload. `iothreads`: by number, from 1."""

    vcpus: Sequence[Thread]
    emulator: Thread | None = None
    iothreads: Mapping[int, Thread] = field(default_factory=dict)

    @property
    def all(self) -> list[Thread]:
        helpers = [] if self.emulator is None else [self.emulator]
        return [*self.vcpus, *helpers, *self.iothreads.values()]


def refuse(name: str, problems: Iterable[PinProblem]) -> None:
    """Raise UsageError with every refusal among `problems`; do nothing if there is none. `name`:
    the tuning's."""
    refusals = [problem for problem in problems if problem.refused]
    if refusals:
        raise UsageError(
            f"tuning '{name}': " + "; ".join(problem.text for problem in refusals),
            hint=" ".join(dict.fromkeys(problem.hint for problem in refusals)),
        )


def xml_problems(
    xml: str, host: HostCpus, *, below: str | None = None, vcpus: int | None = None
) -> list[PinProblem]:
    """Return the problems of a domain's pins, policies and NUMA nodes on a host, refusals first; []
    if there are none.

    `below`: the domain that `xml` is applied to; it defines what `xml` does not. `vcpus`: the
    domain's number, if `xml` does not define it. Raises UsageError for XML or a CPU list that
    cannot be read.
    """
    roots = [parse(xml), *([parse(below)] if below else [])]
    found = [
        *_absent(roots, host),
        *_absent_nodes(roots[0], host),
        *realtime_problems(_threads(roots, host, vcpus), host),
    ]
    return sorted(found, key=lambda problem: not problem.refused)


def named_cpus(xml: str) -> CpuSet:
    """Return the CPUs of the host that a domain's pins name."""
    root = parse(xml)
    sets = (e.get("cpuset") for path in ("vcpu", "cputune/*") for e in root.iterfind(path))
    return frozenset().union(*map(_cpus, sets))


def _threads(roots: Sequence[etree._Element], host: HostCpus, vcpus: int | None) -> GuestThreads:
    """Return the threads of a domain by <cputune>, from the first of `roots` that defines each. A
    <vcpu cpuset=…> applies to every thread without a pin of its own
    (https://libvirt.org/formatdomain.html#cpu-allocation)."""
    common = roots[-1].find("vcpu")
    cpuset = common.get("cpuset") if common is not None else None
    free = _cpus(cpuset) if cpuset else host.usable
    if vcpus is None:
        vcpus = _number(roots[-1].findtext("vcpu"), 1)
    iothreads = max(_number(root.findtext("iothreads"), 0) for root in roots)

    def thread(role: str, number: int | None) -> Thread:
        pins = [
            pin
            for root in roots
            for pin in root.iterfind(f"cputune/{role}pin")
            if number is None or _number(pin.get(role), -1) == number
        ]
        scheds = [
            sched
            for root in roots
            for sched in root.iterfind(f"cputune/{role}sched")
            if number is None or number in _cpus(sched.get(f"{role}s") or str(number))
        ]
        return Thread(
            _cpus(pins[0].get("cpuset")) if pins else free, _sched(scheds[0]) if scheds else None
        )

    return GuestThreads(
        vcpus=[thread("vcpu", number) for number in range(vcpus)],
        emulator=thread("emulator", None),
        iothreads={number: thread("iothread", number) for number in range(1, iothreads + 1)},
    )


_MOST_THREADS = 4096
"""Limit on vCPUs or iothreads of a domain: more than QEMU supports."""


def _number(text: str | None, default: int) -> int:
    said = (text or "").strip()
    if not said:
        return default
    if not said.isdecimal() or len(said) > 4 or int(said) > _MOST_THREADS:
        raise UsageError(f"'{said[:20]}' in the domain's XML is not a number of threads")
    return int(said)


def _cpus(text: str | None) -> CpuSet:
    try:
        return parse_cpus(text or "")
    except ValueError as error:
        raise UsageError(f"the domain's XML names CPUs that can't be read: {error}") from error


def _sched(element: etree._Element) -> Sched | None:
    policy = element.get("scheduler", "other")
    if policy not in list(Policy):
        return None
    return Sched(policy=Policy(policy), priority=_number(element.get("priority"), 0))


def absent_cpus(wrong: CpuSet, host: HostCpus) -> tuple[CpuSet, str]:
    """Return those of `wrong`, CPUs that cannot be pinned to, that share one reason, and the
    reason."""
    absent = wrong - host.present
    offline = (wrong & host.present) - host.online
    if absent:
        return absent, f"the host has CPUs {format_cpus(host.present)}"
    if offline:
        return offline, f"it is offline, CPUs {format_cpus(host.online)} are not"
    return wrong, f"labctl's affinity or cpuset allows CPUs {format_cpus(host.pinnable)}"


def _absent(roots: Sequence[etree._Element], host: HostCpus) -> Iterator[PinProblem]:
    """Find pins on CPUs that the host does not have: libvirt would start no guest."""
    pins: dict[str, str | None] = {}
    for root in roots:
        for element in root.iterfind("vcpu"):
            pins.setdefault("the domain", element.get("cpuset"))
        for element in root.iterfind("cputune/emulatorpin"):
            pins.setdefault("the emulator", element.get("cpuset"))
        for role, what in (("vcpu", "vCPU"), ("iothread", "iothread")):
            for element in root.iterfind(f"cputune/{role}pin"):
                pins.setdefault(f"{what} {element.get(role)}", element.get("cpuset"))
    for name, cpuset in pins.items():
        if cpuset is None:
            continue
        if wrong := _cpus(cpuset) - host.pinnable:
            cpus, why = absent_cpus(wrong, host)
            yield PinProblem(
                text=f"cannot pin {name} to CPU {format_cpus(cpus)}: {why}",
                hint=f"Give it a subset of {format_cpus(host.pinnable)}; 'labctl pins' plans one.",
                refused=True,
            )


def _absent_nodes(root: etree._Element, host: HostCpus) -> Iterator[PinProblem]:
    if host.memory_nodes is None:
        return
    sets = (element.get("nodeset") for element in root.iterfind("numatune/*"))
    wrong = frozenset().union(*(_cpus(text) for text in sets if text)) - host.memory_nodes
    if wrong:
        yield PinProblem(
            text=f"the guest's memory cannot lie on NUMA node {format_cpus(wrong)}: nodes "
            f"{format_cpus(host.memory_nodes)} have memory",
            hint=f"Give <numatune> a subset of {format_cpus(host.memory_nodes)}.",
            refused=True,
        )


def realtime_problems(threads: GuestThreads, host: HostCpus) -> list[PinProblem]:
    """Return the effects of threads under real-time policies on the guest and its host."""
    realtime = [thread for thread in threads.all if thread.realtime]
    if not realtime:
        return []
    name = " and ".join(dict.fromkeys(_policy(thread) for thread in realtime))
    problems = [*_starved_housekeeping(name, realtime, host), *_throttled(name, host)]
    vcpus = [thread for thread in threads.vcpus if thread.realtime]
    if not vcpus:
        return problems
    if len(host.pinnable) == 1:
        only = "the host's only CPU" if len(host.online) == 1 else "the only CPU that labctl has"
        return [
            PinProblem(
                text=f"{_policy(vcpus[0])} on {only} would starve everything else on it",
                hint="Take a tuning without a real-time policy, or a host with two CPUs.",
                refused=True,
            )
        ]
    return [*_crowded(vcpus), *_starved_helpers(threads, vcpus, host), *problems]


def _policy(thread: Thread) -> str:
    assert thread.sched is not None
    return f"SCHED_{thread.sched.policy.upper()}"


def _crowded(vcpus: Sequence[Thread]) -> list[PinProblem]:
    """Find more real-time vCPUs confined to some CPUs than there are CPUs.

    One that spins for a lock never lets the lock's holder run: FIFO hangs the guest, RR makes it
    crawl.
    """
    sets = [thread.cpus for thread in vcpus]
    for cpus in dict.fromkeys([*sets, frozenset().union(*sets)]):
        crowd = [thread for thread in vcpus if thread.cpus <= cpus]
        if len(crowd) > len(cpus):
            fifo = any(thread.sched and thread.sched.policy is Policy.FIFO for thread in crowd)
            means = "one that spins hangs the guest" if fifo else "each waits for the other's slice"
            return [
                PinProblem(
                    text=f"{len(crowd)} vCPUs under {_policy(vcpus[0])} on CPU "
                    f"{format_cpus(cpus)}: {means}",
                    hint="Pin each vCPU to a CPU of its own ('pin.vcpus: plan'), or give the guest "
                    "fewer vCPUs.",
                    refused=fifo,
                )
            ]
    return []


def _starved_housekeeping(
    name: str, realtime: Sequence[Thread], host: HostCpus
) -> list[PinProblem]:
    """Find real-time threads that can take every housekeeping CPU, or every CPU that the kernel
    could move their victims to, which excludes isolated ones."""
    where = [thread.cpus for thread in realtime]
    confined = [cpus for cpus in where if cpus <= host.housekeeping]
    shared = host.usable - host.isolated or host.usable
    if _can_fill(host.housekeeping, confined):
        taken = host.housekeeping
    elif _can_fill(shared, where):
        taken = shared
    else:
        return []
    unthrottled = host.rt_runtime_us < 0
    who = "the host" if host.usable == host.online else "labctl, in its cpuset,"
    left = (
        f"and real-time throttling is off: {who} would stop answering"
        if unthrottled
        else f"and the host keeps {100 * (1 - host.rt_runtime_us / RT_PERIOD_US):.3g} % of it"
    )
    return [
        PinProblem(
            text=f"{name} may take the last CPU that housekeeping has (CPU {format_cpus(taken)}), "
            f"{left}",
            hint="Give the guest fewer vCPUs"
            + (", or run 'sysctl kernel.sched_rt_runtime_us=950000'." if unthrottled else "."),
            refused=unthrottled,
        )
    ]


def _can_fill(cpus: CpuSet, where: Sequence[CpuSet]) -> bool:
    """Return whether each of `cpus` can have a thread of its own (a matching, by augmenting
    paths)."""
    thread_of: dict[int, int] = {}
    cpu_of: dict[int, int] = {}

    def seat(newcomer: int) -> None:
        wanted_by: dict[int, int] = {}
        threads = [newcomer]
        for thread in threads:
            for cpu in where[thread] & cpus - wanted_by.keys():
                wanted_by[cpu] = thread
                if cpu in thread_of:
                    threads.append(thread_of[cpu])
                    continue
                free: int | None = cpu
                while free is not None:  # each thread on the way moves to the CPU it wanted
                    mover = wanted_by[free]
                    thread_of[free] = mover
                    cpu_of[mover], free = free, cpu_of.get(mover)
                return

    for thread in range(len(where)):
        seat(thread)
    return len(thread_of) == len(cpus)


def _starved_helpers(
    threads: GuestThreads, vcpus: Sequence[Thread], host: HostCpus
) -> list[PinProblem]:
    """Find emulator threads and iothreads that can run only where a real-time vCPU does: while it
    spins, no timer, no disk and no QMP command of this guest is served."""
    if threads.emulator is None:
        return []
    helpers = [("the emulator threads", threads.emulator)]
    helpers += [(f"iothread {number}", one) for number, one in sorted(threads.iothreads.items())]
    found = []
    for who, helper in helpers:
        above = [vcpu for vcpu in vcpus if not _outranks(helper.sched, vcpu.sched)]
        taken = frozenset(cpu for vcpu in above if len(vcpu.cpus) == 1 for cpu in vcpu.cpus)
        if not helper.cpus or not helper.cpus <= taken:
            continue
        found.append(
            PinProblem(
                text=f"{who} can run only on CPU {format_cpus(helper.cpus)}, which a vCPU under "
                f"{_policy(above[0])} takes",
                hint="Leave one CPU without a vCPU: at most "
                f"{vcpus_text(len(host.pinnable) - 1)} here.",
                refused=True,
            )
        )
    return found


def vcpus_text(count: int) -> str:
    """Return '1 vCPU', '2 vCPUs'."""
    return f"{count} vCPU" if count == 1 else f"{count} vCPUs"


def _outranks(own: Sched | None, other: Sched | None) -> bool:
    if own is None or not own.policy.realtime:
        return False
    return other is None or own.priority > other.priority


def _throttled(name: str, host: HostCpus) -> list[PinProblem]:
    if not 0 <= host.rt_runtime_us < RT_PERIOD_US:
        return []
    if host.rt_runtime_us == 0:
        return [
            PinProblem(
                text=f"{name} threads get no CPU time: sched_rt_runtime_us is 0",
                hint="Run 'sysctl kernel.sched_rt_runtime_us=950000', the kernel's default.",
                refused=True,
            )
        ]
    stall_ms = (RT_PERIOD_US - host.rt_runtime_us) / 1000
    return [
        PinProblem(
            text=f"real-time throttling may stop {name} threads for {stall_ms:g} ms in each second",
            hint="Read maxima with that in mind; the host's safety is worth it.",
            refused=False,
        )
    ]


# Read from /proc where a thread may run, and under which policy; and read and set its time slice.


# include/uapi/linux/sched.h
_POLICIES = {0: "other", 1: "fifo", 2: "rr", 3: "batch", 5: "idle", 6: "deadline", 7: "ext"}

# Positions after the command's closing parenthesis; proc_pid_stat(5) counts from 1, and the first
# of these is its field 3.
_NICE, _RT_PRIORITY, _POLICY = 19 - 3, 40 - 3, 41 - 3


# arch/x86/entry/syscalls/syscall_64.tbl; include/uapi/asm-generic/unistd.h of other architectures.
_SETATTR, _GETATTR = (314, 315) if platform.machine() == "x86_64" else (274, 275)
# struct sched_attr of include/uapi/linux/sched/types.h: size, policy, flags, nice, priority,
# runtime, deadline, period, and the two clamps of utilization.
_ATTR = struct.Struct("=IIQiIQQQII")
_RUNTIME = 5
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Placed:
    """Hold a thread's placement. `policy` by chrt(1)'s names, `priority` the real-time one."""

    cpus: CpuSet
    policy: str
    priority: int
    nice: int


def name_of(stat: str) -> str:
    """Return a thread's name, from its `stat`: it may hold spaces and parentheses of its own."""
    return stat.rpartition(")")[0].partition("(")[2]


def parse_placed(stat: str, status: str) -> Placed | None:
    """Parse the texts of a thread's `stat` and `status`; None if they are cut off because the
    thread ended meanwhile. Raises ValueError for text that no kernel writes."""
    # The command may hold parentheses: the last one closes it.
    fields = stat.rpartition(")")[2].split()
    cpus = [line for line in status.splitlines() if line.startswith("Cpus_allowed_list:")]
    if len(fields) <= _POLICY or not cpus:
        return None
    number = int(fields[_POLICY])
    return Placed(
        cpus=parse_cpus(cpus[0].partition(":")[2]),
        policy=_POLICIES.get(number, f"policy {number}"),
        priority=int(fields[_RT_PRIORITY]),
        nice=int(fields[_NICE]),
    )


def read_placed(folder: Path) -> tuple[str, Placed] | None:
    """Return name and placement of the thread with that folder in /proc; None if it has ended."""
    try:
        stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        status = (folder / "status").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    found = parse_placed(stat, status)
    return None if found is None else (name_of(stat), found)


def said(policy: str, priority: int) -> str:
    """Return a policy as people name it: "SCHED_FIFO at priority 1"."""
    return f"SCHED_{policy.upper()}" + (f" at priority {priority}" if priority else "")


def slice_ns(tid: int) -> int:
    """Return a thread's time slice in ns, 0 if the kernel does not report it: under a real-time
    policy, and before Linux 6.12. Raises OSError for a thread that has ended."""
    return int(_attributes(tid)[_RUNTIME])


def known_slice_ns(tid: int) -> int | None:
    """Return a thread's time slice in ns; None if the kernel does not report it, or it has
    ended."""
    try:
        return slice_ns(tid) or None
    except OSError:
        return None


def set_slice(tid: int, wanted_ns: int) -> None:
    """Set a thread's time slice, which its children inherit; the kernel accepts 0.1 to 100 ms
    (kernel/sched/syscalls.c, __setparam_fair). Raises OSError for a thread that has ended."""
    attributes = _attributes(tid)
    attributes[_RUNTIME] = wanted_ns
    _call(_SETATTR, tid, ctypes.create_string_buffer(_ATTR.pack(*attributes)), 0)


def _attributes(tid: int) -> list[int]:
    """Return the fields of a thread's `struct sched_attr`."""
    buffer = ctypes.create_string_buffer(_ATTR.size)
    _call(_GETATTR, tid, buffer, _ATTR.size, 0)
    return list(_ATTR.unpack(buffer.raw[: _ATTR.size]))


def _call(number: int, *arguments: object) -> None:
    # glibc has functions for these only since 2.41.
    if _LIBC.syscall(number, *arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
