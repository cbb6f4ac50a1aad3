"""Run the neighbours of a condition: what competes with a trial as other VMs do (METHOD rule 4).

Each is in a session and a cgroup of its own: with autogrouping, four programs of one session weigh
as one. They run in the image's own tree, so that no host package matters, under the rights that
their workload has natively.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from labctl.base.channel import Channel, Execution
from labctl.base.cpus import CpuSet, format_cpus
from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError, DeadlineError
from labctl.base.last_words import last_words
from labctl.host.native import NativeSession, runner_in
from labctl.host.own_cgroups import Cgroup, CpuLimits, group
from labctl.run.guests.clones import OpenRoom
from labctl.run.guests.lab import Lab
from labctl.run.guests.native_bench import runner_channel, runner_file
from labctl.run.guests.neighbour_guests import neighbour_guests
from labctl.run.planning.conditions_here import cpus_of
from labctl.run.planning.planned_conditions import beside_of
from labctl.study.condition import Condition, Kind, Neighbour
from labctl.workloads.beside import LIMIT_S, Beside

MIB = 1024 * 1024
_GRACE_S = 10.0
"""Time for a last run to come to its end."""
_KILLED_S = 5.0
_POLL_S = 0.01
_BUSY_S = 0.05
"""CPU time after which a program does its work, and not only prepares it."""
_SETTLED_S = 1.0
"""Time after which it does so in any case: a program may sleep most of the time."""


class Neighbours(Protocol):
    """Control what runs beside one trial: it waits until `start`, and `outcome` is there once it
    was stopped."""

    @property
    def pids(self) -> list[int]:
        """Return the processes that are known as neighbours, with all that they start."""

    def used(self) -> list[dict[str, Any]]:
        """Return what they have used so far: by kind its `workload`, its `cpus` and `cpu_ns`; []
        where nothing tells."""

    def start(self) -> None:
        """Let them go; return when all are busy. Raises BrokenError when one had died before."""

    def stop(self) -> None:
        """End them and keep what they did. Raises BrokenError when one had died before."""

    @property
    def outcome(self) -> list[dict[str, Any]]:
        """Return what each did, as neighbour.json holds it; [] before it was stopped."""


@dataclass
class Together:
    """Hold the neighbours of a condition as one; without any, what a quiet trial has."""

    members: Sequence[Neighbours] = ()

    @property
    def pids(self) -> list[int]:
        return [pid for one in self.members for pid in one.pids]

    def used(self) -> list[dict[str, Any]]:
        rows = [one.used() for one in self.members]
        # Of some only, it would pass for all.
        return [row for of_one in rows for row in of_one] if all(rows) else []

    def start(self) -> None:
        for one in self.members:
            one.start()

    def stop(self) -> None:
        for one in self.members:
            one.stop()

    @property
    def outcome(self) -> list[dict[str, Any]]:
        return [row for one in self.members for row in one.outcome]


@contextmanager
def neighbours(lab: Lab, condition: Condition | None, room: OpenRoom) -> Iterator[Neighbours]:
    """Start the neighbours of a condition; none without one. Processes enter the image's tree while
    the caller works, and wait there; guests are made in a room that is opened for them."""
    found: list[Neighbours] = []
    with ExitStack() as stack:
        declared = list(enumerate(condition.neighbours if condition else ()))
        # First: nothing that waits may see guests being restored.
        if guests := [(kind, one) for kind, one in declared if one.kind is Kind.GUESTS]:
            made = stack.enter_context(room())
            for kind, one in guests:
                cpus = cpus_of(one, lab.topology, lab.pin_plan)
                found.append(stack.enter_context(neighbour_guests(made, kind, one, cpus)))
        for kind, one in declared:
            if one.kind is not Kind.GUESTS:
                found.append(stack.enter_context(_on_the_host(lab, kind, one)))
        yield Together(found)


@dataclass
class _Copy:
    """Hold one neighbour in its runner, where it waits."""

    session: NativeSession
    members: Cgroup
    execution: Execution | None = None
    begun_ns: int = 0

    def used_ns(self) -> int | None:
        return self.members.cpu_ns()

    @property
    def running(self) -> Execution:
        assert self.execution is not None
        return self.execution

    @property
    def has_starved(self) -> bool:
        """Return whether the kernel ended any of its processes for want of memory."""
        try:
            return self.members.oom_kills() > 0
        except BrokenError:
            return False  # a kernel before 4.13 doesn't tell

    @property
    def has_ended(self) -> bool:
        return not Path(f"/proc/{self.running.pid}").exists()


@dataclass
class _OnTheHost:
    """Hold neighbours of one kind that are processes of this host."""

    kind: int
    beside: Beside
    cpus: CpuSet
    copies: list[_Copy] = field(default_factory=list)
    outcome: list[dict[str, Any]] = field(default_factory=list)

    @property
    def pids(self) -> list[int]:
        return [copy.session.pid for copy in self.copies]

    def used(self) -> list[dict[str, Any]]:
        counts = [copy.used_ns() for copy in self.copies]
        known = [count for count in counts if count is not None]
        if len(known) < len(counts):
            return []
        name, cpus = self.beside.program.name, format_cpus(self.cpus)
        return [{"workload": name, "cpus": cpus, "cpu_ns": sum(known)}]

    def start(self) -> None:
        for copy in self.copies:
            copy.begun_ns = copy.used_ns() or 0
            copy.running.go()
        settled = Deadline.after(_SETTLED_S, "starting the neighbours")
        for copy in self.copies:
            while not (self._is_busy(copy) or settled.expired):
                time.sleep(_POLL_S)
            self._check_alive(copy)

    def stop(self) -> None:
        for copy in self.copies:
            self._check_alive(copy)
        for copy in self.copies:
            self._signal(copy, self.beside.stop_signal)
        for copy in self.copies:
            self.outcome.append(self._ended(copy))
            if copy.has_starved:
                raise BrokenError(
                    f"processes of the neighbour {self.beside.program.name} were killed: its "
                    "memory did not suffice",
                    hint="Give it more 'memory_mib'.",
                )

    def _is_busy(self, copy: _Copy) -> bool:
        used = copy.used_ns()
        return copy.has_ended or (used is not None and used - copy.begun_ns > _BUSY_S * 1e9)

    def _check_alive(self, copy: _Copy) -> None:
        if copy.has_ended:
            copy.running.wait_exited(_KILLED_S)
            result = copy.running.result()
            said = last_words(result.stderr or result.stdout) or "it printed nothing"
            if copy.has_starved:
                said = f"{said}; its memory did not suffice ('memory_mib')"
            raise BrokenError(
                f"the neighbour {self.beside.program.name} ended by itself with status "
                f"{result.returncode}: {said}"
            )

    def _signal(self, copy: _Copy, number: signal.Signals) -> None:
        pid = copy.running.pid
        try:
            if number is signal.SIGTERM:
                os.kill(pid, number)
            else:
                os.killpg(pid, number)
        except ProcessLookupError:
            pass  # it ended just now, which its status says

    def _ended(self, copy: _Copy) -> dict[str, Any]:
        was_killed = False
        try:
            copy.running.wait_exited(_GRACE_S)
        except DeadlineError:
            was_killed = True
            self._signal(copy, signal.SIGKILL)
            copy.running.wait_exited(_KILLED_S)
        used_ns = copy.used_ns()
        result = copy.running.result()
        usage = result.counts["rusage"]
        counted_s = usage["utime_s"] + usage["stime_s"]
        return {
            "kind": self.kind,
            "workload": self.beside.program.name,
            "status": result.returncode,
            "was_killed": was_killed,
            "seconds": result.duration_s,
            "cpu_s": counted_s if used_ns is None else (used_ns - copy.begun_ns) / 1e9,
            "stdout": _text(result.stdout),
            "stderr": _text(result.stderr),
            "files": {name: _text(data) for name, data in sorted(result.files.items())},
        }


@contextmanager
def _on_the_host(lab: Lab, kind: int, declared: Neighbour) -> Iterator[_OnTheHost]:
    """Start neighbours of one kind. `kind`: its number among the condition's."""
    cpus = cpus_of(declared, lab.topology, lab.pin_plan)
    beside = beside_of(declared)
    found = _OnTheHost(kind, beside, cpus)
    with ExitStack() as stack:
        for number in range(declared.count or len(cpus)):
            members = stack.enter_context(
                group(
                    lab.layout,
                    lab.journal,
                    f"neighbour-{kind}-{number}-{os.getpid()}",
                    memory_bytes=declared.memory_mib * MIB,
                    limits=_limits(declared),
                    accounted=True,
                )
            )
            session = stack.enter_context(
                runner_in(
                    lab.image.tree,
                    members,
                    data_folder=None,
                    runner=runner_file(lab),
                    isolated=True,
                )
            )
            found.copies.append(_Copy(session, members))
        for copy in found.copies:
            channel = runner_channel(copy.session, f"the neighbour {beside.program.name}")
            copy.execution = stack.enter_context(_prepared(channel, beside, cpus))
        yield found


@contextmanager
def _prepared(channel: Channel, beside: Beside, cpus: CpuSet) -> Iterator[Execution]:
    with (
        channel.serving(beside.servers(cpus), cpus=cpus),
        channel.prepared(beside.command(cpus), seconds=LIMIT_S, cpus=cpus) as execution,
    ):
        yield execution


def _limits(declared: Neighbour) -> CpuLimits | None:
    if declared.kind is not Kind.CGROUP:
        return None
    return CpuLimits(weight=declared.weight or 100, quota_percent=declared.quota_percent)


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
