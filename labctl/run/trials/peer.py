"""Serve a workload from the image's own tree: in the peer's namespace or, where the workload
narrows its link, behind the bottleneck, with a competitor beside it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError, UsageError
from labctl.base.process import running, written_by
from labctl.collect.collector import ThreadRef
from labctl.host.narrow import Narrow, Narrowed, narrowed
from labctl.host.native import in_tree
from labctl.run.guests.lab import Lab
from labctl.run.guests.threads import tree_threads
from labctl.workloads.setting import Parameters, Peer
from labctl.workloads.workload import Workload

ROLE = "peer"
RAW = "peer.txt"
COMPETITOR_RAW = "competitor.txt"
LINK_RAW = "link.json"

_START_S = 20.0
_POLL_S = 0.01
_LISTEN = {"udp": "07", "tcp": "0A"}
"""State of a socket that waits to be spoken to: TCP_CLOSE and TCP_LISTEN in net/tcp_states.h."""


@dataclass(frozen=True, slots=True)
class _Program:
    pid: int
    _output: IO[bytes]

    def output(self) -> bytes:
        """Return what it has printed so far."""
        return written_by(self._output)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningPeer:
    """Hold what stands for other machines in a trial: a server, and with a narrow link the
    competitor and what makes the bottleneck."""

    server: _Program
    competitor: _Program | None = None
    narrowed: Narrowed | None = None

    def threads(self) -> list[ThreadRef]:
        programs = (self.server, self.competitor)
        pids = [one.pid for one in programs if one is not None]
        pids += self.narrowed.pids if self.narrowed is not None else ()
        return [thread for pid in pids for thread in tree_threads(pid, ROLE)]

    def evidence(self) -> dict[str, Any]:
        """Return what is stored of a trial, by file name: what they printed so far, and the
        bottleneck as it was read back."""
        found: dict[str, Any] = {RAW: self.server.output().decode(errors="replace")}
        if self.competitor is not None:
            found[COMPETITOR_RAW] = self.competitor.output().decode(errors="replace")
        if self.narrowed is not None:
            found[LINK_RAW] = self.narrowed.to_json()
        return found


@contextmanager
def serving(lab: Lab, workload: Workload, parameters: Parameters) -> Iterator[RunningPeer | None]:
    """Start the workload's server on the housekeeping CPUs of the plan, behind its bottleneck and
    with its competitor if it has them, and end all at the end; yield None for a workload without a
    server. Raises BrokenError with a program's output when it doesn't start.
    """
    wanted = workload.peer(parameters)
    if wanted is None:
        yield None
        return
    if lab.link is None:
        raise UsageError(f"workload '{workload.name}' needs a link, and this run has none")
    asked = workload.bottleneck(parameters)
    with ExitStack() as stack:
        if asked is None:
            server = stack.enter_context(_started(lab, wanted, lab.link.peer_file, "peer"))
            yield RunningPeer(server=server)
            return
        narrow = _narrow_of(lab, workload)
        made = stack.enter_context(narrowed(narrow, asked, lab.pin_plan.housekeeping))
        server = stack.enter_context(_started(lab, wanted, narrow.client_file, "peer"))
        competitor = None
        if (beside := workload.competitor(parameters)) is not None:
            competitor = stack.enter_context(
                _started(lab, beside, narrow.competitor_file, "competitor")
            )
        yield RunningPeer(server=server, competitor=competitor, narrowed=made)


def _narrow_of(lab: Lab, workload: Workload) -> Narrow:
    if lab.link is None or lab.link.narrow is None:
        raise UsageError(f"workload '{workload.name}' narrows its link, and this run's can't be")
    return lab.link.narrow


@contextmanager
def _started(lab: Lab, wanted: Peer, network: Path, whose: str) -> Iterator[_Program]:
    """Run a program in a network namespace; yield it when it can be talked to."""
    # The same CPUs under every tuning: it stands for another machine.
    cpus = lab.pin_plan.housekeeping
    argv = in_tree(lab.image.tree, wanted.command.argv, cpus=cpus, network=network)
    with (
        tempfile.TemporaryFile() as output,
        running(argv, stdout=output, stderr=output, grace_s=1.0) as process,
    ):
        found = _Program(process.pid, output)
        deadline = Deadline.after(_START_S, f"starting {wanted.command.argv[0]} for the {whose}")
        while not _is_ready(process.pid, wanted):
            if process.poll() is not None:
                said = found.output().decode(errors="replace").strip()[-400:]
                raise BrokenError(f"the {whose}'s {wanted.command.argv[0]} ended at once: {said}")
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
