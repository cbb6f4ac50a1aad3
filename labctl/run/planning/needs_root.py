"""Name the parts of a sweep that root alone can do (docs/decisions/needs-root.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from labctl.base.levels import Level
from labctl.base.tuning import Kind, Tuning
from labctl.run.planning.planned import Planned, has_peers

_MOST = 3
"""Names in a sentence."""


def why_root(planned: Planned) -> tuple[str, ...]:
    """Return a clause for each part of a plan that forces root: never none, as every guest does."""
    return tuple(_clauses(planned))


def _clauses(planned: Planned) -> Iterator[str]:
    arms: tuple[tuple[Callable[[Tuning], object], str], ...] = (
        (
            lambda tuning: tuning.kind is Kind.NATIVE,
            "run natively, in a mount namespace, a chroot and a cgroup with the guest's memory",
        ),
        (_is_realtime, "set real-time policies"),
        (lambda tuning: tuning.host, "turn settings of the host"),
        (lambda tuning: tuning.memory.hugepages, "set huge pages aside"),
    )
    for forces, what in arms:
        if names := [name for name, tuning in planned.tunings.items() if forces(tuning)]:
            yield f"{_some(names)} {what}"
    plan = planned.plan
    if "neighbour" in plan.conditions:
        yield "the condition 'neighbour' runs programs in the image's tree"
    if plan.collect is Level.TRACE:
        yield "'collect: trace' records what all CPUs do"
    if has_peers(plan):
        yield "workloads with a peer get a tap device and a network namespace"
    yield "every guest gets cgroups, and disks that belong to QEMU's own user"


def _is_realtime(tuning: Tuning) -> bool:
    scheds = (tuning.vcpu_sched, tuning.emulator_sched, tuning.iothread_sched)
    return any(sched is not None and sched.policy.realtime for sched in scheds)


def _some(names: list[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in sorted(names)[:_MOST])
    more = len(names) - _MOST
    return f"{shown} and {more} more" if more > 0 else shown
