"""Bound libvirt calls in time, explain refusals, and tell a lost connection from a failed call."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import libvirt

from labctl.base.errors import BrokenError, HostError

ANSWER_S = 60.0
MEMORY_S = 180.0
"""Timeout of calls that write or read a guest's whole memory."""

_END_S = 10.0

_HINTS = (
    (
        "Cannot set scheduler parameters",
        "SCHED_FIFO and SCHED_RR need root outside a cpu cgroup "
        "with RT_GROUP_SCHED; see 'labctl host facts'.",
    ),
    (
        "Failed to enable controller '+cpu'",
        "The host has cgroup v2 with CONFIG_RT_GROUP_SCHED and no systemd. With --connect, add "
        "'cgroup_controllers = []' to /etc/libvirt/qemu.conf and restart the daemon; without, let "
        "labctl read the kernel's configuration (/boot/config-RELEASE or /proc/config.gz).",
    ),
    ("Cannot allocate memory", "Give the guest less memory in the study's 'guest.memory_mib'."),
    ("No space left on device", "Free some space, or name another folder with --state-dir."),
    (
        "(as uid:",
        "libvirt runs QEMU as another user there: with --state-dir, name a folder that "
        "this user can enter, including its parents.",
    ),
    (
        "Permission denied",
        "Run labctl as root. With --connect, the host's policy must let QEMU into labctl's state "
        "folder: see 'confinement' in 'labctl doctor'.",
    ),
)


class ConnectionLostError(HostError):
    """Report that libvirt's daemon has ended, or no longer answers."""


class Calls:
    """Hold the state of one connection's calls. `guests`: UUIDs of those that labctl starts over
    it, the only ones that it ever ends."""

    def __init__(self, connection: libvirt.virConnect, uri: str) -> None:
        self._connection = connection
        self._uri = uri
        self.guests: set[str] = set()

    @contextmanager
    def explained(self, what: str, seconds: float | None = None) -> Iterator[None]:
        """Raise libvirt's refusal as an error of labctl's. Its calls have no deadline: after
        `seconds` the QEMU that they wait for is killed, and they fail (None: the limit for an
        answer).

        Raises BrokenError with libvirt's reason; ConnectionLostError if the daemon is gone.
        """
        seconds = ANSWER_S if seconds is None else seconds
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            _kill(self.guests)

        timer = threading.Timer(seconds, expire)
        timer.daemon = True
        timer.start()
        try:
            yield
        except libvirt.libvirtError as error:
            if expired.is_set():
                raise BrokenError(
                    f"{what}: QEMU did not answer within {seconds:g} s and was killed"
                ) from error
            if self._is_lost():
                raise ConnectionLostError(
                    f"{what}: the connection to {self._uri} is gone ({error})",
                    hint="Start libvirt's daemon again ('systemctl start libvirtd'); 'labctl "
                    "sweep --resume RUN' continues a run.",
                ) from error
            raise BrokenError(f"{what}: {error}", hint=_hint(str(error))) from error
        except SystemError as error:
            # A signal that arrived inside a call of the C library: CPython wraps what its handler
            # raised.
            if isinstance(error.__cause__, KeyboardInterrupt):
                raise error.__cause__ from None
            raise
        finally:
            timer.cancel()

    def end_guests(self) -> None:
        """End the guests without libvirt: QEMUs survive the death of their daemon. They are gone
        when this returns."""
        deadline = time.monotonic() + _END_S
        while _kill(self.guests) and time.monotonic() < deadline:
            time.sleep(0.01)

    def _is_lost(self) -> bool:
        try:
            return not self._connection.isAlive()
        except libvirt.libvirtError:
            return True


def qemus(uuids: Collection[str]) -> list[int]:
    """Return the process ids of the QEMUs that libvirt has started for these domains."""
    wanted = {uuid.encode() for uuid in uuids}
    found = []
    for name in os.listdir("/proc"):
        try:
            arguments = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # not a process, or one that has ended
        at = arguments.index(b"-uuid") + 1 if b"-uuid" in arguments else len(arguments)
        if name.isdigit() and at < len(arguments) and arguments[at] in wanted:
            found.append(int(name))
    return found


def _kill(uuids: Collection[str]) -> bool:
    """Return whether there was one to kill."""
    found = qemus(uuids)
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(found)


def _hint(text: str) -> str | None:
    return next((hint for pattern, hint in _HINTS if pattern in text), None)
