"""Serve a workload from the image's own tree, in the peer's namespace."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError, UsageError
from labctl.base.process import running
from labctl.collect.collector import ThreadRef
from labctl.host.native import in_tree
from labctl.run.guests.lab import Lab
from labctl.run.guests.threads import tree_threads
from labctl.workloads.setting import Parameters, Peer
from labctl.workloads.workload import Workload

ROLE = "peer"
RAW = "peer.txt"

_START_S = 20.0
_POLL_S = 0.01
_LISTEN = {"udp": "07", "tcp": "0A"}
"""State of a socket that waits to be spoken to: TCP_CLOSE and TCP_LISTEN in net/tcp_states.h."""


@dataclass(frozen=True, slots=True)
class RunningPeer:
    pid: int
    _output: IO[bytes]

    def threads(self) -> list[ThreadRef]:
        return tree_threads(self.pid, ROLE)

    def output(self) -> bytes:
        """Return what the server has printed so far."""
        self._output.seek(0)
        return self._output.read()


@contextmanager
def serving(lab: Lab, workload: Workload, parameters: Parameters) -> Iterator[RunningPeer | None]:
    """Start the workload's server on the housekeeping CPUs of the plan and end it at the end; yield
    None for a workload without one. Raises BrokenError with its output when it doesn't start.
    """
    wanted = workload.peer(parameters)
    if wanted is None:
        yield None
        return
    if lab.link is None:
        raise UsageError(f"workload '{workload.name}' needs a link, and this run has none")
    # The same CPUs under every tuning: the peer stands for another machine.
    cpus = lab.pin_plan.housekeeping
    argv = in_tree(lab.image.tree, wanted.command.argv, cpus=cpus, network=lab.link.peer_file)
    with (
        tempfile.TemporaryFile() as output,
        running(argv, stdout=output, stderr=output, grace_s=1.0) as process,
    ):
        found = RunningPeer(process.pid, output)
        deadline = Deadline.after(_START_S, f"starting {wanted.command.argv[0]} for the peer")
        while not _is_ready(process.pid, wanted):
            if process.poll() is not None:
                said = found.output().decode(errors="replace").strip()[-400:]
                raise BrokenError(f"the peer's {wanted.command.argv[0]} ended at once: {said}")
            time.sleep(min(_POLL_S, deadline.remaining()))
        yield found


def _is_ready(pid: int, wanted: Peer) -> bool:
    """Return whether the port is taken in the server's own network namespace (proc_pid_net(5)).
    Before it is in there, /proc shows the host's."""
    try:
        is_started = (
            Path(f"/proc/{pid}/comm").read_text().strip() == Path(wanted.command.argv[0]).name
        )
        table = Path(f"/proc/{pid}/net/{wanted.protocol}").read_text()
    except OSError:
        return False
    return is_started and has_port(table.splitlines()[1:], wanted)


def has_port(rows: Sequence[str], wanted: Peer) -> bool:
    """Return whether rows of /proc/net/udp or tcp hold a socket that waits at the peer's port."""
    for row in rows:
        fields = row.split()
        port = int(fields[1].rpartition(":")[2], 16)
        if port == wanted.port and fields[3] == _LISTEN[wanted.protocol]:
            return True
    return False
