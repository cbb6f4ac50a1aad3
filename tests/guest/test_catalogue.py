"""Every tuning that this host can have becomes a real guest, and libvirt shows what was asked.

The guests are never resumed: what is proven is that libvirt and QEMU take the XML, that the
threads are placed, and that the live domain is the one that was asked for.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from labctl.base.errors import BrokenError, BusyError, UsageError
from labctl.base.hostfacts import is_older
from labctl.base.paths import StatePaths, host_lock
from labctl.base.tuning import Kind, Tuning
from labctl.domain import readback
from labctl.domain.asked import ExpectedThread, expected_threads, mismatches, urged
from labctl.domain.pinning.pin_plan import pin_plan, vhost_cpus
from labctl.domain.readback import huge_page_kib, memory_problems
from labctl.domain.render import DomainRequest, render
from labctl.domain.schema import validate
from labctl.domain.session import RunningGuest, Session
from labctl.guest.images import Image
from labctl.host.accelerator import accelerator
from labctl.host.cgroups import detect, libvirt_controllers
from labctl.host.cpu_partition import Partitions, isolated
from labctl.host.lock import host_locked
from labctl.host.settings.journal import Journal, UndoOutcome
from labctl.host.topology import Topology, read_topology
from labctl.run.guests.bench import pin_vhost, urge, weigh, weight_problems
from labctl.run.guests.lab_opening import open_image
from labctl.run.planning.requirements import read_offers
from labctl.run.resources.disks import DataDisks, make_overlay
from labctl.run.resources.huge_pages import (
    free_pages,
    huge_pages,
    hugetlbfs_mounted,
    pages_of,
    sizes_in_files,
)
from labctl.run.resources.qemu_user import account_of_qemu
from labctl.study.tunings import load_tuning, load_tunings, tuning_names
from tests.guest.conftest import huge_page_pools, wait_for

pytestmark = pytest.mark.alone

MEMORY_MIB = 1024
"""A whole page of the largest size. The guests never run: untouched, it costs nothing."""
COMBINED = (
    "pinned+fifo+cache-none+io-native+nosharepages",
    "vcpupin+iothreadpin+disk-queues-4+cache-unsafe",
    "vcpupin-node+vcpusched-rr+emulatorpin+memory-memfd",
    "disk-scsi+disk-packed+disk-queues-1+iothreads-1",
    "disk-scsi+disk-qcow2+net-e1000e+no-balloon+cpu-named+timer-hpet",
)
GUESTS = [
    tuning
    for tuning in load_tunings([*tuning_names(), *COMBINED]).values()
    if tuning.kind is Kind.GUEST
]


def accelerator_of(tuning: Tuning) -> str:
    """Emulated where that is the same."""
    return "kvm" if tuning.requires.accelerator == "kvm" or tuning.network.vhost else "tcg"


@dataclass(frozen=True)
class Bench:
    """An open connection, and what guests are made of. `shown`: the guests that were as asked, by
    XML, threads and weight: many tunings change the host or the guest's inside alone."""

    session: Session
    journal: Journal
    state: Path
    image: Image
    topology: Topology
    data: DataDisks
    why_no_kvm: str | None
    shown: set[tuple[str, str]] = field(default_factory=set)

    def xml(self, tuning: Tuning, vcpus: int) -> str:
        return render(
            DomainRequest(
                name="labctl-guest",
                uuid="5f0c1ab2-3d4e-4f56-8a9b-0c1d2e3f4a5b",
                tuning=tuning,
                plan=pin_plan(self.topology, vcpus, tuning.iothreads, tuning.pin.strategy),
                accelerator=accelerator_of(tuning),
                vcpus=vcpus,
                memory_mib=MEMORY_MIB,
                kernel=self.image.kernel,
                initrd=self.image.initrd,
                cmdline=" ".join([self.image.command_line, *tuning.guest.command_line]),
                root_disk=self.state / "root.qcow2",
                data_disks=self.data.paths_in(tuning.disk.format),
                seed_disk=None,
                console_log=self.state / "console.log",
                runner_socket=self.state / "runner.sock",
                agent_socket=self.state / "agent.sock",
            )
        )

    def threads(self, tuning: Tuning, vcpus: int) -> list[ExpectedThread]:
        plan = pin_plan(self.topology, vcpus, tuning.iothreads, tuning.pin.strategy)
        return urged(expected_threads(tuning, plan, self.topology.usable), tuning, plan)

    def wrong(self, tuning: Tuning, xml: str, running: RunningGuest, vcpus: int) -> list[str]:
        """What the running guest has otherwise than was asked."""
        vcpu_tids = running.vcpu_threads()
        urge(tuning, running.pid, vcpu_tids.values())
        weigh(detect(), running, tuning.cpu_weight)
        plan = pin_plan(self.topology, vcpus, tuning.iothreads, tuning.pin.strategy)
        pin_vhost(running.pid, vhost_cpus(tuning, plan))
        with ExitStack() as stack:
            partitions = Partitions({})
            if tuning.pin.partition:
                entered = isolated(detect(), self.journal, running.pid, vcpu_tids)
                partitions = stack.enter_context(entered)
            states = readback.read_threads(running.pid, vcpu_tids, running.iothread_threads())
            return [
                *mismatches(self.threads(tuning, vcpus), states),
                *weight_problems(detect(), running, tuning.cpu_weight),
                *partitions.problems(),
                *readback.live_mismatches(xml, running.live_xml()),
                *memory_problems(pages_of(xml), running.pid),
            ]

    @contextmanager
    def started(self, xml: str) -> Iterator[RunningGuest]:
        """The guest, paused; with its huge pages, which are given back at the end."""
        with huge_pages(pages_of(xml), self.journal):
            running = self.session.start(xml)
            try:
                yield running
            finally:
                running.end()


