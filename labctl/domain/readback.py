"""Read back what runs, from the kernel and from libvirt, and compare it with what was asked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from labctl.base.cpus import CpuSet
from labctl.base.placed import Placed, known_slice_ns, name_of, parse_placed, read_placed
from labctl.base.process import thread_ids
from labctl.base.tuning import Sched
from labctl.domain.asked import (
    EMULATOR,
    IOTHREAD,
    VCPU,
    VHOST,
    WORKLOAD,
    ThreadState,
    expected_workload,
    mismatches,
)
from labctl.domain.xmlfacts import facts, is_filled_in

_PROC = Path("/proc")


def read_threads(
    pid: int,
    vcpu_tids: Mapping[int, int],
    iothread_tids: Mapping[int, int],
    proc_root: Path = _PROC,
) -> list[ThreadState]:
    """Return every thread of the QEMU process, and the kernel's vhost workers for it.

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
        if (read := read_placed(tasks / str(tid))) is None:
            continue
        role, index = known.get(tid, (EMULATOR, helpers))
        # Since Linux 6.4 vhost workers are threads of the process that asked for them.
        if role == EMULATOR and read[0].startswith("vhost-"):
            role, index = VHOST, vhosts
            vhosts += 1
        helpers += role == EMULATOR
        states.append(_state(tid, role, index, *read))
    for tid in _kernel_vhosts(pid, proc_root):
        if (read := read_placed(proc_root / str(tid) / "task" / str(tid))) is not None:
            states.append(_state(tid, VHOST, vhosts, *read))
            vhosts += 1
    return _with_slices(states, proc_root)


def native_mismatches(
    pid: int,
    cpus: CpuSet,
    sched: Sched | None,
    proc_root: Path = _PROC,
    *,
    slice_ns: int = 0,
) -> list[str]:
    """Return a sentence for each thread of a native workload that isn't where and what its twin
    asks."""
    tasks = proc_root / str(pid) / "task"
    states = [
        _state(tid, WORKLOAD, index, *read)
        for index, tid in enumerate(thread_ids(pid, proc_root))
        if (read := read_placed(tasks / str(tid))) is not None
    ]
    asked = expected_workload(cpus, sched, slice_ns)
    return mismatches([asked], _with_slices(states, proc_root))


def workload_states(told: Sequence[Mapping[str, Any]]) -> list[ThreadState]:
    """Return a command's threads as its runner has read them (`labctl/runner`, `threads`).
    Those that ended while they were read are left out. Raises LookupError, TypeError or ValueError
    when they aren't what a runner writes: a guest is not trusted."""
    states = []
    for index, row in enumerate(told):
        stat, status = str(row["stat"]), str(row["status"])
        if (placed := parse_placed(stat, status)) is not None:
            states.append(_state(int(row["tid"]), WORKLOAD, index, name_of(stat), placed))
    return states


def row_states(rows: Iterable[Mapping[str, Any]], roles: Collection[str]) -> list[ThreadState]:
    """Return the threads of those roles in a snapshot (`collect.host_threads.snapshot`)."""
    return [
        _state(row["tid"], row["role"], row["index"], row["comm"], placed, row.get("slice_ns"))
        for row in rows
        if row["role"] in roles and (placed := parse_placed(row["stat"], row["status"])) is not None
    ]


def _with_slices(states: Iterable[ThreadState], proc_root: Path) -> list[ThreadState]:
    """Return the threads with their time slices, which no file of /proc has."""
    if proc_root != _PROC:
        return list(states)
    return [replace(state, slice_ns=known_slice_ns(state.tid)) for state in states]


def _state(
    tid: int, role: str, index: int, comm: str, placed: Placed, slice_ns: int | None = None
) -> ThreadState:
    return ThreadState(
        tid=tid,
        role=role,
        index=index,
        comm=comm,
        cpus=placed.cpus,
        policy=placed.policy,
        priority=placed.priority,
        nice=placed.nice,
        slice_ns=slice_ns,
    )


def _kernel_vhosts(pid: int, proc_root: Path) -> list[int]:
    """Find vhost workers that are kernel threads named after the process, as before Linux 6.4."""
    found = []
    for path in proc_root.glob("[0-9]*/comm"):
        try:
            if path.read_text(encoding="utf-8", errors="replace").strip() == f"vhost-{pid}":
                found.append(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return sorted(found)


def live_mismatches(asked_xml: str, live_xml: str, *, is_whole: bool = True) -> list[str]:
    """Return a sentence for each thing that runs differently from what was asked; [] when all
    agree.

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
