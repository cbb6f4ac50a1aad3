"""What would hang guest or host is refused, what only changes the answer is a warning."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from labctl.base.errors import UsageError
from labctl.base.placement import PinProblem, refuse
from labctl.base.tuning import Kind, Pin, Policy, Sched, Tuning
from labctl.domain.pinning.pin_check import check
from labctl.domain.pinning.pin_plan import pin_plan
from labctl.host.topology import Topology

from . import hosts

THROTTLED, UNTHROTTLED = 950_000, -1
FIFO = Sched(policy=Policy.FIFO, priority=1)
RR = Sched(policy=Policy.RR, priority=1)

EIGHT = hosts.topology([[n] for n in range(8)])


def guest(
    vcpus: str | Mapping[int, frozenset[int]] | None = "plan",
    *,
    emulator: str | frozenset[int] | None = "plan",
    iothreads: str | Mapping[int, frozenset[int]] | None = None,
    sched: Sched | None = None,
    emulator_sched: Sched | None = None,
) -> Tuning:
    return Tuning(
        name="t",
        description="",
        kind=Kind.GUEST,
        pin=Pin(vcpus=vcpus, emulator=emulator, iothreads=iothreads),
        iothreads=1 if iothreads else 0,
        vcpu_sched=sched,
        emulator_sched=emulator_sched,
    )


def problems(
    tuning: Tuning, host: Topology, vcpus: int, rt_runtime_us: int = THROTTLED
) -> list[PinProblem]:
    return check(tuning, pin_plan(host, vcpus, 1), host, rt_runtime_us)


def refusals(
    tuning: Tuning, host: Topology, vcpus: int, rt_runtime_us: int = THROTTLED
) -> list[str]:
    return [p.text for p in problems(tuning, host, vcpus, rt_runtime_us) if p.refused]


def test_a_pinned_guest_on_two_cpus_has_no_problem() -> None:
    assert problems(guest(), hosts.TWO_CPUS, 1) == []


def test_a_pin_to_a_cpu_that_the_host_lacks_is_refused_in_one_sentence() -> None:
    tuning = guest({3: frozenset({9})})
    with pytest.raises(UsageError) as caught:
        refuse(tuning.name, problems(tuning, EIGHT, 4))
    assert caught.value.message == ("tuning 't': cannot pin vCPU 3 to CPU 9: the host has CPUs 0-7")
    assert caught.value.hint == (
        "Give 'pin.vcpus' a subset of 0-7, or 'plan' for a plan from the topology."
    )


@pytest.mark.parametrize(
    ("tuning", "text"),
    [
        (guest({0: frozenset({7})}), "cannot pin vCPU 0 to CPU 7: it is offline"),
        (guest({0: frozenset({6})}), "cannot pin vCPU 0 to CPU 6: labctl's affinity"),
        (guest({0: frozenset()}), "'pin.vcpus' gives vCPU 0 no CPU"),
        (guest({5: frozenset({1})}), "'pin.vcpus' names vCPU 5, and the guest has vCPUs 0-1"),
        (guest(emulator=frozenset({99})), "cannot pin the emulator to CPU 99"),
        (guest(iothreads={2: frozenset({1})}), "names iothread 2, and the guest has iothreads 1"),
        (guest(iothreads={0: frozenset({1})}), "names iothread 0"),
    ],
)
def test_a_pin_out_of_reach_is_refused_with_the_reason(tuning: Tuning, text: str) -> None:
    host = hosts.topology([[n] for n in range(8)], offline=[7], allowed=[0, 1, 2, 3, 4, 5])
    assert any(text in line for line in refusals(tuning, host, 2))


def test_two_fifo_vcpus_on_one_cpu_are_refused() -> None:
    together = {0: frozenset({1}), 1: frozenset({1})}
    assert "2 vCPUs under SCHED_FIFO on CPU 1: one that spins hangs the guest" in refusals(
        guest(together, sched=FIFO), EIGHT, 2
    )


def test_two_rr_vcpus_on_one_cpu_are_a_warning() -> None:
    found = problems(guest({0: frozenset({1}), 1: frozenset({1})}, sched=RR), EIGHT, 2)
    assert [p.refused for p in found if "2 vCPUs under SCHED_RR on CPU 1" in p.text] == [False]


def test_three_fifo_vcpus_on_two_cpus_are_refused() -> None:
    pair = frozenset({1, 2})
    found = refusals(guest({0: pair, 1: pair, 2: pair}, sched=FIFO), EIGHT, 3)
    assert any("3 vCPUs under SCHED_FIFO on CPU 1-2" in line for line in found)


def test_two_ordinary_vcpus_may_share_a_cpu() -> None:
    assert problems(guest({0: frozenset({1}), 1: frozenset({1})}), EIGHT, 2) == []


@pytest.mark.parametrize("rt_runtime_us", [THROTTLED, UNTHROTTLED])
def test_fifo_on_the_only_cpu_is_refused(rt_runtime_us: int) -> None:
    found = refusals(guest(sched=FIFO), hosts.ONE_CPU, 1, rt_runtime_us)
    assert found == ["SCHED_FIFO on the host's only CPU would starve everything else on it"]


def test_fifo_on_the_last_housekeeping_cpu_is_refused_where_nothing_throttles_it() -> None:
    tuning = guest({0: frozenset({0})}, emulator=None, sched=FIFO)
    assert any(
        "the host would stop answering" in line
        for line in refusals(tuning, hosts.TWO_CPUS, 1, UNTHROTTLED)
    )
    assert refusals(tuning, hosts.TWO_CPUS, 1, THROTTLED) == []
    warned = [p.text for p in problems(tuning, hosts.TWO_CPUS, 1, THROTTLED)]
    assert any("and the host keeps 5 % of it" in line for line in warned)


def test_free_fifo_vcpus_on_every_cpu_are_refused_where_nothing_throttles_them() -> None:
    tuning = guest(None, emulator=None, sched=FIFO)
    assert refusals(tuning, hosts.TWO_CPUS, 2, UNTHROTTLED)
    assert not refusals(tuning, hosts.TWO_CPUS, 1, UNTHROTTLED), "one CPU is always left"


def test_an_emulator_that_only_has_a_fifo_vcpus_cpu_is_refused() -> None:
    found = refusals(guest(emulator=frozenset({1}), sched=FIFO), hosts.TWO_CPUS, 1)
    assert found == [
        "the emulator threads can run only on CPU 1, which a vCPU under SCHED_FIFO takes"
    ]


def test_an_iothread_that_only_has_an_rr_vcpus_cpu_is_refused() -> None:
    tuning = guest(iothreads={1: frozenset({1})}, sched=RR)
    assert any("iothread 1 can run only on CPU 1" in line for line in refusals(tuning, EIGHT, 1))


def test_an_emulator_of_higher_priority_may_share_a_fifo_vcpus_cpu() -> None:
    higher = Sched(policy=Policy.FIFO, priority=2)
    tuning = guest(emulator=frozenset({1}), sched=FIFO, emulator_sched=higher)
    assert refusals(tuning, hosts.TWO_CPUS, 1) == []


def test_a_fifo_guest_that_takes_all_cpus_is_refused() -> None:
    assert refusals(guest(sched=FIFO), hosts.TWO_CPUS, 2)


def test_throttling_is_a_warning_that_names_the_stall() -> None:
    (found,) = problems(guest(sched=FIFO), hosts.TWO_CPUS, 1)
    assert not found.refused
    assert "for 50 ms in each second" in found.text


def test_no_throttling_and_a_spare_cpu_is_no_problem() -> None:
    assert problems(guest(sched=FIFO), hosts.TWO_CPUS, 1, UNTHROTTLED) == []


def test_a_host_that_gives_real_time_threads_nothing_refuses_them() -> None:
    assert any("get no CPU time" in line for line in refusals(guest(sched=FIFO), EIGHT, 1, 0))


def native(pinned: bool) -> Tuning:
    return Tuning(
        name="n",
        description="",
        kind=Kind.NATIVE,
        pin=Pin(vcpus="plan" if pinned else None),
        vcpu_sched=FIFO,
    )


def test_a_native_fifo_workload_is_held_to_the_same_rules() -> None:
    assert refusals(native(True), hosts.TWO_CPUS, 1, UNTHROTTLED) == []
    assert refusals(native(False), hosts.TWO_CPUS, 1, UNTHROTTLED), "it may fill every CPU"
    assert refusals(native(True), hosts.ONE_CPU, 1)


def test_refusals_come_first_and_warnings_alone_refuse_nothing() -> None:
    found = problems(guest({0: frozenset({9})}, sched=FIFO), EIGHT, 1)
    assert [p.refused for p in found] == sorted((p.refused for p in found), reverse=True)
    refuse(guest().name, [PinProblem(text="w", hint="h", refused=False)])
