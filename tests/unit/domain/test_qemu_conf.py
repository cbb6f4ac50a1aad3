from pathlib import Path

import pytest

from labctl.domain.session import qemu_conf

ROOT = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
PROC = "23 22 0:21 / /proc rw,nosuid - proc proc rw\n"


def conf(folder: Path, mountinfo: str = ROOT, *hugetlbfs: Path) -> list[str]:
    (folder / "mountinfo").write_text(mountinfo)
    return qemu_conf(
        user="libvirt-qemu",
        group="libvirt-qemu",
        controllers=["cpuset", "memory"],
        hugetlbfs=hugetlbfs,
        mountinfo=folder / "mountinfo",
    ).splitlines()


def test_qemu_runs_as_that_user_in_the_sandbox_and_libvirt_changes_no_owner(tmp_path: Path) -> None:
    lines = conf(tmp_path)
    assert {
        'user = "libvirt-qemu"',
        'group = "libvirt-qemu"',
        "seccomp_sandbox = 1",
        "dynamic_ownership = 0",
        "remember_owner = 0",
        'cgroup_controllers = ["cpuset", "memory"]',
    } <= set(lines)


@pytest.mark.parametrize(("mountinfo", "is_off"), [(ROOT + PROC, False), (PROC, True)])
def test_only_in_a_chroot_qemu_shares_the_hosts_dev(
    tmp_path: Path, mountinfo: str, is_off: bool
) -> None:
    assert ("namespaces = []" in conf(tmp_path, mountinfo)) is is_off


def test_mounts_of_huge_pages_are_named(tmp_path: Path) -> None:
    assert 'hugetlbfs_mount = ["/lab/2M"]' in conf(tmp_path, ROOT, Path("/lab/2M"))
    assert not any(line.startswith("hugetlbfs_mount") for line in conf(tmp_path))
