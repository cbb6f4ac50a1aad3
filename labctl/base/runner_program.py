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
import ctypes
import fnmatch
import hashlib
import json
import os
import pwd
import re
import resource
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
PR_SET_KEEPCAPS = 8
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
CAPABILITY_VERSION_3 = 0x20080522
# Numbers of linux/capability.h.
CAPABILITIES = {
    "dac_override": 1,
    "net_admin": 12,
    "net_raw": 13,
    "ipc_lock": 14,
    "sys_admin": 21,
    "sys_nice": 23,
    "perfmon": 38,
}
LISTENS = {"udp": "07", "tcp": "0A"}  # TCP_CLOSE and TCP_LISTEN in net/tcp_states.h
STEP_S = 60.0  # of a command before or after the measured one
PREPARE_S = 300.0  # of one that fills a file system
# The same on both sides, also where directories order their entries by a random seed.
NEW_FILE_SYSTEM = (
    *("mkfs.ext4", "-q", "-F", "-U", "6c616263-746c-4000-8000-000000000001"),
    *("-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"),
    *("-E", "hash_seed=6c616263-746c-4000-8000-000000000002"),
)
# Of programs that come with an environment of their own: what every machine can grant, whatever the
# shell was that started labctl natively, and whatever systemd gives its services in a guest.
LIMITS = {
    resource.RLIMIT_CORE: (0, 0),
    resource.RLIMIT_MEMLOCK: (8 << 20, 8 << 20),
    resource.RLIMIT_NICE: (0, 0),
    resource.RLIMIT_NOFILE: (1024, 4096),
    resource.RLIMIT_RTPRIO: (0, 0),
    resource.RLIMIT_STACK: (8 << 20, resource.RLIM_INFINITY),
}
# Where hierarchies of cgroups are mounted that this machine, or our part of it, has nowhere.
CGROUPS = "/run/labctl-cgroups"
PERIOD_US = 100000  # of a quota: the kernel's default
ALL = sys.maxsize  # of memory: more than any machine has
EMPTYING_S = 2.0  # for a cgroup to let go of killed processes, or of its real-time budget
LARGEST_ANSWER = 32 << 20
LAST_OUTPUT = 1 << 16
LAST_LINE = 300
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

    The loader is asked, not imitated: its cache, preloads and the CPU's capabilities decide too. It
    is given the file that a link leads to: beside that one the program's own libraries lie ($ORIGIN
    in ld.so(8)).
    """
    done = subprocess.run(
        [loader, "--list", os.path.realpath(path)],
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
            files, is_script = files_of(shutil.which(path) or path)
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
MOUNTED: list[str] = []


def tail_of(path: str, most: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - most))
            return file.read(most)
    except OSError:
        return b""


def limit(request: dict[str, Any]) -> None:
    """Set the limits of a program (getrlimit(2)); a hard one is never above the machine's."""
    for kind, (soft, hard) in LIMITS.items():
        ours = resource.getrlimit(kind)[1]
        if ours != resource.RLIM_INFINITY:
            soft = min(soft, ours)
            hard = ours if hard == resource.RLIM_INFINITY else min(hard, ours)
        resource.setrlimit(kind, (soft, hard))
    if request.get("open_files") is not None:
        most = request["open_files"]
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        except (OSError, ValueError):
            raise OSError("this machine does not grant %d open files" % most) from None
    if request.get("largest") is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["largest"], request["largest"]))


def become(request: dict[str, Any]) -> None:
    """Give up all rights but those named (capabilities(7), "Effect of user ID changes")."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, capabilities = request.get("user"), request.get("capabilities", [])
    # Python ignores these two, and an ignored signal stays so for the program.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.umask(0o022)
    if request.get("environment") is not None:
        limit(request)
    if user is not None:
        uid, gid = ids_of(user)
        os.setgroups([])
        libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        numbers = [CAPABILITIES[name] for name in capabilities]
        low = sum(1 << n for n in numbers if n < 32)
        high = sum(1 << (n - 32) for n in numbers if n >= 32)
        header = struct.pack("=Ii", CAPABILITY_VERSION_3, 0)
        if libc.capset(header, struct.pack("=6I", low, low, low, high, high, high)):
            raise OSError(ctypes.get_errno(), "capset")
        for number in numbers:
            if libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, number, 0, 0):
                raise OSError(ctypes.get_errno(), "raising a capability")
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # Last: a change of user clears it. If the runner is killed, its commands must not go on alone.
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def ids_of(user: int | str) -> tuple[int, int]:
    """Return a user's number and group, by either its number or its name."""
    if isinstance(user, int):
        return user, user
    try:
        found = pwd.getpwnam(user)
    except KeyError:
        raise OSError("there is no user '%s' there" % user) from None
    return found.pw_uid, found.pw_gid


