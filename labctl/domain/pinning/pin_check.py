"""Check what a tuning's pins and policies would do to this host: refuse what hangs it or the
guest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from labctl.base.cpus import CpuSet, format_cpus
from labctl.base.errors import UsageError
from labctl.base.tuning import Kind, Policy, Sched, Tuning
from labctl.domain.pinning.pin_plan import PinPlan, placement
from labctl.host.topology import Topology

RT_PERIOD_US = 1_000_000
"""The kernel's default of sched_rt_period_us, which sched_rt_runtime_us is a part of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinProblem:
    """Describe a problem with pins. `refused`: it would hang guest or host, or is impossible; else
    it only changes the answer.
    """

    text: str
    hint: str
    refused: bool


def check(
    tuning: Tuning, plan: PinPlan, topology: Topology, rt_runtime_us: int
) -> list[PinProblem]:
    """Return what is wrong with `tuning` on this host, refusals first; [] when nothing is.

    `rt_runtime_us` is /proc/sys/kernel/sched_rt_runtime_us (-1: real-time threads are not
    throttled; sched(7), "Limiting the CPU usage of real-time and deadline processes").
    """
    pins = placement(tuning, plan)
    problems = [
        *_pins_out_of_reach("vCPU", "vcpus", pins.vcpus, len(plan.vcpus), 0, topology),
        *_pins_out_of_reach("iothread", "iothreads", pins.iothreads, tuning.iothreads, 1, topology),
        *_pins_out_of_reach("the emulator", "emulator", _emulator(pins.emulator), 1, 0, topology),
        *_too_many_vcpus(plan, topology),
        *_no_memory_near(tuning, plan, topology),
        *_realtime(tuning, plan, topology, rt_runtime_us),
    ]
    return sorted(problems, key=lambda problem: not problem.refused)


def refuse(tuning: Tuning, problems: Iterable[PinProblem]) -> None:
    """Raise UsageError with every refusal among `problems`; nothing when there is none."""
    refusals = [problem for problem in problems if problem.refused]
    if refusals:
        raise UsageError(
            f"tuning '{tuning.name}': " + "; ".join(problem.text for problem in refusals),
            hint=" ".join(dict.fromkeys(problem.hint for problem in refusals)),
        )


def _emulator(cpus: CpuSet | None) -> Mapping[int, CpuSet]:
    return {} if cpus is None else {0: cpus}


def _pins_out_of_reach(
    what: str,
    key: str,
    pins: Mapping[int, CpuSet],
    count: int,
    first: int,
    topology: Topology,
) -> list[PinProblem]:
    reach = format_cpus(topology.pinnable)
    hint = f"Give 'pin.{key}' a subset of {reach}, or 'plan' for a plan from the topology."
    problems = []
    for number, cpus in sorted(pins.items()):
        name = what if key == "emulator" else f"{what} {number}"
        if not first <= number < first + count:
            numbers = format_cpus(range(first, first + count)) or "none"
            text = f"'pin.{key}' names {name}, and the guest has {what}s {numbers}"
            problems.append(
                PinProblem(text=text, hint=f"Leave {name} out of 'pin.{key}'.", refused=True)
            )
        elif wrong := cpus - topology.pinnable:
            absent = wrong - topology.present
            offline = (wrong & topology.present) - topology.online
            if absent:
                wrong, why = absent, f"the host has CPUs {format_cpus(topology.present)}"
            elif offline:
                wrong, why = offline, f"it is offline, CPUs {format_cpus(topology.online)} are not"
            else:
                why = f"labctl's affinity or cpuset allows CPUs {reach}"
            text = f"cannot pin {name} to CPU {format_cpus(wrong)}: {why}"
            problems.append(PinProblem(text=text, hint=hint, refused=True))
        elif not cpus:
            text = f"'pin.{key}' gives {name} no CPU"
            problems.append(PinProblem(text=text, hint=hint, refused=True))
    return problems


def _too_many_vcpus(plan: PinPlan, topology: Topology) -> list[PinProblem]:
    if len(plan.vcpus) <= len(topology.pinnable):
        return []
    return [
        PinProblem(
            text=f"the guest has {len(plan.vcpus)} vCPUs and the host {len(topology.pinnable)} "
            "usable CPUs",
            hint=f"Give the guest at most {_vcpus(len(topology.pinnable))}.",
            refused=True,
        )
    ]


