"""Find the kernel's tracepoints for a program, whether or not the host has tracefs mounted."""

from __future__ import annotations

from collections.abc import Sequence

TRACEFS = "/sys/kernel/tracing"

LOCKED_DOWN = 'grep -qsF "[confidentiality]" /sys/kernel/security/lockdown'
"""Succeeds in a shell where the kernel gives no tracepoints away (kernel_lockdown(7)). tracefs is
empty there, and on Linux 6.12 nothing comes back from unmounting it."""

_MOUNTED = f"""
[ -d {TRACEFS}/events ] || {{ ! {LOCKED_DOWN} && mount -t tracefs tracefs {TRACEFS}; }} || exit
exec "$@"
"""


def with_tracefs(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the command in a mount namespace of its own, where tracefs is at TRACEFS.

    The mount ends with the command, and is invisible to others. The process stays the one that is
    started: it can be signalled by its id.
    """
    return (
        *("unshare", "--mount", "--propagation", "private"),
        *("sh", "-c", _MOUNTED, "sh", *argv),
    )
