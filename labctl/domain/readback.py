"""What runs, read back from the kernel and from libvirt, against what was asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.base.cpus import CpuSet, format_cpus, parse_cpus
from labctl.base.process import thread_ids
from labctl.base.tuning import Policy, Sched, Tuning
from labctl.domain.pinplan import PinPlan, placement
from labctl.domain.xmlfacts import facts, is_filled_in

VCPU = "vcpu"
EMULATOR = "emulator"
IOTHREAD = "iothread"
VHOST = "vhost"
WORKLOAD = "workload"

# include/uapi/linux/sched.h
_POLICIES = {0: "other", 1: "fifo", 2: "rr", 3: "batch", 5: "idle", 6: "deadline", 7: "ext"}

# Positions after the command's closing parenthesis; proc_pid_stat(5) counts from 1, and the first
# of these is its field 3.
_NICE, _RT_PRIORITY, _POLICY = 19 - 3, 40 - 3, 41 - 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedThread:
    """`index`: the vCPU's number from 0, the iothread's from 1; 0 for the emulator."""

    role: str
    index: int
    cpus: CpuSet
    policy: str
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadState:
    """One thread as /proc shows it. `policy` by chrt(1)'s names. Emulator threads: 0 is QEMU's
    main thread, the others (RCU, workers) follow by thread id."""

    tid: int
    role: str
    index: int
    comm: str
    cpus: CpuSet
    policy: str
    priority: int
    nice: int


def expected_threads(tuning: Tuning, plan: PinPlan, allowed: CpuSet) -> list[ExpectedThread]:
    """What each thread of a guest must show. `allowed`: where a thread that isn't pinned may run,
    which is every CPU that labctl may use (`Topology.usable`)."""
    pins = placement(tuning, plan)

    def expected(role: str, index: int, cpus: CpuSet | None, sched: Sched | None) -> ExpectedThread:
        sched = sched or Sched(policy=Policy.OTHER)
        return ExpectedThread(
            role=role,
            index=index,
            cpus=allowed if cpus is None else cpus,
            policy=str(sched.policy),
            priority=sched.priority,
        )

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


def read_threads(
    pid: int,
    vcpu_tids: Mapping[int, int],
    iothread_tids: Mapping[int, int],
    proc_root: Path = Path("/proc"),
) -> list[ThreadState]:
    """Every thread of the QEMU process, and the kernel's vhost workers for it.

    `vcpu_tids` and `iothread_tids`: number to thread id, from QMP query-cpus-fast and
    query-iothreads. A thread that ends meanwhile is left out.
    """
    known = {tid: (VCPU, number) for number, tid in vcpu_tids.items()}
    known |= {tid: (IOTHREAD, number) for number, tid in iothread_tids.items()}
    tasks = proc_root / str(pid) / "task"
    tids = thread_ids(pid, proc_root)
    states: list[ThreadState] = []
    helpers = vhosts = 0
    for tid in sorted(tids, key=lambda tid: (tid != pid, tid)):
        if (read := _read_thread(tasks / str(tid))) is None:
            continue
        role, index = known.get(tid, (EMULATOR, helpers))
        # Since Linux 6.4 vhost workers are threads of the process that asked for them.
        if role == EMULATOR and read.comm.startswith("vhost-"):
            role, index = VHOST, vhosts
            vhosts += 1
        helpers += role == EMULATOR
        states.append(_state(tid, role, index, read))
    for tid in _kernel_vhosts(pid, proc_root):
        if (read := _read_thread(proc_root / str(tid) / "task" / str(tid))) is not None:
            states.append(_state(tid, VHOST, vhosts, read))
            vhosts += 1
    return states


def mismatches(expected: Iterable[ExpectedThread], states: Iterable[ThreadState]) -> list[str]:
    """A sentence for each thread that isn't where or what it should be; [] when all are."""
    states = list(states)
    wrong: list[str] = []
    for want in expected:
        found = [state for state in states if state.role == want.role]
        if want.role in (VCPU, IOTHREAD):
            found = [state for state in found if state.index == want.index]
        if not found:
            wrong.append(f"{_name(want.role, want.index)}: there is no such thread")
        for state in found:
            wrong += _differences(want, state)
    return wrong


