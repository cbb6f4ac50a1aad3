"""Start guests, connect to them, end them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labctl.base.channel import Channel
from labctl.base.command import Command
from labctl.base.errors import BrokenError, DeadlineError
from labctl.base.process import Deadline
from labctl.base.tuning import Tuning
from labctl.domain.render import DomainRequest, render
from labctl.domain.schema import validate
from labctl.domain.session import RunningGuest
from labctl.run.guests.lab import Lab
from labctl.run.planning.host import rt_runtime_us
from labctl.run.resources.disks import Disks

# Read what guests leave behind: their consoles, and QEMU's last messages.


_LINES = 8
_WIDTH = 160
_BYTES = 64 * 1024
_LIMIT_BYTES = 16 * 1024 * 1024

_TOLD_OF_ANY_GUEST = re.compile(r": (starting up|Domain id=\d+ is tainted)")
_COMMANDS_END = "-msg timestamp=on"
"""Last of the options that libvirt starts QEMU with, and writes to the log."""


def bound(log: Path) -> None:
    """Bound the console's log: a guest may write without limit, and the host's disk is finite."""
    try:
        if log.stat().st_size > _LIMIT_BYTES:
            os.truncate(log, 0)
    except FileNotFoundError:
        pass


def console_end(log: Path) -> str:
    """Return a guest's last output, as lines below a sentence (`base.wording.without_logs`)."""
    return _told("Its console", _end_of(log))


def how_it_ended(qemu_log: Path, console_log: Path) -> str:
    """Return the same for a guest whose QEMU is gone, with the last messages of QEMU, or of libvirt
    about it."""
    lines = _end_of(qemu_log)
    said = _told("QEMU's log", None if lines is None else _of_the_last_guest(lines))
    return f"{said}{console_end(console_log)}"


def _told(what: str, lines: list[str] | None) -> str:
    if lines is None:
        return f"\n{what} can't be read."
    if not lines:
        return f"\n{what} is empty."
    last = "\n".join(f"  {line[:_WIDTH]}" for line in lines[-_LINES:])
    return f"\n{what} ends:\n{last}"


def _of_the_last_guest(lines: list[str]) -> list[str]:
    starts = [number for number, line in enumerate(lines) if line.startswith(_COMMANDS_END)]
    since = lines[starts[-1] + 1 :] if starts else lines
    return [line for line in since if not _TOLD_OF_ANY_GUEST.search(line)]


def _end_of(log: Path) -> list[str] | None:
    """Return the last lines that are not empty; None without such a file."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _BYTES))
            lines = file.read(_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return None
    return [line.strip() for line in lines if line.strip()]


RESTORE_S = 60.0


def guest_xml(lab: Lab, tuning: Tuning, disks: Disks) -> str:
    """Return the validated domain XML of a tuning over a guest's disks."""
    return lab.source.xml(lab, tuning, disks)


def image_xml(lab: Lab, tuning: Tuning, root_disk: Path, seed_disk: Path | None = None) -> str:
    """Return the same for a guest of labctl's own image."""
    xml = render(
        DomainRequest(
            name=lab.domain_name,
            uuid=lab.domain_uuid,
            tuning=tuning,
            plan=lab.pin_plan_for(tuning),
            accelerator=lab.accelerator.name,
            disabled_features=lab.accelerator.disabled_features,
            vcpus=lab.vcpus,
            memory_mib=lab.memory_mib,
            kernel=lab.image.kernel,
            initrd=lab.image.initrd,
            cmdline=" ".join([lab.image.command_line, *tuning.guest.command_line]),
            root_disk=root_disk,
            data_disks=lab.data.paths_in(tuning.disk.format),
            seed_disk=seed_disk,
            console_log=lab.console_log,
            runner_socket=lab.runner_socket,
            agent_socket=lab.agent_socket,
            # The first boot, which has a seed, is for cloud-init alone.
            tap=lab.link.tap if lab.link and seed_disk is None else None,
            rt_runtime_us=rt_runtime_us(tuning),
            keeps_owners=not lab.session.is_embedded,
        )
    )
    validate(xml)
    return xml


def hand_over(lab: Lab, file: Path) -> None:
    """Let QEMU write to an overlay or a disk of its own, but not to its backing files: libvirt does
    not change the owners of root disks."""
    os.chown(file, *lab.qemu_ids)


@contextmanager
def answering(
    lab: Lab,
    running: RunningGuest,
    seconds: float,
    *,
    is_booting: bool,
    is_paused: bool = True,
    what: str = "the guest",
) -> Iterator[Channel]:
    """Resume a paused guest, and talk to its runner; the guest is ended at the end.

    `is_booting`: it has no earlier runner, as a restored guest has. `what`: the guest, in errors.
    Raises BrokenError with the console's last lines if it does not answer within `seconds`.
    """

    def how_ended() -> str:
        return how_it_ended(lab.qemu_log, lab.console_log)

    try:
        deadline = Deadline.after(seconds, f"{what}: the first answer")
        with Channel.connected(lab.runner_socket, what, deadline, how_ended) as channel:
            if is_paused:
                running.resume()
            try:
                if is_booting:
                    lab.source.greet(lab, running, deadline)
                channel.wait_ready(deadline)
            except DeadlineError as error:
                said = console_end(lab.console_log)
                raise BrokenError(
                    f"{what} did not answer within {seconds:g} s{said}",
                    hint=lab.source.hint(lab),
                ) from error
            channel.set_time(Deadline.after(10, "setting the guest's clock"))
            yield channel
    finally:
        running.end()
        bound(lab.console_log)


def finish_boot(channel: Channel, seconds: float) -> None:
    """Wait until systemd has nothing left to start, and all writes are on the disk."""
    wait = Command(argv=("systemctl", "is-system-running", "--wait"))
    waited = channel.run(wait, seconds=seconds)
    state = waited.stdout.decode(errors="replace").strip()
    if state not in ("running", "degraded"):
        raise BrokenError(f"the guest's systemd is '{state}' after the boot")
    result = channel.run(Command(argv=("sync",)), seconds=60)
    if result.returncode != 0:
        raise BrokenError("'sync' failed in the guest")
    channel.wait_ready(Deadline.after(10, "the set-up guest's answer"))
