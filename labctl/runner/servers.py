"""Run servers beside commands, and end what either leaves behind."""

from __future__ import annotations

import base64
import os
import re
import signal
import subprocess
import time
from typing import Any

from labctl.runner.child import start_child
from labctl.runner.file_systems import MOUNTED, make_file_system, unmount
from labctl.runner.output import LAST_OUTPUT, tail_of
from labctl.runner.proc import parents, read_text, ticks_of, tree_of
from labctl.runner.steps import make_folder, run_step

LISTENS = {"udp": "07", "tcp": "0A"}  # TCP_CLOSE and TCP_LISTEN in net/tcp_states.h


class Served:
    """Hold a server that runs beside commands."""

    def __init__(self, wanted: dict[str, Any], pid: int, output: str) -> None:
        self.wanted = wanted
        self.pid = pid
        self.output = output
        self.status: int | None = None

    @property
    def name(self) -> str:
        return os.path.basename(str(self.wanted["argv"][0]))

    def has_ended(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = status if pid else None
        return self.status is not None

    def said(self, most: int = 400) -> str:
        return tail_of(self.output, most).decode(errors="replace").strip() or "nothing"


SERVERS: list[Served] = []
BEFORE_SERVERS: set[int] = set()


def serve(request: dict[str, Any]) -> list[int]:
    """Start servers one after the other, each when the one before is ready."""
    if SERVERS or MOUNTED:
        stop_servers()
    BEFORE_SERVERS.update(children())
    work = request["work"]
    user = request["servers"][0].get("user") if request["servers"] else None
    make_folder(work, user)
    try:
        for disk in request["disks"]:
            make_file_system(disk)
        for number, wanted in enumerate(request["servers"]):
            output = os.path.join(work, ".server-%d" % number)
            placed_as = {key: request.get(key) for key in ("cpus", "policy", "priority")}
            pid, go = start_child({**placed_as, **wanted, "keeps_orphans": True}, work, output)
            os.write(go, b"g")
            os.close(go)
            server = Served(wanted, pid, output)
            SERVERS.append(server)
            wait_ready(server, work)
    except BaseException:
        stop_servers()
        raise
    return [server.pid for server in SERVERS]


def wait_ready(server: Served, folder: str) -> None:
    limit_s = server.wanted["ready"]["timeout_s"]
    until = time.monotonic() + limit_s
    while not is_ready(server, folder):
        if server.has_ended():
            # A server that has detached cannot be told from others, placed or ended.
            how = ", as a program does that goes to the background" if server.status == 0 else ""
            raise OSError("%s ended at once%s; it printed: %s" % (server.name, how, server.said()))
        if time.monotonic() > until:
            raise OSError(
                "%s was not ready after %g s; it printed: %s"
                % (server.name, limit_s, server.said())
            )
        time.sleep(0.02)


def is_ready(server: Served, folder: str) -> bool:
    ready, kind = server.wanted["ready"], server.wanted["ready"]["kind"]
    if kind in LISTENS:
        return has_socket(server.pid, kind, ready["value"])
    if kind == "unix":
        return os.path.exists(ready["value"])
    if kind == "log":
        text = tail_of(server.output, LAST_OUTPUT).decode(errors="replace")
        return re.search(ready["value"], text, re.M) is not None
    try:
        run_step("ready", ready["value"], server.wanted, folder)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def has_socket(pid: int, kind: str, port: int) -> bool:
    """Return whether a process of the server's own waits at the port: another's would work as well,
    but would not be the one to measure."""
    inodes = set()
    for table in (kind, kind + "6"):
        for row in (read_text("/proc/%d/net/%s" % (pid, table)) or "").splitlines()[1:]:
            fields = row.split()
            if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == LISTENS[kind]:
                inodes.add("socket:[%s]" % fields[9])
    for member in tree_of(pid, parents()) if inodes else ():
        try:
            for name in os.listdir("/proc/%d/fd" % member):
                if os.readlink("/proc/%d/fd/%s" % (member, name)) in inodes:
                    return True
        except OSError:
            continue
    return False


def stop_servers() -> list[dict[str, Any]]:
    """End the servers, the last one first; return their output and how they ended."""
    ended = []
    while SERVERS:
        server = SERVERS.pop()
        too_early = server.has_ended()
        if not too_early:
            os.killpg(server.pid, getattr(signal, "SIG" + server.wanted["stop"]))
            until = time.monotonic() + server.wanted["grace_s"]
            while not server.has_ended() and time.monotonic() < until:
                time.sleep(0.01)
        try:
            os.killpg(server.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        if server.status is None:
            _, server.status = os.waitpid(server.pid, 0)
        ended.append(
            {
                "name": server.name,
                "too_early": too_early,
                "status": os.waitstatus_to_exitcode(server.status),
                "output": base64.b64encode(tail_of(server.output, LAST_OUTPUT)).decode(),
            }
        )
    end_orphans(BEFORE_SERVERS)
    BEFORE_SERVERS.clear()
    for at in MOUNTED[:]:
        unmount(at)
    return ended[::-1]


def servers_ticks() -> int:
    return ticks_of({server.pid for server in SERVERS})


def children() -> set[int]:
    """Return this program's children except its servers. A process that a command leaves in a
    session of its own becomes one (`adopt_orphans`)."""
    own = {pid for pid, parent in parents().items() if parent == os.getpid()}
    return own - {server.pid for server in SERVERS}


def end_orphans(kept: set[int]) -> None:
    """End processes that commands left behind, except those that existed before."""
    for _ in range(100):
        left = children() - kept
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass


def reap_orphans() -> None:
    """Reap processes that were left running on purpose, for example a recorder, and have ended
    since."""
    for pid in children():
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            pass
