"""Guests that answer: started, connected, ended."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labctl.base.channel import Channel
from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError, DeadlineError
from labctl.base.tuning import Tuning
from labctl.domain.render import DomainRequest, render
from labctl.domain.schema import validate
from labctl.domain.session import RunningGuest
from labctl.run.disks import Disks
from labctl.run.lab import DOMAIN_NAME, Lab

RESTORE_S = 60.0
_CONSOLE_LINES = 8
_CONSOLE_BYTES = 64 * 1024
_CONSOLE_LIMIT_BYTES = 16 * 1024 * 1024


def guest_xml(lab: Lab, tuning: Tuning, disks: Disks) -> str:
    """The validated domain XML of a tuning over a guest's disks."""
    return lab.source.xml(lab, tuning, disks)


def image_xml(lab: Lab, tuning: Tuning, root_disk: Path, seed_disk: Path | None = None) -> str:
    """The same for a guest of labctl's own image."""
    xml = render(
        DomainRequest(
            name=DOMAIN_NAME,
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
            data_disk=lab.data.path_in(tuning.disk.format),
            seed_disk=seed_disk,
            console_log=lab.console_log,
            runner_socket=lab.runner_socket,
            agent_socket=lab.sockets / "agent.sock",
            # The first boot, which has a seed, is for cloud-init alone.
            tap=lab.link.tap if lab.link and seed_disk is None else None,
            keeps_owners=not lab.session.is_embedded,
        )
    )
    validate(xml)
    return xml


def hand_over(lab: Lab, overlay: Path) -> None:
    """Let QEMU write to an overlay, and to nothing that it is based on: a daemon's QEMU has a user
    of its own, and libvirt is told to leave the owners of root disks alone."""
    if not lab.session.is_embedded:
        os.chown(overlay, *lab.session.qemu_user())


@contextmanager
def answering(
    lab: Lab, running: RunningGuest, seconds: float, *, is_booting: bool
) -> Iterator[Channel]:
    """Resume a paused guest and talk to its runner; the guest is ended at the end.

    `is_booting`: it has no runner from before, as a restored guest has. Raises BrokenError with
    the console's last lines when it doesn't answer within `seconds`.
    """
    try:
        deadline = Deadline.after(seconds, "the guest's first answer")
        with Channel.connected(lab.runner_socket, "the guest", deadline) as channel:
            running.resume()
            try:
                if is_booting:
                    lab.source.greet(lab, running, deadline)
                channel.wait_ready(deadline)
            except DeadlineError as error:
                raise BrokenError(
                    f"the guest did not answer within {seconds:g} s{console_end(lab.console_log)}",
                    hint=lab.source.hint(lab),
                ) from error
            channel.set_time(Deadline.after(10, "setting the guest's clock"))
            yield channel
    finally:
        running.end()
        _bound(lab.console_log)


def _bound(log: Path) -> None:
    """A guest may write to its console without end; the host's disk has one."""
    try:
        if log.stat().st_size > _CONSOLE_LIMIT_BYTES:
            os.truncate(log, 0)
    except FileNotFoundError:
        pass


def console_end(log: Path) -> str:
    """What a guest printed last, as the end of a sentence."""
    try:
        with open(log, "rb") as file:
            # A guest may write there without end.
            file.seek(max(0, os.fstat(file.fileno()).st_size - _CONSOLE_BYTES))
            lines = file.read(_CONSOLE_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return " and left no console log"
    last = [line.strip() for line in lines if line.strip()][-_CONSOLE_LINES:]
    if not last:
        return " and printed nothing on its console"
    return ". Its console ends:\n" + "\n".join(f"  {line[:160]}" for line in last)
