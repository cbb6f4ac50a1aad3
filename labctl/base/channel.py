"""Hold the host's end of the channel to a runner (`labctl/runner`), native or in a guest."""

from __future__ import annotations

import base64
import fnmatch
import json
import secrets
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.base.command import Command, CommandResult, FileSystem, Server
from labctl.base.cpus import CpuSet
from labctl.base.errors import BrokenError, DeadlineError, LabctlError
from labctl.base.json import parse_json
from labctl.base.process import Deadline, last_words
from labctl.base.runner_messages import (
    EndedServer,
    HashedProgram,
    cgroup,
    counters,
    ended,
    garbage,
    hashed,
    left_behind,
    numbers,
    placement,
    serve_request,
    surroundings,
    threads,
    whole,
)
from labctl.base.tuning import Sched

_LINE_LIMIT = 64 * 1024 * 1024
"""Limit on one answer: a guest is not trusted, and a larger one is refused rather than buffered."""
_LONGER = "Reduce its work, or allow more time: 'limit_s' in 'trial', or --timeout."
_MOST_SHOWN = 400
"""Bytes of a killed command's output in an error."""
_LAST_LINES = 3
_HANGS_AFTER_S = 30.0
"""Time to report a command that the runner killed at its limit. A machine that needs more hangs."""

_STEP_S = 60.0
"""The runner's timeout for a command before or after the measured one."""
_PREPARE_S = 300.0
"""The runner's timeout for a command that fills a file system."""


class ChannelClosed(BrokenError):
    """Report that the other end is gone: the guest or the native runner ended."""


