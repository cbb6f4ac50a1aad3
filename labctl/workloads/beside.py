"""Run a declared workload beside a trial until it is stopped, and read its results.

A workload that is stopped by a signal runs once. Any other, of fixed work or of a duration, runs
again and again, each run to its end, so that its output can always be read.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from signal import Signals

from labctl.base.command import Command, Ready, Server
from labctl.base.cpus import CpuSet
from labctl.base.errors import BrokenError
from labctl.base.json import parse_json
from labctl.base.paths import WORK
from labctl.workloads import loops
from labctl.workloads.commands import TIMEOUT
from labctl.workloads.declared_metrics import operations_in
from labctl.workloads.registry import defined
from labctl.workloads.setting import Parameters, Setting
from labctl.workloads.workload import Workload

LIMIT_S = 7200.0
"""Seconds after which a neighbour ends by itself, if nothing is left to stop it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Hold a neighbour's workload. `parameters`: all of them; `run_s`: seconds of one run of a
    workload that runs for a duration."""

    program: Workload
    parameters: Parameters
    run_s: float

    @classmethod
    def of(
        cls,
        name: str,
        definition: Mapping[str, object] | None,
        parameters: Mapping[str, object],
        run_s: float,
    ) -> Beside:
        """Return the neighbour that a plan or a trial names. Raises UsageError."""
        program = defined(name, definition)
        return cls(program=program, parameters=program.check_parameters(parameters), run_s=run_s)

    @property
    def is_repeated(self) -> bool:
        return self.program.file.trial.kind != "until-stopped"

    @property
    def binaries(self) -> tuple[str, ...]:
        """Return the programs that it executes, as paths in the image's tree."""
        own = (path for path in self.program.binaries if path != TIMEOUT)
        return (*own, *((loops.SHELL,) if self.is_repeated else ()))

    @property
    def stop_signal(self) -> signal.Signals:
        """Return the signal that stops it, for a repeated workload's shell alone, or any other's
        whole process group."""
        return signal.SIGTERM if self.is_repeated else signal.SIGINT

    def command(self, cpus: CpuSet) -> Command:
        """Return the command that runs until it is stopped. `cpus`: those that it may use."""
        # The command of one run, whatever the kind of its trials.
        command = self._of_kind("once").command(self._setting(cpus))
        if self.is_repeated:
            looped = loops.until_told(command.argv, command.files)
            command = replace(command, argv=looped, files=())
        return replace(command, timeout_s=LIMIT_S)

    def servers(self, cpus: CpuSet) -> tuple[Server, ...]:
        # None of them is a file system: no neighbour has a data disk.
        there = self.program.servers(self._setting(cpus))
        return tuple(one for one in there if isinstance(one, Server))

    def operations(
        self, stdout: str, stderr: str, files: Mapping[str, bytes], seconds: float
    ) -> float:
        """Return how many operations it has done in its life of `seconds`: by its own count, else
        by its rate. Raises BrokenError if its output has neither."""
        read = self._of_kind("repeat" if self.is_repeated else "until-stopped").file
        runs = (stdout, stderr, files)
        return operations_in(read, self.program.rate_metric, runs, self.parameters, seconds)

    def _setting(self, cpus: CpuSet) -> Setting:
        return Setting(
            parameters=self.parameters, vcpus=len(cpus), duration_s=self.run_s, cpus=cpus
        )

    def _of_kind(self, kind: str) -> Workload:
        file = self.program.file
        trial = file.trial.model_copy(update={"kind": kind, "begins": None})
        return replace(self.program, file=file.model_copy(update={"trial": trial}))


# Run copies of a command at once, as a server beside the other commands of a machine's runner.
#
# They wait for the start signal (SIGUSR1), and run until the server is stopped (SIGTERM). Each is
# in a folder and a session of its own. Their results are one JSON file.


LEFT = f"{WORK}/left.json"
"""Path of the copies' results, once they have ended."""

START = Signals.SIGUSR1

