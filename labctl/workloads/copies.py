"""Run copies of a command at once, as a server beside whatever else a machine's runner does.

They wait until they are told to start (SIGUSR1), and run until they are told to stop, which ends
the server (SIGTERM). Each is in a folder and a session of its own. What they leave is one file of
JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from signal import Signals

from labctl.base.command import Command, Ready, Server
from labctl.base.errors import BrokenError
from labctl.base.jsontext import parse_json
from labctl.base.places_inside import WORK

LEFT = f"{WORK}/left.json"
"""Place of what the copies left, once they have ended."""

START = Signals.SIGUSR1

_READY_S = 120.0

# Python's language of 3.9, as the runner's. A child inherits what is blocked, and what it writes
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
    """Hold what one copy left. `seconds`: of the machine's clock, from when it was started."""

    status: int
    seconds: float
    stdout: str
    stderr: str
    files: Mapping[str, str] = field(default_factory=dict)


def copies_of(
    command: Command, count: int, stop: Signals, *, to_group: bool, grace_s: float
) -> Server:
    """Return what runs so many copies of a command and sends each `stop` when it ends: to its whole
    process group, or to its first process alone. They have `grace_s` to end then."""
    largest = (command.scratch_mib or 0) << 20
    words = (str(count), str(int(stop)), str(int(to_group)), str(largest))
    assert command.environment is not None  # every declared workload's says which it has
    return Server(
        argv=("python3", "-c", _PROGRAM, *words, json.dumps(list(command.files)), *command.argv),
        ready=Ready(kind="log", value="^waits$", timeout_s=_READY_S),
        environment=command.environment,
        user=command.user,
        capabilities=command.capabilities,
        grace_s=grace_s,
    )


def left_by(text: str | None, count: int, where: str) -> list[Left]:
    """Return what each copy left, of the text of LEFT. Raises BrokenError for what isn't that."""
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
        raise BrokenError(f"{where}: its programs left something else than asked: {error!r}") from (
            error
        )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value