class RefusedError(BrokenError):
    """Report that the runner refused a request."""


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Hold the machine's CLOCK_MONOTONIC, read between two times of this host's clock
    (nanoseconds)."""

    asked_ns: int
    machine_ns: int
    answered_ns: int


class Channel:
    """Send requests to one runner, one at a time. `name` is the machine's, for errors. `how_ended`:
    known facts about a machine that is gone or hangs, as lines below the error's sentence."""

    def __init__(
        self, connection: socket.socket, name: str, how_ended: Callable[[], str] = lambda: ""
    ) -> None:
        self.name = name
        self._how_ended = how_ended
        self._socket = connection
        self._socket.setblocking(False)
        self._buffer = bytearray()
        self._next_id = secrets.randbelow(2**30)

    @classmethod
    @contextmanager
    def connected(
        cls, path: Path, name: str, deadline: Deadline, how_ended: Callable[[], str] = lambda: ""
    ) -> Iterator[Channel]:
        """Open a channel through the unix socket of a guest's virtio-serial port."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with connection:
            while True:
                try:
                    connection.connect(str(path))
                    break
                except (FileNotFoundError, ConnectionRefusedError) as error:
                    if deadline.expired:
                        raise ChannelClosed(f"{name}: no process serves {path}") from error
                    time.sleep(0.02)
            yield cls(connection, name, how_ended)

    def wait_ready(self, deadline: Deadline) -> ClockReading:
        """Return once the runner answers; leftovers of an earlier exchange are skipped."""
        nonce = secrets.token_hex(8)
        asked_ns = time.monotonic_ns()
        request = self._send("ping", nonce=nonce)
        while True:
            message = self._receive(deadline)
            if message.get("nonce") == nonce and message.get("id") == request:
                answered_ns = time.monotonic_ns()
                machine_ns = message.get("monotonic_ns")
                try:
                    return ClockReading(asked_ns, whole(machine_ns), answered_ns)
                except ValueError as error:
                    raise garbage(self.name, message) from error

    def read(self, paths: Sequence[str], deadline: Deadline) -> dict[str, str | None]:
        """Return the texts of files on the machine; None for one that cannot be read."""
        texts = self._ask("read", deadline, paths=list(paths)).get("texts")
        found = {path: texts.get(path) for path in paths} if isinstance(texts, dict) else None
        if found is None or not all(isinstance(text, str | None) for text in found.values()):
            raise garbage(self.name, texts)
        return found

    def hashes(self, paths: Sequence[str], deadline: Deadline) -> dict[str, HashedProgram]:
        """Return the files of each of these programs and of the runner itself, with hashes, by
        their paths."""
        programs: Any = self._ask("hash", deadline, paths=list(paths)).get("programs")
        try:
            found = {str(path): hashed(told) for path, told in programs.items()}
            if not found.keys() >= set(paths) or len(found) > len(paths) + 1:
                raise ValueError("unexpected programs")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise garbage(self.name, programs) from error
        return found

    def write(self, path: str, data: bytes, deadline: Deadline, *, mode: int = 0o644) -> None:
        encoded = base64.b64encode(data).decode()
        self._ask("write", deadline, path=path, data=encoded, mode=mode)

    def set_time(self, deadline: Deadline) -> None:
        """Set the machine's CLOCK_REALTIME to this host's."""
        self._ask("set_time", deadline, realtime_ns=time.time_ns())

    def forget(self, path: str, deadline: Deadline) -> None:
        """Write a file or block device back and drop it from the machine's page cache."""
        self._ask("forget", deadline, path=path)

    def run(
        self,
        command: Command,
        *,
        seconds: float,
        cpus: CpuSet | None = None,
        sched: Sched | None = None,
    ) -> CommandResult:
        """Run a command of at most `seconds` to its end, without measuring it."""
        with self.prepared(command, seconds=seconds, cpus=cpus, sched=sched) as execution:
            execution.go()
            execution.wait_exited()
            return execution.result()

    @contextmanager
    def prepared(
        self,
        command: Command,
        *,
        seconds: float,
        cpus: CpuSet | None = None,
        sched: Sched | None = None,
        folder: str | None = None,
    ) -> Iterator[Execution]:
        """Fork a command and place it on its machine, where it waits for `go`."""
        seconds = command.timeout_s or seconds
        request = self._send(
            "exec",
            argv=list(command.argv),
            env=dict(command.env),
            files=list(command.files),
            seconds=seconds,
            **placement(cpus, command.sched or sched),
            **surroundings(command, folder),
        )
        forking_s = 30 + _STEP_S * len(command.setup)
        ready = self._answer(request, "ready", Deadline.after(forking_s, f"{self.name}: forking"))

        def tell(op: str) -> None:
            self._send_line({"id": request, "op": op})

        def answer(event: str, deadline: Deadline) -> Mapping[str, Any]:
            return self._answer(request, event, deadline)

        try:
            pid = whole(ready["pid"])
        except (KeyError, TypeError, ValueError) as error:
            raise garbage(self.name, ready) from error
        execution = Execution(
            machine=self.name,
            command=command,
            pid=pid,
            seconds=seconds,
            tell=tell,
            answer=answer,
            how_ended=self._how_ended,
        )
        try:
            yield execution
        except LabctlError:
            if not execution.is_started:
                # Otherwise the runner would wait for its 'go' and answer nothing else.
                tell("stop")
            raise

    @contextmanager
    def serving(
        self,
        beside: Sequence[Server | FileSystem],
        *,
        cpus: CpuSet | None = None,
        sched: Sched | None = None,
    ) -> Iterator[Serving]:
        """Run servers beside the commands inside the block, placed as these are, on the file system
        that is made for them.

        Raises BrokenError with a server's output if it is not ready in time. Without servers it
        starts none.
        """
        serving = Serving()
        if not beside:
            yield serving
            return
        servers = [one for one in beside if isinstance(one, Server)]
        disks = [one for one in beside if isinstance(one, FileSystem)]
        ready_s = sum(server.ready.timeout_s for server in servers)
        ready_s += sum(_PREPARE_S * (1 + len(disk.prepare)) for disk in disks)
        deadline = Deadline.after(ready_s + 30, f"{self.name}: starting servers")
        wanted = serve_request(servers, disks)
        told = self._ask("serve", deadline, **wanted, **placement(cpus, sched))
        try:
            serving.pids = [whole(pid) for pid in told["pids"]]
        except (KeyError, TypeError, ValueError) as error:
            raise garbage(self.name, told) from error
        try:
            yield serving
        except Exception:
            serving.ended = self._stopped(servers)
            raise
        # Not if the run is interrupted: the machine is about to be ended with all of them, and a
        # runner busy with a command would answer late or never.
        serving.ended = self._stopped(servers)

    def _stopped(self, servers: Sequence[Server]) -> Sequence[EndedServer]:
        """End the servers; return how each ended, [] if the machine does not report it."""
        grace_s = sum(server.grace_s for server in servers)
        deadline = Deadline.after(grace_s + 30, f"{self.name}: ending servers")
        try:
            told = self._ask("stop_servers", deadline)
        except BrokenError:
            # The machine is gone, or hangs: the trial's own error matters more.
            told = {"servers": []}
        return ended(self.name, told.get("servers"), len(servers))

    def _ask(self, op: str, deadline: Deadline, **fields: Any) -> Mapping[str, Any]:
        return self._answer(self._send(op, **fields), "result", deadline)

    def _send(self, op: str, **fields: Any) -> int:
        self._next_id += 1
        self._send_line({"id": self._next_id, "op": op, **fields})
        return self._next_id

    def _send_line(self, message: Mapping[str, object]) -> None:
        data = memoryview(json.dumps(message).encode() + b"\n")
        deadline = Deadline.after(60, f"{self.name}: taking a request")
        while data:
            self._wait(select.POLLOUT, deadline)
            try:
                data = data[self._socket.send(data) :]
            except OSError as error:
                raise self._closed() from error

    def _answer(self, request: int, event: str, deadline: Deadline) -> Mapping[str, Any]:
        while True:
            message = self._receive(deadline)
            if message.get("id") != request:
                continue
            if message.get("event") == "error":
                raise RefusedError(f"{self.name}: {message.get('message')}")
            if message.get("event") != event:
                raise garbage(self.name, message)
            return message

    def _receive(self, deadline: Deadline) -> dict[str, Any]:
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > _LINE_LIMIT:
                raise BrokenError(f"{self.name}: sent an answer of over {_LINE_LIMIT} bytes")
            self._wait(select.POLLIN, deadline)
            try:
                data = self._socket.recv(1 << 20)
            except OSError as error:
                raise self._closed() from error
            if not data:
                raise self._closed()
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            message = parse_json(line)
            if b"\\ud" in line.lower():
                # JSON can contain half of a surrogate pair, but no file could hold it.
                json.dumps(message, ensure_ascii=False).encode()
        except ValueError:
            return {}
        return message if isinstance(message, dict) else {}

    def _wait(self, event: int, deadline: Deadline) -> None:
        poll = select.poll()
        poll.register(self._socket, event)
        if not poll.poll(deadline.remaining() * 1000):
            raise deadline.error()

    def _closed(self) -> ChannelClosed:
        said = f"{self.name}: ended while labctl was talking to it{self._how_ended()}"
        return ChannelClosed(said)


