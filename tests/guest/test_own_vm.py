"""VMs that aren't labctl's, swept: what comes of it, and that nothing of them has changed."""

from __future__ import annotations

import grp
import hashlib
import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from labctl.base.errors import BrokenError
from labctl.domain.foreign.foreign_domain import domain_of_file
from labctl.domain.readback import Pages, facts
from labctl.guest.images import Image
from labctl.host import cgroups
from labctl.host.settings.journal import Journal
from labctl.run.resources.huge_pages import huge_pages, pages_of
from tests.guest.conftest import (
    LATENCY,
    QUIET,
    TINY,
    TWO,
    Sandbox,
    booting_within,
    changed_study,
    huge_page_pools,
)

BOOT_S = 600
"""Tests say nothing about speed: a busy machine boots an emulated guest in minutes."""
SWEEP = ("--seed=1", *QUIET)
VIRT_INSTALL = Path(__file__).parents[1] / "unit/domain/fixtures/virt-install-4.1.0-own-direct.xml"

BY_HAND = """\
<domain type='kvm'>
  <!-- by hand: odd order, odd units, no addresses, things that two guests can't share -->
  <devices>
    <emulator>{planted}</emulator>
    <graphics type='spice' autoport='yes'/>
    <disk device='cdrom' type='file'><target dev='sda' bus='sata'/><readonly/></disk>
    <disk {data}>
      <target dev='vdb'/>
    </disk>
    <interface type='bridge'>
      <source bridge='br-of-production'/>
      <mac address='52:54:00:12:34:56'/>
    </interface>
    <serial type='file'><source path='{log}'/></serial>
    <disk type='file' device='disk'>
      <driver name='qemu' type='qcow2' cache='unsafe'/>
      <source file='{root}'><seclabel model='dac' relabel='no'/></source>
      <target dev='vda'/>
      <alias name='ua-root'/>
    </disk>
    <channel type='spicevmc'><target type='virtio' name='com.redhat.spice.0'/></channel>
    <tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm>
    <memballoon model='none'/>
  </devices>
  <vcpu cpuset='0-1,^7'>1</vcpu>
  <memory unit='MB'>600</memory>
  {backing}
  <os>
    <cmdline>{cmdline}</cmdline>
    <type>hvm</type>
    <kernel>{kernel}</kernel>
    <initrd>{initrd}</initrd>
  </os>
  <cputune><shares>2048</shares><emulatorpin cpuset='0'/></cputune>
  <metadata><inv:tag xmlns:inv='http://example.com/inventory'>42</inv:tag></metadata>
  <seclabel type='dynamic' model='apparmor' relabel='yes'/>
  <features><acpi/></features>
  <cpu mode='host-passthrough'/>
  <uuid>11111111-2222-4333-8444-555555555555</uuid>
  <name>production</name>
</domain>
"""

IN_HUGE_PAGES = "<memoryBacking><hugepages/></memoryBacking>"

_DEFINE = """\
import sys, libvirt
libvirt.virEventRegisterDefaultImpl()
libvirt.open(sys.argv[1]).defineXML(open(sys.argv[2]).read())
"""


def study(folder: Path, *, boot_s: int = BOOT_S, **changes: str) -> str:
    return changed_study(folder, {**booting_within(boot_s), **changes})


def snapshot(*paths: Path) -> dict[str, Any]:
    """What must be the same afterwards."""
    return {
        path.name: (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_mtime_ns,
            path.stat().st_uid,
            path.stat().st_mode,
        )
        for path in paths
    }


def live_xml(run: Path) -> dict[str, str]:
    """Tuning to what libvirt showed of its guest."""
    return {
        json.loads((path / "trial.json").read_text())["cell"]["tuning"]: (
            path / "live.xml"
        ).read_text()
        for path in run.glob("trials/*")
    }


def qemu_img(*words: str | Path) -> None:
    subprocess.run(["qemu-img", *map(str, words)], check=True, capture_output=True)


def command_line(image: Image) -> str:
    """As the image has it, without the first boot's provisioning: that is somebody else's VM."""
    return f"{image.command_line} cloud-init=disabled"


