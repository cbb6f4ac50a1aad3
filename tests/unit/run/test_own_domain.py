"""The administrator's own domain as a run takes it: bad input, what fits it, what a run records."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import HostError, LabctlError, UsageError
from labctl.domain.foreign.foreign_domain import OwnDomain, own_domain
from labctl.domain.pinning.pin_plan import pin_plan
from labctl.run.commands.host_record import put_copy
from labctl.run.planning import own_domain as module
from labctl.run.planning import own_domain as own_files
from labctl.run.planning import plan as planning
from labctl.run.planning.own_domain import misfits, outside_xml, own_of_run, read_own
from labctl.run.planning.plan import plan_sweep
from labctl.store.records.run_record import RunRecord
from labctl.store.run_folder import RunFolder, RunLog
from labctl.study.load_study import Overrides
from labctl.study.tunings import load_tuning, load_tunings
from tests.unit.domain import hosts
from tests.unit.records import write_run_json
from tests.unit.run.asked import plan_on, request

BASELINE = load_tuning("baseline")

XML = """\
<domain type='kvm'>
  <name>web</name>
  <memory unit='GiB'>1</memory>
  <vcpu>{vcpus}</vcpu>
  <os><type arch='x86_64'>hvm</type>{kernel}</os>
  <devices>
    <disk type='file'>
      <driver name='qemu' type='{format}' cache='none'/>
      <source file='{disk}'/>
      <target dev='vda' bus='virtio'/>
    </disk>
    {more}
  </devices>
</domain>
"""


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    path = tmp_path / "web.img"
    path.write_bytes(b"\0" * 4096)
    return path


def written(disk: Path, **changes: Any) -> Path:
    """A domain's file."""
    values = {"vcpus": 1, "format": "raw", "disk": disk, "kernel": "", "more": "", **changes}
    path = disk.parent / "web.xml"
    path.write_text(XML.format(**values))
    return path


def read(path: Path | str, connect: str | None = None) -> module.OwnGuest:
    return read_own(str(path), connect=connect, keep_network=False)


def refused(path: Path | str, kind: type[LabctlError] = UsageError) -> str:
    """The error and its hint, which there must be."""
    with pytest.raises(kind) as caught:
        read(path)
    assert caught.value.hint
    return f"{caught.value.message}\n{caught.value.hint}"


def test_a_domain_in_a_file_is_read_and_nothing_is_written(disk: Path) -> None:
    path = written(disk)
    before = sorted(disk.parent.iterdir())
    own = read(path)
    assert (own.domain.name, own.domain.vcpus, own.domain.memory_mib) == ("web", 1, 1024)
    assert own.disks_as_found == {"vda": (4096, disk.stat().st_mtime_ns)}
    assert sorted(disk.parent.iterdir()) == before


def test_a_file_that_is_not_there_is_named_with_the_command_that_makes_it(tmp_path: Path) -> None:
    said = refused(tmp_path / "gone.xml")
    assert f"cannot read {tmp_path}/gone.xml: No such file" in said
    assert "virsh dumpxml" in said


def test_a_folder_is_no_domain(tmp_path: Path) -> None:
    assert "Is a directory" in refused(tmp_path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is not XML"),
        ("name: web\n", "is not XML: line 1"),
        ("<domain type='kvm'>\n<name>web</name>\n", "is not XML: line 3"),
        ("<network/>", "is not a QEMU domain: its root is <network>"),
        ("<domain type='xen'><name>x</name></domain>", "its root is <domain type='xen'>"),
        ("<domain type='kvm'><vcpu>1</vcpu></domain>", "has neither <memory>"),
        (
            "<domain type='kvm'><vcpu>0</vcpu><memory>1</memory></domain>",
            "<vcpu> (line 1): '0' is not a number",
        ),
    ],
)
def test_a_file_that_holds_no_domain_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "web.xml"
    path.write_text(text)
    said = refused(path)
    assert f"the file '{path}'" in said
    assert sentence in said