def environment_of(request: dict[str, Any]) -> dict[str, str]:
    if request.get("environment") is not None:
        return dict(request["environment"])
    return {**os.environ, **request.get("env", {})}


def installed(name: str, environment: dict[str, str]) -> None:
    if shutil.which(name, path=environment.get("PATH")) is None:
        raise OSError(
            "%s is not installed there: name its package in 'packages' (--package)" % name
        )


def make_folder(path: str, user: int | str | None) -> None:
    """Make an empty folder that belongs to the user."""
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path, 0o755)
    if user is not None:
        os.chown(path, *ids_of(user))


def make_file_system(wanted: dict[str, Any]) -> None:
    """Make a file system, have it filled, and mount it with nothing of it in memory."""
    device, at = wanted["device"], wanted["at"]
    run_step("making a file system", [*NEW_FILE_SYSTEM, device], {}, "/", PREPARE_S)
    os.makedirs(at, exist_ok=True)
    mount(device, at)
    if wanted.get("user") is not None:
        os.chown(at, *ids_of(wanted["user"]))
    for argv in wanted["prepare"]:
        run_step("prepare", argv, wanted, at, PREPARE_S)
    # A mount namespace made meanwhile holds the file system, and unmounting then flushes nothing.
    run_step("flushing", ["sync", "--file-system", at], {}, "/")
    unmount(at)
    mount(device, at)


def mount(device: str, at: str) -> None:
    # A file gets a loop device, which goes with the mount (mount(8)).
    run_step("mounting", ["mount", device, at], {}, "/")
    MOUNTED.append(at)


def unmount(at: str) -> None:
    run_step("unmounting", ["umount", at], {}, "/")
    MOUNTED.remove(at)


def run_step(
    what: str, argv: list[str], request: dict[str, Any], folder: str, limit_s: float = STEP_S
) -> None:
    """Run a command that isn't measured to its end."""
    environment = environment_of(request)
    installed(argv[0], environment)
    # No pipe: what the step leaves running would keep it open, and a flood would fill our memory.
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(
            argv,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            timeout=limit_s,
            start_new_session=True,
            preexec_fn=lambda: become(request),
        )
        if not done.returncode:
            return
        output.seek(max(0, output.seek(0, os.SEEK_END) - LAST_OUTPUT))
        lines = output.read().decode(errors="replace").strip().splitlines()[-3:]
    said = "; ".join(line[-LAST_LINE:] for line in lines)
    if done.returncode == -signal.SIGXFSZ:
        raise OSError("%s: %s wrote more than it may to a file, or printed it" % (what, argv[0]))
    raise OSError("%s: %s ended with status %d: %s" % (what, argv[0], done.returncode, said))


def parents() -> dict[int, int]:
    """Return the parent of every process."""
    found = {}
    for name in os.listdir("/proc"):
        stat = read_text("/proc/%s/stat" % name) if name.isdigit() else None
        if stat is not None:
            found[int(name)] = int(stat.rpartition(")")[2].split()[1])
    return found


def tree_of(root: int, parent_of: dict[int, int]) -> set[int]:
    """Return a process and its descendants."""
    members = {root}
    while True:
        more = {pid for pid, parent in parent_of.items() if parent in members} - members
        if not more:
            return members
        members |= more


