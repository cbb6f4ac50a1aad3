"""Compare the requested state of each thread of a machine with the actual one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from labctl.base.cpus import CpuSet, format_cpus
from labctl.base.placement import said
from labctl.base.tuning import Policy, Sched, Tuning
from labctl.domain.pinning.pin_plan import PinPlan, placement, vhost_cpus

VCPU = "vcpu"
EMULATOR = "emulator"
IOTHREAD = "iothread"
VHOST = "vhost"
WORKLOAD = "workload"

_OF_THE_KERNEL = ("vhost-", "kvm-", "iou-")
"""Prefixes of threads that the kernel makes inside QEMU's process: they inherit from the thread
that first needed them, or from none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedThread:
    """Describe a thread that should exist. `index`: the vCPU's number from 0, the iothread's from
    1; 0 for others.
    """

    role: str
    index: int
    cpus: CpuSet
    policy: str
    priority: int
    slice_ns: int = 0
    """Time slice; 0: none is requested."""
    nice: int | None = None
    """Nice value; None: none is requested."""

    def to_json(self) -> dict[str, Any]:
        return {
            "role": self.role,
            "index": self.index,
            "cpus": format_cpus(self.cpus),
            "policy": self.policy,
            "priority": self.priority,
            **({"slice_ns": self.slice_ns} if self.slice_ns else {}),
            **({} if self.nice is None else {"nice": self.nice}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadState:
    """Describe a thread as /proc shows it. `policy` by chrt(1)'s names. Emulator threads: 0 is
    QEMU's main thread, the others (RCU, workers) follow by thread id."""

    tid: int
    role: str
    index: int
    comm: str
    cpus: CpuSet
    policy: str
    priority: int
    nice: int
    slice_ns: int | None = None
    """Time slice; None if it is unknown."""

    def to_json(self) -> dict[str, Any]:
        known = {} if self.slice_ns is None else {"slice_ns": self.slice_ns}
        return {
            "tid": self.tid,
            "role": self.role,
            "index": self.index,
            "comm": self.comm,
            "cpus": format_cpus(self.cpus),
            "policy": self.policy,
            "priority": self.priority,
            "nice": self.nice,
            **known,
        }


def expected_threads(tuning: Tuning, plan: PinPlan, allowed: CpuSet) -> list[ExpectedThread]:
    """Return the expected state of each thread of a guest. `allowed`: where a thread that is not
    pinned may run, which is every CPU that labctl may use (`Topology.usable`)."""
    pins = placement(tuning, plan)

    def expected(role: str, index: int, cpus: CpuSet | None, sched: Sched | None) -> ExpectedThread:
        return _expected(role, index, allowed if cpus is None else cpus, sched)

    return [
        *(
            expected(VCPU, number, pins.vcpus.get(number), tuning.vcpu_sched)
            for number in range(len(plan.vcpus))
        ),
        expected(EMULATOR, 0, pins.emulator, tuning.emulator_sched),
        *(
            expected(IOTHREAD, number, pins.iothreads.get(number), tuning.iothread_sched)
            for number in range(1, tuning.iothreads + 1)
        ),
    ]


def expected_workload(
    cpus: CpuSet, sched: Sched | None, tuning: Tuning | None = None
) -> ExpectedThread:
    """Return the expected state of a command with these CPUs and this policy, and the tuning's
    slice and nice value."""
    expected = _expected(WORKLOAD, 0, cpus, sched)
    if tuning is None:
        return expected
    return replace(expected, slice_ns=tuning.vcpu_slice_ns, nice=tuning.nice)


def urged(
    expected: Iterable[ExpectedThread], tuning: Tuning, plan: PinPlan
) -> list[ExpectedThread]:
    """Return the same threads, with the settings that are not in the XML: the tuning's nice value
    for all of them, its time slice for the vCPUs, and the CPUs of vhost's workers."""
    vhost = vhost_cpus(tuning, plan)
    workers = [] if vhost is None else [_expected(VHOST, 0, vhost, None)]
    return [
        replace(one, nice=tuning.nice, slice_ns=tuning.vcpu_slice_ns if one.role == VCPU else 0)
        for one in [*expected, *workers]
    ]


def mismatches(expected: Iterable[ExpectedThread], states: Iterable[ThreadState]) -> list[str]:
    """Return a sentence for each thread whose CPUs or state are wrong; [] if there is none."""
    expected, states = list(expected), list(states)
    missing = [
        f"{_name(want.role, want.index)}: no such thread"
        for want in expected
        if not any(_is_meant(want, state) for state in states)
    ]
    return [*missing, *(text for state in states for text in _wrong_with(expected, state))]


def changes(
    expected: Iterable[ExpectedThread],
    before: Iterable[ThreadState],
    after: Iterable[ThreadState],
) -> list[str]:
    """Return a sentence for each thread that has changed and that `mismatches` does not report: one
    without a request, or whose nice value was changed."""
    expected = list(expected)
    then = {(state.tid, state.role): state for state in before}
    return [
        f"{_full_name(state)}: was {_described(was)}, now {_described(state)}"
        for state in after
        if (was := then.get((state.tid, state.role))) is not None
        and _described(was) != _described(state)
        and not _wrong_with(expected, state)
    ]


def _expected(role: str, index: int, cpus: CpuSet, sched: Sched | None) -> ExpectedThread:
    sched = sched or Sched(policy=Policy.OTHER)
    return ExpectedThread(
        role=role, index=index, cpus=cpus, policy=str(sched.policy), priority=sched.priority
    )


def _is_meant(want: ExpectedThread, state: ThreadState) -> bool:
    is_one = want.role in (VCPU, IOTHREAD)
    return state.role == want.role and (state.index == want.index or not is_one)


def _wrong_with(expected: Sequence[ExpectedThread], state: ThreadState) -> list[str]:
    """Return how a thread differs from the request; [] without a request."""
    is_helper = state.role == EMULATOR and state.index > 0
    if is_helper and state.comm.startswith(_OF_THE_KERNEL):
        return []
    wanted = [want for want in expected if _is_meant(want, state)]
    if is_helper:
        # A helper inherits from the thread that started it: the main thread, perhaps before its
        # policy was set, or an iothread.
        wanted += [replace(want, policy="other", priority=0) for want in wanted]
        wanted += [want for want in expected if want.role == IOTHREAD]
    differences = [_differences(want, state) for want in wanted]
    return [] if [] in differences or not differences else differences[0]


def _differences(want: ExpectedThread, state: ThreadState) -> list[str]:
    name = _full_name(state)
    wrong = []
    if state.cpus != want.cpus:
        wrong.append(
            f"{name}: expected CPU {format_cpus(want.cpus)}, got {format_cpus(state.cpus)}"
        )
    if (state.policy, state.priority) != (want.policy, want.priority):
        wrong.append(
            f"{name}: expected policy {said(want.policy, want.priority)}, got "
            f"{said(state.policy, state.priority)}"
        )
    if want.slice_ns and state.slice_ns not in (None, want.slice_ns):
        wrong.append(
            f"{name}: expected a time slice of {want.slice_ns / 1e6:g} ms, got "
            f"{state.slice_ns / 1e6:g} ms"
        )
    if want.nice not in (None, state.nice):
        wrong.append(f"{name}: expected nice value {want.nice}, got {state.nice}")
    return wrong


def _described(state: ThreadState) -> str:
    policy = said(state.policy, state.priority)
    return f"{policy}, nice {state.nice}, CPU {format_cpus(state.cpus)}"


def _full_name(state: ThreadState) -> str:
    return f"{_name(state.role, state.index)} ({state.comm!r}, thread {state.tid})"


def _name(role: str, index: int) -> str:
    names = {VCPU: f"vCPU {index}", IOTHREAD: f"iothread {index}", WORKLOAD: "the workload"}
    if role == EMULATOR:
        return "the emulator" if index == 0 else f"emulator thread {index}"
    return names.get(role, f"{role} thread {index}")
