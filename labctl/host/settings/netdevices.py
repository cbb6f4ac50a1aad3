"""Record labctl's network namespaces and tap devices in the undo journal."""

from __future__ import annotations

import errno
import os
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from labctl.base.process import Deadline, dies_with_labctl, run
from labctl.host.settings.tunables import ABSENT, PRESENT

NAMESPACES = Path("/run/netns")
"""Folder of ip-netns(8)'s named namespaces."""

_DEVICES = Path("/sys/class/net")
_IP_S = 10.0
_EMPTYING_S = 2.0
"""Time for killed processes to leave a namespace."""


@dataclass(frozen=True, slots=True)
class NetworkNamespace:
    """Make or remove a named network namespace: "present" or "absent". Removing it kills its
    processes and removes its devices."""

    namespace: str
    kind: ClassVar[str] = "network-namespace"

    @property
    def name(self) -> str:
        return f"network namespace {self.namespace}"

    @property
    def survives_reboot(self) -> bool:
        return False

    def arguments(self) -> dict[str, str]:
        return asdict(self)

    def read(self) -> str:
        return PRESENT if (NAMESPACES / self.namespace).exists() else ABSENT

    def write(self, value: str) -> None:
        if value == PRESENT:
            ip("netns", "add", self.namespace)
            return
        deadline = time.monotonic() + _EMPTYING_S
        while (pids := self._members()) and time.monotonic() < deadline:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        _removed(self, deadline)

    def removal(self) -> tuple[str, ...]:
        """Return the arguments of ip(8) that remove it."""
        return ("netns", "del", self.namespace)

    def _members(self) -> list[int]:
        # A file that ip has made and not mounted on yet, or left so, has no processes.
        with suppress(OSError):
            return [int(pid) for pid in ip("netns", "pids", self.namespace).split()]
        return []


@dataclass(frozen=True, slots=True)
class TapDevice:
    """Make or remove a persistent tap device: "present" or "absent", here or in the namespace that
    it was moved to. `queues`: "one" or "many" (IFF_MULTI_QUEUE: whoever opens it must use the
    same)."""

    device: str
    namespace: str
    queues: str
    kind: ClassVar[str] = "tap-device"

    @property
    def name(self) -> str:
        return f"tap device {self.device}"

    @property
    def survives_reboot(self) -> bool:
        return False

    def arguments(self) -> dict[str, str]:
        return asdict(self)

    def read(self) -> str:
        return PRESENT if self._is_here() or self._is_moved() else ABSENT

    def write(self, value: str) -> None:
        if value == PRESENT:
            many = ("multi_queue",) if self.queues == "many" else ()
            ip("tuntap", "add", "dev", self.device, "mode", "tap", "vnet_hdr", *many)
            return
        _removed(self, time.monotonic() + _EMPTYING_S)

    def removal(self) -> tuple[str, ...]:
        """Return the arguments of ip(8) that remove it from where it is now."""
        place = () if self._is_here() else ("-n", self.namespace)
        return (*place, "link", "del", self.device)

    def _is_here(self) -> bool:
        return (_DEVICES / self.device).exists()

    def _is_moved(self) -> bool:
        if not (NAMESPACES / self.namespace).exists():
            return False
        with suppress(OSError):
            return bool(ip("-n", self.namespace, "-o", "link", "show", "dev", self.device))
        return False


def _removed(what: NetworkNamespace | TapDevice, deadline: float) -> None:
    """Call ip(8) until the object is gone. Work in progress of a labctl that was just killed may
    get in the way: a namespace that is only now being mounted, a device that ends with its maker,
    or one that is moving to its namespace."""
    while True:
        try:
            ip(*what.removal())
            return
        except OSError:
            if what.read() == ABSENT:
                return
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.01)


def ip(*words: str) -> str:
    """Return the output of ip(8). Raises OSError with its message if it fails, as a file would,
    because the journal handles changes of the network like any other.

    The command dies with labctl: nobody would remove what it made after labctl was killed.
    """
    argv = [*dies_with_labctl(), "ip", *words]
    done = run(argv, deadline=Deadline.after(_IP_S, f"ip {words[0]}"), check=False)
    if done.returncode != 0:
        said = done.stderr.strip() or f"status {done.returncode}"
        raise OSError(errno.EIO, f"'ip {' '.join(words)}': {said}")
    return done.stdout
