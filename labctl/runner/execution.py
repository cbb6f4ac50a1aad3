"""Run a measured command between two counts of what the machine did."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from typing import Any

from labctl.runner.cgroup import Cgroup
from labctl.runner.child import start_child
from labctl.runner.connection import Connection
from labctl.runner.output import at_limit, left_in
from labctl.runner.proc import counters, has_ended, placed, read_text, threads_of_session, ticks_of
from labctl.runner.servers import SERVERS, children, end_orphans, reap_orphans, servers_ticks
from labctl.runner.steps import make_folder, run_step

MOST_NAMED = 5  # of the processes that a command leaves behind


def execute(connection: Connection, request: dict[str, Any]) -> None:
    folder = folder_of(request)
    # Commands of labctl's own may leave something running, for example a recorder.
    kept = None if request.get("work") is None else children()
    cgroup: Cgroup | None = None
    try:
        if request.get("cgroup"):
            cgroup = Cgroup(request["cgroup"], request.get("policy") in ("fifo", "rr"))
        for argv in request.get("setup", ()):
            run_step("setup", argv, request, folder)
        pid, go = start_child(request, folder, cgroup=cgroup)
        threads_before = [placed(pid, pid)]
        # Read before it ends: v1 shows no cgroup of an ended process.
        member = read_text("/proc/%d/cgroup" % pid) or ""
        before = counters()
        ticks_before = servers_ticks()
        connection.send(request, event="ready", pid=pid)
        answer = connection.receive()
        if answer is None or answer.get("op") != "go" or answer.get("id") != request.get("id"):
            os.close(go)
            os.waitpid(pid, 0)
            raise OSError("expected 'go'")
        signal.signal(signal.SIGALRM, lambda *_: os.killpg(pid, signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, request["seconds"])
        started = time.monotonic_ns()
        os.write(go, b"g")
        os.close(go)
        # Not reaped yet: a zombie still shows its policy and affinity.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        ended = time.monotonic_ns()
        connection.send(request, event="exited")
        signal.setitimer(signal.ITIMER_REAL, 0)
        after = counters()
        # No rusage contains processes that the command left running.
        left = set() if kept is None else children() - kept - {pid}
        ticks = servers_ticks() - ticks_before + ticks_of(left)
        running = sorted(one for one in left if not has_ended(one))
        names = [read_text("/proc/%d/comm" % one) or "" for one in running[:MOST_NAMED]]
        threads_after = threads_of_session(pid)
        limited = {} if cgroup is None else {"cgroup": cgroup.in_force(member)}
        _, status, usage = os.wait4(pid, 0)
        try:
            os.killpg(pid, signal.SIGKILL)  # what the command left running behind it
        except ProcessLookupError:
            pass
        if kept is None:
            reap_orphans()
        else:
            end_orphans(kept)
        for argv in request.get("after", ()) if status == 0 else ():
            run_step("after", argv, request, folder)
        if cgroup is not None:
            cgroup.remove()  # before the answer, after which this program may be killed
        connection.send(
            request,
            event="result",
            returncode=os.waitstatus_to_exitcode(status),
            timed_out=ended - started >= request["seconds"] * 1e9,
            duration_ns=ended - started,
            before=before,
            after=after,
            threads={"before": threads_before, "after": threads_after},
            rusage={
                "utime_s": usage.ru_utime,
                "stime_s": usage.ru_stime,
                "nvcsw": usage.ru_nvcsw,
                "nivcsw": usage.ru_nivcsw,
                "maxrss_kb": usage.ru_maxrss,
            },
            servers_s=ticks / os.sysconf("SC_CLK_TCK"),
            left={"count": len(running), "names": [name.strip() for name in names]},
            at_limit=at_limit(folder, request.get("largest")),
            files=left_in(folder, request["files"]),
            **limited,
        )
    finally:
        try:
            if cgroup is not None:
                cgroup.remove()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def folder_of(request: dict[str, Any]) -> str:
    """Return the empty folder of a command: a new name, or the requested one."""
    if request.get("work") is None:
        return tempfile.mkdtemp(prefix="labctl-", dir=request.get("folder") or None)
    if not SERVERS:
        make_folder(request["work"], request.get("user"))
    make_folder(request["folder"], request.get("user"))
    return str(request["folder"])
