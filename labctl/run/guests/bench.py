"""Provide a machine with a tuning in force: a restored guest, or the tree natively.

The engine does not know which it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import labctl.base.runner_program
from labctl.base.channel import Channel, ClockReading
from labctl.base.cpus import CpuSet
from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError, HostError
from labctl.base.tuning import Kind, Sched, Tuning
from labctl.collect.collector import ThreadRef
from labctl.domain import readback
from labctl.domain.asked import ExpectedThread, expected_workload, mismatches
from labctl.domain.memory import memory_problems
from labctl.domain.render import guest_data_path
from labctl.host.cgroups import placement, placement_problems
from labctl.host.native import DATA_FOLDER, NativeSession, native_session
from labctl.host.settings import knobs
from labctl.host.topology import read_topology
from labctl.run.guests import guest_nic, guest_side
from labctl.run.guests.boots import Boots, PausedGuest
from labctl.run.guests.known_loss import handicapped
from labctl.run.guests.lab import Lab
from labctl.run.guests.threads import guest_threads
from labctl.run.resources.huge_pages import pages_of

MIB = 1024 * 1024
RUNNER = Path(labctl.base.runner_program.__file__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Hold what a trial needs of its machine.

    `cpus` and `sched` are given to each command (natively; a guest's tuning acts on its threads).
    `trial_cpus`: host CPUs that the machine may run on. `problems`: what was read back and is not
    what was asked. `evidence`: file name to text or JSON value, stored with every trial.
    """

    tuning: Tuning
    kind: Kind
    channel: Channel
    data_path: str
    trial_cpus: CpuSet
    siblings: CpuSet
    """Hardware threads that share a core with one of `trial_cpus`."""
    threads: Callable[[], list[ThreadRef]]
    counters: Callable[[], dict[str, Any]]
    """Counters beside threads: QEMU's statistics, out-of-memory kills."""
    first_clock: ClockReading | None = None
    """A guest's clock when it was resumed."""
    vcpu_tids: tuple[int, ...] = ()
    waits_for_faults: bool = False
    """True if a warm-up goes on until faults on the guest's memory are flat: only under KVM
    (docs/decisions/warm-up.md)."""
    peer: str | None = None
    """The address at which it finds the peers of workloads that have one."""
    cpus: CpuSet | None = None
    sched: Sched | None = None
    asked: tuple[ExpectedThread, ...] = ()
    """Settings read back before and after each trial: a guest's threads, natively the command."""
    misplaced: Callable[[], list[str]] = list
    """Reads that back now, of a machine that lives on after a trial."""
    problems: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    boot: int = 0
    """Number of the boot that a guest comes from."""
    restored: bool = False


@contextmanager
def guest_bench(lab: Lab, boots: Boots, boot: int, tuning: Tuning, fresh: bool) -> Iterator[Bench]:
    """Provide a guest with the tuning in force: restored from boot `boot`, or booted for itself."""
    restored = tuning.restore and not fresh
    with ExitStack() as stack:
        if restored:
            # On the host as it is: every other tuning is restored from this boot as well.
            boots.saved(boot)
        changed = stack.enter_context(_host_changed(lab, tuning))
        lab = _with_cpus_of_now(lab, tuning)
        paused: PausedGuest = stack.enter_context(
            boots.restored(boot, tuning) if restored else boots.booted(tuning)
        )
        running = paused.running
        pid = running.pid
        vcpus = running.vcpu_threads()
        iothreads = running.iothread_threads()
        live = running.live_xml()
        expected = lab.source.expected_threads(lab, tuning, paused.asked_xml)

        def misplaced() -> list[str]:
            return mismatches(expected, readback.read_threads(pid, vcpus, iothreads))

        problems = [
            *misplaced(),
            *readback.live_mismatches(paused.asked_xml, live, is_whole=lab.source.says_everything),
            *memory_problems(pages_of(paused.asked_xml), pid),
            *placement_problems(lab.layout, placement(pid)),
        ]
        channel = stack.enter_context(paused.answering())
        if not restored:
            boots.set_up(channel, tuning)
        inside = guest_side.set_up(channel, tuning.guest, guest_data_path(tuning.disk))
        card = guest_nic.look(lab, channel, tuning.network)
        first_clock = channel.wait_ready(Deadline.after(10, "the guest's clock"))
        stack.enter_context(handicapped(pid, tuning.handicap_percent))

        def threads() -> list[ThreadRef]:
            return guest_threads(pid, vcpus, iothreads)

        def counters() -> dict[str, Any]:
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
            data_path=guest_data_path(tuning.disk),
            trial_cpus=trial_cpus,
            siblings=lab.topology.siblings(trial_cpus),
            threads=threads,
            counters=counters,
            first_clock=first_clock,
            vcpu_tids=tuple(vcpus.values()),
            waits_for_faults=lab.accelerator.name == "kvm",
            peer=lab.link.guest.peer if lab.link else None,
            asked=tuple(expected),
            misplaced=misplaced,
            problems=(*problems, *inside.problems, *card.problems),
            evidence={
                "live.xml": live,
                "placement.json": placement(pid),
                **changed,
                **inside.evidence,
                **card.evidence,
            },
            boot=paused.boot,
            restored=restored,
        )