_READY_S = 120.0

# Python's language of 3.9, like the runner's. A child inherits the blocked signals, and its output
# is bounded as a command's is.
_PROGRAM = """\
import fnmatch, json, os, resource, signal, subprocess, sys, time
count, number, whole, largest = map(int, sys.argv[1:5])
patterns, argv = json.loads(sys.argv[5]), sys.argv[6:]
waited = {signal.SIGUSR1, signal.SIGTERM, signal.SIGCHLD}
signal.pthread_sigmask(signal.SIG_BLOCK, waited)
def prepare():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, waited)
    if largest:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
for n in range(count):
    os.mkdir(str(n))
print("waits", flush=True)
if signal.sigwait({signal.SIGUSR1, signal.SIGTERM}) == signal.SIGTERM:
    sys.exit(0)
copies, begun = [], time.monotonic()
for n in range(count):
    with open("%d.out" % n, "wb") as out, open("%d.err" % n, "wb") as err:
        copies.append(subprocess.Popen(
            argv, cwd=str(n), stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            start_new_session=True, preexec_fn=prepare))
early = []
while not early and signal.sigwait(waited) != signal.SIGTERM:
    early = [n for n, copy in enumerate(copies) if copy.poll() is not None]
for copy in copies:
    try:
        (os.killpg if whole else os.kill)(copy.pid, number)
    except ProcessLookupError:
        pass
def text(path):
    with open(path, "rb") as file:
        return file.read().decode(errors="replace")
left = []
for n, copy in enumerate(copies):
    status = copy.wait()
    seconds = time.monotonic() - begun
    try:
        os.killpg(copy.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    out, err = text("%d.out" % n), text("%d.err" % n)
    if n in early:
        last = (err or out).strip().splitlines()[-1:]
        print("status %d: %s" % (status, "".join(last) or "it printed nothing"), flush=True)
    names = [name for name in sorted(os.listdir(str(n)))
             if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
    files = {name: text(os.path.join(str(n), name)) for name in names
             if os.path.isfile(os.path.join(str(n), name))
             and not os.path.islink(os.path.join(str(n), name))}
    left.append({"status": status, "seconds": seconds, "stdout": out, "stderr": err,
                 "files": files})
with open("left.json", "w") as file:
    json.dump(left, file)
sys.exit(1 if early else 0)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Hold the results of one copy. `seconds`: of the machine's clock, since its start."""

    status: int
    seconds: float
    stdout: str
    stderr: str
    files: Mapping[str, str] = field(default_factory=dict)


def copies_of(
    command: Command, count: int, stop: Signals, *, to_group: bool, grace_s: float
) -> Server:
    """Return the server that runs so many copies of a command and sends each `stop` at its end: to
    its whole process group, or to its first process alone. They have `grace_s` to end then."""
    largest = (command.scratch_mib or 0) << 20
    words = (str(count), str(int(stop)), str(int(to_group)), str(largest))
    assert command.environment is not None  # every declared workload's environment is explicit
    return Server(
        argv=("python3", "-c", _PROGRAM, *words, json.dumps(list(command.files)), *command.argv),
        ready=Ready(kind="log", value="^waits$", timeout_s=_READY_S),
        environment=command.environment,
        user=command.user,
        capabilities=command.capabilities,
        grace_s=grace_s,
    )


def left_by(text: str | None, count: int, where: str) -> list[Left]:
    """Return the copies' results from the text of LEFT. Raises BrokenError if it is something
    else."""
    try:
        rows = parse_json(text or "")
        if not isinstance(rows, list) or len(rows) != count:
            raise ValueError(f"not {count} copies")
        return [
            Left(
                status=int(one["status"]),
                seconds=float(one["seconds"]),
                stdout=_text(one["stdout"]),
                stderr=_text(one["stderr"]),
                files={_text(name): _text(data) for name, data in one["files"].items()},
            )
            for one in rows
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BrokenError(f"{where}: its programs' output is damaged: {error!r}") from (error)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value
