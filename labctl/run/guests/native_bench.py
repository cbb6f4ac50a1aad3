"""Provide the image's tree on the host as a machine for trials."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from labctl.base.channel import Channel
from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError
from labctl.base.runner_archive import runner_archive
from labctl.base.tuning import Kind, Tuning
from labctl.domain.asked import expected_workload
from labctl.host.cgroups import placement_problems
from labctl.host.native import DATA_FOLDER, NativeSession, native_session
from labctl.run.guests.bench import Bench
from labctl.run.guests.host_side import host_changed, with_cpus_of_now
from labctl.run.guests.lab import Lab
from labctl.run.guests.threads import set_slices
from labctl.store.jsonfile import write_bytes

MIB = 1024 * 1024


@contextmanager
def native_bench(lab: Lab, tuning: Tuning) -> Iterator[Bench]:
    """Provide the image's tree on the host, with as many CPUs and as much memory as the guest
    has.
    """
    with ExitStack() as stack:
        on_host = stack.enter_context(host_changed(lab, tuning))
        lab = with_cpus_of_now(lab, tuning)
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
            )
        )
        channel = runner_channel(session)
        # Whatever the runner starts inherits its slice.
        set_slices([session.pid], tuning.vcpu_slice_ns)
        yield Bench(
            tuning=tuning,
            kind=Kind.NATIVE,
            channel=channel,
            data_paths=tuple(f"{DATA_FOLDER}/{path.name}" for path in lab.data.paths),
            trial_cpus=cpus,
            siblings=lab.topology.siblings(cpus),
            threads=list,
            counters=lambda: {"oom_kills": session.oom_kills()},
            problems=tuple(placement_problems(lab.layout, session.placement())),
            evidence={"placement.json": session.placement(), **on_host.evidence},
            peer=lab.link.native.peer if lab.link else None,
            cpus=cpus,
            sched=tuning.vcpu_sched,
            host_problems=on_host.problems,
            asked=(expected_workload(cpus, tuning.vcpu_sched, tuning.vcpu_slice_ns),),
        )


@contextmanager
def tree_channel(lab: Lab) -> Iterator[Channel]:
    """Start a runner in the image's tree outside any bench, for questions about the programs."""
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
    """Return the runner's archive, which native machines mount; the first of a run writes it."""
    path = lab.work / "runner.pyz"
    if not path.exists():
        write_bytes(path, runner_archive(), mode=0o600, below=lab.work)
    return path


def runner_channel(session: NativeSession, name: str = "the native runner") -> Channel:
    """Return a channel to a native runner that answers; raises what the runner said when it
    doesn't. `name`: the runner's, for errors."""
    channel = Channel(session.connection, name)
    try:
        channel.wait_ready(Deadline.after(20, "the native runner's first answer"))
    except BrokenError:
        session.check_alive()
        raise
    return channel
