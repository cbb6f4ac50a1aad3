"""Find other load on this host: other guests, other tasks, the hypervisor below, labctl."""

from __future__ import annotations

import re

from labctl.base.cpus import format_cpus
from labctl.base.errors import BrokenError
from labctl.base.json import parse_json
from labctl.host.doctor.check import Check, Result, Scope, block, fine, percent, some, warn
from labctl.host.doctor.reader import Reader
from labctl.host.settings.journal import Journal

GROUP = "load"
_BUSY = 0.1
"""CPU seconds per second that studies allow others on a trial's CPUs."""
_STEAL = 0.01


def guests(reader: Reader, scope: Scope) -> Result:
    others = [guest for guest in scope.activity.machines if not guest.is_ours]
    value = [{"name": g.name, "pid": g.pid, "cpus": format_cpus(g.allowed)} for g in others]
    if not others:
        return fine("no other virtual machine runs here", value)
    near = [guest for guest in others if guest.allowed & scope.cpus]
    shown = some(f"{guest.name} (pid {guest.pid})" for guest in others)
    if scope.cpus and not near:
        return fine(f"{shown}; none on the CPUs of the pin plan", value)
    return warn(f"{shown}; they may run on the vCPUs' CPUs", "virsh list  # and shut them", value)


def busy(reader: Reader, scope: Scope) -> Result:
    activity = scope.activity
    cpus = sorted(scope.cpus) or sorted(activity.busy)
    value = {str(cpu): round(activity.busy.get(cpu, 0.0), 3) for cpu in cpus}
    hot = [cpu for cpu in cpus if activity.busy.get(cpu, 0.0) > _BUSY]
    measured = f"over {activity.seconds:.1f} s"
    if not hot:
        most = max(value.values(), default=0.0)
        return fine(f"CPUs {format_cpus(cpus)} at most {percent(most)} busy {measured}", value)
    who = [p for p in activity.processes if p.cpus > _BUSY / 2 and p.allowed & frozenset(hot)]
    names = some(f"{p.name} (pid {p.pid}, {percent(p.cpus)})" for p in who)
    shown = ", ".join(f"CPU {cpu} {percent(activity.busy[cpu])}" for cpu in hot[:4])
    return warn(
        f"{shown} busy {measured}{f': {names}' if names else ''}",
        "Stop them, or let labctl repeat the trials that they disturb.",
        value,
    )


def steal(reader: Reader, scope: Scope) -> Result:
    activity = scope.activity
    now = max(activity.steal.values(), default=0.0)
    value = {"now": round(now, 4), "since_boot": round(activity.steal_since_boot, 4)}
    shown = f"{percent(now)} over {activity.seconds:.1f} s, {percent(activity.steal_since_boot)}"
    shown += " since the boot"
    if max(now, activity.steal_since_boot) <= _STEAL:
        return fine(shown, value)
    return warn(shown, "Measure at another time, or on dedicated CPUs of the host below.", value)


def labctl_running(reader: Reader, scope: Scope) -> Result:
    text = reader.text(str(scope.lock))
    inode = reader.inode(scope.lock)
    held = re.search(
        rf"^\d+: FLOCK\s.*:{inode} 0 EOF$", reader.text("/proc/locks") or "", re.MULTILINE
    )
    if inode is None or held is None:
        return fine("no other labctl measures here", None)
    holder = _holder(text or "")
    pid = holder.get("pid")
    return block(
        f"'{holder.get('what', 'another labctl')}' runs since {holder.get('since', 'a while')}",
        f"tail --pid={pid} -f /dev/null  # waits until it is over" if pid else "Wait for it.",
        holder,
    )


def leftovers(reader: Reader, scope: Scope) -> Result:
    try:
        pending = Journal(reader.path(scope.journal)).pending()
    except BrokenError as error:
        return warn(error.message, error.hint or "labctl host journal")
    dead = [entry for entry in pending if entry.left_behind()]
    ours = [guest for guest in scope.activity.machines if guest.is_ours]
    running = labctl_running(reader, scope).value is not None
    value = {"changes": [entry.name for entry in dead], "guests": [guest.pid for guest in ours]}
    if not dead and (running or not ours):
        return fine("nothing left by a killed labctl", {"changes": [], "guests": []})
    said = [
        *([f"changed and not restored: {some(entry.name for entry in dead)}"] if dead else []),
        *(
            [f"a guest still runs: pid {some(str(guest.pid) for guest in ours)}"]
            if ours and not running
            else []
        ),
    ]
    return warn("; ".join(said), "labctl host restore", value)


def _holder(text: str) -> dict[str, object]:
    try:
        holder = parse_json(text)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


CHECKS = (
    Check(
        "labctl-running",
        GROUP,
        "One sweep at a time: two would disturb each other.",
        labctl_running,
    ),
    Check(
        "leftovers",
        GROUP,
        "A killed labctl leaves its guest running and its changes active.",
        leftovers,
    ),
    Check(
        "other-guests",
        GROUP,
        "Unplanned neighbours start and stop between tunings.",
        guests,
    ),
    Check(
        "cpu-load",
        GROUP,
        "CPU time of other processes on a trial's CPUs makes the trial invalid, and it is "
        "repeated.",
        busy,
    ),
    Check(
        "steal",
        GROUP,
        "Time taken by the hypervisor below affects tunings at random and cannot be "
        "corrected here.",
        steal,
    ),
)
