"""Record the host of a run, and compare a resumed run's host with that record."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import labctl
from labctl.base import process
from labctl.base.errors import LabctlError, UsageError
from labctl.base.process import Deadline
from labctl.base.tuning import Kind
from labctl.collect.counters import perf
from labctl.domain.session import EMBEDDED, is_embedded
from labctl.guest.images import Image
from labctl.host.accelerator import Accelerator
from labctl.host.facts import QEMU, host_facts
from labctl.host.narrow import Narrow
from labctl.run.guests.lab import Lab
from labctl.run.guests.started import guest_xml
from labctl.run.planning.own_domain import OwnGuest
from labctl.run.resources.disks import Disks
from labctl.store.jsonfile import write_bytes
from labctl.store.records.run_record import ImageUsed, RunRecord
from labctl.store.run_folder import RunFolder, RunLog


def check_same_accelerator(log: RunLog, chosen: Accelerator) -> None:
    """Raise UsageError if guests would run under another accelerator than the run's first ones."""
    began = log.record.accelerator
    if began is None:
        log.put(accelerator=chosen.name)
    elif began != chosen.name:
        raise UsageError(
            f"run '{log.folder.name}' was started under {began}, but guests now run under "
            f"{chosen.name}",
            hint=f"Resume it with '--accel {began}', or start a new run.",
        )


def check_same_host(name: str, then: RunRecord, now: RunRecord) -> None:
    """Raise UsageError if a resumed run would mix two hosts: its statements about "the host" would
    then be wrong. A new run has no earlier host. `name`: the run's."""
    if not then.has_begun:
        return
    both = (then, now)
    differing = [
        f"{what} ({before} then, {after} now)"
        for what, before, after in (
            ("the kernel", *(run.host.get("kernel_release") for run in both)),
            ("QEMU", *(run.host.get("qemu") for run in both)),
            ("the CPU", *(run.host.get("cpu_model") for run in both)),
            ("the image", *(run.image.digest[:12] if run.image else "" for run in both)),
            *(
                (f"the image of '{name}'", *(_image_digest(run, name) for run in both))
                for name in now.images
            ),
            ("the domain", *(_domain_digest(run) for run in both)),
            ("libvirt", *(_connection(run) for run in both)),
        )
        if before != after
    ]
    if differing:
        raise UsageError(
            f"the host has changed since run '{name}' was started: {'; '.join(differing)}",
            hint="Start a new run, or restore the original state.",
        )


def class_of_host(lab: Lab) -> RunRecord:
    """Return the part of run.json that tells hosts, guests and versions apart."""
    return RunRecord(
        labctl=labctl.__version__,
        host=host_facts(lab.places),
        accelerator=lab.accelerator.name,
        image=_used(lab.image),
        vcpus=lab.vcpus,
    )


def facts_of_host(lab: Lab, chosen: Accelerator, own: OwnGuest | None) -> RunRecord:
    """Return run.json's facts on the host, its libvirt and the guests' image."""
    facts = host_facts(lab.places)
    facts["libvirt_session"] = lab.session.versions()
    images = {name: _used(image) for name, (image, _) in lab.others.items()}
    return RunRecord(
        accelerator_reason=chosen.reason,
        connection=lab.session.uri,
        host=facts,
        image=_used(lab.image),
        domain=own and own.record,
        **({"images": images} if images else {}),
    )


def put_narrow_link(log: RunLog, narrow: Narrow | None) -> None:
    """Record how links are narrowed, if the run narrows any."""
    if narrow is not None and narrow.sentence not in log.record.notes:
        log.put(notes=[*log.record.notes, narrow.sentence])


def put_copy(log: RunLog, own: OwnGuest | None) -> None:
    """Record what the copy of the administrator's VM replaces or leaves out."""
    sentences = own.domain.sentences if own else ()
    if new := [one for one in sentences if one not in log.record.notes]:
        log.put(notes=[*log.record.notes, *new])


def put_qemu_user(log: RunLog, now: Mapping[str, object] | None) -> None:
    """Record the user that QEMU runs as, and an earlier boot's user if it was another. Without
    `now` a daemon's configuration determines it."""
    if now is None:
        return
    record = log.record
    # Records without this key were made when it was always root.
    before = record.qemu_user.name if record.qemu_user else "root"
    if record.has_begun and before != now["name"]:
        text = f"Boots before {_now()} had QEMU run as {before}, those after it as {now['name']}."
        log.put(notes=[*record.notes, text])
    log.put(qemu_user=now)


def store_xml(lab: Lab, folder: RunFolder, disks: Disks) -> dict[str, str]:
    """Return every guest tuning's domain XML as this run requests it, for the report's
    differences."""
    named = {name: replace(disk, path=lab.work / name) for name, disk in disks.items()}
    stored = {}
    for name, tuning in lab.tunings.items():
        if tuning.kind is Kind.GUEST:
            path = f"xml/{name}.xml"
            text = guest_xml(lab.for_arm(tuning), tuning, named).encode()
            write_bytes(folder.path / path, text, below=folder.path)
            stored[name] = path
    return stored


