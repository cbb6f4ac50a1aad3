"""Run commands on a machine, native or guest: the only program there that starts any.

It runs inside the machine (in the guest on a virtio-serial port, natively in the image's tree on
an inherited socket), so both sides start, time and count a workload with the very same code.
It is copied there as a single file: standard library only, Python 3.9 or later, no labctl imports.

Protocol: JSON lines. A request has `id` and `op`; every answer repeats the `id`. While a command
runs, the runner sleeps in waitid(2) and the channel is silent.

    ping                     -> {"event": "result", "nonce": ..., "monotonic_ns": ...}
    read   paths             -> {"event": "result", "texts": {path: text or null}}
    write  path, data, mode  -> {"event": "result"}            (data: base64)
    set_time  realtime_ns    -> {"event": "result"}
    forget  path             -> {"event": "result"}            (no page of it stays cached)
    hash    paths            -> {"event": "result", "programs": {path: files or a problem}}
    exec   argv, env, files, cpus, policy, priority, seconds
                             -> {"event": "ready"}             (forked, placed, waiting)
        go                   -> {"event": "exited"}            (at once when it has ended)
                             -> {"event": "result", ...}       (output, files, counters, threads)
Errors: {"event": "error", "message": ...}.
"""

from __future__ import annotations

import argparse
import base64
import ctypes
import hashlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from typing import Any

COUNTERS = {
    "stat": ("/proc/stat", ("cpu", "ctxt ", "procs_")),
    "vmstat": ("/proc/vmstat", ("pgfault ", "pgmajfault ", "thp_fault_", "oom_kill ")),
}
POLICIES = {
    "other": os.SCHED_OTHER,
    "fifo": os.SCHED_FIFO,
    "rr": os.SCHED_RR,
    "batch": os.SCHED_BATCH,
    "idle": os.SCHED_IDLE,
}
PR_SET_PDEATHSIG = 1
PT_INTERP = 3
LISTING_S = 60
LONGEST_LINE = 4096
DEEPEST = 4


class Connection:
    """Send and receive lines over a file descriptor that may lose its other end and get it back."""

    def __init__(self, descriptor: int, reconnects: bool) -> None:
        self.descriptor = descriptor
        self.reconnects = reconnects
        self.buffer = b""

    def receive(self) -> dict[str, Any] | None:
        while b"\n" not in self.buffer:
            data = os.read(self.descriptor, 65536)
            if not data:
                if not self.reconnects:
                    raise EOFError
                # A virtio-serial port reads empty while the host side is closed; there is
                # nothing to wait on, and nothing is being measured then.
                self.buffer = b""
                time.sleep(0.02)
                continue
            self.buffer += data
        line, self.buffer = self.buffer.split(b"\n", 1)
        try:
            message = json.loads(line)
        except ValueError:
            return None
        return message if isinstance(message, dict) else None

    def send(self, request: dict[str, Any], **fields: Any) -> None:
        fields["id"] = request.get("id")
        data = json.dumps(fields).encode() + b"\n"
        while data:
            data = data[os.write(self.descriptor, data) :]


def counters() -> dict[str, Any]:
    taken: dict[str, Any] = {"monotonic_ns": time.monotonic_ns()}
    for name, (path, wanted) in COUNTERS.items():
        lines = (read_text(path) or "").splitlines(keepends=True)
        taken[name] = "".join(line for line in lines if line.startswith(wanted))
    return taken


