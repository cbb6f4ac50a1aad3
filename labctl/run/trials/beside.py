"""Run the programs beside a trial: neighbours (METHOD rule 4) and peers of a workload."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from labctl.base.channel import Channel, Execution
from labctl.base.cpus import CpuSet, format_cpus
from labctl.base.errors import BrokenError, DeadlineError, UsageError
from labctl.base.paths import WORK
from labctl.base.process import Deadline, last_words, running, written_by
from labctl.collect.collector import ThreadRef
from labctl.host.narrow import Narrow, Narrowed, narrowed
from labctl.host.native import NativeSession, in_tree, runner_in
from labctl.host.own_cgroups import Cgroup, CpuLimits, group
from labctl.run.guests.bench import runner_channel, runner_file, tree_threads
from labctl.run.guests.boots import Boots
from labctl.run.guests.clones import CloneRoom, clone_room
from labctl.run.guests.lab import Lab
from labctl.run.guests.neighbours import neighbour_guests
from labctl.run.planning.conditions import beside_of, condition_of, cpus_of
from labctl.store.records.plan_record import PlannedTrial
from labctl.study.conditions import Condition, Kind, Neighbour
from labctl.study.plan import Plan
from labctl.workloads.beside import LIMIT_S, Beside
from labctl.workloads.setting import Parameters, Peer
from labctl.workloads.workload import Workload

# Run the neighbours of a condition, which compete with a trial as other VMs do (METHOD rule 4).
#
# Each is in a session and a cgroup of its own: with autogrouping, four programs of one session
# weigh as one. They run in the image's own tree, so that no host package matters, and with their
# workload's native privileges.


MIB = 1024 * 1024
_GRACE_S = 10.0
"""Time for a last run to end."""
_KILLED_S = 5.0
_BUSY_S = 0.05
"""CPU time after which a program is working, not only preparing."""
_SETTLED_S = 1.0
"""Time after which it counts as working in any case: a program may sleep most of the time."""


class Neighbours(Protocol):
    """Control the neighbours of one trial: they wait until `start`, and have an `outcome` after
    `stop`."""

    @property
    def pids(self) -> list[int]:
        """Return the processes that are known as neighbours, with all their children."""

    def used(self) -> list[dict[str, object]]:
        """Return their usage so far: by kind its `workload`, its `cpus` and `cpu_ns`; [] if nothing
        accounts for it."""

    def start(self) -> None:
        """Let them go; return when all are busy. Raises BrokenError if one had died before."""

    def stop(self) -> None:
        """End them and keep the results. Raises BrokenError if one had died before."""

    @property
    def outcome(self) -> list[dict[str, object]]:
        """Return the work of each, in the form of neighbour.json; [] before `stop`."""


@dataclass
class Together:
    """Hold the neighbours of a condition as one; without any, those of a quiet trial."""

    members: Sequence[Neighbours] = ()

    @property
    def pids(self) -> list[int]:
        return [pid for one in self.members for pid in one.pids]

    def used(self) -> list[dict[str, object]]:
        rows = [one.used() for one in self.members]
        # The usage of only some would pass for that of all.
        return [row for of_one in rows for row in of_one] if all(rows) else []

    def start(self) -> None:
        for one in self.members:
            one.start()

    def stop(self) -> None:
        for one in self.members:
            one.stop()

    @property
    def outcome(self) -> list[dict[str, object]]:
        return [row for one in self.members for row in one.outcome]


@contextmanager
def no_neighbours() -> Iterator[Neighbours]:
    """Yield the neighbours of a quiet trial."""
    yield Together()


@dataclass(frozen=True, slots=True)
class _Runner:
    """Hold a runner for one neighbour on the host. `belongings`: its threads and the files in its
    private folders, from when it was new, but for the folder that it empties for each command."""

    session: NativeSession
    members: Cgroup
    channel: Channel
    belongings: frozenset[object]

    @property
    def is_as_new(self) -> bool:
        """Return whether it runs, and nothing is left of its earlier commands."""
        return self.session.process.poll() is None and self.belongings == _belongings(self.session)


_PRIVATE_FOLDERS = ("tmp", "run", "dev/shm")
"""Folders in which a command may leave files (`host.native.in_tree`)."""


def _belongings(session: NativeSession) -> frozenset[object]:
    root = Path(f"/proc/{session.pid}/root")
    files = {entry for name in _PRIVATE_FOLDERS for entry in (root / name).iterdir()}
    threads = {thread.tid for thread in tree_threads(session.pid, "")}
    return frozenset((files | threads) - {root / WORK.lstrip("/")})


@dataclass
class _Copy:
    """Hold one neighbour in its runner, where it waits."""

    session: NativeSession
    members: Cgroup
    running: Execution
    begun_ns: int = 0

    def used_ns(self) -> int | None:
        return self.members.cpu_ns()

    @property
    def has_starved(self) -> bool:
        """Return whether the kernel ended any of its processes because memory ran out."""
        try:
            return self.members.oom_kills() > 0
        except BrokenError:
            return False  # a kernel before 4.13 does not count them

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
    outcome: list[dict[str, object]] = field(default_factory=list)

    @property
    def pids(self) -> list[int]:
        return [copy.session.pid for copy in self.copies]

    def used(self) -> list[dict[str, object]]:
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
                    f"processes of the neighbour {self.beside.program.name} were killed: "
                    "out of memory",
                    hint="Raise its 'memory_mib'.",
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
                said = f"{said}; it was out of memory (raise 'memory_mib')"
            raise BrokenError(
                f"the neighbour {self.beside.program.name} ended unexpectedly with status "
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
            pass  # it ended just now, as its status shows

    def _ended(self, copy: _Copy) -> dict[str, object]:
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
def _on_the_host(
    kind: int, beside: Beside, cpus: CpuSet, runners: Sequence[_Runner]
) -> Iterator[_OnTheHost]:
    """Bring neighbours of one kind into the image's tree, where they wait. `kind`: its number among
    the condition's."""
    found = _OnTheHost(kind, beside, cpus)
    with ExitStack() as stack:
        for runner in runners:
            execution = stack.enter_context(_prepared(runner.channel, beside, cpus))
            found.copies.append(_Copy(runner.session, runner.members, execution))
        yield found


