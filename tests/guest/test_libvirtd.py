"""A VM of the host's own libvirtd, swept by its name: what comes of it and of the VM, whatever
happens to labctl and to the daemon meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from labctl.base.paths import OWN_NAME
from labctl.guest.images import Image
from tests.guest.conftest import TINY, Sandbox, tiny, wait_for
from tests.guest.libvirtd import URI, Libvirtd, libvirtd
from tests.guest.test_own_vm import SWEEP, VIRT_INSTALL, command_line, live_xml, snapshot, study

VM = "web1"
OTHER = "labctl-db"
"""A VM that is running all the time; whose it is can't be told from its name."""

NOWHERE = "qemu+unix:///system?socket={}/none"

_OTHER = """\
<domain type='qemu'>
  <name>labctl-db</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <devices>
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw'/><source file='{disk}'/><target dev='vda' bus='virtio'/>
    </disk>
    <memballoon model='none'/>
  </devices>
</domain>
"""


@dataclass(frozen=True)
class System:
    """A daemon that knows a VM which is shut off and one which runs. `files`: what they consist
    of."""

    libvirtd: Libvirtd
    files: tuple[Path, ...]

    def state(self) -> dict[str, Any]:
        """What must be the same afterwards."""
        definitions = sorted(self.libvirtd.file("/etc/libvirt/qemu").glob("*.xml"))
        return {
            "files": snapshot(*self.files, *definitions),
            "attributes": {str(path): os.listxattr(path) for path in self.files},
            "domains": {name: self.libvirtd.virsh("domstate", name) for name in (VM, OTHER)},
            "all": sorted(self.libvirtd.virsh("list", "--all", "--name").split()),
            **{what: self._list(what) for what in ("net-list", "pool-list")},
        }

    def _list(self, what: str) -> str:
        """Networks or pools; "" where their drivers, packages of their own since libvirt 10, are
        not installed."""
        argv = self.libvirtd.argv("virsh", "-c", URI, what, "--all")
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0 or "not supported by the connection driver" in done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def system(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    # Where the daemon's QEMU user may come: pytest's own folder is root's alone.
    folder = Path(f"/var/tmp/labctl-vms-{os.getpid()}")
    folder.mkdir(mode=0o711)
    try:
        with libvirtd(tmp_path_factory.mktemp("daemons")) as made:
            yield _defined(made, folder, image)
    finally:
        shutil.rmtree(folder)


def _defined(made: Libvirtd, folder: Path, image: Image) -> System:
    disk, data, other = (folder / name for name in ("web1.qcow2", "data.img", "db.img"))
    kernel, initrd = folder / "vmlinuz", folder / "initrd.img"
    for source, copy in ((image.disk, disk), (image.kernel, kernel), (image.initrd, initrd)):
        shutil.copy(source, copy)
    for path in (data, other):
        path.write_bytes(b"\x5a" * (1 << 20))
    text = VIRT_INSTALL.read_text()
    for was, now in (
        ("<name>direct1<", f"<name>{VM}<"),
        ("/srv/direct1.qcow2", disk),
        ("/srv/data.img", data),
        ("/srv/vmlinuz", kernel),
        ("/srv/initrd.img", initrd),
        ("root=/dev/vda1 console=ttyS0", command_line(image)),
    ):
        assert was in text
        text = text.replace(was, str(now))
    for name, xml in ((VM, text), (OTHER, _OTHER.format(disk=other))):
        path = folder / f"{name}.xml"
        path.write_text(xml)
        made.virsh("define", path)
    made.virsh("start", OTHER, "--paused")
    return System(made, (disk, data, kernel, initrd, other))


@pytest.fixture
def inside(sandbox: Sandbox, system: System, kept: Path) -> Sandbox:
    # As the state folder is by default: the daemon's QEMU has a user of its own.
    for folder in (sandbox.state, kept):
        folder.chmod(0o755)
    return system.libvirtd.sandbox(sandbox)


@contextmanager
def unchanged(system: System, sandbox: Sandbox) -> Iterator[None]:
    before = system.state()
    yield
    assert system.state() == before
    assert sandbox.leftovers() == []


def test_a_connection_without_a_daemon_is_told_what_to_start(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    uri = NOWHERE.format(tmp_path)
    for asked in (("--domain=web1",), ()):
        done = sandbox.labctl("sweep", str(TINY), *SWEEP, *asked, f"--connect={uri}")
        assert done.returncode == 3
        assert "systemctl start libvirtd" in done.stderr
    assert sandbox.runs() == []


def test_a_vm_that_is_unknown_or_runs_is_refused_before_anything_starts(
    inside: Sandbox, system: System
) -> None:
    with unchanged(system, inside):
        for name, status, said in (
            ("web", 2, f"no domain 'web' at {URI}"),
            (OTHER, 3, f"the domain '{OTHER}' is running"),
        ):
            asked = (f"--domain={name}", f"--connect={URI}")
            done = inside.labctl("sweep", str(TINY), *SWEEP, *asked)
            assert done.returncode == status, done.stderr
            assert said in done.stderr
            if name == "web":
                assert f"Did you mean '{VM}'?" in done.stderr
    assert inside.runs() == []


def test_a_vm_that_the_daemon_knows_is_swept_and_the_daemon_may_die_meanwhile(
    inside: Sandbox, system: System, tmp_path: Path
) -> None:
    with unchanged(system, inside):
        asked = ("sweep", study(tmp_path), *SWEEP, f"--domain={VM}", f"--connect={URI}")
        process = inside.start(*asked)
        wait_for(lambda: _done(inside), 900, "a trial", process)
        system.libvirtd.kill()
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 3, said
        assert f"the connection to {URI} is gone" in said
        # Without a daemon nothing else would end it.
        assert inside.qemu_pids() == []
        system.libvirtd.start()
        (run,) = inside.runs()
        done = inside.labctl("sweep", f"--resume={run.name}", "--json")
        assert done.returncode == 0, done.stderr
    trials = json.loads(done.stdout)["trials"]
    assert trials["planned"] == trials["done"] == 2
    record = json.loads((run / "run.json").read_text())
    assert record["connection"] == URI
    assert record["domain"]["name"] == VM
    live = live_xml(run)
    assert set(live) == {"baseline", "pinned+fifo"}
    assert all("bus='scsi'" in xml and "type='user'" in xml for xml in live.values())
    assert "scheduler='fifo'" in live["pinned+fifo"]


def _done(sandbox: Sandbox) -> list[Path]:
    return [path for run in sandbox.runs() for path in run.glob("trials/*/trial.json")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_sweep_that_ends_in_the_midst_leaves_no_copy(
    number: signal.Signals, inside: Sandbox, system: System, tmp_path: Path
) -> None:
    with unchanged(system, inside):
        asked = ("sweep", study(tmp_path), *SWEEP, f"--domain={VM}", f"--connect={URI}")
        process = inside.start(*asked)
        wait_for(inside.qemu_pids, 300, "a guest", process)
        process.send_signal(number)
        process.communicate(timeout=120)
        if number == signal.SIGKILL:
            assert inside.qemu_pids() != []
            # Of another guest, and one that won't start: the next sweep cleans up before that.
            inside.labctl("sweep", str(TINY), *SWEEP, f"--connect={NOWHERE.format(tmp_path)}")
            # The daemon learns of its end when labctl has long gone on.
            listed = ("list", "--all", "--name")
            virsh = system.libvirtd.virsh
            wait_for(
                lambda: not any(map(OWN_NAME.fullmatch, virsh(*listed).split())),
                30,
                "the daemon's word",
            )


def test_labctls_own_guests_run_there_and_its_images_stay_roots(
    inside: Sandbox, system: System, image: Image
) -> None:
    # One for each runner and user-data that was prepared for on this machine.
    built = (image.disk, image.kernel, *image.prepared_dir.glob("*.qcow2"))
    assert len(built) > 2
    before = [path.stat().st_uid for path in built]
    with unchanged(system, inside):
        done = inside.labctl(*tiny(), f"--connect={URI}", "--json")
    assert done.returncode == 0, done.stderr
    trials = json.loads(done.stdout)["trials"]
    assert trials["planned"] == trials["done"] == 3
    assert [path.stat().st_uid for path in built] == before


def test_a_vm_that_must_run_on_is_planned_for_with_a_copy_of_its_disk(
    inside: Sandbox, system: System, tmp_path: Path
) -> None:
    made = system.libvirtd
    made.virsh("backup-begin", OTHER)
    job = ("domjobinfo", OTHER, "--completed")
    wait_for(lambda: "Completed" in made.virsh(*job), 60, "a copy of the disk")
    (disk,) = system.files[-1].parent.glob("db.img.*")
    xml = tmp_path / "db.xml"
    text = made.virsh("dumpxml", "--inactive", OTHER)
    xml.write_text(text.replace("db.img'", f"{disk.name}'").replace("type='raw'", "type='qcow2'"))
    with unchanged(system, inside):
        done = inside.labctl("sweep", str(TINY), *SWEEP, f"--domain={xml}", "--plan-only")
        assert done.returncode == 0, done.stderr
    disk.unlink()


def test_what_a_run_advises_is_applied_to_the_daemons_vm_and_undone(
    inside: Sandbox, system: System, tmp_path: Path
) -> None:
    made, example = system.libvirtd, Path(__file__).parents[2] / "results"
    asked = ("advise", "example", f"--results={example}", f"--domain={VM}", f"--out={tmp_path}")
    done = inside.labctl(*asked)
    assert done.returncode == 0, done.stderr
    scripts = [path for path in tmp_path.glob("*/apply.sh") if "virt-xml" in path.read_text()]
    if not scripts:
        pytest.skip("the example advises nothing for a domain")
    before = made.virsh("dumpxml", "--inactive", VM)
    (tmp_path / "before.xml").write_text(before)
    for script in scripts:
        subprocess.run(made.argv("sh", script), check=True, capture_output=True)
        assert made.virsh("dumpxml", "--inactive", VM) != before
        made.virsh("define", tmp_path / "before.xml")
    assert made.virsh("dumpxml", "--inactive", VM) == before


def test_labctl_itself_applies_advice_to_the_daemons_vm_and_undoes_it(
    inside: Sandbox, system: System
) -> None:
    example = Path(__file__).parents[2] / "results"
    asked = ("advise", "example", f"--results={example}", "--tuning=pinned+fifo", "--apply")
    before = system.libvirtd.virsh("dumpxml", "--inactive", VM)
    unnamed = inside.labctl(*asked)
    assert (unnamed.returncode, "Name it with --domain" in unnamed.stderr) == (2, True)
    named = (*asked, f"--domain={VM}")
    shown = json.loads(inside.labctl(*named, "--check", "--json").stdout)
    assert [one["name"] for one in shown["would_change"]] == [f"domain {VM}"]
    assert system.libvirtd.virsh("dumpxml", "--inactive", VM) == before
    done = inside.labctl(*named)
    assert done.returncode == 0, done.stderr
    after = system.libvirtd.virsh("dumpxml", "--inactive", VM)
    assert "vcpusched" in after
    again = inside.labctl(*named)
    assert "nothing to do: already set" in again.stdout, again.stdout + again.stderr
    status = inside.labctl("host", "status").stdout
    assert f"domain {VM}" in status
    assert "(advise example)" in status
    restored = inside.labctl("host", "restore")
    assert restored.returncode == 0, restored.stderr
    assert system.libvirtd.virsh("dumpxml", "--inactive", VM) == before


def test_what_only_reads_sees_the_daemons_vms(inside: Sandbox, system: System) -> None:
    with unchanged(system, inside):
        done = inside.labctl("tuning", "diff", "pinned+fifo", f"--domain={VM}", f"--connect={URI}")
        assert "cputune/vcpusched" in done.stdout
        doctor = json.loads(inside.labctl("doctor", "--json").stdout)
    checks = {finding["name"]: finding for finding in doctor["findings"]}
    assert OTHER in {guest["name"] for guest in checks["other-guests"]["value"]}
