"""Choose the user that the embedded libvirt runs QEMU as: unprivileged, unless something needs
root.

All access is tested as that account, before a guest starts: modes alone ignore ACLs and user
namespaces. No mode or owner on the host is changed for it (docs/decisions/embedded-libvirt.md).
"""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from labctl.base.process import Deadline, run
from labctl.base.tuning import Tuning
from labctl.domain.foreign.foreign_domain import OwnDomain
from labctl.host.accelerator import KVM_DEVICE, Accelerator

ACCOUNTS = ("libvirt-qemu", "qemu")
"""Account names of Debian and of Fedora."""

_SYSCTL = Path("/proc/sys/kernel")

_OPENS = 'for path; do ( : <>"$path" ) 2>/dev/null || echo "$path"; done'
_PASSES = 'for path; do [ -x "$path" ] || echo "$path"; done'
_READS = 'for path; do ( : <"$path" ) 2>/dev/null || echo "$path"; done'


@dataclass(frozen=True, slots=True, kw_only=True)
class QemuUser:
    """Describe QEMU's user. `group`: its own, shared with no one. `groups`: all that libvirt gives
    it, by number. `why_root`: reasons for root, a clause each."""

    name: str
    group: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    opens_kvm: bool = True
    """False if there is a /dev/kvm that it cannot open."""
    why_root: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        if not self.why_root:
            return f"QEMU runs as {self.name}, without root privileges."
        return f"QEMU runs as root, because {'; '.join(self.why_root)}."

    def to_json(self) -> dict[str, object]:
        """Return its entry in run.json."""
        return {"name": self.name, "why_root": list(self.why_root)}


def root(*why: str) -> QemuUser:
    return QemuUser(name="root", group="root", uid=0, gid=0, why_root=why)


def qemu_user(
    accelerator: Accelerator,
    opened: Iterable[Path],
    files: Iterable[Path],
    tunings: Iterable[Tuning],
    own: OwnDomain | None = None,
    sysctl: Path = _SYSCTL,
) -> QemuUser:
    """Return the user for QEMU. Starts processes as that user, and changes nothing.

    `files`: those that QEMU opens by path. The folders above must be open to it, except `opened`:
    the folders that labctl opens to QEMU's group itself.
    """
    account = account_of_qemu()
    if account is None:
        named = f"'{ACCOUNTS[0]}' ('labctl setup' creates it)"
        return root(f"no account {named}")
    if why := _why_nobody_becomes(account):
        return root(why)
    if KVM_DEVICE.exists() and _refused(account, _OPENS, [KVM_DEVICE]):
        account = replace(account, opens_kvm=False)
    found = [
        *(_about_kvm(account) if accelerator.name == "kvm" else ()),
        *_about_folders(account, opened, files),
        *_about_io_uring(account, tunings, sysctl),
        *(_about_own_files(account, own) if own is not None else ()),
    ]
    return root(*found) if found else account


def account_of_qemu() -> QemuUser | None:
    """Return the host's account for QEMU; None if there is none."""
    for name in ACCOUNTS:
        try:
            entry = pwd.getpwnam(name)
            gid = grp.getgrnam(name).gr_gid
        except KeyError:
            continue
        groups = tuple(sorted({gid, *os.getgrouplist(name, entry.pw_gid)}))
        if entry.pw_uid != 0:
            return QemuUser(name=name, group=name, uid=entry.pw_uid, gid=gid, groups=groups)
    return None


def _why_nobody_becomes(account: QemuUser) -> str | None:
    done = run(_as(account, "true"), deadline=_soon(account), check=False)
    if done.returncode == 0:
        return None
    return f"labctl cannot start processes as {account.name}: {_last_line(done.stderr)}"


def _about_kvm(account: QemuUser) -> Iterator[str]:
    if not account.opens_kvm:
        yield f"{account.name} can't open {KVM_DEVICE} ({_shown(KVM_DEVICE)})"


def _about_folders(
    account: QemuUser, opened: Iterable[Path], files: Iterable[Path]
) -> Iterator[str]:
    own = {folder.resolve() for folder in opened}
    above = {parent for path in (*own, *files) for parent in path.resolve().parents} - own
    for closed in _refused(account, _PASSES, sorted(above))[:1]:  # those below it are closed, too
        yield f"{account.name} can't pass through {closed} ({_shown(Path(closed))})"


def _about_io_uring(account: QemuUser, tunings: Iterable[Tuning], sysctl: Path) -> Iterator[str]:
    """Check "io_uring_disabled" (admin-guide/sysctl/kernel.rst): with 1 only root and one group may
    use it."""
    using = [tuning.name for tuning in tunings if tuning.disk.io == "io_uring"]
    is_closed = _number(sysctl / "io_uring_disabled") == 1
    if using and is_closed and _number(sysctl / "io_uring_group") not in account.groups:
        yield f"'{using[0]}' needs io_uring, which this kernel allows only for root"


def _about_own_files(account: QemuUser, own: OwnDomain) -> Iterator[str]:
    """Have the account open the files that a copy reads in place. All backing files were checked
    (`run.planning.own_domain`)."""
    files = [*own.firmware, *own.boot_files]
    for closed in _refused(account, _READS, files)[:1]:
        yield f"{account.name} can't read {closed}, which '{own.name}' starts"
    for disk in (*own.disks, *own.read_only):
        argv = ["qemu-img", "info", "-U", "--backing-chain", "-f", disk.format, str(disk.path)]
        done = run(_as(account, *argv), deadline=_soon(account), check=False)
        if done.returncode != 0:
            yield f"{account.name} can't read disk {disk.name} of '{own.name}', {disk.path}"
            return


def _refused(account: QemuUser, script: str, paths: Iterable[Path]) -> list[str]:
    argv = _as(account, "sh", "-c", script, "sh", *map(str, paths))
    return run(argv, deadline=_soon(account)).stdout.splitlines()


def _as(account: QemuUser, *argv: str) -> list[str]:
    groups = ",".join(map(str, account.groups))
    who = (f"--reuid={account.uid}", f"--regid={account.gid}", f"--groups={groups}")
    return ["setpriv", *who, "--", *argv]


def _soon(account: QemuUser) -> Deadline:
    return Deadline.after(30, f"checking the permissions of {account.name}")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it says nothing"])[-1]


def _shown(path: Path) -> str:
    """Return a file's mode and owner, for a message."""
    found = path.stat()
    return f"mode {found.st_mode & 0o7777:04o}, owner {found.st_uid}:{found.st_gid}"


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