@contextmanager
def block_device(file: Path) -> Iterator[str]:
    """The file as a block device, as a <disk>'s attributes and parts; as a file where the host
    gives no loop device."""
    made = subprocess.run(
        ["losetup", "--find", "--show", str(file)], capture_output=True, text=True, check=False
    )
    device = made.stdout.strip()
    if made.returncode != 0:
        yield f"type='file'><source file='{file}'/"
        return
    try:
        yield f"type='block'><source dev='{device}'/"
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


def can_be_had(pages: list[Pages], folder: Path) -> bool:
    """Whether the host finds memory for these huge pages, at this time."""
    try:
        with huge_pages(pages, Journal(folder / "probe.jsonl")):
            return bool(pages)
    except BrokenError:
        return False


class OwnVm:
    """A VM whose root is the image as it was built, below a snapshot: nothing of labctl's is in
    it but what the image has."""

    def __init__(self, folder: Path, image: Image, base: Path, data: str, data_file: Path) -> None:
        self.base = base
        self.root = folder / "root.qcow2"
        self.data = data_file
        self.xml = folder / "production.xml"
        self.log = folder / "console.log"
        qemu_img("create", "-f", "qcow2", "-F", "qcow2", "-b", self.base, self.root)
        self.log.write_text("what it said before\n")
        planted, self.was_run = folder / "planted", folder / "was-run"
        planted.write_text(f'#!/bin/sh\ntouch {self.was_run}\nexec qemu-system-x86_64 "$@"\n')
        planted.chmod(0o755)
        written = {
            "root": self.root,
            "data": data,
            "log": self.log,
            "planted": planted,
            "kernel": image.kernel,
            "initrd": image.initrd,
            "cmdline": command_line(image),
        }
        in_pages = BY_HAND.format(**written, backing=IN_HUGE_PAGES)
        self.has_huge_pages = can_be_had(pages_of(in_pages), folder)
        plain = BY_HAND.format(**written, backing="")
        self.xml.write_text(in_pages if self.has_huge_pages else plain)

    def snapshot(self) -> dict[str, Any]:
        return snapshot(self.base, self.root, self.data, self.xml, self.log)

    def without(self, program: str) -> None:
        """Take a program out of its guest."""
        raw = self.root.with_suffix(".raw")
        qemu_img("convert", "-O", "raw", self.root, raw)
        subprocess.run(
            ["debugfs", "-w", "-R", f"rm {program}", str(raw)], check=True, capture_output=True
        )
        raw.rename(self.root)
        text = self.xml.read_text().replace(" type='qcow2' cache='unsafe'", " type='raw'")
        self.xml.write_text(text)


