"""Check this host against the requirements of a plan, a study or the catalogue of tunings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from labctl.base.cpus import format_cpus
from labctl.base.errors import HostError, UsageError
from labctl.base.paths import MOST_NEIGHBOURS, StatePaths, guest_name, neighbour_seat
from labctl.base.tuning import Kind, Level, Tuning
from labctl.collect.collector import Here
from labctl.domain.pinning.pin_plan import PinPlan
from labctl.domain.session import Session
from labctl.guest.images import find
from labctl.host import preflight
from labctl.host.doctor.check import (
    MIB,
    Check,
    Finding,
    Result,
    Scope,
    Status,
    block,
    fine,
    some,
    warn,
)
from labctl.host.doctor.reader import Reader
from labctl.host.topology import read_topology
from labctl.run.collectors.collecting import lacking, without_clocks
from labctl.run.collectors.trace_room import (
    Forecast,
    TracedWindow,
    forecast,
    on_one_disk,
    refusal,
    traced_bytes,
)
from labctl.run.collectors.trace_room import warning as little_room
from labctl.run.planning.conditions import GuestsHere, unfit_conditions
from labctl.run.planning.images import GuestNeeds, guest_needs
from labctl.run.planning.plan import done
from labctl.run.planning.planned import Planned, SweepRequest, has_native_network, has_peers
from labctl.run.planning.requirements import Kernels, tracers_of
from labctl.run.planning.requirements import lacking as lacking_of_requirements
from labctl.store.run_folder import RunFolder
from labctl.study.study import Study

# Check before anything is started whether this host can run a plan, and with what limitations.


_SOCKET_PATH_BYTES = 107

_MOST_NAMES = 3
"""Names in a sentence."""


def check_connection(connect: str | None) -> None:
    """Raise UsageError or HostError if that connection's guests would run on another host."""
    if connect is not None:
        with Session.connected(connect) as session:
            session.check_here()


def check_host(request: SweepRequest, planned: Planned, path: Path) -> None:
    """Raise HostError or UsageError if this host cannot run the plan. `path`: the run's folder,
    which does not exist yet for a new run."""
    problems = _host_problems(request.places, planned)
    if planned.plan.collect is Level.TRACE and not path.exists():
        besides = _needs(request.places, planned).disk_bytes
        there_too = on_one_disk(path, request.places.root)
        refused = refusal(_forecast(planned, path, besides if there_too else 0))
        problems += [refused] if refused else []
    preflight.check(problems)
    request.places.root.mkdir(parents=True, exist_ok=True)


def refuse_problems(places: StatePaths, planned: Planned, *, has_clones: bool = False) -> None:
    """Raise HostError for problems that would end a plan's guests later. `has_clones`: the measured
    guests are copies of the saved guest."""
    preflight.check(_host_problems(places, planned, has_clones=has_clones))


def _host_problems(
    places: StatePaths, planned: Planned, *, has_clones: bool = False
) -> list[HostError]:
    """Return what would end the guests of a plan later on. Raises UsageError for an unusable state
    folder."""
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
    """Forecast the size of the traces still to come in the run's folder `path`."""
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
            f"the path {places.root} is too long: paths of sockets would exceed "
            f"{_SOCKET_PATH_BYTES} bytes",
            hint="Name a shorter folder with --state-dir.",
        )


def shortcomings(planned: Planned, folder: RunFolder, at: Here) -> Iterator[str]:
    """Yield the run's limitations on this host, none of which ends it."""
    yield from planned.warnings
    yield from lacking(planned.plan.collect, at)
    if planned.is_noisy:
        yield from without_clocks(planned.tunings.values())
    if planned.plan.collect is Level.TRACE:
        little = little_room(_forecast(planned, folder.path))
        if little:
            yield little


def _why_root(planned: Planned) -> tuple[str, ...]:
    """Return a clause for each part of a plan that requires root; never empty, because every guest
    does.

    docs/decisions/README.md explains why root, and why a refusal names the parts.
    """
    return tuple(_root_clauses(planned))


