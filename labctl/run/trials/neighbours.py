"""Run the condition `neighbour`: hogs that compete as other VMs do (METHOD rule 4).

One per CPU, because with autogrouping four hogs of one session weigh as one; each in a session
and a cgroup of its own. They run the image's own stress-ng, so that no host package matters.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError
from labctl.base.process import end_process_group, running
from labctl.collect.neighbour import STOP_SIGNAL, WORKER, hog_command
from labctl.host.cgroups import group
from labctl.host.native import in_tree
from labctl.run.guests.lab import Lab
from labctl.run.guests.threads import tree_threads

_OUTPUT = "/run/out"
_GRACE_S = 5.0
_START_S = 20.0
_POLL_S = 0.01
_MEMORY_BYTES = 256 * 1024 * 1024
"""Far more than a hog needs: the limit gives it a cgroup, by which the undo journal finds it."""


_WAIT = ("/bin/sh", "-c", 'read -r go && exec "$@" </dev/null', "sh")
"""Prefix of a hog's command that first waits for a line on its standard input."""


@dataclass
class Neighbours:
    """Hold the hogs of one trial, if it has any: they wait until `start`, and `outcome` is there
    once they were stopped."""

    processes: list[tuple[subprocess.Popen[bytes], Path]] = field(default_factory=list)
    outcome: dict[str, Any] | None = None

    @property
    def pids(self) -> list[int]:
        return [process.pid for process, _ in self.processes]

    def start(self) -> None:
        """Let them go; returns when all are busy. Raises BrokenError when one had died before."""
        for process, _ in self.processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError), process.stdin as stdin:
                stdin.write(b"go\n")
        deadline = Deadline.after(_START_S, "starting the neighbours")
        for pid in self.pids:
            _wait_until_busy(pid, deadline)

    def stop(self) -> None:
        """End them and keep what they counted. Raises BrokenError when one had died before."""
        hogs = []
        for process, _ in self.processes:
            if process.poll() is not None:
                raise BrokenError(f"a neighbour ended by itself with status {process.returncode}")
        for process, folder in self.processes:
            end_process_group(process, STOP_SIGNAL, _GRACE_S)
            hogs.append({path.name: _text(path) for path in sorted(folder.iterdir())})
        if hogs:
            self.outcome = {"hogs": hogs}


@contextmanager
def neighbours(lab: Lab, cpus: Sequence[int]) -> Iterator[Neighbours]:
    """Start as many hogs as there are CPUs, free to move among them, as guests are. They enter the
    image's tree while the caller works, and wait there."""
    command = hog_command()
    found = Neighbours()
    with ExitStack() as stack:
        for number, _ in enumerate(cpus):
            folder = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="hog-", dir=lab.work))
            )
            members = stack.enter_context(
                group(lab.layout, lab.journal, f"neighbour-{number}", memory_bytes=_MEMORY_BYTES)
            )
            output = stack.enter_context(open(folder / "stderr.txt", "wb"))
            argv = in_tree(
                lab.image.tree,
                ["env", "-C", _OUTPUT, *_WAIT, *command.argv],
                mounts={folder: _OUTPUT},
                cpus=frozenset(cpus),
            )
            process = stack.enter_context(
                running(
                    argv,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    stop_signal=STOP_SIGNAL,
                )
            )
            members.add(process.pid)
            found.processes.append((process, folder))
        yield found


def _wait_until_busy(pid: int, deadline: Deadline) -> None:
    """Wait until the hog's worker runs."""
    while not any(_comm(thread.tid) == WORKER for thread in tree_threads(pid, "neighbour")):
        if not tree_threads(pid, "neighbour"):
            raise BrokenError("a neighbour ended before it had started")
        time.sleep(min(_POLL_S, deadline.remaining()))


def _comm(tid: int) -> str:
    try:
        return Path(f"/proc/{tid}/comm").read_text().strip()
    except OSError:
        return ""


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