@pytest.fixture(scope="module")
def installed(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image's disk once more: what a fault might write to isn't the host's."""
    return Path(shutil.copy(image.disk, tmp_path_factory.mktemp("installed") / "base.qcow2"))


@pytest.fixture
def own(tmp_path: Path, image: Image, installed: Path) -> Iterator[OwnVm]:
    data = tmp_path / "data.img"
    data.write_bytes(b"\x5a" * (1 << 20))
    with block_device(data) as source:
        yield OwnVm(tmp_path, image, installed, source, data)


@contextmanager
def in_use(disk: Path) -> Iterator[None]:
    """A QEMU that has the disk open as a running VM has it. Nothing asks for the disk's lock until
    QEMU has it: that would keep it from QEMU, which then ends."""
    argv = ["qemu-system-x86_64", "-S", "-nodefaults", "-display", "none", "-machine", "q35"]
    argv += ["-drive", f"file={disk},if=virtio,format=qcow2", "-qmp", "stdio"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True)
    try:
        assert process.stdout is not None
        # QEMU greets when its disks are open, and locked.
        assert '"QMP"' in process.stdout.readline()
        yield
    finally:
        process.kill()
        process.communicate()


def test_a_foreign_vm_is_swept_and_its_files_are_byte_identical(
    sandbox: Sandbox, own: OwnVm, tmp_path: Path
) -> None:
    before, pools = own.snapshot(), huge_page_pools()
    asked = ("sweep", study(tmp_path), *SWEEP, f"--domain={own.xml}", "--json")
    done = sandbox.labctl(*asked)
    assert done.returncode == 0, done.stderr
    assert own.snapshot() == before
    assert not own.was_run.exists()  # the XML's <emulator>
    assert huge_page_pools() == pools
    assert sandbox.leftovers() == []
    report = json.loads(done.stdout)
    assert report["trials"]["planned"] == report["trials"]["done"] == 2
    assert report["trials"]["invalid"] == 0
    assert {c["against"] for c in report["comparisons"]} == {"baseline"}
    (run,) = sandbox.runs()
    record = json.loads((run / "run.json").read_text())
    assert record["domain"]["name"] == "production"
    assert "not available natively" in record["skipped"]["native"]
    # Its disks are root's, and stay so.
    why = record["qemu_user"]["why_root"]
    assert any(text.startswith("libvirt-qemu can't read disk vd") for text in why)
    # Its programs have no other side to be compared with: that is said, and its files are known.
    assert any("there is no native side" in text for text in record["hashed"]["unproven"])
    assert any("there is no native side" in text for text in report["warnings"])
    assert len(record["hashed"]["guest"]["files"]) > len(record["binaries"])
    for note in ("user network", "<tpm> is left out", "<emulator> is left out", "<shares>"):
        assert note in done.stderr
    # What ran is the VM's own: its pin beside the tuning's, its cache mode, its two disks.
    live = live_xml(run)
    baseline, pinned = live["baseline"], live["pinned+fifo"]
    for xml in (baseline, pinned):
        # As the root disk has it: what fio would measure promises the same.
        assert facts(xml, "live")["disk vdc cache"] == "unsafe"
    planned = json.loads((run / "plan.json").read_text())["tunings"]
    assert {entry["durability"] for entry in planned.values()} == {"unsafe, writeback"}
    # A trial whose guest isn't in the huge pages that it was to have would have been invalid.
    assert ("<hugepages/>" in baseline) == own.has_huge_pages
    assert "<emulatorpin cpuset='0'/>" in baseline
    assert "scheduler='fifo'" in pinned
    assert "scheduler='fifo'" not in baseline
    for original in ("production<", "11111111-2222", "52:54:00:12:34:56", str(own.log)):
        assert not any(original in xml for xml in live.values())
    for disk in ("vda", "vdb"):
        assert f"-{disk}.qcow2'" in baseline


KUBEVIRT = """\
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {{name: {name}}}
spec:
  domain:
    cpu: {{cores: 1, dedicatedCpuPlacement: true}}
    memory: {{guest: 600Mi}}
    firmware:
      kernelBoot:
        kernelArgs: {cmdline}
        container: {{image: kernels, kernelPath: /vmlinuz, initrdPath: /initrd.img}}
    devices:
      disks:
      - {{name: root, disk: {{bus: virtio}}, cache: writeback}}
      gpus: [{{name: gpu, deviceName: nvidia.com/T4}}]
  volumes:
  - {{name: root, containerDisk: {{image: debian}}}}
"""


def test_a_vm_of_kubevirt_is_swept_with_stand_ins_and_its_report_names_them(
    sandbox: Sandbox, image: Image, installed: Path, tmp_path: Path
) -> None:
    name = f"labctl-test-{os.getpid()}"
    vm = tmp_path / "vm.yaml"
    vm.write_text(KUBEVIRT.format(name=name, cmdline=command_line(image)))
    own = domain_of_file(vm.read_bytes(), str(vm))
    (disk,), (kernel, initrd) = own.disks, own.boot_files
    disk.path.parent.mkdir(parents=True, exist_ok=True)
    assert image.initrd is not None
    try:
        shutil.copy(image.kernel, kernel)
        shutil.copy(image.initrd, initrd)
        qemu_img("create", "-f", "qcow2", "-F", "qcow2", "-b", installed, disk.path)
        before = snapshot(installed, disk.path)
        asked = ("sweep", study(tmp_path), *SWEEP, f"--domain={vm}", "--json")
        done = sandbox.labctl(*asked)
        assert done.returncode == 0, done.stderr
        assert snapshot(installed, disk.path) == before
    finally:
        for path in (kernel, initrd, disk.path):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            disk.path.parent.rmdir()
    assert sandbox.leftovers() == []
    trials = json.loads(done.stdout)["trials"]
    assert (trials["planned"], trials["done"], trials["invalid"]) == (2, 2, 0)
    (run,) = sandbox.runs()
    assert facts(live_xml(run)["baseline"], "live")["disk vda cache"] == "writeback"
    notes = "\n".join(json.loads((run / "run.json").read_text())["notes"])
    for part in ("disk root (containerDisk debian): stand-in", "devices.gpus: left out"):
        assert f"In labctl's copy of '{name}', {part}" in notes
        assert part in done.stderr


def test_copies_of_a_foreign_vm_run_beside_it_and_its_files_are_byte_identical(
    sandbox: Sandbox, own: OwnVm, tmp_path: Path
) -> None:
    before, pools = own.snapshot(), huge_page_pools()
    beside = study(tmp_path, **{"[quiet, neighbour]": "[noisy-guests]", **TWO})
    asked = ("sweep", beside, "--seed=1", "--accel=tcg", f"--domain={own.xml}", "--quiet")
    done = sandbox.labctl(*asked)
    assert done.returncode == 0, done.stderr
    assert own.snapshot() == before
    assert huge_page_pools() == pools
    assert sandbox.leftovers() == []
    (run,) = sandbox.runs()
    (folder,) = [path.parent for path in run.glob("trials/*/neighbour.json")]
    assert json.loads((folder / "trial.json").read_text())["status"] == "done"
    rows = json.loads((folder / "neighbour.json").read_text())["neighbours"]
    assert {row["guest"]["name"] for row in rows} == {"labctl-noisy-1", "labctl-noisy-2"}
    for row in rows:
        assert row["guest"]["uuid"] != "11111111-2222-4333-8444-555555555555"
        assert row["guest"]["macs"] != ["52:54:00:12:34:56"]
        assert "bogo-ops:" in row["files"]["hog.yaml"]


def direct(image: Image, disk: Path, data: Path, kernel: Path, initrd: Path | None) -> str:
    """What virt-install made of a VM whose kernel is booted directly, with these files."""
    made = VIRT_INSTALL.read_text()
    for was, now in (
        ("/srv/direct1.qcow2", disk),
        ("/srv/data.img", data),
        ("/srv/vmlinuz", kernel),
        ("/srv/initrd.img", initrd),
        ("root=/dev/vda1 console=ttyS0", command_line(image)),
    ):
        assert was in made
        made = made.replace(was, str(now))
    return made


def test_a_vm_whose_files_qemus_user_can_read_needs_no_root(
    sandbox: Sandbox, image: Image, installed: Path, tmp_path: Path
) -> None:
    theirs = sandbox.state / "theirs"
    theirs.mkdir(mode=0o711)
    assert image.initrd is not None
    shutil.copy(installed, theirs)
    (theirs / installed.name).chmod(0o644)
    for file in (image.kernel, image.initrd):
        os.chown(file, 0, 0)  # as a run leaves them whose QEMU was root
    disk, data = theirs / installed.name, theirs / "data.img"
    data.write_bytes(b"\x5a" * (1 << 20))
    xml = theirs / "direct1.xml"
    made = direct(image, disk, data, image.kernel, image.initrd)
    assert '<input type="tablet" bus="usb"/>' in made, "virt-install gives it no address"
    xml.write_text(made)
    before = snapshot(disk, data)
    done = sandbox.labctl("sweep", study(tmp_path), *SWEEP, f"--domain={xml}")
    assert done.returncode == 0, done.stderr
    assert snapshot(disk, data) == before
    (run,) = sandbox.runs()
    assert json.loads((run / "run.json").read_text())["qemu_user"]["why_root"] == []
    account = pwd.getpwnam("libvirt-qemu")
    label = f"<label>+{account.pw_uid}:+{grp.getgrnam('libvirt-qemu').gr_gid}</label>"
    assert all(label in live for live in live_xml(run).values())
    for live in live_xml(run).values():
        (tablet,) = etree.fromstring(live).iterfind("devices/input[@bus='usb']/address")
        assert (tablet.get("type"), tablet.get("port")) == ("usb", "1")
    assert {file.stat().st_uid for file in sandbox.state.glob("data/*")} == {0}
    assert sandbox.leftovers() == []


def test_a_domain_that_libvirt_knows_is_swept_by_name_and_keeps_its_definition(
    sandbox: Sandbox, image: Image, installed: Path, tmp_path: Path
) -> None:
    disk, (data, xml) = installed, (tmp_path / name for name in ("data.img", "direct1.xml"))
    data.write_bytes(b"\x5a" * (1 << 20))
    xml.write_text(direct(image, disk, data, image.kernel, image.initrd))
    theirs = sandbox.state / "theirs"
    (theirs / "etc").mkdir(parents=True)
    controllers = cgroups.libvirt_setting(cgroups.detect())
    (theirs / "etc/qemu.conf").write_text(
        'user = "root"\ngroup = "root"\nsecurity_driver = "none"\nnamespaces = []\n'
        f'stdio_handler = "file"\n{controllers}\n'
    )
    uri = f"qemu:///embed?root={theirs}"
    subprocess.run([sys.executable, "-c", _DEFINE, uri, str(xml)], check=True)
    (definition,) = theirs.glob("etc/**/direct1.xml")
    before = snapshot(disk, data, definition)
    asked = ("sweep", study(tmp_path), *SWEEP, "--domain=direct1", f"--connect={uri}")
    done = sandbox.labctl(*asked)
    assert done.returncode == 0, done.stderr
    assert snapshot(disk, data, definition) == before
    assert sandbox.leftovers() == []
    (run,) = sandbox.runs()
    live = live_xml(run)
    assert set(live) == {"baseline", "pinned+fifo"}
    assert all("bus='scsi'" in xml and "type='user'" in xml for xml in live.values())
    assert all("<graphics" not in xml for xml in live.values())
    assert "scheduler='fifo'" in live["pinned+fifo"]


def test_a_vm_that_runs_is_refused_before_anything_starts(sandbox: Sandbox, own: OwnVm) -> None:
    for disk in (own.root, own.base):
        with in_use(disk):
            done = sandbox.labctl("sweep", str(TINY), *SWEEP, f"--domain={own.xml}")
        assert done.returncode == 3
        assert "disk vda of 'production' is in use" in done.stderr
    assert sandbox.runs() == []


def test_a_guest_that_lacks_a_program_is_told_how_to_get_it(
    sandbox: Sandbox, own: OwnVm, tmp_path: Path
) -> None:
    own.without("/usr/bin/cyclictest")
    done = sandbox.labctl("sweep", study(tmp_path, **LATENCY), *SWEEP, f"--domain={own.xml}")
    assert done.returncode == 3
    assert "the guest lacks cyclictest" in done.stderr
    assert "apt install rt-tests" in done.stderr
    assert sandbox.leftovers() == []


def test_a_program_of_ones_own_is_measured_in_ones_own_vm_if_it_is_there(
    sandbox: Sandbox, own: OwnVm, tmp_path: Path
) -> None:
    sweep = ("sweep", study(tmp_path), *SWEEP, f"--domain={own.xml}", "--condition=quiet")
    own_program = ("--better=higher", "--duration=1", "--package=redis-tools")
    lacking = ("--command=redis-benchmark -q", r"--metric=get=GET: ([\d.]+) requests")
    done = sandbox.labctl(*sweep, *lacking, *own_program)
    assert done.returncode == 3
    assert "the guest lacks redis-benchmark" in done.stderr
    assert "apt install redis-tools" in done.stderr
    done = sandbox.labctl(*sweep, "--command=seq 7", "--metric=last=^(7)$", *own_program)
    assert done.returncode == 0, done.stderr
    run = max(sandbox.runs(), key=lambda path: path.name)
    assert {trial["status"] for trial in sandbox.trials(run)} == {"done"}
    assert sandbox.leftovers() == []


def test_a_guest_without_an_agent_ends_the_run_once_its_time_is_up_and_is_told_the_remedy(
    sandbox: Sandbox, own: OwnVm, tmp_path: Path
) -> None:
    own.without("/usr/sbin/qemu-ga")
    done = sandbox.labctl("sweep", study(tmp_path, boot_s=10), *SWEEP, f"--domain={own.xml}")
    assert done.returncode == 3
    assert "no agent answers in the guest within 10 s" in done.stderr
    assert "apt install qemu-guest-agent" in done.stderr
    assert sandbox.leftovers() == []
