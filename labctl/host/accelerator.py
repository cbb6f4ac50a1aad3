"""Choose KVM or TCG by booting a kernel to its first line, because opening /dev/kvm proves little.

On some hosts (cloud sandboxes, software-only KVM) the device opens and firmware runs, but no stock
kernel ever prints a line. On others '-cpu host' fails on an MSR until one feature is left out.
"""

from __future__ import annotations

import hashlib
import os
import select
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from labctl.base.errors import BrokenError, HostError
from labctl.base.paths import StatePaths
from labctl.base.process import Deadline, running
from labctl.host.facts import QEMU
from labctl.host.machines import boot_id
from labctl.store.jsonfile import read_json, write_json

Requested = Literal["auto", "kvm", "tcg"]

KVM_DEVICE = Path("/dev/kvm")
_FIRST_LINE = b"Linux version"
_DEADLINE_S = 15.0
"""A kernel under working KVM gets there in well under a second."""

FEATURE_SETS: tuple[tuple[str, ...], ...] = ((), ("arch-capabilities",))
"""CPU features to leave out of '-cpu host', in the order in which they are tried."""

_OUTPUT_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """Hold the choice of KVM or TCG. `reason`: one sentence for the user. `disabled_features`: CPU
    features that host-passthrough must leave out to start on this host (`<feature
    policy='disable'>`)."""

    name: Literal["kvm", "tcg"]
    reason: str
    disabled_features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Result of booting a kernel under KVM: whether it works, and why not."""

    works: bool
    detail: str
    disabled_features: tuple[str, ...] = ()


def accelerator(requested: Requested, kernel: Path, places: StatePaths) -> Accelerator:
    """Return the accelerator for guests on this host. The result of the probe is kept until the
    host reboots or QEMU or the kernel changes.

    Raises HostError if KVM is requested and does not work, or if QEMU is not installed.
    """
    if requested == "tcg":
        return Accelerator(name="tcg", reason="Guests are emulated (TCG), as requested.")
    probe = _device_problem() or _kept_probe(kernel, places) or _probed(kernel, places)
    if probe.works:
        without = "".join(f", without {feature}" for feature in probe.disabled_features)
        return Accelerator(
            name="kvm",
            reason=f"Guests run under KVM: a kernel boots with it here{without}.",
            disabled_features=probe.disabled_features,
        )
    if requested == "kvm":
        raise HostError(
            f"KVM was requested, but {probe.detail}",
            hint="Use '--accel tcg' for emulated guests, or '--accel auto' to let labctl choose.",
        )
    return Accelerator(
        name="tcg",
        reason=f"Guests are emulated (TCG), because {probe.detail}: differences between native "
        "and guest show emulation, not virtualization.",
    )


def known_accelerator(
    requested: Requested, kernel: Path | None, places: StatePaths
) -> Literal["kvm", "tcg"] | None:
    """Return the choice of `accelerator` if it is known without booting a kernel, else None.
    `kernel`: None if no guest image is built yet. Without QEMU no kernel was booted."""
    if requested != "auto":
        return requested
    probe = _device_problem()
    if probe is None and kernel is not None and shutil.which(QEMU):
        probe = _kept_probe(kernel, places)
    if probe is None:
        return None
    return "kvm" if probe.works else "tcg"


def probe_kvm(qemu: Path, kernel: Path, *, deadline_s: float = _DEADLINE_S) -> Probe:
    """Boot `kernel` under KVM to its first line, with all of the host's CPU features or fewer."""
    probe = Probe(works=False, detail="no probe was run")
    for features in FEATURE_SETS:
        deadline = Deadline.after(deadline_s, "booting a kernel under KVM")
        probe = _boot(qemu, kernel, features, deadline)
        # A silent guest is not a matter of CPU features: QEMU would have refused to start.
        if probe.works or deadline.expired:
            return probe
    return probe


