"""What holds for a pin plan on any host, of whatever shape: generated ones, liars included."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labctl.base.errors import UsageError
from labctl.base.tuning import Kind, Pin, Policy, Sched, Strategy, Tuning
from labctl.domain.pinning.pin_check import check
from labctl.domain.pinning.pin_picture import picture
from labctl.domain.pinning.pin_plan import PinPlan, default_vcpus, pin_plan
from labctl.host.topology import EFFICIENT, PERFORMANCE, Cpu, Topology

THROTTLED, UNTHROTTLED = 950_000, -1


@st.composite
def topologies(draw: st.DrawFn, liars: bool = True) -> Topology:
    """Any host: packages, nodes and caches in any nesting, SMT, kinds of core, holes, limits.
    `liars`: also those whose firmware contradicts itself."""
    cores = draw(st.integers(1, 12))
    threads = draw(st.sampled_from([1, 1, 2, 2, 4]))
    adjacent = draw(st.booleans())
    packages = draw(st.integers(1, 3))
    nodes = draw(st.integers(1, 4))
    cores_per_l3 = draw(st.one_of(st.none(), st.integers(1, cores)))
    hybrid = draw(st.booleans())
    count = cores * threads
    numbers = st.sets(st.integers(0, count - 1), max_size=count)
    offline = draw(numbers)
    allowed = draw(st.one_of(st.just(set(range(count))), numbers))
    isolated = draw(st.one_of(st.just(set()), numbers))
    lies = liars and draw(st.booleans())  # sysfs that contradicts itself about siblings
    cpus = []
    for number in range(count):
        if number in offline:
            cpus.append(Cpu(number=number, online=False))
            continue
        core = number // threads if adjacent else number % cores
        siblings = {n for n in range(count) if (n // threads if adjacent else n % cores) == core}
        if lies:
            siblings = draw(numbers)
        cpus.append(
            Cpu(
                number=number,
                package=core * packages // cores,
                core=core,
                siblings=frozenset(siblings - offline | {number}),
                l3=None if cores_per_l3 is None else core // cores_per_l3,
                node=core * nodes // cores,
                kind=(PERFORMANCE if core % 3 else EFFICIENT) if hybrid else "",
            )
        )
    memory = draw(st.sets(st.integers(0, nodes - 1), min_size=1))
    host = Topology(
        cpus=tuple(cpus),
        allowed=frozenset(allowed),
        memory_nodes=frozenset(memory),
        isolated=frozenset(isolated - offline),
    )
    if not host.usable:
        host = replace(
            host,
            cpus=(Cpu(number=0, siblings=frozenset({0})), *cpus[1:]),
            allowed=frozenset({0, *allowed}),
        )
    return host


@given(topologies(), st.floats(0, 1), st.integers(0, 3), st.sampled_from(Strategy))
def test_any_plan_keeps_the_rules(
    host: Topology, taken: float, iothreads: int, strategy: Strategy
) -> None:
    vcpus = max(1, round(taken * len(host.pinnable)))
    try:
        plan = pin_plan(host, vcpus, iothreads, strategy)
    except UsageError:
        if strategy in (Strategy.NODE, Strategy.SIBLINGS):
            return
        raise
    assert len(plan.vcpus) == len(plan.vcpu_cpus) == vcpus
    assert plan.vcpu_cpus | plan.emulator | plan.housekeeping <= host.pinnable
    assert plan.housekeeping <= host.usable
    assert len(plan.iothreads) == iothreads
    helpers = plan.emulator.union(*plan.iothreads)
    if vcpus < len(host.pinnable):
        assert not plan.vcpu_cpus & plan.housekeeping
        assert not plan.vcpu_cpus & helpers
    _says_what_shares(plan)
    sockets, cores, threads = plan.guest_topology
    assert sockets * cores * threads == vcpus
    assert pin_plan(host, vcpus, iothreads, strategy) == plan
    assert picture([plan], host)


def _says_what_shares(plan: PinPlan) -> None:
    for cpu, roles in plan.roles().items():
        said = [line for line in plan.shares if line.startswith(f"CPU {cpu} is shared by ")]
        assert len(said) == (len(roles) > 1)
        assert all(role in line for line in said for role in roles)


@given(topologies(), st.integers(1, 48))
def test_guest_threads_are_threads_of_one_core_of_the_host(host: Topology, vcpus: int) -> None:
    plan = pin_plan(host, min(vcpus, len(host.pinnable)), 0)
    _, _, threads = plan.guest_topology
    for at in range(0, len(plan.vcpus), threads):
        together = plan.vcpus[at : at + threads]
        assert any(set(together) <= core for core in host.cores(plan.vcpu_cpus))


@given(topologies(), st.integers(1, 48))
def test_vcpus_leave_a_node_only_when_none_has_room(host: Topology, vcpus: int) -> None:
    host = replace(host, isolated=frozenset(), memory_nodes=frozenset(range(4)))
    host = replace(host, cpus=tuple(replace(cpu, kind="") for cpu in host.cpus))
    plan = pin_plan(host, min(vcpus, len(host.usable)), 0)
    if len(set(plan.vcpu_nodes)) > 1:
        free = host.usable - (plan.housekeeping - plan.vcpu_cpus)
        rooms = [sum(host.cpu(n).node == node for n in free) for node in range(4)]
        assert max(rooms) < len(plan.vcpus)


@given(topologies())
def test_the_default_number_of_vcpus_always_has_a_plan(host: Topology) -> None:
    vcpus = default_vcpus(host)
    assert 1 <= vcpus <= 4
    assert len(pin_plan(host, vcpus, 1).vcpus) == vcpus


@given(topologies(), st.integers(1, 48))
def test_vcpus_leave_a_cache_only_when_none_has_room(host: Topology, vcpus: int) -> None:
    """Where all have memory, one kind of core and none is isolated, which matter more."""
    host = replace(host, isolated=frozenset(), memory_nodes=frozenset(range(4)))
    host = replace(host, cpus=tuple(replace(cpu, kind="") for cpu in host.cpus))
    plan = pin_plan(host, min(vcpus, len(host.usable)), 0)
    caches: dict[object, set[int]] = {}
    for number in host.usable - (plan.housekeeping - plan.vcpu_cpus):
        caches.setdefault(cache(host.cpu(number)), set()).add(number)
    if len({cache(host.cpu(number)) for number in plan.vcpus}) > 1:
        assert max(map(len, caches.values())) < len(plan.vcpus)


def cache(cpu: Cpu) -> object:
    return cpu.package, cpu.node, cpu.l3


@given(topologies(liars=False), st.integers(1, 24))
def test_siblings_are_siblings(host: Topology, pairs: int) -> None:
    try:
        plan = pin_plan(host, 2 * pairs, 0, Strategy.SIBLINGS)
    except UsageError:
        return
    for first, second in zip(plan.vcpus[::2], plan.vcpus[1::2], strict=True):
        assert any({first, second} <= core for core in host.cores(host.pinnable))


def realtime(policy: Policy, iothreads: int) -> Tuning:
    """All of a guest's threads pinned by the plan, its vCPUs under `policy`."""
    return Tuning(
        name="t",
        description="",
        kind=Kind.GUEST,
        pin=Pin(vcpus="plan", emulator="plan", iothreads="plan" if iothreads else None),
        iothreads=iothreads,
        vcpu_sched=Sched(policy=policy, priority=1),
    )