def native_mismatches(
    pid: int, cpus: CpuSet, sched: Sched | None, proc_root: Path = Path("/proc")
) -> list[str]:
    """A sentence for each thread of a native workload that isn't where and what its twin asks."""
    sched = sched or Sched(policy=Policy.OTHER)
    want = ExpectedThread(
        role=WORKLOAD, index=0, cpus=cpus, policy=str(sched.policy), priority=sched.priority
    )
    tasks = proc_root / str(pid) / "task"
    states = [
        _state(tid, WORKLOAD, index, read)
        for index, tid in enumerate(thread_ids(pid, proc_root))
        if (read := _read_thread(tasks / str(tid))) is not None
    ]
    return mismatches([want], states)


def to_json(states: Iterable[ThreadState]) -> list[dict[str, Any]]:
    """What `threads.json` holds."""
    return [
        {
            "tid": state.tid,
            "role": state.role,
            "index": state.index,
            "comm": state.comm,
            "cpus": format_cpus(state.cpus),
            "policy": state.policy,
            "priority": state.priority,
            "nice": state.nice,
        }
        for state in states
    ]


def _differences(want: ExpectedThread, state: ThreadState) -> list[str]:
    name = f"{_name(state.role, state.index)} ({state.comm!r}, thread {state.tid})"
    wrong = []
    if state.cpus != want.cpus:
        wrong.append(
            f"{name} may run on CPU {format_cpus(state.cpus)}, asked was {format_cpus(want.cpus)}"
        )
    allowed = {(want.policy, want.priority)}
    if want.role == EMULATOR and state.index > 0:
        # A helper thread has the policy that the main thread had when it was started.
        allowed.add(("other", 0))
    if (state.policy, state.priority) not in allowed:
        wrong.append(
            f"{name} runs under {_policy(state.policy, state.priority)}, "
            f"asked was {_policy(want.policy, want.priority)}"
        )
    return wrong


def _name(role: str, index: int) -> str:
    names = {VCPU: f"vCPU {index}", IOTHREAD: f"iothread {index}", WORKLOAD: "the workload"}
    return names.get(role, "the emulator" if index == 0 else f"emulator thread {index}")


def _policy(policy: str, priority: int) -> str:
    return f"SCHED_{policy.upper()}" + (f" at priority {priority}" if priority else "")


@dataclass(frozen=True, slots=True)
class _Read:
    comm: str
    cpus: CpuSet
    policy: str
    priority: int
    nice: int


def _read_thread(folder: Path) -> _Read | None:
    try:
        stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        status = (folder / "status").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command may hold spaces and parentheses of its own: the last one closes it.
    head, _, tail = stat.rpartition(")")
    fields = tail.split()
    cpus = [line for line in status.splitlines() if line.startswith("Cpus_allowed_list:")]
    if len(fields) <= _POLICY or not cpus:
        return None  # cut off: the thread ended while it was read
    number = int(fields[_POLICY])
    return _Read(
        comm=head.partition("(")[2],
        cpus=parse_cpus(cpus[0].partition(":")[2]),
        policy=_POLICIES.get(number, f"policy {number}"),
        priority=int(fields[_RT_PRIORITY]),
        nice=int(fields[_NICE]),
    )


def _state(tid: int, role: str, index: int, read: _Read) -> ThreadState:
    return ThreadState(
        tid=tid,
        role=role,
        index=index,
        comm=read.comm,
        cpus=read.cpus,
        policy=read.policy,
        priority=read.priority,
        nice=read.nice,
    )


def _kernel_vhosts(pid: int, proc_root: Path) -> list[int]:
    """Before Linux 6.4 vhost workers are kernel threads of their own, named after the process."""
    found = []
    for path in proc_root.glob("[0-9]*/comm"):
        try:
            if path.read_text(encoding="utf-8", errors="replace").strip() == f"vhost-{pid}":
                found.append(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return sorted(found)


def live_mismatches(asked_xml: str, live_xml: str, *, is_whole: bool = True) -> list[str]:
    """A sentence for each thing that runs differently from what was asked; [] when all agree.

    Compared is what `xmlfacts.facts` names. What libvirt fills in by itself is no mismatch.
    `is_whole`: what is asked says everything else that is compared; False for XML of somebody
    else's, where libvirt also fills in buses, models and controllers. Raises BrokenError when
    either text is no XML.
    """
    asked, live = facts(asked_xml, "asked"), facts(live_xml, "live")
    return [
        f"{what}: asked was {asked.get(what, 'none')}, the domain has {live.get(what, 'none')}"
        for what in sorted(asked.keys() | live.keys())
        if asked.get(what) != live.get(what)
        and (is_whole or what in asked)
        and not is_filled_in(what, asked.get(what), live.get(what))
    ]
