"""A VM that isn't labctl's, swept: what comes of it, and that nothing of it has changed."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from labctl.guest.images import Image
from tests.guest.conftest import Sandbox

STUDY = Path(__file__).with_name("small.yaml")
SWEEP = ("sweep", str(STUDY), "--seed=1", "--condition=quiet", "--accel=tcg")

XML = """\
<domain type='kvm'>
  <!-- by hand: odd order, no addresses, pins of its own -->
  <devices>
    <graphics type='spice' autoport='yes'/>
    <disk device='cdrom' type='file'><target dev='sda' bus='sata'/><readonly/></disk>
    <disk type='file'>
      <target bus='virtio' dev='vdb'/>
      <source file='{data}'/>
    </disk>
    <interface type='bridge'>
      <source bridge='br-of-production'/>
      <mac address='52:54:00:12:34:56'/>
      <model type='virtio'/>
    </interface>
    <serial type='file'><source path='{log}'/></serial>
    <disk type='file' device='disk'>
      <driver name='qemu' type='qcow2' cache='writeback'/>
      <source file='{root}'/>
      <target dev='vda' bus='virtio'/>
    </disk>
    <channel type='spicevmc'><target type='virtio' name='com.redhat.spice.0'/></channel>
    <memballoon model='none'/>
  </devices>
  <vcpu>1</vcpu>
  <memory unit='GiB'>1</memory>
  <os>
    <cmdline>{cmdline}</cmdline>
    <type>hvm</type>
    <kernel>{kernel}</kernel>
    <initrd>{initrd}</initrd>
  </os>
  <cputune><emulatorpin cpuset='0'/></cputune>
  <features><acpi/></features>
  <cpu mode='host-passthrough'/>
  <uuid>11111111-2222-4333-8444-555555555555</uuid>
  <name>production</name>
</domain>
"""


class OwnVm:
    """A VM whose root is a copy of the image as it was built: nothing of labctl's is in it."""

    def __init__(self, folder: Path, image: Image) -> None:
        self.root = folder / "root.qcow2"
        self.data = folder / "data.img"
        self.xml = folder / "production.xml"
        self.log = folder / "console.log"
        self.root.write_bytes(image.disk.read_bytes())
        self.data.write_bytes(b"\x5a" * (1 << 20))
        self.log.write_text("what it said before\n")
        self.xml.write_text(
            XML.format(
                root=self.root,
                data=self.data,
                log=self.log,
                kernel=image.kernel,
                initrd=image.initrd,
                cmdline=image.command_line,
            )
        )

    def state(self) -> dict[str, Any]:
        return {
            path.name: (
                hashlib.sha256(path.read_bytes()).hexdigest(),
                path.stat().st_mtime_ns,
                path.stat().st_uid,
                path.stat().st_mode,
            )
            for path in (self.root, self.data, self.xml, self.log)
        }


@pytest.fixture
def own(tmp_path: Path, image: Image) -> OwnVm:
    return OwnVm(tmp_path, image)


@contextmanager
def in_use(disk: Path) -> Iterator[None]:
    """A QEMU that has the disk open as a running VM has it."""
    argv = ["qemu-system-x86_64", "-S", "-nodefaults", "-display", "none", "-machine", "q35"]
    argv += ["-drive", f"file={disk},if=virtio,format=qcow2", "-serial", "stdio"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        probe = ["qemu-img", "info", str(disk)]
        while subprocess.run(probe, capture_output=True, check=False).returncode == 0:
            assert process.poll() is None
        yield
    finally:
        process.kill()
        process.wait()


def test_a_foreign_vm_is_swept_and_its_files_are_byte_identical(
    sandbox: Sandbox, own: OwnVm
) -> None:
    before = own.state()
    done = sandbox.labctl(*SWEEP, f"--domain={own.xml}", "--json")
    assert done.returncode == 0, done.stderr
    assert own.state() == before
    assert sandbox.leftovers() == []
    report = json.loads(done.stdout)
    assert report["trials"]["planned"] == report["trials"]["done"] == 4
    assert {c["against"] for c in report["comparisons"]} == {"baseline"}
    (run,) = sandbox.runs()
    record = json.loads((run / "run.json").read_text())
    assert record["domain"]["name"] == "production"
    assert "not at hand natively" in record["skipped"]["native"]
    assert "user network" in done.stderr
    # What ran is the VM's own: its pin beside the tuning's, its cache mode, its two disks.
    live = {
        json.loads((path / "trial.json").read_text())["cell"]["tuning"]: path / "live.xml"
        for path in run.glob("trials/*")
    }
    baseline, pinned = (live[name].read_text() for name in ("baseline", "pinned+fifo"))
    assert "cache='writeback'" in baseline
    assert "<emulatorpin cpuset='0'/>" in baseline
    assert "scheduler='fifo'" in pinned
    assert "scheduler='fifo'" not in baseline
    assert str(own.data) not in baseline.partition("<backingStore")[0]


def test_a_vm_that_runs_is_refused_before_anything_starts(sandbox: Sandbox, own: OwnVm) -> None:
    with in_use(own.root):
        done = sandbox.labctl(*SWEEP, f"--domain={own.xml}")
    assert done.returncode == 3
    assert "disk vda of 'production' is in use" in done.stderr
    assert sandbox.runs() == []


def test_a_guest_that_lacks_a_program_is_told_how_to_get_it(
    sandbox: Sandbox, own: OwnVm, tmp_path: Path
) -> None:
    study = tmp_path / "wake.yaml"
    text = STUDY.read_text().replace("program: sysbench-cpu", "program: cyclictest")
    text = text.replace("{max_prime: 2000}", "{}").replace("events_per_s", "latency_p95")
    study.write_text(text)
    subprocess.run(
        ["debugfs", "-w", "-R", "rm /usr/bin/cyclictest", str(raw_of(own.root))],
        check=True,
        capture_output=True,
    )
    own.xml.write_text(own.xml.read_text().replace(" type='qcow2'", " type='raw'"))
    done = sandbox.labctl("sweep", str(study), "--accel=tcg", f"--domain={own.xml}")
    assert done.returncode == 3
    assert "the guest lacks cyclictest" in done.stderr
    assert "apt install rt-tests" in done.stderr
    assert sandbox.leftovers() == []


def raw_of(disk: Path) -> Path:
    """The disk made a raw one, in its place."""
    raw = disk.with_suffix(".raw")
    subprocess.run(["qemu-img", "convert", "-O", "raw", str(disk), str(raw)], check=True)
    raw.rename(disk)
    return disk
