"""Run programs of the guest image's own tree on the host, without a guest."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from labctl.base.cpus import CpuSet, format_cpus
from labctl.base.errors import BrokenError, HostError
from labctl.base.process import dies_with_labctl, running
from labctl.host.cgroups import Layout, placement
from labctl.host.own_cgroups import Cgroup, CpuLimits, group
from labctl.host.settings.journal import Journal

DATA_FOLDER = "/labdata"
"""Path of the data folder in the tree."""

_RUNNER = "/run/runner.pyz"
_SCRIPT = Path(__file__).with_name("native_root.sh")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LAST_WORDS = 2000
_LOOPBACK = 'ip link set lo up && exec "$@"'


def in_tree(
    tree: Path,
    argv: Sequence[str],
    *,
    mounts: Mapping[Path, str] | None = None,
    cpus: CpuSet | None = None,
    network: Path | None = None,
    isolated: bool = False,
) -> list[str]:
    """Return the argv that runs `argv` chrooted into a tree, in a private mount namespace.

    It execs all the way: the started pid is the pid of `argv`. `mounts`: what else to mount, and at
    which path of the root or of /run; files are read-only. `network`: its network namespace;
    `isolated`: a new one with only a loopback device. /tmp, /run, /dev/shm and SysV IPC are empty
    and its own. It dies with the thread that starts it (prctl(2), PR_SET_PDEATHSIG), so that no hog
    is left if labctl is killed. It must therefore not be started from a thread that ends early.
    """
    arguments = [str(tree)]
    for source, target in (mounts or {}).items():
        arguments += [str(source), target]
    command = [
        *dies_with_labctl(),
        *("unshare", "--mount", "--propagation", "private", "--ipc"),
        *(("--net", "sh", "-c", _LOOPBACK, "sh") if isolated else ()),
        *("sh", str(_SCRIPT), *arguments, "--"),
        *("env", "-i", f"PATH={_PATH}", "HOME=/root", "LC_ALL=C.UTF-8", *argv),
    ]
    if network is not None:
        command = ["nsenter", f"--net={network}", *command]
    return ["taskset", "--cpu-list", format_cpus(cpus), *command] if cpus else command


@dataclass(frozen=True, slots=True)
class NativeSession:
    """Hold a runner (`labctl/runner`) that waits in the tree; `connection` is for a
    Channel.
    """

    connection: socket.socket
    process: subprocess.Popen[bytes]
    group: Cgroup
    _stderr: IO[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    def oom_kills(self) -> int:
        """Return the number of processes that the kernel has killed because the guest's memory ran
        out.
        """
        return self.group.oom_kills()

    def placement(self) -> dict[str, str]:
        """Return the runner's cgroups and autogroup, read back from /proc."""
        return placement(self.pid)

    def check_alive(self) -> None:
        """Raise BrokenError with the runner's last output if it has ended."""
        if self.process.poll() is not None:
            self._stderr.seek(0)
            said = self._stderr.read()[-_LAST_WORDS:].decode(errors="replace").strip()
            raise BrokenError(
                f"the native runner ended with status {self.process.returncode}: "
                f"{said or 'it printed nothing'}"
            )


@contextmanager
def native_session(
    tree: Path,
    *,
    data_folder: Path | None,
    memory_bytes: int,
    runner: Path,
    layout: Layout,
    journal: Journal,
    network: Path | None = None,
    limits: CpuLimits | None = None,
) -> Iterator[NativeSession]:
    """Start a runner in the tree: own session, memory cgroup of the guest's size, equal cpu weight.

    `network`: its network namespace, else the host's. `limits`: of its cgroup, else the default.
    Each command has its own CPUs and policy (the runner sets them after the fork). Raises HostError
    without root, without the tree, or if the host lacks memory cgroups.
    """
    check_tree(tree)
    name = f"native-{os.getpid()}"
    with (
        group(layout, journal, name, memory_bytes=memory_bytes, limits=limits) as members,
        runner_in(
            tree, members, data_folder=data_folder, runner=runner, network=network
        ) as session,
    ):
        yield session


@contextmanager
def runner_in(
    tree: Path,
    members: Cgroup,
    *,
    data_folder: Path | None,
    runner: Path,
    network: Path | None = None,
    isolated: bool = False,
) -> Iterator[NativeSession]:
    """Start a runner in the tree and the cgroup, in a session of its own. `network`, `isolated`: as
    for `in_tree`. Raises HostError without root."""
    with ExitStack() as stack:
        ours, theirs = socket.socketpair()
        stack.enter_context(ours)
        mounts = {runner: _RUNNER}
        if data_folder is not None:
            mounts[data_folder] = DATA_FOLDER
        argv = ["/usr/bin/python3", "-I", "-S", _RUNNER, "--fd", str(theirs.fileno())]
        stderr = stack.enter_context(tempfile.TemporaryFile())
        with theirs:
            process = stack.enter_context(
                running(
                    in_tree(tree, argv, mounts=mounts, network=network, isolated=isolated),
                    stderr=stderr,
                    pass_fds=(theirs.fileno(),),
                )
            )
        session = NativeSession(ours, process, members, stderr)
        try:
            members.add(process.pid)
        except HostError:
            session.check_alive()
            raise
        yield session


def check_tree(tree: Path) -> None:
    """Raise HostError unless labctl can run programs of the tree: it needs root and a complete
    tree."""
    if os.geteuid() != 0:
        raise HostError(
            "native runs need root, for a mount namespace and a chroot", hint="Run labctl as root."
        )
    if not (tree / "usr/bin/python3").exists():
        raise HostError(
            f"{tree} is not the tree of a guest image: it has no /usr/bin/python3",
            hint="Build the image again: labctl image build",
        )
