"""Check which of a sweep's privileged steps this user may do (docs/decisions/README.md)."""

from __future__ import annotations

from labctl.host import cgroups
from labctl.host.doctor.check import Check, Result, Scope, block, fine, unknown, warn
from labctl.host.doctor.reader import Reader

GROUP = "rights"
_CAPABILITIES = {12: "NET_ADMIN", 14: "IPC_LOCK", 21: "SYS_ADMIN", 23: "SYS_NICE"}
"""Capabilities (linux/capability.h). SYS_RESOURCE is not among them: memlock has a check of its
own."""
_TREE = {"CAP_SYS_CHROOT": 18, "CAP_SYS_ADMIN": 21}
_KNOBS = (
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/proc/sys/kernel/sched_rt_runtime_us",
    "/proc/sys/vm/nr_hugepages",
)
_AS_ROOT = "sudo labctl …"


def rights(reader: Reader, scope: Scope) -> Result:
    missing = [name for number, name in _CAPABILITIES.items() if not reader.has_capability(number)]
    value = {"root": reader.is_root(), "missing": missing}
    if not reader.is_root():
        return block(
            "not root: sweeps, the self-test and image builds do not start. Commands that "
            "only read and 'sweep --plan-only' work; the rows of this group show your "
            "other permissions",
            "Run labctl as root: sudo labctl doctor",
            value,
        )
    if "SYS_ADMIN" in missing:
        return block(
            f"root without {', '.join(missing)}: no mount namespace for native runs",
            "Give the container CAP_SYS_ADMIN, or run labctl outside of it.",
            value,
        )
    if missing:
        return warn(
            f"root without {', '.join(f'CAP_{name}' for name in missing)}",
            "Run labctl outside of the container or sandbox that removes them.",
            value,
        )
    return fine("root, with every capability that labctl uses", value)


def kvm(reader: Reader, scope: Scope) -> Result:
    access = reader.access("/dev/kvm")
    if access is None:
        return unknown("no /dev/kvm: see kvm-device")
    if reader.may_write("/dev/kvm"):
        return fine("this user can open /dev/kvm", True)
    group = _group(reader, access.gid) if access.mode & 0o060 == 0o060 else None
    remedy = f"usermod -aG {group or 'kvm'} $USER  # as root; then log in again"
    return warn(
        f"this user can't open /dev/kvm (mode {access.mode:04o}, owner {access.uid}:{access.gid}): "
        "guests would be emulated",
        remedy if group else f"chgrp kvm /dev/kvm && chmod 0660 /dev/kvm && {remedy}",
        False,
    )


def _group(reader: Reader, gid: int) -> str | None:
    """Return the name of a group other than root's own."""
    lines = [line.split(":") for line in (reader.text("/etc/group") or "").splitlines()]
    names = (fields[0] for fields in lines if len(fields) > 2 and fields[2] == str(gid))
    return next(names, None) if gid else None


def groups(reader: Reader, scope: Scope) -> Result:
    found = cgroups.detect(reader.root).controllers
    folders = {str(found[name].folder) for name in ("cpu", "memory") if name in found}
    if not folders:
        return unknown("no cgroups for CPU time or memory: see cgroups")
    if closed := sorted(folder for folder in folders if not reader.may_write(folder)):
        return warn(f"this user cannot create cgroups in {' or '.join(closed)}", _AS_ROOT, False)
    return fine("cgroups can be created", True)


def native(reader: Reader, scope: Scope) -> Result:
    lacking = [name for name, number in _TREE.items() if not reader.has_capability(number)]
    if lacking:
        return warn(
            f"no mount namespace, no chroot: {' and '.join(lacking)} missing", _AS_ROOT, False
        )
    return fine("a mount namespace can be created", True)


def settings(reader: Reader, scope: Scope) -> Result:
    there = [path for path in _KNOBS if reader.exists(path)]
    if not there:
        return unknown("the kernel has none of the needed settings")
    if closed := [path for path in there if not reader.may_write(path)]:
        names = scope.using(lambda tuning: tuning.host or tuning.memory.hugepages)
        return warn(
            f"this user can't write {closed[0]} and similar files: {len(names)} tunings need that",
            _AS_ROOT,
            False,
        )
    return fine("the host's settings can be written", True)


CHECKS = (
    Check("rights", GROUP, "Cgroups, real-time policies, mounts and settings need root.", rights),
    Check("kvm-right", GROUP, "QEMU runs under KVM only if it can open the device.", kvm),
    Check(
        "cgroup-right",
        GROUP,
        "Cgroups limit native runs to the guest's memory and give both sides equal weights.",
        groups,
    ),
    Check(
        "native-right",
        GROUP,
        "Native runs see the image's tree in their own mount namespace.",
        native,
    ),
    Check("settings-right", GROUP, "Tunings of the host change its settings.", settings),
)
