"""Name other users of the host's CPUs, and wait until the host is idle (METHOD 24).

Everything here looks between trials; nothing runs in a measured window.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from labctl.base.events import Listener, Note, Waiting
from labctl.base.notation import share
from labctl.base.wording import counted, duration
from labctl.host.doctor.activity import BusyProcess, Snapshot, between, observe, snapshot
from labctl.host.doctor.reader import Reader

_LOOK_S = 1.0
_QUIET_LOOKS = 2
"""Looks in a row without a disturbance: a build pauses between two compilers."""

_NAMED = 3
_WORTH_NAMING = 0.01
"""CPU seconds per second: a tick of the kernel's accounting in a second."""

Look = Callable[[], "Others"]


@dataclass(frozen=True, slots=True)
class Others:
    """Hold the CPU usage of others. `cpus`: CPU seconds per second, including a hypervisor below
    this host; `processes`: those that can be named, the busiest first."""

    cpus: float
    processes: tuple[BusyProcess, ...] = ()

    def __str__(self) -> str:
        if not self.processes:
            return "unknown process: it ended meanwhile, or it is the hypervisor below this host"
        named = [
            f"{process.name} (pid {process.pid}, {process.cpus:.2f} of a CPU)"
            for process in self.processes[:_NAMED]
        ]
        more = len(self.processes) - len(named)
        return ", ".join(named) + (f" and {more} more" if more else "")


def look(seconds: float = _LOOK_S) -> Others:
    """Return the present CPU usage of others."""
    found = observe(Reader(), seconds)
    return _others(found.processes, sum(found.steal.values()))


@dataclass(frozen=True, slots=True)
class Since:
    """Hold the CPU times at a trial's start, to name later what ran beside it."""

    before: Snapshot

    @classmethod
    def now(cls) -> Since:
        return cls(snapshot(Reader()))

    def others(self) -> Others:
        """Return the CPU usage of others since then. Processes that have ended since cannot be
        named, so `cpus` is a lower bound."""
        found = between(Reader(), self.before, snapshot(Reader()))
        return _others(found.processes, sum(found.steal.values()))


def _others(processes: Sequence[BusyProcess], steal: float) -> Others:
    reader = Reader()
    named = tuple(
        process
        for process in processes
        if process.cpus >= _WORTH_NAMING and not _is_ours(reader, process.pid)
    )
    return Others(sum(process.cpus for process in named) + steal, named)


def _is_ours(reader: Reader, pid: int) -> bool:
    """Return whether a process is labctl or a descendant: guests and hogs are, too, because labctl
    adopts what libvirt starts."""
    own = os.getpid()
    while pid > 1:
        if pid == own:
            return True
        fields = (reader.text(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
        if len(fields) < 2:
            return False
        pid = int(fields[1])  # proc_pid_stat(5): the parent is the second after the name
    return False


class Quiet:
    """Wait for an idle host, for `most_s` seconds of a run altogether.

    `allowed`: CPU seconds per second that others may use, as in the study's limits.
    """

    def __init__(
        self, allowed: float, most_s: float, listener: Listener, look: Look = look
    ) -> None:
        self._allowed = allowed
        self._most_s = most_s
        self._listener = listener
        self._look = look
        self.waited_s = 0.0
        self.disturbed = 0
        self._blamed: set[str] = set()

    @property
    def may_wait(self) -> bool:
        return self.waited_s < self._most_s

    def blame(self, others: Others) -> None:
        """Count an attempt that others disturbed, and report who they were, each name once."""
        self.disturbed += 1
        names = {process.name for process in others.processes[:_NAMED]}
        if self.disturbed == 1 or not names <= self._blamed:
            self._listener(Note(text=f"Also running: {others}."))
        self._blamed |= names

    def wait(self) -> None:
        """Return once the host is idle, or no time is left to wait for it."""
        quiet = 0
        while quiet < _QUIET_LOOKS and self.may_wait:
            others = self._look()
            self.waited_s += _LOOK_S
            quiet = quiet + 1 if others.cpus <= self._allowed else 0
            if not quiet:
                left_s = max(0.0, self._most_s - self.waited_s)
                self._listener(Waiting(text=f"waits for a quiet host: {others}", left_s=left_s))
        if not self.may_wait and self._most_s:
            self._listener(
                Note(
                    text="Other processes have kept this host busy for "
                    f"{duration(self._most_s)}, the limit of --wait-quiet: the run "
                    "continues and may lose attempts."
                )
            )

    def summary(self, run_s: float) -> str | None:
        """Return what others cost a run of so many seconds; None if nothing."""
        if not self.disturbed and not self.waited_s:
            return None
        part = f", {share(round(self.waited_s / run_s, 2))} of its time" if run_s > 0 else ""
        return (
            f"Other processes disturbed {counted(self.disturbed, 'attempt')}, and the run "
            f"waited {duration(self.waited_s)} for them{part}."
        )
