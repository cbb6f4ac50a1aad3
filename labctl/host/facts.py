"""Read what the host is: kernel, CPUs, settings, the file system of the state folder, versions."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labctl.base import process
from labctl.base.deadline import Deadline
from labctl.base.errors import LabctlError
from labctl.base.paths import StatePaths
from labctl.host import cgroups
from labctl.host.machine_facts import Facts, Texts, machine_facts, unavailable
from labctl.host.machines import running_machines
from labctl.host.settings.tunables import selected

QEMU = "qemu-system-x86_64"


def host_facts(places: StatePaths) -> Facts:
    """Return every fact of `machine_facts` about this host, and what only a host has.

    No host name, address or serial number: reports are passed on.
    """
    layout = cgroups.detect()
    facts = machine_facts(read_host_files)
    facts["cgroups"] = {
        "layout": layout.name,
        "controllers": {name: h.version for name, h in sorted(layout.controllers.items())},
        "cpu_sharing": cgroups.cpu_sharing(layout, cgroups.autogroup_enabled()).sentence,
    }
    facts["state_folder"] = folder_facts(places.root)
    facts["other_guests"] = sum(not machine.is_ours for machine in running_machines())
    facts["cpus_allowed"] = len(os.sched_getaffinity(0))
    facts["hypervisor_vendor"] = hypervisor_vendor()
    facts["qemu"] = tool_version([QEMU, "--version"])
    facts["perf"] = tool_version(["perf", "--version"])
    facts["libvirt"] = libvirt_version()
    return dict(sorted(facts.items()))


def read_host_files(paths: Sequence[str]) -> Texts:
    """Return the texts of files of this host, None for one that can't be read; .gz is unpacked."""
    return {path: _read(path) for path in paths}


def folder_facts(folder: Path) -> dict[str, Any]:
    """Return file system, disk and I/O scheduler below a folder, or below its nearest parent."""
    while not folder.exists():
        folder = folder.parent
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    file_system: Any = unavailable(f"device {number} is not in /proc/self/mountinfo")
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        left, _, right = line.partition(" - ")
        if left.split()[2] == number:
            file_system = right.split()[0]
    block = Path(f"/sys/dev/block/{number}")
    if not block.exists():
        reason = unavailable("the file system lies on no single block device")
        return {"file_system": file_system, "disk": reason, "scheduler": reason}
    disk = block.resolve()
    if (disk / "partition").exists():
        disk = disk.parent
    scheduler = _read(str(disk / "queue/scheduler"))
    return {
        "file_system": file_system,
        "disk": disk.name,
        "scheduler": selected(scheduler) if scheduler else unavailable("the disk has no queue"),
    }


def hypervisor_vendor() -> Any:
    """Return whose guest this host is itself ("none": nobody's), as far as it tells."""
    try:
        done = process.run(
            ["systemd-detect-virt", "--vm"], deadline=Deadline.after(10, "asking"), check=False
        )
    except LabctlError as error:
        return unavailable(error.message)
    return done.stdout.strip() or unavailable("systemd-detect-virt printed nothing")


def tool_version(argv: Sequence[str]) -> Any:
    """Return the version number in the first line that a tool prints."""
    try:
        printed = process.run(argv, deadline=Deadline.after(20, f"'{argv[0]}'")).stdout
    except LabctlError as error:
        return unavailable(error.message)
    found = re.search(r"\d+(\.\d+)+", printed)
    return found.group(0) if found else unavailable(f"'{' '.join(argv)}' printed no version")


def libvirt_version() -> Any:
    """Return the version of the libvirt library in use (libvirt-python's may differ)."""
    try:
        import libvirt
    except ImportError as error:
        return unavailable(f"libvirt-python can't be loaded: {error}")
    number = int(libvirt.getVersion())
    return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"


def _read(path: str) -> str | None:
    try:
        data = Path(path).read_bytes()
        return (gzip.decompress(data) if path.endswith(".gz") else data).decode(errors="replace")
    except (OSError, EOFError):
        return None