def _no_memory_near(tuning: Tuning, plan: PinPlan, topology: Topology) -> list[PinProblem]:
    bare = frozenset(plan.vcpu_nodes) - topology.memory_nodes
    if not bare or not (tuning.memory.numa or tuning.memory.cells):
        return []
    return [
        PinProblem(
            text=f"the guest's memory cannot lie on NUMA node {format_cpus(bare)}, where its vCPUs "
            "are: it has none",
            hint="Give the guest as few vCPUs as the nodes with memory have room for "
            f"(nodes {format_cpus(topology.memory_nodes)}).",
            refused=True,
        )
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Threads:
    """Hold a guest's threads under one real-time policy."""

    sched: Sched
    where: list[CpuSet]
    """CPUs on which each may run."""

    @property
    def name(self) -> str:
        return f"SCHED_{self.sched.policy.upper()}"


def _realtime(
    tuning: Tuning, plan: PinPlan, topology: Topology, rt_runtime_us: int
) -> list[PinProblem]:
    pins = placement(tuning, plan)
    numbers = range(1, tuning.iothreads + 1)
    kinds = [
        _Threads(sched=sched, where=where)
        for sched, where in (
            (tuning.vcpu_sched, _vcpu_cpus(tuning, plan)),
            (tuning.emulator_sched, [pins.emulator or plan.usable]),
            (tuning.iothread_sched, [pins.iothreads.get(n, plan.usable) for n in numbers]),
        )
        if sched is not None and sched.policy.realtime
    ]
    if not kinds:
        return []
    name = " and ".join(dict.fromkeys(threads.name for threads in kinds))
    problems = [
        *_starved_housekeeping(
            name, [cpus for kind in kinds for cpus in kind.where], plan, topology, rt_runtime_us
        ),
        *_throttled(name, rt_runtime_us),
    ]
    if tuning.vcpu_sched is None or not tuning.vcpu_sched.policy.realtime:
        return problems
    vcpus = kinds[0]
    if len(topology.pinnable) == 1:
        only = "the host's only CPU" if len(plan.online) == 1 else "the only CPU that labctl has"
        return [
            PinProblem(
                text=f"{vcpus.name} on {only} would starve everything else on it",
                hint="Take a tuning without a real-time policy, or a host with two CPUs.",
                refused=True,
            )
        ]
    return [*_crowded(vcpus), *_starved_helpers(tuning, vcpus, plan, topology), *problems]


def _vcpu_cpus(tuning: Tuning, plan: PinPlan) -> list[CpuSet]:
    """Return where each vCPU (natively: each CPU's share of the workload) may run."""
    if tuning.kind is Kind.NATIVE:
        # The workload runs on the vCPUs' CPUs, as many threads as it likes on each.
        cpus = plan.vcpu_cpus if tuning.pin.vcpus is not None else plan.usable
        return [frozenset({cpu}) for cpu in sorted(cpus)]
    pins = placement(tuning, plan).vcpus
    return [pins.get(number, plan.usable) for number in range(len(plan.vcpus))]


def _crowded(vcpus: _Threads) -> list[PinProblem]:
    """More real-time vCPUs confined to some CPUs than there are CPUs.

    One that spins for a lock never lets the other, which holds it, run: FIFO hangs the guest, RR
    lets it crawl.
    """
    for cpus in dict.fromkeys([*vcpus.where, frozenset().union(*vcpus.where)]):
        crowd = sum(1 for others in vcpus.where if others <= cpus)
        if crowd > len(cpus):
            fifo = vcpus.sched.policy is Policy.FIFO
            means = "one that spins hangs the guest" if fifo else "each waits for the other's slice"
            return [
                PinProblem(
                    text=f"{crowd} vCPUs under {vcpus.name} on CPU {format_cpus(cpus)}: {means}",
                    hint="Pin each vCPU to a CPU of its own ('pin.vcpus: plan'), or give the guest "
                    "fewer vCPUs.",
                    refused=fifo,
                )
            ]
    return []


def _starved_housekeeping(
    name: str, where: list[CpuSet], plan: PinPlan, topology: Topology, rt_runtime_us: int
) -> list[PinProblem]:
    """Real-time threads that can take every CPU of housekeeping's, or every CPU onto which the
    kernel could move what they keep from running: no isolated one."""
    confined = [cpus for cpus in where if cpus <= plan.housekeeping]
    shared = topology.usable - topology.isolated or topology.usable
    if _can_fill(plan.housekeeping, confined):
        taken = plan.housekeeping
    elif _can_fill(shared, where):
        taken = shared
    else:
        return []
    unthrottled = rt_runtime_us < 0
    who = "the host" if topology.usable == topology.online else "labctl, in its cpuset,"
    left = (
        f"and real-time throttling is off: {who} would stop answering"
        if unthrottled
        else f"and the host keeps {100 * (1 - rt_runtime_us / RT_PERIOD_US):.3g} % of it"
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


def _can_fill(cpus: CpuSet, where: list[CpuSet]) -> bool:
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
    tuning: Tuning, vcpus: _Threads, plan: PinPlan, topology: Topology
) -> list[PinProblem]:
    """Emulator threads and iothreads that can run only where a real-time vCPU does: while it
    spins, no timer, no disk and no QMP command of this guest is served."""
    if tuning.kind is Kind.NATIVE:
        return []
    taken = frozenset(cpu for cpus in vcpus.where if len(cpus) == 1 for cpu in cpus)
    pins = placement(tuning, plan)
    helpers = [("the emulator threads", pins.emulator, tuning.emulator_sched)]
    for number, cpus in sorted(pins.iothreads.items()):
        helpers.append((f"iothread {number}", cpus, tuning.iothread_sched))
    return [
        PinProblem(
            text=f"{who} can run only on CPU {format_cpus(cpus)}, which a vCPU under {vcpus.name} "
            "takes",
            hint="Leave one CPU without a vCPU: at most "
            f"{_vcpus(len(topology.pinnable) - 1)} here.",
            refused=True,
        )
        for who, cpus, own in helpers
        if cpus and cpus <= taken and not _outranks(own, vcpus.sched)
    ]


def _vcpus(count: int) -> str:
    return f"{count} vCPU" if count == 1 else f"{count} vCPUs"


def _outranks(own: Sched | None, other: Sched) -> bool:
    return own is not None and own.policy.realtime and own.priority > other.priority


def _throttled(name: str, rt_runtime_us: int) -> list[PinProblem]:
    if not 0 <= rt_runtime_us < RT_PERIOD_US:
        return []
    if rt_runtime_us == 0:
        return [
            PinProblem(
                text=f"{name} threads get no CPU time: sched_rt_runtime_us is 0",
                hint="Run 'sysctl kernel.sched_rt_runtime_us=950000', the kernel's default.",
                refused=True,
            )
        ]
    stall_ms = (RT_PERIOD_US - rt_runtime_us) / 1000
    return [
        PinProblem(
            text=f"real-time throttling may stop {name} threads for {stall_ms:g} ms in each second",
            hint="Read maxima with that in mind; the host's safety is worth it.",
            refused=False,
        )
    ]
