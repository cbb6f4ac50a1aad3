"""A libvirtd as Debian's packages leave it, for tests: in a mount and a network namespace, with its
own /run, configuration and state. The host's, should it have one, is not touched."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from labctl.host import cgroups
from tests.guest.conftest import LABCTL, Sandbox, wait_for

URI = "qemu:///system"

_FOLDERS = (
    *("/etc/libvirt", "/var/lib/libvirt", "/var/cache/libvirt", "/var/log/libvirt"),
    "/var/backups",  # what labctl advises keeps the definition there that it changes
)

_ENTER = """\
set -e
for folder in /run "$@"; do mount -t tmpfs -o mode=755 none "$folder"; done
if [ -e /dev/kvm ]; then  # as udev makes it where QEMU is installed
  mknod -m 660 /run/kvm c 10 232
  chgrp kvm /run/kvm
  mount --bind /run/kvm /dev/kvm
fi
echo ready
exec sleep infinity
"""

_CGROUPS = Path("/sys/fs/cgroup")


@dataclass
class Libvirtd:
    """`holder`: the process whose namespaces all is in. `log`: what daemons print."""

    holder: subprocess.Popen[str]
    log: Path
    daemon: subprocess.Popen[bytes] | None = None

    def argv(self, *words: str | Path) -> list[str]:
        """The command in the namespaces, its folder the present one."""
        into = ["nsenter", f"--target={self.holder.pid}", "--mount", "--net"]
        return [*into, f"--wdns={Path.cwd()}", *map(str, words)]

    def start(self) -> None:
        """Returns once it answers."""
        self.daemon = self.process("libvirtd")
        asked = self.argv("virsh", "-c", URI, "list")
        wait_for(
            lambda: subprocess.run(asked, capture_output=True, check=False).returncode == 0,
            120,
            "libvirtd's first answer",
        )

    def process(self, program: str) -> subprocess.Popen[bytes]:
        with open(self.log, "ab") as log:
            return subprocess.Popen(self.argv(program), stdout=log, stderr=log)

    def kill(self) -> None:
        assert self.daemon is not None
        self.daemon.kill()
        self.daemon.wait()

    def virsh(self, *words: str | Path) -> str:
        argv = self.argv("virsh", "-c", URI, *words)
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def file(self, path: str) -> Path:
        """A file of the namespaces, as the test sees it."""
        return Path(f"/proc/{self.holder.pid}/root{path}")

    def sandbox(self, sandbox: Sandbox) -> Sandbox:
        """The same sandbox, with its labctl in the namespaces."""
        return _Inside(sandbox.state, sandbox.results, self)


@dataclass(frozen=True)
class _Inside(Sandbox):
    libvirtd: Libvirtd

    def argv(self, *words: str) -> list[str]:
        return self.libvirtd.argv(*LABCTL, *words)


@contextmanager
def libvirtd(folder: Path) -> Iterator[Libvirtd]:
    """One that runs, ended at the end with all that it has started."""
    made = [path for path in map(Path, _FOLDERS) if not path.exists()]
    groups = _groups()
    for path in made:
        path.mkdir(parents=True)
    argv = ["unshare", "--mount", "--net", "--propagation=private", "bash", "-c", _ENTER, "bash"]
    holder = subprocess.Popen([*argv, *_FOLDERS], stdout=subprocess.PIPE, text=True)
    system = Libvirtd(holder, folder / "daemons.log")
    logd = None
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        _skip_in_a_chroot(system)
        _configure(system)
        logd = system.process("virtlogd")
        system.start()
        yield system
    finally:
        for process in (system.daemon, logd):
            if process is not None:
                process.terminate()
                process.wait()
        inside = _network(holder.pid)
        for pid in _processes(inside):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        holder.wait()
        wait_for(lambda: not _processes(inside), 30, "an end of all that was started")
        for path in _groups() - groups:
            _remove(path)
        for path in made:
            path.rmdir()


def _skip_in_a_chroot(system: Libvirtd) -> None:
    """Who enters a mount namespace has its root, which isn't a chroot's; and libvirt gives its
    QEMUs a /dev of their own, which they don't find in one."""
    here = Path.cwd().stat()
    asked = system.argv("stat", "--format=%d %i", ".")
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.stdout.split() != [str(here.st_dev), str(here.st_ino)]:
        pytest.skip("a libvirtd of one's own needs a root that is no chroot's")


def _configure(system: Libvirtd) -> None:
    """What Debian's own files say, and what 'labctl doctor' tells an administrator to add."""
    system.file("/etc/libvirt/libvirtd.conf").write_text('auth_unix_rw = "none"\n')
    layout = cgroups.detect()
    if layout.rt_group_sched:
        setting = cgroups.libvirt_setting(layout)
        system.file("/etc/libvirt/qemu.conf").write_text(f"{setting}\n")


def _network(pid: int | str) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")


def _processes(network: str) -> list[int]:
    """Those in a network namespace. A daemon's QEMU has a mount namespace of its own."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if _network(path.name) == network:
                found.append(int(path.name))
    return found


def _groups() -> set[Path]:
    """Those of a daemon's guests, where no systemd makes them: one whose QEMU dies while there is
    no daemon keeps its own."""
    return {*_CGROUPS.glob("machine/qemu-[0-9]*"), *_CGROUPS.glob("*/machine/qemu-[0-9]*")}


def _remove(group: Path) -> None:
    """Unless it is another daemon's, which may give a guest the same number and name."""
    for folder, _, _ in os.walk(group, topdown=False):
        with suppress(OSError):
            os.rmdir(folder)
