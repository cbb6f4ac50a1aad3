"""The emulated machine: booted over copies that are thrown away, and ended with its task."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError
from labctl.base.process import dies_with_labctl, running
from labctl.guest.images import Image
from labctl.host.facts import QEMU

INSIDE = "tools/kvm_host/inside.sh"

BOOT_S = 300.0
"""Seconds until its task begins; 30 are usual."""
TASK_S = 1800.0

CPUS = 2
MEMORY_MIB = 4096

KERNEL_LINE = "panic=-1 no_timer_check mitigations=off tsc=reliable"
"""panic=-1: a panic reboots at once, which is QEMU's end (-no-reboot).
no_timer_check: an emulated timer's interrupts may come late, and the check of them panics.
tsc=reliable: the kernel takes an emulated AMD CPU's time-stamp counter for unstable, and guests
that KVM runs on it then have clocks of half the pace."""

_LAST_LINES = 40
"""Lines of the console that are shown where the machine doesn't come to its task or its end."""


@dataclass(frozen=True, slots=True)
class Machine:
    """`disk`: a file system that holds the folder of the guest image; `checkout`: seen inside as
    it is now, and never written to."""

    host: Image
    guest: Image
    disk: Path
    checkout: Path

    def run(self, argv: Sequence[str], show: Callable[[str], None]) -> int:
        """Return the status with which a command ended in the machine, in its checkout. `show` gets
        what it printed, as it does.

        Raises BrokenError with the console's last lines when the machine ends without having run
        it, DeadlineError when it takes too long.
        """
        with tempfile.TemporaryDirectory(prefix="labctl-kvm-host-", dir="/var/tmp") as folder:
            task = Path(folder)
            (task / "run").write_text(f"exec {shlex.join(self.inside(argv))}\n")
            with (
                open(task / "console", "wb") as console,
                running(
                    [*dies_with_labctl(), *self.qemu(task)],
                    env={"TMPDIR": "/var/tmp"},
                    stdout=console,
                    stderr=subprocess.STDOUT,
                ) as process,
            ):
                return _followed(process, task, show)

    def inside(self, argv: Sequence[str]) -> list[str]:
        """Return what the machine runs: its checkout mounted, and the command in it."""
        return ["sh", f"/run/checkout/{INSIDE}", str(self.checkout), self.guest.dir.name, *argv]

    def qemu(self, task: Path) -> list[str]:
        return [
            *(QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-machine", "q35", "-accel", "tcg,thread=multi"),
            # Without five-level paging: KVM's nested paging tables would have four levels.
            *("-cpu", "max,la57=off", "-smp", str(CPUS), "-m", str(MEMORY_MIB)),
            *("-kernel", str(self.host.kernel), "-initrd", str(self.host.initrd)),
            *("-append", f"{self.host.command_line} {KERNEL_LINE}", "-serial", "stdio"),
            *_disk(self.host.disk, "qcow2"),
            *_disk(self.disk, "raw"),
            *_shared(task, "task"),
            *_shared(self.checkout, "checkout", "readonly=on"),
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


def _followed(process: subprocess.Popen[bytes], task: Path, show: Callable[[str], None]) -> int:
    output, status = task / "output", task / "status"
    deadline = Deadline.after(BOOT_S, "booting the emulated KVM host")
    while process.poll() is None and not output.exists():
        _wait(deadline, task)
    if output.exists():
        deadline = Deadline.after(TASK_S, "what the emulated KVM host was to do")
        with open(output, encoding="utf-8", errors="replace") as lines:
            while process.poll() is None:
                show(lines.read())
                _wait(deadline, task)
            show(lines.read())
    if not status.exists():
        raise BrokenError(
            f"the emulated KVM host ended with status {process.returncode} "
            f"before its task did:\n{_last_lines(task)}"
        )
    return int(status.read_text())


def _wait(deadline: Deadline, task: Path) -> None:
    if deadline.expired:
        error = deadline.error()
        raise type(error)(f"{error.message}; its console's last lines:\n{_last_lines(task)}")
    time.sleep(0.2)


def _last_lines(task: Path) -> str:
    text = (task / "console").read_bytes().decode(errors="replace")
    return "\n".join(text.splitlines()[-_LAST_LINES:])
