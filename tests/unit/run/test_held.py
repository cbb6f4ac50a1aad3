"""Threads before and after a trial's window, held to what was asked of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from labctl.base.errors import BrokenError
from labctl.base.tuning import Policy, Sched
from labctl.domain.asked import ExpectedThread, expected_workload
from labctl.run.trials.window_checks import held

FIFO = Sched(policy=Policy.FIFO, priority=1)
VCPU = ExpectedThread(role="vcpu", index=0, cpus=frozenset({1}), policy="fifo", priority=1)
EMULATOR = ExpectedThread(role="emulator", index=0, cpus=frozenset({0}), policy="other", priority=0)
IOTHREAD = ExpectedThread(role="iothread", index=1, cpus=frozenset({1}), policy="other", priority=0)
GUEST = (VCPU, EMULATOR)
NATIVE = (expected_workload(frozenset({1}), FIFO),)
POLICIES = {"other": 0, "fifo": 1, "rr": 2, "batch": 3}


def row(tid: int, role: str, cpus: str, policy: str = "other", **more: Any) -> dict[str, Any]:
    """A thread of a snapshot. `more`: its name, number, priority and nice value."""
    given = {"comm": role, "index": 0, "priority": 0, "nice": 0} | more
    comm = given["comm"]
    files = told(tid, cpus, policy, given["priority"], comm, given["nice"])
    return {**files, "role": role, "index": given["index"], "comm": comm}


def told(
    tid: int, cpus: str, policy: str, priority: int = 0, comm: str = "it", nice: int = 0
) -> dict[str, Any]:
    """A thread of the command as its runner tells of it."""
    fields = ["S"] + ["0"] * 49
    fields[16], fields[37], fields[38] = str(nice), str(priority), str(POLICIES[policy])
    return {
        "pid": tid,
        "tid": tid,
        "stat": f"{tid} ({comm}) {' '.join(fields)}\n",
        "status": f"Cpus_allowed_list:\t{cpus}\n",
    }


VCPU_ROW = row(7, "vcpu", "1", "fifo", priority=1, comm="CPU 0/KVM")
QEMU_ROW = row(5, "emulator", "0", comm="qemu-system-x86")
IDLE = {"before": [told(9, "0-1", "other")], "after": [told(9, "0-1", "other")]}


def guest(
    after: Sequence[dict[str, Any]],
    before: Sequence[dict[str, Any]] = (QEMU_ROW, VCPU_ROW),
    workload: dict[str, Any] = IDLE,
    asked: tuple[ExpectedThread, ...] = GUEST,
) -> list[str]:
    host = {"before": {"threads": list(before)}, "after": {"threads": list(after)}}
    return held(asked, host, workload, places_itself=False)[1]


def native(
    *after: dict[str, Any], before: dict[str, Any] | None = None, places_itself: bool = False
) -> list[str]:
    started = before or told(9, "1", "fifo", 1, comm="python3")
    host: dict[str, Any] = {"before": {"threads": []}, "after": {"threads": []}}
    workload = {"before": [started], "after": list(after)}
    return held(NATIVE, host, workload, places_itself=places_itself)[1]


def test_threads_that_stayed_as_asked_are_stored_and_invalidate_nothing() -> None:
    host = {at: {"threads": [QEMU_ROW, VCPU_ROW]} for at in ("before", "after")}
    stored, wrong = held(GUEST, host, IDLE, places_itself=False)
    assert wrong == []
    assert [thread["role"] for thread in stored["asked"]] == ["vcpu", "emulator", "workload"]
    for at in ("before", "after"):
        assert [thread["tid"] for thread in stored[at]] == [5, 7, 9]
    assert stored["after"][1] == {
        "tid": 7,
        "role": "vcpu",
        "index": 0,
        "comm": "CPU 0/KVM",
        "cpus": "1",
        "policy": "fifo",
        "priority": 1,
        "nice": 0,
    }


def test_a_vcpu_that_lost_its_policy_meanwhile_is_named_with_what_was_asked() -> None:
    (reason,) = guest([QEMU_ROW, row(7, "vcpu", "1", "other", comm="CPU 0/KVM")])
    assert reason == (
        "after the measured window vCPU 0 ('CPU 0/KVM', thread 7): expected policy SCHED_FIFO at "
        "priority 1, got SCHED_OTHER"
    )


def test_a_vcpu_that_had_lost_its_cpu_before_is_told_too() -> None:
    moved = row(7, "vcpu", "0-1", "fifo", priority=1)
    reasons = guest([QEMU_ROW, VCPU_ROW], before=[QEMU_ROW, moved])
    assert len(reasons) == 2
    assert reasons[0].startswith(
        "before the measured window vCPU 0 ('vcpu', thread 7): expected CPU"
    )


def test_a_vcpu_that_is_gone_is_told() -> None:
    assert guest([QEMU_ROW]) == ["after the measured window vCPU 0: no such thread"]


@pytest.mark.parametrize("role", ["vhost", "neighbour", "peer"])
@pytest.mark.parametrize(
    "change", [{"cpus": "0"}, {"policy": "batch"}, {"policy": "rr", "priority": 5}, {"nice": 5}]
)
def test_of_threads_that_nothing_is_asked_of_a_change_invalidates(
    role: str, change: dict[str, Any]
) -> None:
    then, now = (row(11, role, **({"cpus": "0-1"} | more)) for more in ({}, change))
    (reason,) = guest([QEMU_ROW, VCPU_ROW, now], before=[QEMU_ROW, VCPU_ROW, then])
    assert reason.startswith(
        f"{role} thread 0 ('{role}', thread 11): was SCHED_OTHER, nice 0, CPU "
    )


def test_another_nice_value_invalidates() -> None:
    (reason,) = guest([QEMU_ROW, row(7, "vcpu", "1", "fifo", priority=1, nice=-5)])
    assert "nice 0, CPU 1, now SCHED_FIFO at priority 1, nice -5, CPU 1" in reason


def test_threads_that_came_or_went_meanwhile_invalidate_nothing() -> None:
    born, gone = (row(tid, "emulator", "0", index=1, comm="worker") for tid in (21, 22))
    assert guest([QEMU_ROW, VCPU_ROW, born], before=[QEMU_ROW, VCPU_ROW, gone]) == []


def test_labctls_own_threads_may_move() -> None:
    then, now = (row(31, "labctl", cpus, comm="perf") for cpus in ("0", "1"))
    assert guest([QEMU_ROW, VCPU_ROW, now], before=[QEMU_ROW, VCPU_ROW, then]) == []


def test_a_helper_may_have_what_the_iothread_has_that_started_it() -> None:
    iothread = row(8, "iothread", "1", index=1)
    threads = [QEMU_ROW, VCPU_ROW, iothread]
    helper = row(21, "emulator", "1", index=1, comm="worker")
    assert guest([*threads, helper], before=threads, asked=(*GUEST, IOTHREAD)) == []
    assert guest([*threads, helper], before=threads) != []


@pytest.mark.parametrize("comm", ["kvm-nx-lpage-re", "iou-wrk-7", "vhost-5"])
def test_a_worker_that_the_kernel_makes_in_qemu_is_held_to_no_request(comm: str) -> None:
    worker = row(21, "emulator", "1", "fifo", priority=1, index=1, comm=comm)
    assert guest([QEMU_ROW, VCPU_ROW, worker]) == []


def test_a_command_in_a_guest_is_held_to_how_it_was_started() -> None:
    other = {"before": IDLE["before"], "after": [told(9, "0-1", "batch", comm="fio")]}
    (reason,) = guest([QEMU_ROW, VCPU_ROW], workload=other)
    assert reason == (
        "after the measured window the workload ('fio', thread 9): expected policy SCHED_OTHER, "
        "got SCHED_BATCH"
    )


def test_a_native_command_is_held_to_its_twin_at_its_end() -> None:
    assert native(told(9, "1", "fifo", 1)) == []
    (policy,) = native(told(9, "1", "other"))
    assert policy.startswith(
        "after the measured window the workload ('it', thread 9): expected policy"
    )
    (cpus,) = native(told(9, "0-1", "fifo", 1))
    assert cpus.endswith("expected CPU 1, got 0-1")


def test_what_a_native_command_left_running_is_held_to_its_twin_as_well() -> None:
    (reason,) = native(told(9, "1", "fifo", 1), told(10, "1", "other", comm="child"))
    assert "('child', thread 10): expected policy" in reason


def test_a_command_that_places_itself_is_held_to_its_policy_alone() -> None:
    assert native(told(9, "0", "fifo", 1), places_itself=True) == []
    (reason,) = native(told(9, "0", "other"), places_itself=True)
    assert "got SCHED_OTHER" in reason


@pytest.mark.parametrize(
    "garbage",
    [
        {},
        {"before": [], "after": []},
        {"before": IDLE["before"], "after": None},
        {"before": IDLE["before"], "after": [{}]},
        {"before": IDLE["before"], "after": [{"tid": "x", "stat": "", "status": ""}]},
        {"before": IDLE["before"], "after": [told(9, "0-99999999999", "other")]},
        {"before": IDLE["before"], "after": [told(9, "all", "other")]},
        {"before": IDLE["before"], "after": 5},
    ],
)
def test_what_no_runner_would_tell_makes_the_trial_invalid(garbage: dict[str, Any]) -> None:
    with pytest.raises(BrokenError, match="reported no threads of the command"):
        guest([QEMU_ROW, VCPU_ROW], workload=garbage)
