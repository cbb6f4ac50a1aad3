"""Give a child its command's user, privileges and limits."""

from __future__ import annotations

import ctypes
import os
import pwd
import resource
import signal
import struct
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_KEEPCAPS = 8
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
# Limits of programs with an environment of their own: values that every machine can grant, whatever
# shell started labctl natively, and whatever systemd gives its services in a guest.
LIMITS = {
    resource.RLIMIT_CORE: (0, 0),
    resource.RLIMIT_MEMLOCK: (8 << 20, 8 << 20),
    resource.RLIMIT_NICE: (0, 0),
    resource.RLIMIT_NOFILE: (1024, 4096),
    resource.RLIMIT_RTPRIO: (0, 0),
    resource.RLIMIT_STACK: (8 << 20, resource.RLIM_INFINITY),
}


def become(request: dict[str, Any]) -> None:
    """Drop all capabilities but the named ones (capabilities(7), "Effect of user ID changes")."""
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


def ids_of(user: int | str) -> tuple[int, int]:
    """Return a user's number and group, by either its number or its name."""
    if isinstance(user, int):
        return user, user
    try:
        found = pwd.getpwnam(user)
    except KeyError:
        raise OSError("no user '%s' there" % user) from None
    return found.pw_uid, found.pw_gid
