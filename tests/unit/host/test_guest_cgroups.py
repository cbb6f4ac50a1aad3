"""What libvirt kept for guests of a labctl that was killed is found and taken away; what it keeps
for anybody else's is not touched."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from labctl.base.paths import OWN_NAME
from labctl.host import own_cgroups
from labctl.host.own_cgroups import of_guests, remove

MOUNTS = """\
35 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
42 31 0:39 / /sys/fs/bpf rw,relatime - bpf bpf rw
"""
ROOT = Path("/var/lib/labctl/lv")
# As libvirt 9.0 named it for that folder.
OURS = "qemu-embed-2fd91fb8-1-labctl-guest.libvirt-qemu"
SCOPE = r"machine-qemu\x2dembed\x2d2fd91fb8\x2d4\x2dlabctl\x2dguest.scope"


class Host:
    """A tree like /sys/fs/cgroup, whose folders hold the files that are looked at."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/mountinfo").write_text(MOUNTS)

    def v1(self, name: str, *, member: str = "", partition: str = "machine") -> Path:
        """Its process, if any, is in the group of the emulator thread."""
        group = self.root / "sys/fs/cgroup/cpuset" / partition / name
        for folder, members in ((group, ""), (group / "vcpu0", ""), (group / "emulator", member)):
            folder.mkdir(parents=True)
            (folder / "cgroup.procs").write_text(members)
        return group

    def v2(self, name: str, *, populated: int = 0) -> Path:
        group = self.root / "sys/fs/cgroup/unified/machine" / name
        (group / "vcpu0").mkdir(parents=True)
        (group / "cgroup.events").write_text(f"populated {populated}\nfrozen 0\n")
        return group

    def ours(self) -> list[Path]:
        return of_guests(ROOT, OWN_NAME, self.root)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    rmdir = os.rmdir

    def as_a_kernel_does(folder: str) -> None:
        for path in Path(folder).iterdir():
            if path.is_file():
                path.unlink()
        rmdir(folder)

    monkeypatch.setattr(own_cgroups.os, "rmdir", as_a_kernel_does)
    monkeypatch.setattr(own_cgroups, "_EMPTYING_S", 0.3)
    return Host(tmp_path)


def test_a_dead_guest_is_taken_away_from_every_hierarchy(host: Host) -> None:
    noisy = host.v1(OURS.replace("1-labctl-guest", "3-labctl-noisy-12"))
    groups = [host.v1(OURS), host.v2(OURS), host.v1(SCOPE, partition="machine.slice"), noisy]
    assert sorted(host.ours()) == sorted(groups)
    for group in groups:
        remove(group)
    assert host.ours() == []
    assert (host.root / "sys/fs/cgroup/cpuset/machine").is_dir()


@pytest.mark.parametrize(
    "name",
    [
        "qemu-1-labctl-guest.libvirt-qemu",  # a daemon's
        "qemu-embed-e04846d2-1-labctl-guest.libvirt-qemu",  # another state folder's
        "qemu-embed-2fd91fb8-1-web.libvirt-qemu",
        "qemu-embed-2fd91fb8-1-labctl-noisy-x.libvirt-qemu",
        "qemu-embed-2fd91fb8-1-labctl-guest.libvirt-lxc",
        "qemu-embed-2fd91fb8-1-labctl-guest.libvirt-qemu-copy",
        "emulator",
    ],
)
def test_what_is_named_for_somebody_else_is_not_found(host: Host, name: str) -> None:
    host.v1(name)
    host.v2(name)
    assert host.ours() == []


def test_a_guest_that_lives_keeps_all_of_its_cgroups(host: Host) -> None:
    for group in (host.v1(OURS, member="123\n"), host.v2(OURS, populated=1)):
        with pytest.raises(OSError, match="there is still a process in it"):
            remove(group)
        assert (group / "vcpu0").is_dir()


def test_a_process_that_is_about_to_leave_is_waited_for(host: Host) -> None:
    group = host.v2(OURS, populated=1)
    timer = threading.Timer(0.1, (group / "cgroup.events").write_text, ["populated 0\n"])
    timer.start()
    remove(group)
    timer.join()
    assert not group.exists()


def test_what_libvirt_has_taken_away_meanwhile_is_gone_as_well(host: Host) -> None:
    remove(host.root / "sys/fs/cgroup/cpuset/machine" / OURS)


def test_a_host_without_cgroups_has_none(host: Host) -> None:
    (host.root / "proc/self/mountinfo").write_text("")
    assert host.ours() == []


def test_an_empty_partition_goes_and_one_that_is_used_stays(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # folders without files are removed as they are
    empty, used = (host.root / "sys/fs/cgroup" / name / "machine" for name in ("cpuset", "unified"))
    empty.mkdir(parents=True)
    (used / "qemu-1-web.libvirt-qemu").mkdir(parents=True)
    own_cgroups.remove_empty_partitions(host.root)
    assert not empty.exists()
    assert (used / "qemu-1-web.libvirt-qemu").is_dir()