def ticks_of(roots: set[int]) -> int:
    """Return clock ticks of CPU time of these processes, their descendants, and what all of them
    have waited for (proc_pid_stat(5), fields 14 to 17)."""
    if not roots:
        return 0
    parent_of = parents()
    members = set().union(*(tree_of(root, parent_of) for root in roots))
    total = 0
    for pid in members:
        stat = read_text("/proc/%d/stat" % pid)
        if stat is not None:
            total += sum(map(int, stat.rpartition(")")[2].split()[11:15]))
    return total


def servers_ticks() -> int:
    return ticks_of({server.pid for server in SERVERS})


def children() -> set[int]:
    """Return this program's children but for its servers. What a command leaves in a session of its
    own becomes one (PR_SET_CHILD_SUBREAPER)."""
    own = {pid for pid, parent in parents().items() if parent == os.getpid()}
    return own - {server.pid for server in SERVERS}


def end_orphans(kept: set[int]) -> None:
    """End what commands left behind, but for processes that were there before."""
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
    """Reap what was left behind on purpose, as a recorder is, and has ended since."""
    for pid in children():
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            pass


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
    """Return whether a process of the server's own waits at the port: another's would serve as
    well and not be what is measured."""
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
            # A server that has detached itself can't be told from others, placed or ended.
            how = ", as one does that goes to the background" if server.status == 0 else ""
            raise OSError("%s ended at once%s; it said: %s" % (server.name, how, server.said()))
        if time.monotonic() > until:
            raise OSError(
                "%s was not ready after %g s; it said: %s" % (server.name, limit_s, server.said())
            )
        time.sleep(0.02)


def stop_servers() -> list[dict[str, Any]]:
    """End the servers, the last one first; return what they said and how they ended."""
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


def hierarchy(controller: str) -> tuple[int, str]:
    """Return by which version's rules the kernel has a controller, and where it is mounted; it is
    mounted here where it isn't (cgroups(7), "/proc files")."""
    rows = [line.split() for line in (read_text("/proc/cgroups") or "").splitlines()[1:]]
    on = {name: number for name, number, _, enabled in rows if enabled == "1"}
    # Number 0 is v2's, and newer kernels leave out those that v1 doesn't have. Those of one v1
    # hierarchy are mounted together or not at all.
    is_v2 = on.get(controller, "0") == "0"
    together = [name for name in on if on[name] == on.get(controller)]
    kind, options = ("cgroup2", "rw") if is_v2 else ("cgroup", ",".join(together))
    at = cgroup_mount(kind, controller)
    if at is None:
        at = os.path.join(CGROUPS, "unified" if is_v2 else controller)
        os.makedirs(at, exist_ok=True)
        run_step("mounting", ["mount", "-t", kind, "-o", options, "none", at], {}, "/")
    if is_v2 and controller not in (read_text(at + "/cgroup.controllers") or "").split():
        raise OSError("this machine has no cgroup controller '%s'" % controller)
    return 2 if is_v2 else 1, at