@contextmanager
def _runners(lab: Lab, declared: Neighbour, name: str) -> Iterator[list[_Runner]]:
    """Start a runner for each neighbour of one kind, in a session and a cgroup of its own. `name`:
    of the cgroups, before their numbers."""
    program = beside_of(declared).program.name
    started: list[tuple[NativeSession, Cgroup]] = []
    with ExitStack() as stack:
        for number in range(declared.count or len(cpus_of(declared, lab.topology, lab.pin_plan))):
            members = stack.enter_context(
                group(
                    lab.layout,
                    lab.journal,
                    f"{name}-{number}-{os.getpid()}",
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
            started.append((session, members))
        found = []
        for session, members in started:
            channel = runner_channel(session, f"the neighbour {program}")
            found.append(_Runner(session, members, channel, _belongings(session)))
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


# Provide the neighbours of a plan's trials.


class PlanNeighbours:
    """Provide each trial of a plan with its neighbours. Leaving the context ends what waits for
    further trials.

    Neighbours on the host run in runners that stay from trial to trial: starting one takes almost
    a tenth of a short trial. Neighbour guests of all arms of a block, native ones too, are clones
    of the boot that the block's guests are restored from. `only_boot`: the plan's boot of all
    neighbours, in a run whose guests boot for themselves.
    """

    def __init__(self, lab: Lab, boots: Boots, plan: Plan, *, only_boot: int | None = None) -> None:
        self._lab = lab
        self._boots = boots
        self._plan = plan
        self._only_boot = only_boot
        self._waiting = ExitStack()
        self._runners: dict[tuple[str, int], list[_Runner]] = {}

    def __enter__(self) -> PlanNeighbours:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def make_ready(self, trials: Sequence[PlannedTrial]) -> None:
        """Boot the state that neighbour guests are cloned from, and start runners for neighbours on
        the host, if the trials have any: before the host is set up for the tuning, because other
        arms have the same neighbours."""
        if not self.are_fit():
            self._end()
        for trial in trials:
            condition = self._condition_of(trial)
            if condition is None:
                continue
            if condition.guests:
                self._boots.saved(self._boot_of(trial))
            for kind, declared in _on_host(condition):
                if (condition.name, kind) not in self._runners:
                    name = f"neighbour-{len(self._runners)}"
                    made = self._waiting.enter_context(_runners(self._lab, declared, name))
                    self._runners[condition.name, kind] = made

    def are_fit(self) -> bool:
        """Return whether the runners serve for another trial. If not, `make_ready` starts new
        ones."""
        return all(one.is_as_new for of_kind in self._runners.values() for one in of_kind)

    @contextmanager
    def of(self, trial: PlannedTrial) -> Iterator[Neighbours]:
        """Start the neighbours of a trial for which everything is ready. Processes wait in the
        image's tree until they are let go."""
        condition = self._condition_of(trial)
        found: list[Neighbours] = []
        with ExitStack() as stack:
            if condition is None:
                yield Together()
                return
            # Guests first: their restores must not disturb the waiting processes.
            if guests := [one for one in enumerate(condition.neighbours) if _is_guest(one[1])]:
                made = stack.enter_context(self._room(trial))
                for kind, one in guests:
                    cpus = cpus_of(one, self._lab.topology, self._lab.pin_plan)
                    found.append(stack.enter_context(neighbour_guests(made, kind, one, cpus)))
            for kind, one in _on_host(condition):
                cpus = cpus_of(one, self._lab.topology, self._lab.pin_plan)
                runners = self._runners[condition.name, kind]
                found.append(stack.enter_context(_on_the_host(kind, beside_of(one), cpus, runners)))
            yield Together(found)

    def _room(self, trial: PlannedTrial) -> AbstractContextManager[CloneRoom]:
        """Return the room of a trial, with the same seed for all arms of its block."""
        saved = self._boots.saved(self._boot_of(trial))
        tuning = self._lab.tunings[self._plan.roles.baseline]
        return clone_room(self._lab, saved, tuning, f"{self._plan.seed}:{trial.block}")

    def _boot_of(self, trial: PlannedTrial) -> int:
        return trial.boot if self._only_boot is None else self._only_boot

    def _condition_of(self, trial: PlannedTrial) -> Condition | None:
        return condition_of(self._plan, trial.cell["condition"])

    def _end(self) -> None:
        self._runners = {}
        self._waiting.close()


def _is_guest(neighbour: Neighbour) -> bool:
    return neighbour.kind is Kind.GUESTS


def _on_host(condition: Condition) -> Iterator[tuple[int, Neighbour]]:
    """Yield neighbours that are processes of this host, each with its number in the condition."""
    for kind, one in enumerate(condition.neighbours):
        if not _is_guest(one):
            yield kind, one


# Serve a workload from the image's own tree: in the peer's namespace or, if the workload narrows
# its link, behind the bottleneck, with a competitor beside it.


ROLE = "peer"
RAW = "peer.txt"
COMPETITOR_RAW = "competitor.txt"
LINK_RAW = "link.json"

_START_S = 20.0
_POLL_S = 0.01
_LISTEN = {"udp": "07", "tcp": "0A"}
"""State of a socket that awaits packets or connections: TCP_CLOSE and TCP_LISTEN in
net/tcp_states.h."""


@dataclass(frozen=True, slots=True)
class _Program:
    pid: int
    _output: IO[bytes]

    def output(self) -> bytes:
        """Return its output so far."""
        return written_by(self._output)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningPeer:
    """Hold a trial's substitute for other machines: a server, and with a narrow link the competitor
    and the bottleneck."""

    server: _Program
    competitor: _Program | None = None
    narrowed: Narrowed | None = None

    def threads(self) -> list[ThreadRef]:
        programs = (self.server, self.competitor)
        pids = [one.pid for one in programs if one is not None]
        pids += self.narrowed.pids if self.narrowed is not None else ()
        return [thread for pid in pids for thread in tree_threads(pid, ROLE)]

    def evidence(self) -> dict[str, object]:
        """Return the evidence stored with a trial, by file name: the programs' output so far, and
        the bottleneck as read back."""
        found: dict[str, object] = {RAW: self.server.output().decode(errors="replace")}
        if self.competitor is not None:
            found[COMPETITOR_RAW] = self.competitor.output().decode(errors="replace")
        if self.narrowed is not None:
            found[LINK_RAW] = self.narrowed.to_json()
        return found


@contextmanager
def serving(lab: Lab, workload: Workload, parameters: Parameters) -> Iterator[RunningPeer | None]:
    """Start the workload's server on the housekeeping CPUs of the plan, behind its bottleneck and
    with its competitor if it has them, and end all at the end; yield None for a workload without a
    server. Raises BrokenError with a program's output if it does not start."""
    wanted = workload.peer(parameters)
    if wanted is None:
        yield None
        return
    if lab.link is None:
        raise UsageError(f"workload '{workload.name}' needs a link, but this run has none")
    asked = workload.bottleneck(parameters)
    with ExitStack() as stack:
        if asked is None:
            server = stack.enter_context(_started(lab, wanted, lab.link.peer_file, "peer"))
            yield RunningPeer(server=server)
            return
        narrow = _narrow_of(lab, workload)
        made = stack.enter_context(narrowed(narrow, asked, lab.pin_plan.housekeeping))
        server = stack.enter_context(_started(lab, wanted, narrow.client_file, "peer"))
        competitor = None
        if (beside := workload.competitor(parameters)) is not None:
            competitor = stack.enter_context(
                _started(lab, beside, narrow.competitor_file, "competitor")
            )
        yield RunningPeer(server=server, competitor=competitor, narrowed=made)


def _narrow_of(lab: Lab, workload: Workload) -> Narrow:
    if lab.link is None or lab.link.narrow is None:
        raise UsageError(
            f"workload '{workload.name}' needs a narrow link, but this run's link cannot be "
            "narrowed"
        )
    return lab.link.narrow


@contextmanager
def _started(lab: Lab, wanted: Peer, network: Path, whose: str) -> Iterator[_Program]:
    """Run a program in a network namespace; yield it when it accepts packets or connections."""
    # The same CPUs under every tuning, because it stands for another machine.
    cpus = lab.pin_plan.housekeeping
    argv = in_tree(lab.image.tree, wanted.command.argv, cpus=cpus, network=network)
    with (
        tempfile.TemporaryFile() as output,
        running(argv, stdout=output, stderr=output, grace_s=1.0) as process,
    ):
        found = _Program(process.pid, output)
        deadline = Deadline.after(_START_S, f"starting {wanted.command.argv[0]} for the {whose}")
        while not _is_ready(process.pid, wanted):
            if process.poll() is not None:
                said = found.output().decode(errors="replace").strip()[-400:]
                raise BrokenError(f"the {whose}'s {wanted.command.argv[0]} ended at once: {said}")
            time.sleep(min(_POLL_S, deadline.remaining()))
        yield found


def _is_ready(pid: int, wanted: Peer) -> bool:
    """Return whether the port is in use in the server's own network namespace (proc_pid_net(5)).
    Before it has entered, /proc shows the host's."""
    try:
        is_started = (
            Path(f"/proc/{pid}/comm").read_text().strip() == Path(wanted.command.argv[0]).name
        )
        table = Path(f"/proc/{pid}/net/{wanted.protocol}").read_text()
    except OSError:
        return False
    return is_started and has_port(table.splitlines()[1:], wanted)


def has_port(rows: Sequence[str], wanted: Peer) -> bool:
    """Return whether rows of /proc/net/udp or tcp hold a socket that waits at the peer's port."""
    for row in rows:
        fields = row.split()
        port = int(fields[1].rpartition(":")[2], 16)
        if port == wanted.port and fields[3] == _LISTEN[wanted.protocol]:
            return True
    return False