def _device_problem() -> Probe | None:
    try:
        os.close(os.open(KVM_DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        return Probe(
            works=False,
            detail=f"the host has no {KVM_DEVICE} (virtualization is disabled in the firmware, not "
            "passed to this virtual machine, or the kvm module is not loaded)",
        )
    except OSError as error:
        return Probe(works=False, detail=f"{KVM_DEVICE} cannot be opened: {error.strerror}")
    return None


def _kept_probe(kernel: Path, places: StatePaths) -> Probe | None:
    """Return the result of an earlier probe that still holds; raises HostError without QEMU or
    kernel."""
    return _read_cache(_cache(places), _key(_qemu(), kernel))


def _probed(kernel: Path, places: StatePaths) -> Probe:
    qemu = _qemu()
    probe = probe_kvm(qemu, kernel)
    path = _cache(places)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HostError(
            f"cannot create {path.parent}: {error.strerror}",
            hint="Name a folder that you can write to with --state-dir.",
        ) from error
    write_json(
        path,
        {
            "key": _key(qemu, kernel),
            "works": probe.works,
            "detail": probe.detail,
            "disabled_features": list(probe.disabled_features),
        },
    )
    return probe


def _cache(places: StatePaths) -> Path:
    return places.cache / "accelerator.json"


def _qemu() -> Path:
    found = shutil.which(QEMU)
    if found is None:
        raise HostError(f"'{QEMU}' is not installed", hint="Run 'labctl setup', which installs it.")
    return Path(found)


def _key(qemu: Path, kernel: Path) -> dict[str, str]:
    """Return the key of a probe's result: all that the result depends on."""
    try:
        with open(kernel, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise HostError(
            f"cannot read the kernel {kernel}: {error.strerror}",
            hint="Build the guest image: labctl image build",
        ) from error
    return {
        "boot_id": boot_id(),
        "qemu": f"{qemu.resolve()} {qemu.stat().st_mtime_ns}",
        "kernel": digest,
    }


def _read_cache(path: Path, key: dict[str, str]) -> Probe | None:
    try:
        cached: Any = read_json(path)
        if cached["key"] != key:
            return None
        return Probe(
            works=bool(cached["works"]),
            detail=str(cached["detail"]),
            disabled_features=tuple(cached["disabled_features"]),
        )
    except (BrokenError, KeyError, TypeError):
        return None  # it may be deleted at any time, so whatever is wrong with it: probe again


def _boot(qemu: Path, kernel: Path, features: tuple[str, ...], deadline: Deadline) -> Probe:
    cpu = ",".join(["host", *(f"{feature}=off" for feature in features)])
    argv: list[str] = [
        *(str(qemu), "-nodefaults", "-no-user-config", "-display", "none"),
        *("-accel", "kvm", "-cpu", cpu, "-m", "256", "-no-reboot", "-serial", "stdio"),
        *("-kernel", str(kernel)),
        *("-append", "console=ttyS0 earlyprintk=serial,ttyS0 panic=-1"),
    ]
    with running(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, grace_s=1.0) as process:
        output = _read_until(process, _FIRST_LINE, deadline)
    if _FIRST_LINE in output:
        return Probe(works=True, detail="a kernel boots under KVM", disabled_features=features)
    if deadline.expired:
        return Probe(
            works=False,
            detail=f"{KVM_DEVICE} opens, but a kernel booted with it prints nothing within "
            f"{deadline.seconds:g} s",
        )
    said = output.decode(errors="replace").strip().splitlines()
    return Probe(
        works=False,
        detail=f"QEMU can't start a guest with KVM: {said[-1] if said else 'it printed nothing'}",
    )


def _read_until(process: subprocess.Popen[bytes], wanted: bytes, deadline: Deadline) -> bytes:
    """Return the output of the process until `wanted` appears, the process ends, or time runs
    out."""
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    output = b""
    while wanted not in output and len(output) < _OUTPUT_LIMIT and not deadline.expired:
        if not poll.poll(100):
            continue
        data = os.read(descriptor, 65536)
        if not data:
            break
        output += data
    return output