@pytest.fixture(scope="module")
def bench(image: Image) -> Iterator[Bench]:
    # Not below pytest's own folder: paths of unix sockets end at 107 bytes.
    state = Path(f"/var/tmp/labctl-cat-{os.getpid()}")
    state.mkdir(mode=0o711)  # QEMU's user passes through
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, state)
        wait_for(lambda: _locked(stack), 600, "the end of another run")
        data = DataDisks(state / "data", formats=frozenset({"raw", "qcow2"}))
        data.make()
        make_overlay(image.disk, state / "root.qcow2")
        controllers = libvirt_controllers(detect())
        journal = Journal(state / "journal.jsonl")
        sizes = sizes_in_files(GUESTS)
        mounts = stack.enter_context(hugetlbfs_mounted(sizes, state / "hugetlbfs", journal))
        account = account_of_qemu()
        assert account is not None, "run 'make setup' first"
        open_image(image, account.gid)
        for file in (state / "root.qcow2", *data.files):
            os.chown(file, account.uid, account.gid)
        chosen = accelerator("auto", image.kernel, StatePaths.default())
        session = stack.enter_context(
            Session.embedded(
                state / "lv",
                controllers,
                mounts,
                user=account.name,
                group=account.group,
                # Or it can: it makes no difference to emulated guests.
                opens_kvm=chosen.name == "kvm",
            )
        )
        stack.callback(session.end_all)
        yield Bench(
            session,
            journal,
            state,
            image,
            read_topology(),
            data,
            chosen.reason if chosen.name != "kvm" else None,
        )


def _locked(stack: ExitStack) -> bool:
    try:
        stack.enter_context(host_locked(host_lock(), what="tests of the catalogue"))
    except BusyError:
        return False
    return True


def _absent(tuning: Tuning, installed: str, topology: Topology) -> str | None:
    """Why this host can't start the tuning's guest at all."""
    need = tuning.requires
    offers = read_offers([tuning], topology, vcpus=1, memory_mib=MEMORY_MIB, accelerator=None)
    if tuning.memory.locked and not offers.locks_memory:
        return "the right to lift the limit of locked memory"
    if need.libvirt is not None and is_older(installed, need.libvirt):
        return f"libvirt {need.libvirt}"
    if need.kernel is not None and is_older(os.uname().release, need.kernel):
        return f"Linux {need.kernel}"
    if flags := [flag for flag in need.cpu_flags if flag not in offers.cpu_flags]:
        return f"the CPU flags {', '.join(flags)}"
    if missing := [path for path in need.paths if not Path(path).exists()]:
        return ", ".join(missing)
    if need.hugepages is not None and free_pages(need.hugepages) is None:
        return f"huge pages of {need.hugepages}"
    if offers.partition_problem is not None:
        return f"partitions: {offers.partition_problem}"
    return None