def read_text(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return file.read().decode(errors="replace")
    except OSError:
        return None


def loader_of(path: str) -> str | None:
    """Return the loader that an ELF file names (PT_INTERP in elf(5)); None for one that needs
    none.
    """
    with open(path, "rb") as file:
        head = file.read(64)
        if head[:4] != b"\x7fELF":
            raise ValueError("%s is neither an ELF file nor a script" % path)
        order, wide = "<" if head[5] == 1 else ">", head[4] == 2
        (start,) = struct.unpack_from(order + ("Q" if wide else "I"), head, 32 if wide else 28)
        size, count = struct.unpack_from(order + "HH", head, 54 if wide else 42)
        for number in range(count):
            file.seek(start + number * size)
            entry = file.read(size)
            if struct.unpack_from(order + "I", entry)[0] == PT_INTERP:
                word = order + ("Q" if wide else "I")
                (at,) = struct.unpack_from(word, entry, 8 if wide else 4)
                (length,) = struct.unpack_from(word, entry, 32 if wide else 16)
                file.seek(at)
                return file.read(length).rstrip(b"\0").decode()
    return None


def libraries_of(path: str, loader: str) -> list[str]:
    """Return what the loader maps for a program before its first instruction.

    The loader is asked, not imitated: its cache, preloads and the CPU's capabilities decide too.
    """
    done = subprocess.run(
        [loader, "--list", path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LISTING_S,
    )
    found = []
    lines = done.stdout.decode(errors="replace").splitlines()
    for line in lines:
        target = line.strip().partition(" => ")[2] or line.strip()
        target = target.rpartition(" (0x")[0] or target
        if target.startswith("/"):  # the kernel's own, linux-vdso.so.1, is no file
            found.append(target)
        elif target == "not found":
            raise ValueError("the loader of %s says: %s" % (path, line.strip()))
    if done.returncode != 0:
        raise ValueError("the loader of %s says: %s" % (path, " / ".join(lines[-2:])))
    return found


def files_of(path: str, depth: int = 0) -> tuple[list[str], bool]:
    """Return the files that running a program takes, and whether a script is among them: what a
    script starts itself nobody can tell."""
    with open(path, "rb") as file:
        line = file.readline(LONGEST_LINE)
    if line[:2] != b"#!":
        loader = loader_of(path)
        return ([path, loader, *libraries_of(path, loader)] if loader else [path]), False
    words = line[2:].decode().split()
    if depth > DEEPEST or not words:
        raise ValueError("%s is a script without an interpreter" % path)
    found = [path, *files_of(words[0], depth + 1)[0]]
    if os.path.basename(words[0]) == "env":
        for word in words[1:]:
            command = None if word.startswith("-") or "=" in word else shutil.which(word)
            if command:
                found += files_of(command, depth + 1)[0]
                break
    return found, True


def hash_programs(paths: list[str]) -> dict[str, Any]:
    """Return each program's files with their SHA-256, read as a command that runs it now would have
    them; or the problem that kept us from it."""
    digests: dict[str, str] = {}
    programs: dict[str, Any] = {}
    for path in paths:
        try:
            files, is_script = files_of(path)
            for name in files:
                if name not in digests:
                    digests[name] = sha256(name)
        except (OSError, ValueError, struct.error, subprocess.SubprocessError) as error:
            programs[path] = {"problem": str(error)}
        else:
            programs[path] = {"files": {n: digests[n] for n in files}, "is_script": is_script}
    return programs


def sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()


def placed(pid: int, tid: int) -> dict[str, Any] | None:
    """Return a thread's policy, priority and affinity from the kernel; None when it is gone. A
    process that has ended still shows them until it is waited for."""
    folder = "/proc/%d/task/%d/" % (pid, tid)
    stat, status = read_text(folder + "stat"), read_text(folder + "status")
    if stat is None or status is None:
        return None
    lines = status.splitlines(keepends=True)
    cpus = [line for line in lines if line.startswith("Cpus_allowed_list:")]
    return {"pid": pid, "tid": tid, "stat": stat, "status": "".join(cpus)}


def threads_of_session(leader: int) -> list[dict[str, Any]]:
    """Return the threads of a command that still exist: its own, and those of what it has
    started.
    """
    found = [placed(leader, leader)]
    for name in os.listdir("/proc"):
        stat = read_text("/proc/%s/stat" % name) if name.isdigit() else None
        # The session is the sixth field of proc_pid_stat(5), the fourth after the name.
        if stat is None or stat.rpartition(")")[2].split()[3:4] != [str(leader)]:
            continue
        try:
            tids = sorted(map(int, os.listdir("/proc/%s/task" % name)))
        except OSError:
            continue
        found += [placed(int(name), tid) for tid in tids if tid != leader]
    return [thread for thread in found if thread is not None]


def start_child(request: dict[str, Any], folder: str) -> tuple[int, int]:
    """Fork a child that is placed and waits for a byte before it becomes the command."""
    if shutil.which(request["argv"][0]) is None:
        raise OSError("%s is not installed there" % request["argv"][0])
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
        # If the runner is killed, the command must not go on alone.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.chdir(folder)
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(folder + "/." + name, os.O_CREAT | os.O_WRONLY, 0o600), number)
        if request.get("cpus"):
            os.sched_setaffinity(0, request["cpus"])
        policy = request.get("policy", "other")
        parameter = os.sched_param(request.get("priority", 0))
        os.sched_setscheduler(0, POLICIES[policy], parameter)
        os.close(ready_read)
        os.close(ready_write)
        os.close(go_write)
        if os.read(go_read, 1):
            os.execvpe(request["argv"][0], request["argv"], {**os.environ, **request["env"]})
    except BaseException as error:  # a forked child must never return into the runner's loop
        message = "cannot start %s: %s" % (request["argv"][0], error)
        try:
            os.write(ready_write, message.encode())
        except OSError:
            os.write(2, message.encode())
    os._exit(127)


def execute(connection: Connection, request: dict[str, Any]) -> None:
    parent = request.get("folder") or None
    folder = tempfile.mkdtemp(prefix="labctl-", dir=parent)
    try:
        pid, go = start_child(request, folder)
        threads_before = [placed(pid, pid)]
        before = counters()
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
        # Left a zombie, which still shows its policy and affinity.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        ended = time.monotonic_ns()
        connection.send(request, event="exited")
        signal.setitimer(signal.ITIMER_REAL, 0)
        after = counters()
        threads_after = threads_of_session(pid)
        _, status, usage = os.wait4(pid, 0)
        try:
            os.killpg(pid, signal.SIGKILL)  # what the command left running behind it
        except ProcessLookupError:
            pass
        files = {}
        for name in [".stdout", ".stderr"] + request["files"]:
            try:
                with open(os.path.join(folder, name), "rb") as file:
                    files[name] = base64.b64encode(file.read()).decode()
            except OSError:
                continue
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
            files=files,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def handle(connection: Connection, request: dict[str, Any]) -> None:
    op = request.get("op")
    if op == "ping":
        connection.send(
            request, event="result", nonce=request.get("nonce"), monotonic_ns=time.monotonic_ns()
        )
    elif op == "exec":
        execute(connection, request)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--port", help="virtio-serial port to serve")
    where.add_argument("--fd", type=int, help="inherited socket to serve until it is closed")
    options = parser.parse_args()
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
        except (OSError, KeyError, TypeError, ValueError) as error:
            connection.send(request, event="error", message=str(error) or repr(error))


if __name__ == "__main__":
    main()