def _root_clauses(planned: Planned) -> Iterator[str]:
    arms: tuple[tuple[Callable[[Tuning], object], str], ...] = (
        (
            lambda tuning: tuning.kind is Kind.NATIVE,
            "run natively, in a mount namespace, a chroot and a cgroup with the guest's memory",
        ),
        (_is_realtime, "set real-time policies"),
        (lambda tuning: tuning.host, "change settings of the host"),
        (lambda tuning: tuning.memory.hugepages, "reserve huge pages"),
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
        yield "workloads with a peer need a tap device and a network namespace"
    elif has_native_network(plan):
        yield "programs from files need a network namespace natively"
    yield "every guest needs cgroups, and disks owned by QEMU's user"


def _is_realtime(tuning: Tuning) -> bool:
    scheds = (tuning.vcpu_sched, tuning.emulator_sched, tuning.iothread_sched)
    return any(sched is not None and sched.policy.realtime for sched in scheds)


def _some(names: list[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in sorted(names)[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return f"{shown} and {more} more" if more > 0 else shown


# Check the requirements of a study, or of the whole catalogue of tunings, on this host.


GROUP = "study"


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningState:
    """Say whether a tuning can run here: `lacking` are its unmet requirements, `remedies` one
    remedy for each, `warnings` its side effects."""

    name: str
    description: str
    lacking: tuple[str, ...]
    remedies: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def runs(self) -> bool:
        return not self.lacking

    def to_json(self) -> dict[str, object]:
        fields = ("name", "runs", "lacking", "remedies", "warnings")
        found = {name: getattr(self, name) for name in fields}
        return {key: list(v) if isinstance(v, tuple) else v for key, v in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyScope(Scope):
    """Describe what is requested of the host. `study`: None for the whole catalogue; `results`: the
    folder for its run; `pins`: the plan, or why there is no room for one; `states`: of each tuning,
    () without a plan; `broken`: why tunings of the catalogue cannot be loaded."""

    study: Study | None
    results: Path
    kernels: Kernels
    pins: PinPlan | UsageError
    states: tuple[TuningState, ...]
    broken: Mapping[str, str]


def pin_plan(_: Reader, asked: StudyScope) -> Result:
    plan = asked.pins
    if isinstance(plan, UsageError):
        return block(plan.message, plan.hint or "labctl pins")
    shown = (
        f"vCPUs on CPU {format_cpus(plan.vcpus)}, emulator on {format_cpus(plan.emulator)}, "
        f"housekeeping on {format_cpus(plan.housekeeping)}"
    )
    if not plan.shares:
        return fine(shown, plan.to_json())
    shown = f"{shown}. {' '.join(plan.shares)}".rstrip(". ")
    return warn(shown, "labctl pins  # shows it and the reasons", plan.to_json())


def guest_image(_: Reader, asked: StudyScope) -> Result:
    name, built = asked.kernels.recipe.name, asked.kernels.image is not None
    value = {"image": name, "built": built}
    if built:
        return fine(f"'{name}' is built", value)
    return warn(f"'{name}' is not built yet", f"labctl image build {name}", value)


def workloads(_: Reader, asked: StudyScope) -> Result:
    """Check whether the kernels have the tracers that a study's workloads need."""
    study = _study(asked)
    lacks = lacking_of_requirements(
        study, {tuning.kind for tuning in asked.tunings.values()}, asked.kernels
    )
    shown = [
        f"'{name}' ({side}): {reason.text}"
        for name, reasons in lacks.items()
        for side, reason in reasons.items()
    ]
    value = {name: [str(side) for side in reasons] for name, reasons in lacks.items()}
    if not lacks:
        return fine(f"no known obstacle for {some(tracers_of(study))}", value)
    remedies = dict.fromkeys(r.remedy for reasons in lacks.values() for r in reasons.values())
    return warn("; ".join(shown), " ".join(remedies), value)


def conditions(_: Reader, asked: StudyScope) -> Result:
    """Check whether this host can have the neighbours of a study's conditions."""
    study, pins = _study(asked), asked.pins
    assert isinstance(pins, PinPlan)  # the check applies to nothing else
    guests = GuestsHere.of(study.guest.memory_mib)
    unfit = unfit_conditions(study.neighbours, read_topology(), {pins.strategy: pins}, (), guests)
    value = {name: unfit.get(name, "") for name in study.neighbours}
    if not unfit:
        return fine(f"no known obstacle for {some(study.neighbours)}", value)
    shown = "; ".join(f"'{name}': {reason}" for name, reason in unfit.items())
    return warn(shown, "labctl condition show NAME  # shows the CPUs of its neighbours", value)


def trace_room(_: Reader, asked: StudyScope) -> Result:
    study = _study(asked)
    windows = [
        TracedWindow(side=tuning.kind, seconds=workload.duration_s)
        for tuning in asked.tunings.values()
        for workload in study.workloads.values()
    ]
    found = forecast(asked.results, windows * len(study.conditions) * study.blocks)
    value = {
        "folder": str(found.folder),
        "trials": found.trials,
        "room_bytes": found.room_mib * MIB,
        "most_bytes": found.most_mib * MIB,
        "trial_bytes": found.trial_mib * MIB,
    }
    if found.is_enough:
        return fine(found.words(), value)
    remedy = "labctl sweep STUDY --collect trace --results FOLDER  # a folder on a larger disk"
    return (block if found.is_refused else warn)(found.words(), remedy, value)


def choice(_: Reader, asked: StudyScope) -> Result:
    """Check what is left to measure: a study needs its roles and one guest tuning beside them."""
    study, broken = asked.study, asked.broken
    out = [state for state in asked.states if not state.runs]
    runs = {state.name for state in asked.states if state.runs}
    of = f"of '{study.name}'" if study else "of the catalogue"
    shown = f"{len(runs)} of {len(asked.states)} tunings {of} can run here"
    if out:
        shown += f"; not {some((state.name for state in out), 6)}"
    if broken:
        shown += f"; can't be loaded: {some(broken)}"
    status, remedy = Status.OK, ""
    if out or broken:
        status, remedy = Status.WARN, "labctl doctor --for everything  # shows the reason of each"
    if study is not None and out:
        roles = study.roles.names()
        tried = {
            name
            for name, tuning in asked.tunings.items()
            if name not in roles and tuning.kind is Kind.GUEST
        }
        if not set(roles) <= runs or (tried and not tried & runs):
            status = Status.BLOCK
        remedy = out[0].remedies[0]
    value = {
        "run": sorted(runs),
        "lacking": {state.name: list(state.lacking) for state in out},
        "broken": dict(broken),
    }
    return Result(status, shown, remedy, value)


def _study(asked: StudyScope) -> Study:
    assert asked.study is not None, "checked only for a study"
    return asked.study


CHECKS = (
    Check(
        "pin-plan",
        GROUP,
        "Pinned vCPUs, QEMU's own threads and the host's housekeeping each need their own "
        "CPUs; threads that share a CPU wait for each other.",
        pin_plan,
    ),
    Check(
        "guest-image",
        GROUP,
        "Guests boot it and native runs use its tree; the first sweep builds it if it is missing.",
        guest_image,
    ),
    Check(
        "workloads",
        GROUP,
        "A sweep leaves a workload out on a side with a kernel that cannot run it.",
        workloads,
        applies=lambda asked: asked.study is not None and bool(tracers_of(asked.study)),
    ),
    Check(
        "conditions",
        GROUP,
        "A sweep leaves out a condition with neighbours that this host does not support.",
        conditions,
        applies=lambda asked: (
            bool(asked.study and asked.study.neighbours) and isinstance(asked.pins, PinPlan)
        ),
    ),
    Check(
        "trace-room",
        GROUP,
        "A block without enough space for its traces is not traced; a sweep does not start "
        "without space for one trial.",
        trace_room,
        applies=lambda asked: asked.study is not None and asked.study.collect is Level.TRACE,
    ),
    Check(
        "tunings",
        GROUP,
        "A sweep leaves out unsupported tunings, with the reason; a study needs its roles "
        "and at least one guest tuning.",
        choice,
        applies=lambda asked: isinstance(asked.pins, PinPlan),
    ),
)


def check_study(reader: Reader, asked: StudyScope) -> list[Finding]:
    """Return the finding of every check that is relevant to the study, or to the catalogue."""
    return [one.finding(reader, asked) for one in CHECKS if one.applies(asked)]
