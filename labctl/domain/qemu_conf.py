"""Write the qemu.conf of the embedded driver (docs/decisions/embedded-libvirt.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

_MOUNTINFO = Path("/proc/self/mountinfo")

_TEXT = """\
# Written by labctl at each start; changes are lost.
user = "{user}"
group = "{group}"
# labctl gives QEMU's user what is its own, and nothing else.
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
seccomp_sandbox = 1
{namespaces}# No "cpu" where RT_GROUP_SCHED would refuse SCHED_FIFO in a child cgroup.
cgroup_controllers = [{controllers}]
stdio_handler = "file"
{hugetlbfs}save_image_format = "raw"
"""


def qemu_conf(
    *,
    user: str,
    group: str,
    controllers: Sequence[str],
    hugetlbfs: Sequence[Path],
    mountinfo: Path = _MOUNTINFO,
) -> str:
    """Return its text.

    Left to itself, libvirt gives each QEMU a mount namespace with a /dev of its own where this
    kernel has them. In a chroot that fails: "/" is no mount there, so it can't be made private.
    """
    mounts = f"hugetlbfs_mount = [{_quoted(map(str, hugetlbfs))}]\n" if hugetlbfs else ""
    return _TEXT.format(
        user=user,
        group=group,
        namespaces="" if _is_root_mounted(mountinfo) else "namespaces = []\n",
        controllers=_quoted(controllers),
        hugetlbfs=mounts,
    )


def _is_root_mounted(mountinfo: Path) -> bool:
    """Tell whether "/" is a mount. proc_pid_mountinfo(5): the fifth field is where it is mounted,
    as seen from our root."""
    return any(line.split()[4] == "/" for line in mountinfo.read_text().splitlines())


def _quoted(words: Iterable[str]) -> str:
    return ", ".join(f'"{word}"' for word in words)