def _used(image: Image) -> ImageUsed:
    return ImageUsed(name=image.name, digest=image.digest)


def _image_digest(run: RunRecord, tuning: str) -> str:
    return run.images[tuning].digest[:12] if tuning in run.images else "none"


def _domain_digest(run: RunRecord) -> str | None:
    return str(run.domain.digest)[:12] if run.domain else None


def _connection(run: RunRecord) -> str:
    """Name the connection without the state folder, which may be moved; a daemon is another
    libvirt."""
    uri = run.connection or EMBEDDED
    return EMBEDDED if is_embedded(uri) else uri


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# Record the output of this host's tools and its kernel's files unchanged, as fixtures for parsers.


_TOOL_S = 30.0

_ALONE = ("unshare", "--mount", "--propagation", "private")
"""perf mounts tracefs if it is not mounted (the kernel's tools/lib/api/fs/fs.c), and leaves it."""

_TOOLS: dict[str, tuple[str, ...]] = {
    "detect-virt": ("systemd-detect-virt", "--vm"),
    "lscpu": ("lscpu", "--json"),
    "perf-version": ("perf", "version"),
    "perf-list-kvm": ("perf", "list", "kvm:*"),
    "perf-stat-csv": ("perf", "stat", "-x,", "-e", "cycles:u,instructions:u,cycles:k", "true"),
    "perf-stat-json": ("perf", "stat", "--json-output", "-e", "cycles:u,instructions:u", "true"),
    "perf-stat-guest": (
        "perf",
        "stat",
        "--json-output",
        "-e",
        "cycles:G,cycles:uG,cycles:H",
        "true",
    ),
    "qemu-version": (QEMU, "--version"),
    "qemu-accel": (QEMU, "-accel", "help"),
    "virsh-version": ("virsh", "--version=long"),
}

_FILES = (
    *("proc/cpuinfo", "proc/meminfo", "proc/interrupts"),
    *("sys/devices/system/cpu/*", "sys/devices/system/cpu/vulnerabilities/*"),
    *("sys/devices/system/cpu/smt/*", "sys/devices/system/cpu/cpu[0-9]*/online"),
    *("sys/devices/system/cpu/cpu[0-9]*/topology/*", "sys/devices/system/cpu/cpu[0-9]*/cache/*/*"),
    *("sys/devices/system/node/*", "sys/devices/system/node/node[0-9]*/*"),
    *("sys/devices/cpu_*/cpus", "sys/module/kvm*/parameters/*"),
)
"""Kernel files that labctl reads; `labctl pins --sysfs` takes their folder `sys`."""

_LARGEST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutput:
    """Hold the output of a command. `problem`: why it is missing, "" if it is there."""

    argv: tuple[str, ...]
    status: int | None
    stdout: str
    stderr: str
    problem: str

    @property
    def text(self) -> str:
        """Return the whole file."""
        ended = self.problem or f"status {self.status}"
        return (
            f"$ {shlex.join(self.argv)}\n# {ended}\n# stdout\n{_lines(self.stdout)}"
            f"# stderr\n{_lines(self.stderr)}"
        )

    def to_json(self) -> dict[str, object]:
        return {"argv": list(self.argv), "status": self.status, "problem": self.problem}


def _lines(said: str) -> str:
    return said if not said or said.endswith("\n") else f"{said}\n"


def tool_output(argv: Sequence[str]) -> ToolOutput:
    """Return the output of a command, whatever its status. Its mounts are gone when it ends."""
    try:
        done = process.run(
            [*_ALONE, *argv],
            deadline=Deadline.after(_TOOL_S, f"'{shlex.join(argv)}'"),
            check=False,
            env=perf.ENVIRONMENT,
        )
    except LabctlError as error:
        return ToolOutput(
            argv=tuple(argv), status=None, stdout="", stderr="", problem=error.message
        )
    return ToolOutput(
        argv=tuple(argv),
        status=done.returncode,
        stdout=done.stdout,
        stderr=done.stderr,
        problem="",
    )


def tool_outputs() -> dict[str, ToolOutput]:
    """Return by name the output of every tool that labctl queries about the host."""
    return {name: tool_output(argv) for name, argv in _TOOLS.items()}


def kernel_files(root: Path = Path("/")) -> dict[str, bytes]:
    """Map path (relative to the root) to content for the files of /proc and /sys that labctl
    reads.
    """
    found = {}
    for pattern in _FILES:
        for path in sorted(root.glob(pattern)):
            try:
                with open(path, "rb") as file:
                    found[str(path.relative_to(root))] = file.read(_LARGEST_BYTES)
            except OSError:
                continue  # a folder, or write-only
    return found