@given(topologies(), st.floats(0, 1), st.integers(0, 3), st.sampled_from(Strategy))
def test_what_is_not_refused_leaves_helpers_and_host_a_cpu(
    host: Topology, taken: float, iothreads: int, strategy: Strategy
) -> None:
    vcpus = max(1, round(taken * len(host.pinnable)))
    try:
        plan = pin_plan(host, vcpus, iothreads, strategy)
    except UsageError:
        return
    tuning = realtime(Policy.FIFO, iothreads)
    for runtime in (THROTTLED, UNTHROTTLED):
        if any(problem.refused for problem in check(tuning, plan, host, runtime)):
            continue
        # A spinning vCPU under FIFO leaves a CPU only to what outranks it, which nothing here does.
        assert plan.emulator - plan.vcpu_cpus
        assert all(cpus - plan.vcpu_cpus for cpus in plan.iothreads)
        assert plan.housekeeping - plan.vcpu_cpus or runtime == THROTTLED


@pytest.mark.parametrize("policy", [Policy.FIFO, Policy.RR])
@given(host=topologies(), taken=st.floats(0, 1), iothreads=st.integers(0, 3))
def test_a_guest_that_leaves_a_cpu_is_not_refused(
    policy: Policy, host: Topology, taken: float, iothreads: int
) -> None:
    """Refused is what could hang guest or host, and nothing else."""
    vcpus = max(1, round(taken * len(host.pinnable)))
    plan = pin_plan(host, vcpus, iothreads)
    if vcpus < len(host.pinnable):
        for runtime in (THROTTLED, UNTHROTTLED):
            found = check(realtime(policy, iothreads), plan, host, runtime)
            assert not [problem.text for problem in found if problem.refused]