@pytest.mark.parametrize(
    "tuning",
    [
        pytest.param(
            tuning,
            id=tuning.name,
            marks=pytest.mark.kvm if accelerator_of(tuning) == "kvm" else (),
        )
        for tuning in GUESTS
    ],
)
def test_a_tuning_becomes_the_guest_that_was_asked_for(bench: Bench, tuning: Tuning) -> None:
    installed = bench.session.versions()["libvirt"]
    if accelerator_of(tuning) == "kvm" and bench.why_no_kvm is not None:
        pytest.skip(f"this host lacks KVM: {bench.why_no_kvm}")
    if absent := _absent(tuning, installed, bench.topology):
        pytest.skip(f"this host lacks {absent}")
    # Where there are two CPUs, a partition of both would leave the emulator none.
    vcpus = 1 if tuning.pin.partition else min(2, len(bench.topology.usable))
    try:
        xml = bench.xml(tuning, vcpus)
    except UsageError as error:
        pytest.skip(f"this host lacks the CPUs: {error.message}")
    validate(xml)
    asked = (xml, repr((bench.threads(tuning, vcpus), tuning.cpu_weight, tuning.pin.partition)))
    if asked in bench.shown:
        return
    pools = huge_page_pools()
    try:
        with bench.started(xml) as running:
            assert bench.wrong(tuning, xml, running, vcpus) == []
            check_huge_pages(tuning, running, pools)
    except BrokenError as error:
        # Even root may lack the right to lift the limit of locked memory, and memory may be in
        # pieces by now.
        for said in ("cannot limit locked memory", "free huge pages"):
            if said in error.message:
                pytest.skip(f"not on this host, at this time: {error.message}")
        raise
    assert huge_page_pools() == pools
    bench.shown.add(asked)


def check_huge_pages(tuning: Tuning, running: RunningGuest, before: dict[str, str]) -> None:
    """The guest's memory is in pages of the size asked for, and the host's pools grew by no more;
    a tuning that asks for none has left them alone."""
    during = huge_page_pools()
    if tuning.memory.hugepages is None:
        assert during == before
        return
    page = {"2M": 2048, "1G": 1024 * 1024}[tuning.memory.hugepages]
    smaps = Path(f"/proc/{running.pid}/smaps").read_text()
    assert huge_page_kib(smaps) == {page: MEMORY_MIB * 1024}
    grown = int(during[f"hugepages-{page}kB"]) - int(before[f"hugepages-{page}kB"])
    assert grown <= MEMORY_MIB * 1024 // page


KILLED = """
import os, signal, sys
from pathlib import Path
from labctl.host.cgroups import detect
from labctl.host.cpu_partition import isolated
from labctl.host.settings.journal import Journal
with isolated(detect(), Journal(Path(sys.argv[1])), int(sys.argv[2]), {0: int(sys.argv[3])}):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_partition_of_a_killed_labctl_is_undone(bench: Bench) -> None:
    tuning = load_tuning("cpu-partition-isolated")
    if absent := _absent(tuning, bench.session.versions()["libvirt"], bench.topology):
        pytest.skip(f"this host lacks {absent}")
    isolated_cpus = Path("/sys/fs/cgroup/cpuset.cpus.isolated")
    before = bench.journal.pending()
    with bench.started(bench.xml(tuning, 1)) as running:
        (tid,) = running.vcpu_threads().values()
        argv = [str(bench.journal.path), str(running.pid), str(tid)]
        assert subprocess.run([sys.executable, "-c", KILLED, *argv]).returncode == -signal.SIGKILL
        assert isolated_cpus.read_text().strip()
        outcomes = [restored.outcome for restored in bench.journal.restore_all()]
        assert set(outcomes) == {UndoOutcome.RESTORED}
        assert not isolated_cpus.read_text().strip()
        lists = isolated_cpus.parent.rglob("cpuset.cpus.exclusive")
        assert {path.read_text().strip() for path in lists} == {""}
    assert bench.journal.pending() == before


def test_what_is_compared_would_tell_another_guest(bench: Bench) -> None:
    asked, other = load_tuning("disk-queues-1"), load_tuning("disk-queues-4")
    running = bench.session.start(bench.xml(other, 1))
    try:
        assert bench.wrong(asked, bench.xml(asked, 1), running, 1) == [
            "disk vdb queues: expected 1, the domain has 4"
        ]
    finally:
        running.end()
