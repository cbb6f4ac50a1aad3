"""The emulated machine: booted over copies that are thrown away, and ended with its commands."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from labctl.base.errors import BrokenError
from labctl.base.process import Deadline, dies_with_labctl, running
from labctl.guest.images import Image
from labctl.host.facts import QEMU

INSIDE = "tools/kvm_host/inside.sh"

BOOT_S = 300.0
"""Seconds until it sets itself up; 30 are usual."""

_POLL_S = 0.2

CPUS = 2
MEMORY_MIB = 4096

KERNEL_LINE = "panic=-1 no_timer_check mitigations=off tsc=reliable"
"""panic=-1: a panic reboots at once, which is QEMU's end (-no-reboot).
no_timer_check: an emulated timer's interrupts may come late, and the check of them panics.
tsc=reliable: the kernel takes an emulated AMD CPU's time-stamp counter for unstable, and guests
that KVM runs on it then have clocks of half the pace."""

_LAST_LINES = 40
"""Lines of the console that are shown where the machine doesn't come to its commands or to their
end."""


@dataclass(frozen=True, slots=True)
class Machine:
    """`disk`: a file system that holds the folder of the guest image; `venv`: one with a .venv for
    the host's Python; `checkout`: seen inside as it is now, under that .venv, and never written
    to, but for `results`: the folder that takes what commands write in the checkout's results/,
    None for none."""

    host: Image
    guest: Image
    disk: Path
    venv: Path
    checkout: Path
    results: Path | None = None

    @contextmanager
    def booted(self, show: Callable[[str], None]) -> Iterator[Booted]:
        """Boot it for the block, and end it then, whatever runs in it. `show` gets what commands
        print, as they do.

        Raises BrokenError with the console's last lines when the machine ends before, DeadlineError
        when it takes too long.
        """
        with tempfile.TemporaryDirectory(prefix="labctl-kvm-host-", dir="/var/tmp") as folder:
            task = Path(folder)
            (task / "run").write_text(f"exec {shlex.join(self.inside())}\n")
            with (
                open(task / "console", "wb") as console,
                running(
                    [*dies_with_labctl(), *self.qemu(task)],
                    env={"TMPDIR": "/var/tmp"},
                    stdout=console,
                    stderr=subprocess.STDOUT,
                ) as process,
            ):
                booted = Booted(process, task, show)
                booted.wait_for(task / "output", Deadline.after(BOOT_S, "booting it"))
                yield booted

    def inside(self) -> list[str]:
        """Return what the machine runs: its checkout mounted, and what comes for it."""
        out = ["results"] if self.results is not None else []
        name = self.guest.dir.name
        return ["sh", f"/run/checkout/{INSIDE}", str(self.checkout), name, *out]

    def qemu(self, task: Path) -> list[str]:
        return [
            *_of_tree(self.host.tree),
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-machine", "q35", "-accel", "tcg,thread=multi"),
            # Without five-level paging: KVM's nested paging tables would have four levels.
            *("-cpu", "max,la57=off", "-smp", str(CPUS), "-m", str(MEMORY_MIB)),
            *("-kernel", str(self.host.kernel), "-initrd", str(self.host.initrd)),
            *("-append", f"{self.host.command_line} {KERNEL_LINE}", "-serial", "stdio"),
            *_disk(self.host.disk, "qcow2"),
            *_disk(self.disk, "raw"),
            *_disk(self.venv, "raw"),
            *_shared(task, "task"),
            *_shared(self.checkout, "checkout", "readonly=on"),
            *(_shared(self.results, "results") if self.results is not None else ()),
        ]


class Booted:
    """Run commands in a machine that is there, one after the other."""

    def __init__(
        self, process: subprocess.Popen[bytes], task: Path, show: Callable[[str], None]
    ) -> None:
        self._process = process
        self._task = task
        self._show = show
        self._commands = 0

    def run(self, command: str, limit_s: float) -> int:
        """Return the status with which a command of sh ended in the checkout.

        Raises BrokenError with the console's last lines when the machine ends before it,
        DeadlineError when it takes longer than `limit_s`.
        """
        self._commands += 1
        folder = self._task / str(self._commands)
        folder.mkdir()
        (folder / "output").touch()
        (folder / "new").write_text(f"{command}\n")
        (folder / "new").rename(folder / "command")
        with open(folder / "output", encoding="utf-8", errors="replace") as lines:
            deadline = Deadline.after(limit_s, f"'{command}'")
            self.wait_for(folder / "status", deadline, lambda: self._show(lines.read()))
        return int((folder / "status").read_text())

    def wait_for(
        self, path: Path, deadline: Deadline, meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        """Return when the machine has made a file, having done `meanwhile` again and again, and
        once when it is there. Raises BrokenError, or DeadlineError, with the console's last
        lines."""
        while not (is_there := path.exists()) and self._process.poll() is None:
            if deadline.expired:
                error = deadline.error()
                raise type(error)(
                    f"in the emulated KVM host, {error.message}; its console's last lines:\n"
                    f"{self._last_lines()}"
                )
            meanwhile()
            time.sleep(_POLL_S)
        meanwhile()
        if not (is_there or path.exists()):
            raise BrokenError(
                f"the emulated KVM host ended with status {self._process.returncode} before "
                f"{deadline.what} was done:\n{self._last_lines()}"
            )

    def _last_lines(self) -> str:
        said = [self._task / "console", self._task / "output"]
        text = "".join(path.read_text(errors="replace") for path in said if path.exists())
        return "\n".join(text.splitlines()[-_LAST_LINES:])


def _of_tree(tree: Path) -> list[str]:
    """Return the command of the tree's own QEMU, run by the tree's own loader: the same emulator
    wherever it runs. Before QEMU 8.1 (commit deba78709ae8) a CPU could translate code while another
    one wrote it: it kept the breakpoint by which the kernel switches a tracepoint, and panicked.
    """
    share = tree / "usr/share"
    libraries = tree / "usr/lib/x86_64-linux-gnu"
    return [
        *(str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries)),
        *(str(tree / "usr/bin" / QEMU), "-L", str(share / "qemu"), "-L", str(share / "seabios")),
    ]


def _disk(path: Path, kind: str) -> list[str]:
    # What is written goes to an unnamed file, which is gone with QEMU.
    return ["-drive", f"file={_escaped(path)},format={kind},if=virtio,snapshot=on"]


def _shared(path: Path, tag: str, *options: str) -> list[str]:
    words = (f"local,path={_escaped(path)}", f"mount_tag={tag}", "security_model=none")
    return ["-virtfs", ",".join([*words, "multidevs=remap", *options])]


def _escaped(path: Path) -> str:
    """A comma in a value of QEMU's options is written twice."""
    return str(path).replace(",", ",,")
