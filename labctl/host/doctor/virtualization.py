"""Check whether this host can virtualize: CPU, module, device, a kernel that boots."""

from __future__ import annotations

import re

from labctl.base.errors import LabctlError
from labctl.host.doctor.check import Check, Result, Scope, fine, unknown, warn
from labctl.host.doctor.reader import Access, Reader

GROUP = "virtualization"
_VENDOR_MODULES = ("kvm_intel", "kvm_amd")
_QEMU_CONF = "/etc/libvirt/qemu.conf"
_QEMU_USERS = ("libvirt-qemu", "qemu")
"""Users that distributions build libvirt with: Debian's and Fedora's."""


def cpu(reader: Reader, scope: Scope) -> Result:
    flags = reader.flags()
    if flags is None:
        return unknown("/proc/cpuinfo lists no flags, so this is not an x86 CPU: see kvm-boot")
    found = [flag for flag in ("vmx", "svm") if flag in flags]
    if found:
        return fine(f"the CPU has {found[0]}", found)
    if _works(scope):
        return fine("neither vmx nor svm, but KVM works", [])
    nested = "hypervisor" in flags
    return warn(
        "the CPU shows neither vmx nor svm",
        "Ask the operator of the hypervisor for nested virtualization."
        if nested
        else "Enable virtualization (VT-x, AMD-V) in the firmware.",
        [],
    )


def module(reader: Reader, scope: Scope) -> Result:
    loaded = reader.names("/sys/module", "kvm*")
    vendor = next((name for name in loaded if name in _VENDOR_MODULES), None)
    if "kvm" in loaded and vendor:
        return fine(f"{vendor} is loaded", loaded)
    if "kvm" in loaded and len(loaded) > 1:
        others = ", ".join(name for name in loaded if name != "kvm")
        return warn(
            f"kvm is loaded with {others}, without kvm_intel or kvm_amd: KVM in software",
            "Use a host with hardware virtualization to measure virtualization.",
            loaded,
        )
    amd = "AuthenticAMD" in (reader.text("/proc/cpuinfo") or "")
    found = "kvm is loaded without kvm_intel or kvm_amd" if loaded else "no kvm module is loaded"
    return warn(found, f"modprobe {'kvm_amd' if amd else 'kvm_intel'}", loaded)


def device(reader: Reader, scope: Scope) -> Result:
    access = reader.access("/dev/kvm")
    if access is None:
        return warn("no /dev/kvm", "modprobe kvm", None)
    shown = f"mode {access.mode:04o}, owner {access.uid}:{access.gid}"
    user = _qemu_user(reader)
    value = {"mode": f"{access.mode:04o}", "uid": access.uid, "gid": access.gid, "user": user}
    if user is None:
        return fine(f"{shown}; libvirt's daemon has no QEMU user here", value)
    if may_open(access, *_ids(reader, user)):
        return fine(f"{shown}: the QEMU user {user} can open it", value)
    return warn(
        f"{shown}: the QEMU user {user} can't open it, so QEMU runs as root under KVM",
        "chgrp kvm /dev/kvm && chmod 0660 /dev/kvm",
        value,
    )


def may_open(access: Access, uid: int, groups: set[int]) -> bool:
    """Return whether a user may read and write a file, by its mode alone (path_resolution(7))."""
    if uid == 0:
        return True
    if uid == access.uid:
        bits = access.mode >> 6
    elif access.gid in groups:
        bits = access.mode >> 3
    else:
        bits = access.mode
    return bits & 0o6 == 0o6


def boot(reader: Reader, scope: Scope) -> Result:
    answer = scope.accelerator
    if isinstance(answer, LabctlError):
        return unknown(answer.message, answer.hint or "")
    value = {"accelerator": answer.name, "disabled_features": list(answer.disabled_features)}
    if answer.name == "kvm":
        return fine(answer.reason.rstrip("."), value)
    return warn(
        answer.reason.rstrip("."),
        "Measure on a host with working KVM, or pass --accel tcg to accept this.",
        value,
    )


def nested(reader: Reader, scope: Scope) -> Result:
    said = reader.run(["systemd-detect-virt", "--vm"])
    flags = reader.flags()
    if said is None and flags is None:
        return unknown("systemd-detect-virt is not installed, and /proc/cpuinfo lists no flags")
    name = said.text.strip() if said is not None else ""
    is_guest = "hypervisor" in flags if flags else name not in ("", "none")
    if not is_guest:
        return fine("no hypervisor below", "none")
    return warn(
        f"this host is itself a guest of {name if name not in ('', 'none') else 'a hypervisor'}",
        "For a rollout on bare hosts, measure on a bare host.",
        name or "unknown",
    )


def exits(reader: Reader, scope: Scope) -> Result:
    if isinstance(scope.accelerator, LabctlError):
        return unknown("it is unknown whether KVM works: see kvm-boot")
    if scope.accelerator.name == "tcg":
        return fine("emulated guests have none: unavailable, not 0")
    if any(reader.exists(f"/sys/module/{name}") for name in _VENDOR_MODULES):
        return fine("counted by query-stats and, by reason, by the kvm_exit tracepoint")
    return warn(
        "KVM without kvm_intel or kvm_amd: its kvm_exit tracepoint may never fire",
        "Trust the totals (query-stats); trust a breakdown only if it adds up to them.",
    )


def _works(scope: Scope) -> bool:
    return not isinstance(scope.accelerator, LabctlError) and scope.accelerator.name == "kvm"


def _qemu_user(reader: Reader) -> str | None:
    """Return the user that libvirt's daemon runs QEMU as; None if the account does not exist."""
    configured = re.search(r'^user\s*=\s*"([^"]+)"', reader.text(_QEMU_CONF) or "", re.MULTILINE)
    names = [fields[0] for fields in _accounts(reader, "/etc/passwd")]
    wanted = (configured[1].lstrip("+"),) if configured else _QEMU_USERS
    return next((name for name in wanted if name in names), None)


def _ids(reader: Reader, user: str) -> tuple[int, set[int]]:
    """Return a user's id and those of its groups: passwd(5), group(5)."""
    passwd = {fields[0]: fields for fields in _accounts(reader, "/etc/passwd")}[user]
    groups = {
        int(fields[2])
        for fields in _accounts(reader, "/etc/group")
        if len(fields) > 3 and user in fields[3].split(",")
    }
    return int(passwd[2]), {int(passwd[3])} | groups


def _accounts(reader: Reader, path: str) -> list[list[str]]:
    return [line.split(":") for line in (reader.text(path) or "").splitlines() if ":" in line]


CHECKS = (
    Check(
        "kvm-boot",
        GROUP,
        "Opening /dev/kvm proves little. Without KVM, guests are emulated (TCG): their "
        "figures show emulation, and there are no VM exits.",
        boot,
    ),
    Check("kvm-cpu", GROUP, "KVM needs a CPU with virtualization extensions.", cpu),
    Check("kvm-module", GROUP, "KVM needs this module and one for the CPU's vendor.", module),
    Check(
        "kvm-device",
        GROUP,
        "If the QEMU user can't open it, QEMU runs as root in sweeps under KVM, and "
        "libvirtd ('--connect qemu:///system') probes QEMU's capabilities again on every "
        "call, which takes seconds.",
        device,
    ),
    Check(
        "nested",
        GROUP,
        "The hypervisor may take CPU time away, hides counters and makes each exit more "
        "expensive: figures hold only for this nesting.",
        nested,
    ),
    Check(
        "kvm-exits",
        GROUP,
        "KVM in software has tracepoints that never fire: a breakdown by reason would be empty.",
        exits,
    ),
)
