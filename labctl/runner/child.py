"""Start a program that is placed and waits for its start signal."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from labctl.runner.cgroup import Cgroup
from labctl.runner.rights import become
from labctl.runner.steps import environment_of, installed

POLICIES = {
    "other": os.SCHED_OTHER,
    "fifo": os.SCHED_FIFO,
    "rr": os.SCHED_RR,
    "batch": os.SCHED_BATCH,
    "idle": os.SCHED_IDLE,
}
PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of what descendants leave behind; it outlives exec (prctl(2))."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start_child(
    request: dict[str, Any],
    folder: str,
    output: str | None = None,
    cgroup: Cgroup | None = None,
) -> tuple[int, int]:
    """Fork a child that is placed and waits for a byte before it becomes the command."""
    environment = environment_of(request)
    installed(request["argv"][0], environment)
    go_read, go_write = os.pipe()
    ready_read, ready_write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(go_read)
        os.close(ready_write)
        with os.fdopen(ready_read, "rb") as ready:
            problem = ready.read()
        if problem:
            os.close(go_write)
            os.waitpid(pid, 0)
            raise OSError(problem.decode(errors="replace"))
        return pid, go_write
    try:
        os.setsid()
        os.chdir(folder)
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        for number, name in ((1, "stdout"), (2, "stderr")):
            path = output or folder + "/." + name
            flags = os.O_CREAT | os.O_WRONLY | (os.O_APPEND if output else 0)
            os.dup2(os.open(path, flags, 0o600), number)
        if cgroup is not None:
            cgroup.enter()  # first: a cpuset sets the affinity anew, and FIFO takes its budget
        if request.get("cpus"):
            os.sched_setaffinity(0, request["cpus"])
        policy = request.get("policy") or "other"
        parameter = os.sched_param(request.get("priority") or 0)
        os.sched_setscheduler(0, POLICIES[policy], parameter)
        become(request)
        if request.get("keeps_orphans"):
            # A server's orphans are its own, not those of a command.
            adopt_orphans()
        os.close(ready_read)
        os.close(ready_write)
        os.close(go_write)
        if os.read(go_read, 1):
            os.execvpe(request["argv"][0], request["argv"], environment)
    except BaseException as error:  # a forked child must never return into the runner's loop
        message = "cannot start %s: %s" % (request["argv"][0], error)
        try:
            os.write(ready_write, message.encode())
        except OSError:
            os.write(2, message.encode())
    os._exit(127)