def cgroup_mount(kind: str, controller: str) -> str | None:
    """Return where the root of a hierarchy is mounted (proc_pid_mountinfo(5))."""
    for line in (read_text("/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, (found, _, options) = left.split(), right.split(None, 2)
        is_ours = found == kind and (kind == "cgroup2" or controller in options.split(","))
        if is_ours and fields[3] == "/":
            return fields[4]
    return None


class Cgroup:
    """Limit a command by a cgroup of its own, at the top of each hierarchy that has one of its
    controllers: there it competes with all that runs in the groups beside it, whose weight is 100.
    """

    def __init__(self, wanted: dict[str, Any], realtime: bool) -> None:
        asks = {
            "cpu": wanted.get("weight") or wanted.get("quota_percent"),
            "memory": wanted.get("memory"),
            "cpuset": wanted.get("cpus"),
        }
        found = {name: hierarchy(name) for name, asked in asks.items() if asked}
        # One group of v2 is for all controllers, so it would be out of the one that limits us.
        beside = [root for version, root in found.values() if version == 2]
        if beside and "memory" not in found and own_memory(beside[0], 2, "memory.max") < ALL:
            found["memory"] = hierarchy("memory")
        self.version = {name: version for name, (version, _) in found.items()}
        self.roots = {name: root for name, (_, root) in found.items()}
        self.folders = {name: at + "/" + wanted["name"] for name, at in self.roots.items()}
        self.values: dict[str, str] = {}
        self.made: list[str] = []
        self.renewed: list[str] = []
        self.enabled: list[tuple[str, str]] = []
        try:
            for name in found:
                self.make(name)
            self.limit(wanted, realtime)
        except BaseException:
            self.remove()
            raise

    def make(self, name: str) -> None:
        if self.version[name] == 2:
            passed_on = self.roots[name] + "/cgroup.subtree_control"
            if name not in (read_text(passed_on) or "").split():
                write_value(passed_on, "+" + name)
                self.enabled.append((passed_on, name))
        folder = self.folders[name]
        if folder in self.made or folder in self.renewed:
            return  # one of v2 is for all controllers
        if os.path.isdir(folder):
            # Its maker removes it; a new one holds no pages and has counted nothing yet.
            remove_cgroup(folder)
            self.renewed.append(folder)
        else:
            self.made.append(folder)
        os.mkdir(folder)

    def limit(self, wanted: dict[str, Any], realtime: bool) -> None:
        weight, quota = wanted.get("weight"), wanted.get("quota_percent")
        quota_us = quota * PERIOD_US // 100 if quota else None
        if self.version.get("cpu") == 2:
            self.set("cpu", "cpu.weight", weight or 100)
            self.set("cpu", "cpu.max", "%s %d" % (quota_us or "max", PERIOD_US))
        elif "cpu" in self.version:
            # As the kernel makes shares of a weight (kernel/sched/core.c, cpu_weight_write_u64).
            self.set("cpu", "cpu.shares", max(2, (weight or 100) * 1024 // 100))
            self.set("cpu", "cpu.cfs_period_us", PERIOD_US)
            self.set("cpu", "cpu.cfs_quota_us", quota_us or -1)
            budget = read_text(self.roots["cpu"] + "/cpu.rt_runtime_us")
            if realtime and budget is not None:  # CONFIG_RT_GROUP_SCHED: else FIFO is refused
                self.set_realtime(budget.strip())
        if "memory" in self.version:
            version = self.version["memory"]
            name = "memory.max" if version == 2 else "memory.limit_in_bytes"
            most = min(wanted.get("memory") or ALL, own_memory(self.roots["memory"], version, name))
            self.set("memory", name, most)
            swap = ("memory.swap.max", 0) if version == 2 else ("memory.memsw.limit_in_bytes", most)
            if os.path.exists(self.folders["memory"] + "/" + swap[0]):
                self.set("memory", *swap)
        if "cpuset" in self.version:
            if self.version["cpuset"] == 1:
                nodes = (read_text(self.roots["cpuset"] + "/cpuset.mems") or "").strip()
                self.set("cpuset", "cpuset.mems", nodes)
            self.set("cpuset", "cpuset.cpus", wanted["cpus"])

    def set(self, controller: str, name: str, value: int | str) -> None:
        path = self.folders[controller] + "/" + name
        self.values[path] = str(value)
        write_value(path, str(value))

    def set_realtime(self, budget: str) -> None:
        """Give the group all of the real-time budget. That of a group just removed is only free
        again after a grace period of RCU (kernel/sched/core.c, cpu_cgroup_css_released)."""
        until = time.monotonic() + EMPTYING_S
        while True:
            try:
                return self.set("cpu", "cpu.rt_runtime_us", budget)
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.005)

    def enter(self) -> None:
        for folder in sorted(set(self.folders.values())):
            write_value(folder + "/cgroup.procs", "0")

    def in_force(self, member: str) -> dict[str, Any]:
        """Return each file's value as it was set and as it is found, and how the command fared."""
        events = {1: "/memory.oom_control", 2: "/memory.events"}[self.version.get("memory", 2)]
        kills = re.search(
            r"^oom_kill (\d+)$", read_text(self.folders.get("memory", "") + events) or "", re.M
        )
        return {
            "files": {
                path: {"set": value, "found": (read_text(path) or "").strip()}
                for path, value in self.values.items()
            },
            "member": member,
            "cpu_stat": read_text(self.folders.get("cpu", "") + "/cpu.stat") or "",
            "oom_kills": int(kills.group(1)) if kills else 0,
        }

    def remove(self) -> None:
        """Remove what is ours and end what is in it. A folder that labctl has made, it removes."""
        while self.made:
            remove_cgroup(self.made[-1])
            self.made.pop()
        while self.enabled:
            passed_on, name = self.enabled[-1]
            write_value(passed_on, "-" + name)
            self.enabled.pop()


def remove_cgroup(folder: str) -> None:
    """End what is in a cgroup, and remove it."""
    until = time.monotonic() + EMPTYING_S
    while os.path.isdir(folder):
        for pid in (read_text(folder + "/cgroup.procs") or "").split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            os.rmdir(folder)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def own_memory(root: str, version: int, name: str) -> int:
    """Return the limit of the group that this program is in, which the new one is not below."""
    wanted = "" if version == 2 else "memory"
    for line in (read_text("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if wanted in controllers.split(","):
            text = (read_text(root + path + "/" + name) or "").strip()
            return int(text) if text.isdigit() else ALL
    return ALL


def write_value(path: str, value: str) -> None:
    try:
        with open(path, "wb", buffering=0) as file:
            file.write(value.encode())
    except OSError as error:
        raise OSError("cannot set %s to %s: %s" % (path, value, error.strerror)) from None


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
            # A server's are its own, and not what a command has left behind. It outlives exec.
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
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


def execute(connection: Connection, request: dict[str, Any]) -> None:
    folder = folder_of(request)
    # Commands of labctl's own may leave something running, as a recorder.
    kept = None if request.get("work") is None else children()
    cgroup: Cgroup | None = None
    try:
        if request.get("cgroup"):
            cgroup = Cgroup(request["cgroup"], request.get("policy") in ("fifo", "rr"))
        for argv in request.get("setup", ()):
            run_step("setup", argv, request, folder)
        pid, go = start_child(request, folder, cgroup=cgroup)
        threads_before = [placed(pid, pid)]
        # Before it ends: v1 shows where it was of no process that has.
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
        # Left a zombie, which still shows its policy and affinity.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        ended = time.monotonic_ns()
        connection.send(request, event="exited")
        signal.setitimer(signal.ITIMER_REAL, 0)
        after = counters()
        # What the command left running is in nobody's rusage.
        left = set() if kept is None else children() - kept - {pid}
        ticks = servers_ticks() - ticks_before + ticks_of(left)
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
            cgroup.remove()  # before the answer, after which this program may be ended
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
    """Return the empty folder of a command: a name of its own, or the one that is asked for."""
    if request.get("work") is None:
        return tempfile.mkdtemp(prefix="labctl-", dir=request.get("folder") or None)
    if not SERVERS:
        make_folder(request["work"], request.get("user"))
    make_folder(request["folder"], request.get("user"))
    return str(request["folder"])


def left_in(folder: str, patterns: list[str]) -> dict[str, str]:
    """Return what a command wrote: its output, and the files that these names and globs cover."""
    names = [".stdout", ".stderr"]
    for name in sorted(os.listdir(folder)):
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            names.append(name)
    files, total = {}, 0
    for name in names:
        path = os.path.join(folder, name)
        if os.path.islink(path) or not os.path.isfile(path):
            continue
        with open(path, "rb") as file:
            data = file.read(LARGEST_ANSWER - total + 1)
        total += len(data)
        if total > LARGEST_ANSWER:
            raise OSError(
                "the command left more than %d MiB to be read, %s with it: let it write less"
                % (LARGEST_ANSWER >> 20, shown(name))
            )
        files[name] = base64.b64encode(data).decode()
    return files


def at_limit(folder: str, largest: int | None) -> str | None:
    """Return which file has grown as large as it may, so that the command was kept from more."""
    if largest is None:
        return None
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if not os.path.islink(path) and os.path.getsize(path) >= largest:
            return shown(name)
    return None


def shown(name: str) -> str:
    return {".stdout": "its standard output", ".stderr": "its standard error"}.get(name, name)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--port", help="virtio-serial port to serve")
    where.add_argument("--fd", type=int, help="inherited socket to serve until it is closed")
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
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


if __name__ == "__main__":
    main()