@contextmanager
def native_bench(lab: Lab, tuning: Tuning) -> Iterator[Bench]:
    """Provide the image's tree on the host, with as many CPUs and as much memory as the guest
    has.
    """
    with ExitStack() as stack:
        changed = stack.enter_context(_host_changed(lab, tuning))
        lab = _with_cpus_of_now(lab, tuning)
        pinned = tuning.pin.vcpus is not None
        cpus = lab.pin_plan_for(tuning).vcpu_cpus if pinned else lab.topology.usable
        session = stack.enter_context(
            native_session(
                lab.image.tree,
                data_folder=lab.data.folder,
                memory_bytes=lab.memory_mib * MIB,
                runner_program=RUNNER,
                layout=lab.layout,
                journal=lab.journal,
                network=lab.link.native_file if lab.link else None,
            )
        )
        channel = _native_channel(session)
        yield Bench(
            tuning=tuning,
            kind=Kind.NATIVE,
            channel=channel,
            data_path=f"{DATA_FOLDER}/{lab.data.path.name}",
            trial_cpus=cpus,
            siblings=lab.topology.siblings(cpus),
            threads=list,
            counters=lambda: {"oom_kills": session.oom_kills()},
            problems=tuple(placement_problems(lab.layout, session.placement())),
            evidence={"placement.json": session.placement(), **changed},
            peer=lab.link.native.peer if lab.link else None,
            cpus=cpus,
            sched=tuning.vcpu_sched,
            asked=(expected_workload(cpus, tuning.vcpu_sched),),
        )


@contextmanager
def tree_channel(lab: Lab) -> Iterator[Channel]:
    """Start a runner in the image's tree outside any bench, for questions about the programs."""
    with native_session(
        lab.image.tree,
        data_folder=None,
        memory_bytes=lab.memory_mib * MIB,
        runner_program=RUNNER,
        layout=lab.layout,
        journal=lab.journal,
    ) as session:
        yield _native_channel(session)


@contextmanager
def _host_changed(lab: Lab, tuning: Tuning) -> Iterator[dict[str, Any]]:
    """The host as the tuning asks for it; as it was afterwards. Yields the evidence.

    Raises BrokenError for a knob that can't be turned: then it is this tuning whose trials are
    invalid, and the run goes on.
    """
    if not tuning.host:
        yield {}
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
        yield {
            "host-knobs.json": {
                "asked": dict(tuning.host),
                "changed": [{"name": e.name, "before": e.old, "now": e.new} for e in changed],
                "held": [asdict(held) for held in turned.held],
                "refused": turned.refused,
            }
        }


def _with_cpus_of_now(lab: Lab, tuning: Tuning) -> Lab:
    """With SMT switched off, threads that aren't pinned may run on fewer CPUs."""
    return replace(lab, topology=read_topology()) if "smt" in tuning.host else lab


def _native_channel(session: NativeSession) -> Channel:
    """Return a channel to a native runner that answers; raises what the runner said when it
    doesn't."""
    channel = Channel(session.connection, "the native runner")
    try:
        channel.wait_ready(Deadline.after(20, "the native runner's first answer"))
    except BrokenError:
        session.check_alive()
        raise
    return channel