def test_what_a_copy_can_not_have_is_named_with_its_line(disk: Path) -> None:
    path = written(disk, more="<disk><target dev='vdx'/></disk>")
    said = refused(path)
    assert f"can't copy the file '{path}': <disk dev='vdx'> (line 12)" in said
    assert "pass the file" in said


def test_a_domain_without_a_disk_is_refused_unless_its_kernel_is_booted(disk: Path) -> None:
    path = written(disk, kernel="")
    diskless = path.read_text().replace("<disk type='file'>", "<disk device='cdrom'><readonly/>")
    path.write_text(diskless)
    assert "has no own disk to boot from" in refused(path)
    kernel = disk.with_name("vmlinuz")
    kernel.write_bytes(b"")
    path.write_text(diskless.replace("</os>", f"<kernel>{kernel}</kernel></os>"))
    assert read(path).domain.disks == ()


def test_a_disk_that_is_not_there_is_named(disk: Path) -> None:
    said = refused(written(disk.with_name("gone.img")))
    assert f"cannot open disk vda of 'web', {disk.with_name('gone.img')}: No such file" in said


@pytest.mark.parametrize(
    ("number", "kind", "sentence"),
    [
        (errno.EACCES, UsageError, "Permission denied"),
        (errno.EBUSY, HostError, "disk vda of 'web' is in use"),  # a mounted block device
    ],
)
def test_a_disk_that_the_host_does_not_let_us_read_is_named(
    disk: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    kind: type[LabctlError],
    sentence: str,
) -> None:
    path = written(disk)

    def refuse(opened: Path, flags: int) -> int:
        assert opened == disk
        assert flags & os.O_ACCMODE == os.O_RDONLY
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(own_files.os, "open", refuse)
    assert sentence in refused(path, kind)


def test_a_disk_of_another_format_is_named(disk: Path) -> None:
    said = refused(written(disk, format="qcow2"))
    assert f"disk vda of 'web', {disk}, is not a readable qcow2" in said
    assert "<driver type=" in said


def make_overlay(base: Path, path: Path, *format_of_base: str) -> Path:
    subprocess.run(
        ["qemu-img", "create", "-q", "-u", "-f", "qcow2", *format_of_base, "-b", base, path, "4K"],
        check=True,
    )
    return path


def test_a_snapshot_is_copied_with_the_file_below_it(disk: Path) -> None:
    snapshot = make_overlay(disk, disk.with_name("snapshot.qcow2"), "-F", "raw")
    assert read(written(snapshot, format="qcow2")).domain.disks[0].path == snapshot


def test_a_snapshot_whose_base_is_gone_is_named(disk: Path) -> None:
    gone = disk.with_name("gone.img")
    snapshot = make_overlay(gone, disk.with_name("snapshot.qcow2"), "-F", "raw")
    said = refused(written(snapshot, format="qcow2"))
    assert "gone.img" in said
    assert "disk vda of 'web'" in said


