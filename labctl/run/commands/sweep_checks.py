"""Check before anything is started whether this host can carry a plan out, and with what."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from labctl.base.errors import HostError, UsageError
from labctl.base.levels import Level
from labctl.base.own_guests import MOST_NEIGHBOURS, guest_name, neighbour_seat
from labctl.base.paths import StatePaths
from labctl.base.tuning import Kind, Tuning
from labctl.collect.collector import Here
from labctl.domain.session import Session
from labctl.guest.images import find
from labctl.host import preflight
from labctl.run.collectors.trace_room import (
    Forecast,
    TracedWindow,
    forecast,
    on_one_disk,
    refusal,
    traced_bytes,
)
from labctl.run.collectors.trace_room import warning as little_room
from labctl.run.collectors.works_here import lacking, without_clocks
from labctl.run.planning.guest_needs import GuestNeeds, guest_needs
from labctl.run.planning.planned import (
    Planned,
    SweepRequest,
    has_native_network,
    has_peers,
)
from labctl.run.planning.reached import done
from labctl.store.run_folder import RunFolder

_SOCKET_PATH_BYTES = 107

_MOST_NAMES = 3
"""Names in a sentence."""


def check_connection(connect: str | None) -> None:
    """Raise UsageError or HostError if that connection's guests would run on another host."""
    if connect is not None:
        with Session.connected(connect) as session:
            session.check_here()


def check_host(request: SweepRequest, planned: Planned, path: Path) -> None:
    """Raise HostError or UsageError where this host can't carry the plan out. `path`: the run's
    folder, which a new run has yet to make."""
    problems = _host_problems(request.places, planned)
    if planned.plan.collect is Level.TRACE and not path.exists():
        besides = _needs(request.places, planned).disk_bytes
        there_too = on_one_disk(path, request.places.root)
        refused = refusal(_forecast(planned, path, besides if there_too else 0))
        problems += [refused] if refused else []
    preflight.check(problems)
    request.places.root.mkdir(parents=True, exist_ok=True)


def refuse_problems(places: StatePaths, planned: Planned, *, has_clones: bool = False) -> None:
    """Raise HostError for problems that would end a plan's guests later. `has_clones`: what is
    measured are copies of the saved guest."""
    preflight.check(_host_problems(places, planned, has_clones=has_clones))


def _host_problems(
    places: StatePaths, planned: Planned, *, has_clones: bool = False
) -> list[HostError]:
    """Return what would end the guests of a plan later on. Raises UsageError for a state folder
    that can't be one."""
    _check_socket_paths(places)
    needs = _needs(places, planned, has_clones=has_clones)
    return preflight.preflight(
        state_folder=places.root,
        disk_bytes=needs.disk_bytes,
        memory_bytes=needs.memory_bytes,
        vcpus=len(planned.pin_plan.vcpus),
        has_link=has_peers(planned.plan),
        has_network=has_native_network(planned.plan),
        needs_root=_why_root(planned),
    )


def _needs(places: StatePaths, planned: Planned, *, has_clones: bool = False) -> GuestNeeds:
    return guest_needs(
        planned.plan.guest,
        planned.plan,
        image_is_built=find(planned.recipe, places) is not None,
        has_clones=has_clones,
    )


def _forecast(planned: Planned, path: Path, besides_bytes: int = 0) -> Forecast:
    """Forecast the size of the traces that a run in the folder `path` has yet to make."""
    folder, plan = RunFolder(path), planned.plan
    finished = done(folder, plan)
    windows = [
        TracedWindow(
            side=planned.tunings[trial.cell["tuning"]].kind,
            seconds=plan.workloads[trial.cell["workload"]].duration_s,
        )
        for trial in plan.trials
        if trial.number not in finished
    ]
    return forecast(path, windows, traced_bytes(folder), besides_bytes)


def _check_socket_paths(places: StatePaths) -> None:
    """Check the length of sockets' paths: at most 107 bytes (unix(7)), and libvirt's own are the
    longest.
    """
    name = guest_name(neighbour_seat(MOST_NEIGHBOURS))
    longest = f"{places.libvirt_root}/lib/qemu/domain-9999-{name}/monitor.sock"
    if len(longest.encode()) > _SOCKET_PATH_BYTES:
        raise UsageError(
            f"{places.root} is too long a path: sockets below it would pass "
            f"{_SOCKET_PATH_BYTES} bytes",
            hint="Name a shorter folder with --state-dir.",
        )


def shortcomings(planned: Planned, folder: RunFolder, at: Here) -> Iterator[str]:
    """Yield what the run can't have here, and goes on without."""
    yield from planned.warnings
    yield from lacking(planned.plan.collect, at)
    if planned.is_noisy:
        yield from without_clocks(planned.tunings.values())
    if planned.plan.collect is Level.TRACE:
        little = little_room(_forecast(planned, folder.path))
        if little:
            yield little


def _why_root(planned: Planned) -> tuple[str, ...]:
    """Return a clause for each part of a plan that forces root: never none, as every guest does.

    docs/decisions/needs-root.md says why root, and why a refusal names the parts.
    """
    return tuple(_root_clauses(planned))


def _root_clauses(planned: Planned) -> Iterator[str]:
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
    for name in planned.in_the_tree:
        yield f"the condition '{name}' runs programs in the image's tree"
    if plan.collect is Level.TRACE:
        yield "'collect: trace' records what all CPUs do"
    if has_peers(plan):
        yield "workloads with a peer get a tap device and a network namespace"
    elif has_native_network(plan):
        yield "programs from files get a network namespace natively"
    yield "every guest gets cgroups, and disks that belong to QEMU's own user"


def _is_realtime(tuning: Tuning) -> bool:
    scheds = (tuning.vcpu_sched, tuning.emulator_sched, tuning.iothread_sched)
    return any(sched is not None and sched.policy.realtime for sched in scheds)


def _some(names: list[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in sorted(names)[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return f"{shown} and {more} more" if more > 0 else shown
