"""Check what a tuning's pins and policies would do to this host: refuse those that hang it or the
guest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from labctl.base.cpus import CpuSet, format_cpus
from labctl.base.placement import (
    GuestThreads,
    HostCpus,
    PinProblem,
    Thread,
    absent_cpus,
    realtime_problems,
    vcpus_text,
)
from labctl.base.tuning import Kind, Policy, Sched, Tuning
from labctl.domain.pinning.pin_plan import PinPlan, placement
from labctl.host.topology import Topology


def check(
    tuning: Tuning, plan: PinPlan, topology: Topology, rt_runtime_us: int
) -> list[PinProblem]:
    """Return the problems of `tuning` on this host, refusals first; [] if there are none.

    `rt_runtime_us` is /proc/sys/kernel/sched_rt_runtime_us (-1: real-time threads are not
    throttled; sched(7), "Limiting the CPU usage of real-time and deadline processes").
    """
    pins = placement(tuning, plan)
    host = replace(plan.host, rt_runtime_us=rt_runtime_us)
    problems = [
        *_pins_out_of_reach("vCPU", "vcpus", pins.vcpus, len(plan.vcpus), 0, host),
        *_pins_out_of_reach("iothread", "iothreads", pins.iothreads, tuning.iothreads, 1, host),
        *_pins_out_of_reach("the emulator", "emulator", _emulator(pins.emulator), 1, 0, host),
        *_too_many_vcpus(plan, topology),
        *_no_memory_near(tuning, plan, topology),
        *realtime_problems(threads_of(tuning, plan), host),
    ]
    return sorted(problems, key=lambda problem: not problem.refused)


def threads_of(tuning: Tuning, plan: PinPlan) -> GuestThreads:
    """Return where the threads of a guest with that tuning may run, and under which policies."""
    pins = placement(tuning, plan)
    if tuning.kind is Kind.NATIVE:
        # The workload runs on the vCPUs' CPUs, with any number of threads on each.
        cpus = plan.vcpu_cpus if tuning.pin.vcpus is not None else plan.usable
        return GuestThreads(
            vcpus=[Thread(frozenset({cpu}), tuning.vcpu_sched) for cpu in sorted(cpus)]
        )
    return GuestThreads(
        vcpus=[
            Thread(pins.vcpus.get(number, plan.usable), tuning.vcpu_sched)
            for number in range(len(plan.vcpus))
        ],
        emulator=Thread(pins.emulator or plan.usable, tuning.emulator_sched),
        iothreads={
            number: Thread(pins.iothreads.get(number, plan.usable), tuning.iothread_sched)
            for number in range(1, tuning.iothreads + 1)
        },
    )


def plan_refusals(plan: PinPlan, rt_runtime_us: int) -> list[PinProblem]:
    """Return why this plan's vCPUs cannot have SCHED_FIFO if everything is pinned by it; [] if they
    can."""
    fifo = Sched(policy=Policy.FIFO, priority=1)
    threads = GuestThreads(
        vcpus=[Thread(frozenset({cpu}), fifo) for cpu in plan.vcpus],
        emulator=Thread(plan.emulator),
        iothreads={number: Thread(cpus) for number, cpus in enumerate(plan.iothreads, 1)},
    )
    found = realtime_problems(threads, replace(plan.host, rt_runtime_us=rt_runtime_us))
    return [problem for problem in found if problem.refused]


def _emulator(cpus: CpuSet | None) -> Mapping[int, CpuSet]:
    return {} if cpus is None else {0: cpus}


def _pins_out_of_reach(
    what: str,
    key: str,
    pins: Mapping[int, CpuSet],
    count: int,
    first: int,
    host: HostCpus,
) -> list[PinProblem]:
    reach = format_cpus(host.pinnable)
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
        elif wrong := cpus - host.pinnable:
            wrong, why = absent_cpus(wrong, host)
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
            hint=f"Give the guest at most {vcpus_text(len(topology.pinnable))}.",
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
