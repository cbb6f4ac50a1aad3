"""Provide a machine with a tuning in force: a restored guest, or natively the tree.

The engine does not know which of them it has.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from labctl.base.channel import Channel, ClockReading
from labctl.base.command import Command
from labctl.base.cpus import CpuSet, format_cpus
from labctl.base.errors import BrokenError, HostError
from labctl.base.kernel import Held
from labctl.base.placement import known_slice_ns, set_slice
from labctl.base.process import Deadline, thread_ids
from labctl.base.runner_messages import runner_archive
from labctl.base.tuning import Kind, Sched, Tuning
from labctl.collect.collector import ThreadRef
from labctl.collect.table import RECORDERS
from labctl.collect.threads.thread_snapshots import OWN
from labctl.domain import readback
from labctl.domain.asked import VHOST, ExpectedThread, expected_workload, mismatches, urged
from labctl.domain.pinning.pin_plan import vhost_cpus
from labctl.domain.readback import memory_problems, read_threads
from labctl.domain.render import guest_data_paths
from labctl.domain.session import RunningGuest
from labctl.host.cgroups import Layout, placement, placement_problems
from labctl.host.cpu_partition import Partitions, isolated
from labctl.host.cpu_weight import (
    group_limits,
    group_problems,
    libvirt_shares,
    session_problems,
    weigh_session,
)
from labctl.host.native import DATA_FOLDER, NativeSession, native_session
from labctl.host.settings import knobs
from labctl.host.topology import read_topology
from labctl.run.guests import nic, tuned
from labctl.run.guests.boots import Boots, PausedGuest
from labctl.run.guests.build_seen import BuildSeen
from labctl.run.guests.lab import Lab
from labctl.run.resources.huge_pages import pages_of
from labctl.store.jsonfile import write_bytes

# Give a guest its tuning's CPU weight, and read it back.


def weigh(layout: Layout, running: RunningGuest, weight: int | None) -> None:
    """Give a guest a CPU weight; None leaves the default. Raises BrokenError if that is
    impossible."""
    if weight is None:
        return
    if (shares := libvirt_shares(layout, weight)) is not None:
        running.set_cpu_shares(shares)
    weigh_session(layout, running.pid, weight)


def weight_problems(layout: Layout, running: RunningGuest, weight: int | None) -> list[str]:
    """Return why a guest's weight against its neighbours is wrong."""
    problems = session_problems(layout, running.pid, weight)
    shares = None if weight is None else libvirt_shares(layout, weight)
    if shares is not None and (found := running.cpu_shares()) != shares:
        problems.append(f"the guest has {found} CPU shares, expected {shares}")
    return problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Hold what a trial needs of its machine.

    `cpus` and `sched` are given to each command (natively; a guest's tuning acts on its threads).
    `trial_cpus`: host CPUs that the machine may run on. `problems`: settings that read back
    differently from the request. `evidence`: file name to text or JSON value, stored with every
    trial.
    """

    tuning: Tuning
    kind: Kind
    channel: Channel
    data_paths: tuple[str, ...]
    trial_cpus: CpuSet
    siblings: CpuSet
    """Hardware threads that share a core with one of `trial_cpus`."""
    threads: Callable[[], list[ThreadRef]]
    counters: Callable[[], dict[str, object]]
    """Counters beside threads: QEMU's statistics, out-of-memory kills."""
    first_clock: ClockReading | None = None
    """A guest's clock when it was resumed."""
    vcpu_tids: tuple[int, ...] = ()
    waits_for_faults: bool = False
    """True if a warm-up lasts until faults on the guest's memory are flat: only under KVM
    (docs/decisions/warm-up.md)."""
    peer: str | None = None
    """Address of the peers of workloads that have one."""
    cpus: CpuSet | None = None
    sched: Sched | None = None
    asked: tuple[ExpectedThread, ...] = ()
    """Settings read back before and after each trial: a guest's threads, natively the command."""
    host_problems: Callable[[], list[str]] = list
    """Returns what ended a setting that the tuning holds on the host; called after each trial."""
    misplaced: Callable[[], list[str]] = list
    """Reads the settings back now, for a machine that lives on after a trial."""
    weigh: Callable[[int, Command], list[str]] = lambda pid, command: []
    """Gives the waiting process of a native command the tuning's CPU weight; returns why its weight
    is wrong."""
    problems: tuple[str, ...] = ()
    evidence: Mapping[str, object] = field(default_factory=dict)
    boot: int = 0
    """Number of the boot that a guest comes from."""
    restored: bool = False

    def serves(self) -> bool:
        """Return whether the machine answers and its threads are still as requested. If they have
        changed, the remaining trials use another machine."""
        try:
            self.channel.wait_ready(Deadline.after(30, "the machine's answer after a trial"))
        except BrokenError:
            return False
        return bool(self.problems) or not self.misplaced()


# Put a tuning in force on the host: its knobs, and the CPUs that remain with them.


@dataclass(frozen=True, slots=True)
class HostSide:
    """Hold what was set up on the host. `held`: settings in force only while labctl holds them."""

    evidence: dict[str, object] = field(default_factory=dict)
    held: Sequence[Held] = ()

    def problems(self) -> list[str]:
        """Return why held settings ended, a sentence each."""
        return [why for one in self.held if (why := one.why_over()) is not None]


@contextmanager
def host_changed(lab: Lab, tuning: Tuning) -> Iterator[HostSide]:
    """Set the host up as the tuning requests, and restore it afterwards.

    Raises BrokenError for a knob that cannot be set: then only this tuning's trials are invalid,
    and the run goes on.
    """
    if not tuning.host:
        yield HostSide()
        return
    plan = lab.pin_plan_for(tuning)
    before = {entry.id for entry in lab.journal.pending()}
    with ExitStack() as stack:
        try:
            turned = stack.enter_context(
                knobs.host_changed(tuning.host, lab.journal, plan.housekeeping, plan.vcpu_cpus)
            )
        except HostError as error:
            raise BrokenError(error.message, hint=error.hint) from error
        changed = [entry for entry in lab.journal.pending() if entry.id not in before]
        held = [{"name": h.name, "before": h.before, "now": h.now} for h in turned.held]
        evidence: dict[str, object] = {
            "host-knobs.json": {
                "asked": dict(tuning.host),
                "changed": [{"name": e.name, "before": e.old, "now": e.new} for e in changed],
                "held": held,
                "refused": turned.refused,
            }
        }
        yield HostSide(evidence, turned.held)


def with_cpus_of_now(lab: Lab, tuning: Tuning) -> Lab:
    """Limit unpinned threads to the CPUs that are online now: with SMT off there are fewer."""
    return replace(lab, topology=read_topology()) if "smt" in tuning.host else lab


# Choose the threads of a snapshot, and their roles.


def guest_threads(
    pid: int, vcpu_tids: Mapping[int, int], iothread_tids: Mapping[int, int]
) -> list[ThreadRef]:
    """Return QEMU's threads as they are now: its workers come and go."""
    return [
        ThreadRef(pid=pid, tid=state.tid, role=state.role, index=state.index)
        for state in read_threads(pid, vcpu_tids, iothread_tids)
    ]


def pin_vhost(pid: int, cpus: CpuSet | None) -> None:
    """Pin the kernel's vhost workers of a QEMU; None leaves them. Raises BrokenError if the kernel
    refuses it."""
    if cpus is None:
        return
    for state in read_threads(pid, {}, {}):
        if state.role != VHOST:
            continue
        try:
            os.sched_setaffinity(state.tid, cpus)
        except OSError as error:
            raise BrokenError(
                f"vhost's thread {state.tid} can't run on CPU {format_cpus(cpus)}: {error.strerror}"
            ) from error


def urge(tuning: Tuning, pid: int, sliced: Iterable[int]) -> None:
    """Give a process's threads the tuning's nice value, and those of `sliced` its time slice; their
    children inherit both. Raises BrokenError if one cannot have it."""
    set_slices(sliced, tuning.vcpu_slice_ns)
    if tuning.nice is not None:
        for tid in thread_ids(pid):
            try:
                os.setpriority(os.PRIO_PROCESS, tid, tuning.nice)
            except ProcessLookupError:
                continue  # it has ended since
            except OSError as error:
                raise BrokenError(
                    f"thread {tid} can't have the nice value {tuning.nice}: {error.strerror}",
                    hint="A nice value below the present one takes CAP_SYS_NICE.",
                ) from error


def set_slices(tids: Iterable[int], slice_ns: int) -> None:
    """Set the time slice of threads; 0 leaves the kernel's. Raises BrokenError if another one is
    read back: a kernel before Linux 6.12 accepts the call, and does nothing."""
    if not slice_ns:
        return
    wanted = f"a time slice of {slice_ns / 1e6:g} ms"
    for tid in tids:
        try:
            set_slice(tid, slice_ns)
        except OSError as error:
            raise BrokenError(f"cannot give thread {tid} {wanted}: {error.strerror}") from error
        if (found := known_slice_ns(tid)) != slice_ns:
            has = "none" if found is None else f"{found / 1e6:g} ms"
            raise BrokenError(
                f"thread {tid}: expected {wanted}, got {has}", hint="This needs Linux 6.12."
            )


def process_threads(pid: int, role: str) -> list[ThreadRef]:
    """Return a process's threads; [] when it is gone."""
    tids = thread_ids(pid)
    return [ThreadRef(pid=pid, tid=tid, role=role, index=n) for n, tid in enumerate(tids)]


def tree_threads(pid: int, role: str) -> list[ThreadRef]:
    """Return the threads of a process and of all its descendants (proc_pid_task_children(5))."""
    found = process_threads(pid, role)
    for child in _children(found):
        found += tree_threads(child, role)
    return found


def labctl_threads() -> list[ThreadRef]:
    """Return the threads of the measurement itself: our own, and those of the tools that record for
    us."""
    found = process_threads(os.getpid(), OWN)
    for child in _children(found):
        try:
            name = Path(f"/proc/{child}/comm").read_text().strip()
        except OSError:
            continue
        if name in RECORDERS:
            found += process_threads(child, OWN)
    return found


def _children(threads: Sequence[ThreadRef]) -> list[int]:
    found: list[int] = []
    for thread in threads:
        try:
            text = Path(f"/proc/{thread.pid}/task/{thread.tid}/children").read_text()
        except OSError:
            continue
        found += map(int, text.split())
    return found


# Provide a guest with a tuning in force as a machine for trials.


_HANDICAP_PERIOD_S = 1.0


@contextmanager
def guest_bench(lab: Lab, boots: Boots, boot: int, tuning: Tuning, fresh: bool) -> Iterator[Bench]:
    """Provide a guest with the tuning in force: restored from boot `boot`, or booted for itself."""
    restored = tuning.restore and not fresh
    with ExitStack() as stack:
        if restored:
            # On the unchanged host, because every other tuning is restored from this boot as well.
            boots.saved(boot)
        on_host = stack.enter_context(host_changed(lab, tuning))
        lab = with_cpus_of_now(lab, tuning)
        paused: PausedGuest = stack.enter_context(
            boots.restored(boot, tuning) if restored else boots.booted(tuning)
        )
        running = paused.running
        pid = running.pid
        vcpus = running.vcpu_threads()
        iothreads = running.iothread_threads()
        live = running.live_xml()
        plan = lab.pin_plan_for(tuning)
        expected = urged(lab.source.expected_threads(lab, tuning, paused.asked_xml), tuning, plan)
        urge(tuning, pid, vcpus.values())
        pin_vhost(pid, vhost_cpus(tuning, plan))
        weigh(lab.layout, running, tuning.cpu_weight)
        partitions = Partitions({})
        if tuning.pin.partition:
            # Last, because nothing else can be placed on these CPUs afterwards.
            partitions = stack.enter_context(isolated(lab.layout, lab.journal, pid, vcpus))

        def misplaced() -> list[str]:
            return [
                *_misplaced_threads(expected, pid, vcpus, iothreads),
                *weight_problems(lab.layout, running, tuning.cpu_weight),
                *partitions.problems(),
            ]

        problems = [*misplaced(), *_guest_problems(lab, pid, paused.asked_xml, live)]
        build = BuildSeen.of_emulator(lab, tuning, pid)
        channel = stack.enter_context(paused.answering())
        build = build.with_kernel(lab, tuning, channel)
        if not restored:
            boots.set_up(channel, tuning)
        data_paths = guest_data_paths(tuning.disk, lab.data.count)
        inside = tuned.set_up(channel, tuning.guest, data_paths)
        card = nic.look(lab, channel, tuning.network)
        first_clock = channel.wait_ready(Deadline.after(10, "the guest's clock"))
        stack.enter_context(handicapped(pid, tuning.handicap_percent))

        def counters() -> dict[str, object]:
            if lab.accelerator.name != "kvm":
                return {}
            return {
                "query_stats": [
                    running.qmp("query-stats", target=target) for target in ("vcpu", "vm")
                ]
            }

        trial_cpus = frozenset(cpu for thread in expected for cpu in thread.cpus)
        yield Bench(
            tuning=tuning,
            kind=Kind.GUEST,
            channel=channel,
            data_paths=data_paths,
            trial_cpus=trial_cpus,
            siblings=lab.topology.siblings(trial_cpus),
            threads=partial(guest_threads, pid, vcpus, iothreads),
            counters=counters,
            first_clock=first_clock,
            vcpu_tids=tuple(vcpus.values()),
            waits_for_faults=lab.accelerator.name == "kvm",
            peer=lab.link.guest.peer if lab.link else None,
            asked=tuple(expected),
            misplaced=misplaced,
            host_problems=on_host.problems,
            problems=(*problems, *build.problems, *inside.problems, *card.problems),
            evidence={
                "live.xml": live,
                "placement.json": placement(pid),
                **on_host.evidence,
                **build.evidence,
                **inside.evidence,
                **card.evidence,
            },
            boot=paused.boot,
            restored=restored,
        )


@contextmanager
def handicapped(pid: int, percent: float) -> Iterator[None]:
    """Stop the process for `percent` of each second while inside; nothing for 0 (METHOD rule 5).

    In one piece, because the host scheduler compensates short gaps: after a pause the vCPU thread
    is owed time and preempts its neighbours, for up to about one scheduling slice (3 ms). Of a
    whole second, so that a trial of whole seconds loses exactly its share wherever the seconds
    fall.
    """
    if percent <= 0:
        yield
        return
    over = threading.Event()
    stopped_s = _HANDICAP_PERIOD_S * percent / 100

    def stop_and_go() -> None:
        while not over.wait(_HANDICAP_PERIOD_S - stopped_s):
            if not _signal(pid, signal.SIGSTOP):
                return
            over.wait(stopped_s)
            _signal(pid, signal.SIGCONT)

    thread = threading.Thread(target=stop_and_go, name="handicap", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _signal(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _misplaced_threads(
    expected: Sequence[ExpectedThread],
    pid: int,
    vcpus: Mapping[int, int],
    iothreads: Mapping[int, int],
) -> list[str]:
    """Return a sentence for each of QEMU's threads that is not as expected now."""
    return mismatches(expected, readback.read_threads(pid, vcpus, iothreads))


def _guest_problems(lab: Lab, pid: int, asked_xml: str, live_xml: str) -> list[str]:
    """Return how a guest's XML and memory differ from the request."""
    return [
        *readback.live_mismatches(asked_xml, live_xml, is_whole=lab.source.says_everything),
        *memory_problems(pages_of(asked_xml), pid),
    ]


# Provide the image's tree on the host as a machine for trials.


MIB = 1024 * 1024


@contextmanager
def native_bench(lab: Lab, tuning: Tuning) -> Iterator[Bench]:
    """Provide the image's tree on the host, with as many CPUs and as much memory as the guest
    has.
    """
    with ExitStack() as stack:
        on_host = stack.enter_context(host_changed(lab, tuning))
        lab = with_cpus_of_now(lab, tuning).for_arm(tuning)
        pinned = tuning.pin.vcpus is not None
        cpus = lab.pin_plan_for(tuning).vcpu_cpus if pinned else lab.topology.usable
        session = stack.enter_context(
            native_session(
                lab.image.tree,
                data_folder=lab.data.folder,
                memory_bytes=lab.memory_mib * MIB,
                runner=runner_file(lab),
                layout=lab.layout,
                journal=lab.journal,
                network=lab.native_network,
                limits=group_limits(lab.layout, tuning.cpu_weight),
            )
        )
        channel = runner_channel(session)
        # Children of the runner inherit its slice and nice value.
        urge(tuning, session.pid, [session.pid])
        placed = placement_problems(lab.layout, session.placement())
        weighed = partial(group_problems, lab.layout, session.group, tuning.cpu_weight)
        yield Bench(
            tuning=tuning,
            kind=Kind.NATIVE,
            channel=channel,
            data_paths=tuple(f"{DATA_FOLDER}/{path.name}" for path in lab.data.paths),
            trial_cpus=cpus,
            siblings=lab.topology.siblings(cpus),
            threads=list,
            counters=lambda: {"oom_kills": session.oom_kills()},
            problems=(*placed, *weighed()),
            misplaced=weighed,
            weigh=partial(_weigh_command, lab.layout, tuning.cpu_weight),
            evidence={"placement.json": session.placement(), **on_host.evidence},
            peer=lab.link.native.peer if lab.link else None,
            cpus=cpus,
            sched=tuning.vcpu_sched,
            host_problems=on_host.problems,
            asked=(expected_workload(cpus, tuning.vcpu_sched, tuning),),
        )


def _weigh_command(layout: Layout, weight: int | None, pid: int, command: Command) -> list[str]:
    """Give a waiting command the twin's weight: its session is not the runner's. Return why its
    weight is wrong."""
    if weight is None:
        return []
    if command.cgroup is not None and "cpu" in command.cgroup.controllers:
        return ["it has a cpu cgroup of its own, in which the tuning's CPU weight is not in force"]
    weigh_session(layout, pid, weight)
    return session_problems(layout, pid, weight)


@contextmanager
def tree_channel(lab: Lab) -> Iterator[Channel]:
    """Start a runner in the image's tree outside any bench, to query the programs."""
    with native_session(
        lab.image.tree,
        data_folder=None,
        memory_bytes=lab.memory_mib * MIB,
        runner=runner_file(lab),
        layout=lab.layout,
        journal=lab.journal,
    ) as session:
        yield runner_channel(session)


def runner_file(lab: Lab) -> Path:
    """Return the runner's archive, which native machines mount; the first one of a run writes
    it."""
    path = lab.work / "runner.pyz"
    if not path.exists():
        write_bytes(path, runner_archive(), mode=0o600, below=lab.work)
    return path


def runner_channel(session: NativeSession, name: str = "the native runner") -> Channel:
    """Return a channel to a native runner that answers; raises BrokenError with the runner's output
    if it does not. `name`: the runner's, for errors."""
    channel = Channel(session.connection, name)
    try:
        channel.wait_ready(Deadline.after(20, "the native runner's first answer"))
    except BrokenError:
        session.check_alive()
        raise
    return channel


# Provide the machine that a tuning needs, a guest or the tree, in one call.


def bench_of(
    lab: Lab, boots: Boots, boot: int, tuning: Tuning, *, fresh: bool
) -> AbstractContextManager[Bench]:
    """Provide a machine with the tuning in force. For a guest: restored from boot `boot` of the
    plan, or with `fresh` booted for itself."""
    if tuning.kind is Kind.NATIVE:
        return native_bench(lab, tuning)
    return guest_bench(lab, boots, boot, tuning, fresh)


def fresh_bench(lab: Lab, tuning: Tuning) -> AbstractContextManager[Bench]:
    """Provide a machine for the tuning alone, outside any plan."""
    if tuning.kind is Kind.NATIVE:
        return native_bench(lab, tuning)
    boots = Boots(lab, lab.source.disks(lab, tuning), tuning, lambda *_: None)
    return guest_bench(lab, boots, 0, tuning, fresh=True)
