"""Make an isolated cpuset partition (cgroup v2) of each vCPU's CPUs, and read it back.

The scheduler does not balance onto such CPUs, and no task of another cgroup may run on them
(Linux, Documentation/admin-guide/cgroup-v2.rst, "cpuset.cpus.partition"). libvirt gives each vCPU a
cgroup with its pin in cpuset.cpus, but has no option for the partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from labctl.base.cpus import CpuSet, format_cpus, parse_cpus
from labctl.base.errors import BrokenError, HostError
from labctl.host.cgroups import Layout, libvirt_controllers, placement
from labctl.host.settings.journal import Journal, KnobChange
from labctl.host.settings.tunables import FileValue

ISOLATED, MEMBER = "isolated", "member"
_CPUS, _EXCLUSIVE, _STATE = "cpuset.cpus", "cpuset.cpus.exclusive", "cpuset.cpus.partition"


def why_no_partition(layout: Layout) -> str | None:
    """Return why guests of this host cannot have a partition; None if they can."""
    cpuset = layout.controllers.get("cpuset")
    if cpuset is None:
        return "it needs the cpuset controller of cgroup v2, and this host has none"
    if cpuset.version != 2:
        return "it needs the cpuset controller of cgroup v2, and cgroup v1 has it here"
    if "cpuset" not in libvirt_controllers(layout):
        return (
            "it needs guests with cpuset cgroups, and guests have none on this kernel "
            "(CONFIG_RT_GROUP_SCHED, cgroup v2)"
        )
    return None


@dataclass(frozen=True, slots=True)
class Partitions:
    """Hold the cgroups that are partitions, by vCPU."""

    folders: Mapping[int, Path]

    def problems(self) -> list[str]:
        """Return why a vCPU's partition is not isolated now, a sentence each."""
        found = {number: _read(folder / _STATE) for number, folder in self.folders.items()}
        return [
            f"vCPU {number}'s CPUs are not an isolated partition: {self.folders[number] / _STATE} "
            f"reads '{text}'"
            for number, text in found.items()
            if text != ISOLATED
        ]


@contextmanager
def isolated(
    layout: Layout,
    journal: Journal,
    pid: int,
    vcpu_tids: Mapping[int, int],
    root: Path = Path("/"),
) -> Iterator[Partitions]:
    """Make the cgroup of each vCPU thread of a QEMU an isolated partition inside the block. The
    journal restores what a killed labctl leaves.

    Raises BrokenError with what the kernel says if one is refused.
    """
    if why := why_no_partition(layout):
        raise BrokenError(f"no partition is possible: {why}")
    mount = root / layout.controllers["cpuset"].folder.relative_to("/")
    found = Partitions(
        {
            number: _folder(mount, placement(f"{pid}/task/{tid}", root), number)
            for number, tid in vcpu_tids.items()
        }
    )
    with journal.changing() as changes:
        try:
            changes.make(_changes(mount, found.folders))
        except HostError as error:
            raise BrokenError(
                error.message,
                hint="No other cgroup beside a vCPU's may have its CPUs in cpuset.cpus.",
            ) from error
        try:
            yield found
        finally:
            # Also one that the kernel has invalidated, which the journal takes for someone else's.
            for folder in found.folders.values():
                with suppress(OSError):
                    FileValue(str(folder / _STATE)).write(MEMBER)


def _folder(mount: Path, found: Mapping[str, str], number: int) -> Path:
    """Return the v2 cgroup of a vCPU from its thread's `placement`. Raises BrokenError if it has no
    CPUs of its own."""
    folder = mount / found.get("unified", "/").lstrip("/")
    if not _read(folder / _CPUS):
        raise BrokenError(
            f"vCPU {number}'s cgroup has no CPUs of its own: {folder / _CPUS} is missing or empty",
            hint="libvirt sets it for pinned vCPUs if 'cgroup_controllers' in qemu.conf has "
            "'cpuset'.",
        )
    return folder


def _changes(mount: Path, folders: Mapping[int, Path]) -> Sequence[KnobChange]:
    """Return the changes, in order. A partition below a folder that is none needs its CPUs in the
    exclusive list of each folder down to it ("remote partition", since Linux 6.7)."""
    wanted: dict[Path, CpuSet] = {}
    for folder in folders.values():
        cpus = parse_cpus(_read(folder / _CPUS))
        for one in (folder, *folder.parents):
            if mount in one.parents:
                wanted[one] = wanted.get(one, frozenset()) | cpus
    lists = {
        folder / _EXCLUSIVE: cpus | _listed(folder / _EXCLUSIVE) for folder, cpus in wanted.items()
    }
    return [
        *(
            KnobChange(tunable=FileValue(str(path)), value=format_cpus(cpus))
            for path, cpus in sorted(lists.items(), key=lambda item: len(item[0].parts))
        ),
        *(
            KnobChange(tunable=FileValue(str(folder / _STATE)), value=ISOLATED)
            for folder in folders.values()
        ),
    ]


def _listed(path: Path) -> CpuSet:
    """Return the CPUs in a file; none if it is empty. Others may have partitions as well."""
    text = _read(path)
    return parse_cpus(text) if text else frozenset()


def _read(path: Path) -> str:
    """Return a file's text; "" if it is gone."""
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
