"""Answer requests, one after the other.

Protocol: JSON lines. A request has `id` and `op`; every answer repeats the `id`. While a command
runs, the runner sleeps in waitid(2) and the channel is silent.

    ping                     -> {"event": "result", "nonce": ..., "monotonic_ns": ...}
    read   paths             -> {"event": "result", "texts": {path: text or null}}
    write  path, data, mode  -> {"event": "result"}            (data: base64)
    set_time  realtime_ns    -> {"event": "result"}
    forget  path             -> {"event": "result"}            (no page of it stays cached)
    hash    paths            -> {"event": "result", "programs": {path: files or a problem}}
    serve  servers, disks, work, cpus, policy, priority
                             -> {"event": "result", "pids"}    (all of them are ready)
    stop_servers             -> {"event": "result", "servers"} (their output, how they ended)
    exec   argv, env, files, cpus, policy, priority, seconds, and of programs that don't run as
           this one does: environment, work, folder, user, capabilities, largest, open_files,
           setup, after, cgroup (name, weight, quota_percent, memory, cpus)
                             -> {"event": "ready"}             (forked, placed, waiting)
        go                   -> {"event": "exited"}            (at once when it has ended)
                             -> {"event": "result", ...}       (output, files, counters, threads)
Errors: {"event": "error", "message": ...}.
"""

from __future__ import annotations

import argparse
import base64
import os
import subprocess
import sys
import time
from typing import Any

from labctl.runner.child import adopt_orphans
from labctl.runner.connection import Connection
from labctl.runner.execution import execute
from labctl.runner.proc import read_text
from labctl.runner.programs import hash_programs
from labctl.runner.servers import serve, stop_servers


def main() -> None:
    parser = argparse.ArgumentParser(description="Run commands on this machine.")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--port", help="virtio-serial port to serve")
    where.add_argument("--fd", type=int, help="inherited socket to serve until it is closed")
    options = parser.parse_args()
    adopt_orphans()
    if options.port:
        while not os.path.exists(options.port):
            time.sleep(0.1)
        connection = Connection(os.open(options.port, os.O_RDWR | os.O_CLOEXEC), True)
    else:
        connection = Connection(options.fd, False)
        os.set_inheritable(options.fd, False)
    while True:
        try:
            request = connection.receive()
        except EOFError:
            return
        if request is None:
            continue
        try:
            handle(connection, request)
        except (OSError, KeyError, TypeError, ValueError, subprocess.SubprocessError) as error:
            connection.send(request, event="error", message=str(error) or repr(error))


def handle(connection: Connection, request: dict[str, Any]) -> None:
    op = request.get("op")
    if op == "ping":
        connection.send(
            request, event="result", nonce=request.get("nonce"), monotonic_ns=time.monotonic_ns()
        )
    elif op == "exec":
        execute(connection, request)
    elif op == "serve":
        connection.send(request, event="result", pids=serve(request))
    elif op == "stop_servers":
        connection.send(request, event="result", servers=stop_servers())
    elif op == "read":
        texts = {path: read_text(path) for path in request["paths"]}
        connection.send(request, event="result", texts=texts)
    elif op == "write":
        os.makedirs(os.path.dirname(request["path"]), exist_ok=True)
        with open(request["path"], "wb") as file:
            os.fchmod(file.fileno(), request["mode"])
            file.write(base64.b64decode(request["data"]))
        connection.send(request, event="result")
    elif op == "set_time":
        time.clock_settime_ns(time.CLOCK_REALTIME, request["realtime_ns"])
        connection.send(request, event="result")
    elif op == "hash":
        # And what runs this program, which starts, times and counts all others.
        programs = hash_programs([*request["paths"], sys.executable])
        connection.send(request, event="result", programs=programs)
    elif op == "forget":
        descriptor = os.open(request["path"], os.O_RDWR)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
        connection.send(request, event="result")
    else:
        connection.send(request, event="error", message="unknown op %r" % (op,))