def test_a_snapshot_that_does_not_say_its_bases_format_is_told_how_to(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # qemu-img makes none any more; those that older versions made are still about.
    info = f"""{{"filename": "{disk}", "format": "qcow2", "backing-filename": "base.img",
        "full-backing-filename": "/srv/base.img"}}"""

    def told(argv: list[str], **_: Any) -> Any:
        assert argv[:2] == ["qemu-img", "info"]
        return type("Told", (), {"stdout": info})

    monkeypatch.setattr(own_files, "run", told)
    said = refused(written(disk))
    assert "does not state its format" in said
    assert f"qemu-img rebase -u -F FORMAT -b /srv/base.img {disk}" in said


def test_a_disk_that_somebody_writes_to_is_refused(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from labctl.base.process import Completed, ProcessError

    def locked(argv: list[str], **_: Any) -> Any:
        said = 'qemu-img: Could not open: Failed to get shared "write" lock'
        raise ProcessError(Completed(tuple(map(str, argv)), 1, "", said, 0.1))

    monkeypatch.setattr(own_files, "run", locked)
    said = refused(written(disk), HostError)
    assert f"disk vda of 'web' is in use: {disk}" in said
    assert "virsh shutdown" in said


def test_a_disk_that_changes_during_the_run_ends_it(disk: Path) -> None:
    own = read(written(disk))
    own.check()
    found = disk.stat()
    os.utime(disk, ns=(found.st_atime_ns, found.st_mtime_ns + 1))
    with pytest.raises(HostError, match="disk vda of 'web' changed during the run"):
        own.check()
    disk.unlink()
    with pytest.raises(HostError, match="disk vda of 'web' changed during the run"):
        own.check()


def test_another_file_below_a_disk_ends_the_run(disk: Path) -> None:
    """Its name, size and time are those that were looked at: what was swapped says all else."""
    base, other = disk.with_name("base.raw"), disk.with_name("other.raw")
    base.write_bytes(b"\0" * 65536)
    argv = ["qemu-img", "create", "-q", "-f", "qcow2", "-b", str(base), "-F", "raw", str(disk)]
    disk.unlink()
    subprocess.run(argv, check=True)
    own = read(written(disk, format="qcow2"))
    own.check()
    shutil.copy2(base, other)
    os.rename(other, base)
    with pytest.raises(HostError, match=f"{base}, which a copy of 'web' opens, was replaced"):
        own.check()


def test_a_run_records_the_domain_and_notes_when_it_changes(disk: Path) -> None:
    before = read(written(disk)).record.to_json()
    assert before["name"] == "web"
    assert before == read(written(disk)).record.to_json()
    assert (
        before["digest"]
        != read(written(disk, more="<sound model='ich9'/>")).record.to_json()["digest"]
    )


def test_a_resumed_run_takes_the_domain_as_it_began(tmp_path: Path, disk: Path) -> None:
    own = read(written(disk))
    folder = RunFolder.create(tmp_path / "results", "r1")
    write_run_json(folder, {"domain": own.record.to_json()})
    (folder.path / module.XML).write_text(own.domain.xml)
    written(disk, vcpus=2)  # what becomes of the owner's file is nothing to the run
    resumed = own_of_run(folder, folder.read_run().domain)
    assert resumed is not None
    assert resumed.domain.vcpus == 1
    assert resumed.record.to_json() == own.record.to_json()
    write_run_json(folder, {"domain": None})
    assert own_of_run(folder, folder.read_run().domain) is None


class FakeSession:
    """A libvirt that knows one domain. `trouble`: why it isn't at rest."""

    def __init__(self, xml: str, trouble: HostError | None = None) -> None:
        self._xml = xml
        self._trouble = trouble

    def domain_xml(self, name: str) -> str:
        if name != "web":
            raise UsageError(f"no domain '{name}' at qemu:///system", hint="'virsh list --all'")
        return self._xml

    def check_shut_off(self, name: str) -> None:
        if self._trouble:
            raise self._trouble


def connected_to(monkeypatch: pytest.MonkeyPatch, session: FakeSession) -> None:
    @contextmanager
    def connected(uri: str) -> Iterator[FakeSession]:
        assert uri == "qemu:///system"
        yield session

    monkeypatch.setattr(module.Session, "connected", connected)


def test_a_domain_is_found_by_its_name(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connected_to(monkeypatch, FakeSession(written(disk).read_text()))
    assert read("web", connect="qemu:///system").domain.name == "web"
    with pytest.raises(UsageError, match="no domain 'wbe'"):
        read("wbe", connect="qemu:///system")


def test_a_name_without_a_connection_is_told_what_to_give() -> None:
    said = refused("web")
    assert "--connect qemu:///system" in said
    assert ".xml" in said


def test_a_domain_that_runs_is_refused(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = HostError("the domain 'web' is running", hint="virsh shutdown web")
    connected_to(monkeypatch, FakeSession(written(disk).read_text(), running))
    with pytest.raises(HostError, match="is running"):
        read("web", connect="qemu:///system")


def test_a_network_of_libvirts_is_kept_only_where_there_is_one(disk: Path) -> None:
    card = "<interface type='network'><source network='default'/></interface>"
    with pytest.raises(UsageError, match="'web' is on a libvirt network, which"):
        read_own(str(written(disk, more=card)), connect=None, keep_network=True)


def domain(kernel: str = "", vcpus: int = 1) -> OwnDomain:
    xml = XML.format(vcpus=vcpus, format="raw", disk="/srv/web.img", kernel=kernel, more="")
    return own_domain(xml, "the file 'web.xml'")


def reasons(name: str, own: OwnDomain) -> list[str]:
    tuning = load_tuning(name)
    strategy = tuning.pin.strategy
    plan = pin_plan(hosts.TWO_SOCKETS_SMT, own.vcpus, max(1, tuning.iothreads), strategy)
    found = misfits(own, {name: tuning}, BASELINE, {strategy: plan}, "kvm")
    return [unmet.text for unmet in found.get(name, [])]


def test_native_is_left_out_for_there_is_no_file_system_to_run_on() -> None:
    for name in ("native", "native+fifo"):
        assert reasons(name, domain()) == ["the file system of 'web' is not available natively"]


def test_a_kernels_command_line_fits_only_where_the_xml_says_it() -> None:
    assert reasons("guest-idle-poll", domain()) == [
        "the boot loader of 'web' says its kernel's command line"
    ]
    direct = domain(kernel="<kernel>/boot/vmlinuz</kernel>")
    assert reasons("guest-idle-poll", direct) == []


def test_what_the_domain_has_already_is_no_other_tuning() -> None:
    assert reasons("cache-none", domain()) == [
        "'web' has all of it already, or nothing that it would change"
    ]
    assert reasons("cache-writeback", domain()) == []
    assert reasons("disk-scsi", domain()) != []


@pytest.mark.parametrize("name", ["baseline", "control", "handicap", "booted", "pinned+booted"])
def test_the_roles_and_what_is_only_booted_fit_every_domain(name: str) -> None:
    assert reasons(name, domain()) == []


@pytest.mark.parametrize("name", ["guest-elevator-none", "cache-none+guest-elevator-none"])
def test_what_is_done_in_the_guest_needs_nothing_of_the_xml(name: str) -> None:
    assert reasons(name, domain()) == []
    assert outside_xml(load_tuning(name), BASELINE) == ["guest.elevator: none"]


def test_no_guest_tuning_is_a_misfit_without_a_reason() -> None:
    own = domain()
    for name, tuning in load_tunings(
        ("pinned", "memory-locked", "no-balloon", "io-native")
    ).items():
        assert reasons(name, own) == [], name
        assert outside_xml(tuning, BASELINE) == []


@pytest.fixture
def _two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_on(monkeypatch, hosts.TWO_CPUS)


def planned(tmp_path: Path, own: Path, *tunings: str, **overrides: Any) -> planning.Planned:
    asked = Overrides(tunings=tunings or None, **overrides)
    return plan_sweep(request(tmp_path, domain=str(own), overrides=asked), "tcg")


@pytest.mark.usefixtures("_two_cpus")
def test_a_plan_for_a_domain_has_its_vcpus_and_memory_and_no_native_role(
    tmp_path: Path, disk: Path
) -> None:
    found = planned(tmp_path, written(disk))
    assert found.plan.guest.vcpus == 1
    assert found.plan.guest.memory_mib == 1024
    assert found.plan.roles.native is None
    assert "not available natively" in found.plan.skipped["native"]
    assert "pinned+fifo" in found.plan.tunings


@pytest.mark.usefixtures("_two_cpus")
def test_the_disks_durability_is_read_from_the_domains_own_xml(tmp_path: Path, disk: Path) -> None:
    def durability(own: Path) -> dict[str, str | None]:
        names = ("pinned", "cache-writeback", "cache-unsafe")
        tunings = planned(tmp_path, own, *names).plan.tunings
        return {name: tunings[name].durability for name in ("baseline", *names)}

    path = written(disk)
    assert durability(path) == {
        "baseline": "none",
        "pinned": "none",
        "cache-writeback": "writeback",
        "cache-unsafe": "unsafe",
    }
    path.write_text(path.read_text().replace("cache='none'", "cache='directsync'"))
    assert durability(path)["baseline"] == "writethrough"


@pytest.mark.usefixtures("_two_cpus")
@pytest.mark.parametrize(
    ("tuning", "sentence"),
    [
        ("cache-none", "'web' can't be measured with 'cache-none': 'web' has all of it"),
        ("guest-idle-poll", "'web' can't be measured with 'guest-idle-poll': the boot loader"),
        ("native+fifo", "'web' can't be measured with 'native\\+fifo': the file system of"),
    ],
)
def test_a_tuning_asked_for_by_name_that_does_not_fit_names_both_sides(
    tmp_path: Path, disk: Path, tuning: str, sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        planned(tmp_path, written(disk), tuning)
    assert caught.value.hint


@pytest.mark.usefixtures("_two_cpus")
def test_a_domain_with_more_vcpus_than_the_host_has_cpus_is_refused(
    tmp_path: Path, disk: Path
) -> None:
    with pytest.raises(
        UsageError, match="'web' has 4 vCPUs, but labctl may use only CPUs 0-1 here"
    ):
        planned(tmp_path, written(disk, vcpus=4))


@pytest.mark.usefixtures("_two_cpus")
@pytest.mark.parametrize(
    ("was", "now", "sentence"),
    [
        (
            "<vcpu>",
            "<vcpu cpuset='0-7,^3'>",
            "'web' is bound to CPU 2,4-7, but labctl may use only 0-1",
        ),
        ("<os>", "<cputune><emulatorpin cpuset='5'/></cputune><os>", "bound to CPU 5"),
        ("<os>", "<numatune><memory mode='strict' nodeset='1'/></numatune><os>", "to NUMA node 1"),
    ],
)
def test_a_domain_that_is_bound_to_what_this_host_lacks_is_refused(
    tmp_path: Path, disk: Path, was: str, now: str, sentence: str
) -> None:
    path = written(disk)
    path.write_text(path.read_text().replace(was, now))
    with pytest.raises(UsageError, match=sentence):
        planned(tmp_path, path)


@pytest.mark.usefixtures("_two_cpus")
@pytest.mark.parametrize("size", [{"vcpus": 2}, {"memory_mib": 512}])
def test_a_domains_size_is_its_own(tmp_path: Path, disk: Path, size: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="has its own vCPUs and memory"):
        planned(tmp_path, written(disk), **size)


@pytest.mark.usefixtures("_two_cpus")
def test_a_kernel_of_ones_own_is_for_labctls_images(tmp_path: Path, disk: Path) -> None:
    asked = request(tmp_path, domain=str(written(disk)), kernel=Path("/boot/vmlinuz"))
    with pytest.raises(UsageError, match="--domain"):
        plan_sweep(asked)
    with pytest.raises(UsageError, match="--keep-network needs --domain"):
        plan_sweep(request(tmp_path, keep_network=True))


def test_a_run_records_once_what_the_copy_leaves_out(disk: Path) -> None:
    own = read(written(disk, more="<hostdev/>"))
    log = RunLog(RunFolder(disk.parent / "r1"), RunRecord(notes=("Before.",)))
    for _ in range(2):
        put_copy(log, own)
    said = "In labctl's copy of 'web', <hostdev> (line 12): left out (a passed-through device)."
    assert log.record.notes == ("Before.", said)
    put_copy(log, None)
    assert len(log.record.notes) == 2