@dataclass(slots=True)
class Serving:
    """Hold the servers' processes on their machine, and how they ended, once they did."""

    pids: Sequence[int] = ()
    ended: Sequence[EndedServer] = ()


def _said_last(files: Mapping[str, bytes]) -> str:
    """Return the last lines of a command's standard error, or else of its output."""
    for name in (".stderr", ".stdout"):
        if said := last_words(files.get(name, b"")[-_MOST_SHOWN:], _LAST_LINES):
            return f"its last output: {said}"
    return "it had printed nothing"


class Execution:
    """Control one command on a machine: `go`, `wait_exited`, `result`, in this order.

    `tell` sends a message about this command to its runner; `answer` waits for an event of it.
    """

    def __init__(
        self,
        *,
        machine: str,
        command: Command,
        pid: int,
        seconds: float,
        tell: Callable[[str], None],
        answer: Callable[[str, Deadline], Mapping[str, Any]],
        how_ended: Callable[[], str],
    ) -> None:
        self.pid = pid
        """The command's process on its machine (natively a host pid, if /proc is the host's)."""
        self._machine = machine
        self._command = command
        self._seconds = seconds
        self._tell = tell
        self._answer = answer
        self._how_ended = how_ended
        self.is_started = False

    def go(self) -> None:
        self.is_started = True
        self._tell("go")

    def wait_exited(self, within_s: float | None = None) -> None:
        """Wait until the command has ended; nothing is sent to the machine meanwhile. `within_s`:
        for a command that was told to stop. Raises DeadlineError."""
        # The runner kills the command after `seconds`; a longer time means that the machine hangs.
        limit_s = self._seconds + _HANGS_AFTER_S if within_s is None else within_s
        try:
            self._answer("exited", Deadline.after(limit_s, self._name))
        except DeadlineError as error:
            if within_s is None:
                raise DeadlineError(f"{error.message}{self._how_ended()}") from error
            raise

    def result(self) -> CommandResult:
        """Return the result; raises BrokenError for a command that was killed because of its
        timeout."""
        after_s = _STEP_S * len(self._command.after)
        deadline = Deadline.after(60 + after_s, f"{self._machine}: sending results")
        message = self._answer("result", deadline)
        try:
            found = message["files"]
            names = [name for name in found if self._is_asked_for(name)]
            files = {name: base64.b64decode(found[name]) for name in names}
            if message["timed_out"]:
                raise BrokenError(
                    f"{self._name} was killed after {self._seconds:g} s; {_said_last(files)}",
                    hint=_LONGER if self._command.timeout_s else None,
                )
            if at_limit := message.get("at_limit"):
                raise BrokenError(
                    f"{self._name} wrote more than {self._command.scratch_mib} MiB to "
                    f"{str(at_limit)[:100]}",
                    hint="Make it write less, or raise the workload's 'scratch_mib'.",
                )
            duration_s = whole(message["duration_ns"]) / 1e9
            returncode = whole(message["returncode"])
            return CommandResult(
                returncode=returncode,
                stdout=files.pop(".stdout", b""),
                stderr=files.pop(".stderr", b""),
                files=files,
                duration_s=duration_s,
                counts={
                    "duration_s": duration_s,
                    "returncode": returncode,
                    "pid": self.pid,
                    "rusage": numbers(message["rusage"]),
                    **numbers({"servers_s": message.get("servers_s", 0.0)}),
                    "before": counters(message["before"]),
                    "after": counters(message["after"]),
                    "threads": threads(message["threads"]),
                    **({"cgroup": cgroup(message["cgroup"])} if self._command.cgroup else {}),
                },
                left=left_behind(message.get("left")),
            )
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise garbage(self._machine, message) from error

    @property
    def _name(self) -> str:
        return f"{self._machine}: '{self._command.label or self._command.argv[0]}'"

    def _is_asked_for(self, name: str) -> bool:
        """Accept only requested names, because they become names of files here."""
        if name in (".stdout", ".stderr"):
            return True
        return "/" not in name and any(
            fnmatch.fnmatchcase(name, wanted) for wanted in self._command.files
        )
