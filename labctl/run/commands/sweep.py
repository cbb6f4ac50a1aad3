"""Run a sweep from its request to its run folder: everything that is set up around the engine."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from labctl.base.errors import HostError, UsageError
from labctl.base.events import Listener, Note, Warned
from labctl.base.levels import Level
from labctl.base.paths import StatePaths, host_lock
from labctl.base.signals import ending_signals_interrupt
from labctl.base.tuning import Kind
from labctl.domain.session import EMBEDDED, Session, is_embedded
from labctl.guest.images import Image, find
from labctl.host import preflight
from labctl.host.accelerator import Accelerator, accelerator
from labctl.host.facts import host_facts
from labctl.host.lock import host_locked
from labctl.run.collectors.calibrate import Calibrations
from labctl.run.collectors.catalogue import Here, lacking, without_clocks
from labctl.run.collectors.trace_room import (
    Forecast,
    Window,
    forecast,
    on_one_disk,
    refusal,
    traced_bytes,
)
from labctl.run.collectors.trace_room import warning as little_room
from labctl.run.commands.record import check_same_host, command, finished, recorded, with_qemu_user
from labctl.run.guests.boots import Boots
from labctl.run.guests.lab import DOMAIN_NAMES, GuestSource, Lab, open_lab
from labctl.run.guests.leftovers import clean_up
from labctl.run.guests.own_vm import OwnVm
from labctl.run.guests.prepare import ImageSource
from labctl.run.guests.started import guest_xml
from labctl.run.planning.guest_image import built_image
from labctl.run.planning.needs_root import why_root
from labctl.run.planning.own_domain import XML, OwnGuest
from labctl.run.planning.planner import (
    Planned,
    SweepRequest,
    extended_plan,
    has_peers,
    plan_sweep,
    resumed_plan,
)
from labctl.run.resources.disks import Disks, disk_bytes_needed
from labctl.run.trials.engine import Engine, WhyEnd, never
from labctl.run.trials.post_boot import PostBootSetup
from labctl.run.trials.proof import Proof, of_older_trials
from labctl.run.trials.quiet import Quiet
from labctl.store import collecting_costs
from labctl.store.exit_prices import known_prices
from labctl.store.jsonfile import write_bytes
from labctl.store.restores import shown
from labctl.store.run_folder import RunFolder
from labctl.store.shapes import HASHED
from labctl.store.trial import TrialRecord, TrialStatus
from labctl.study.plan import Plan
from labctl.workloads.registry import workload

MIB = 1024 * 1024
_SOCKET_PATH_BYTES = 107


Judging = Callable[[RunFolder, int], str | None]
"""Function from a run and its number of whole blocks to the reason why its plan's rule ends it
there; None: it goes on.
"""


def sweep(request: SweepRequest, listener: Listener, judging: Judging | None = None) -> RunFolder:
    """Carry a study out, go on with a run or extend one; returns its folder.

    What measures doesn't judge: `judging` is the caller's. Without it a run goes to the last block
    of its plan, which every rule allows.

    Everything that it starts or changes is ended and put back, however it ends. Raises
    LabctlError; KeyboardInterrupt for Ctrl-C, SIGTERM and SIGHUP. The run stays resumable.
    """
    with ExitStack() as stack:
        stack.enter_context(ending_signals_interrupt())
        folder = RunFolder.find(request.results, request.earlier) if request.earlier else None
        request = _on_its_connection(request, folder)
        planned = _plan_for(request, folder)
        what = shlex.join(command(request, planned.plan))
        path = folder.path if folder else _folder_path(request, planned.plan)
        stack.enter_context(host_locked(host_lock(), what=what, run_folder=path))
        clean_up(request.places, listener)
        if request.connect is not None:
            with Session.connected(request.connect) as session:
                session.check_here()
        _preflight(request, planned, path)
        if folder is None:
            planned = _with_image(request, planned, listener)
            folder = _new_folder(path, planned)
        elif planned.added is None and _reached(planned.plan, folder).is_over:
            listener(Note(text=f"Run '{folder.name}' has all its trials: nothing is left to do."))
            finished(folder)
            return folder
        why_end = partial(judging, folder) if judging else never
        with recorded(folder, request, planned) as record:
            _carry_out(request, planned, folder, record, listener, why_end)
        return folder


def _on_its_connection(request: SweepRequest, folder: RunFolder | None) -> SweepRequest:
    """Resume a run over the connection that it began with: another has another QEMU user and other
    cgroups."""
    if folder is None or request.connect is not None:
        return request
    began = str(folder.read_run().get("connection") or EMBEDDED)
    return request if is_embedded(began) else replace(request, connect=began)


def _plan_for(request: SweepRequest, folder: RunFolder | None) -> Planned:
    if folder is None:
        return plan_sweep(request)
    if request.extend:
        return extended_plan(folder, request.overrides.blocks or 0)
    return resumed_plan(folder)


def _with_image(request: SweepRequest, planned: Planned, listener: Listener) -> Planned:
    """Plan again where the plan depends on the accelerator, which only a kernel that boots can
    tell, or on what that kernel has: there is none before the image is built."""
    if not (planned.hangs_on_accelerator or planned.hangs_on_image):
        return planned
    image = built_image(planned.recipe, request.places, listener)
    chosen = accelerator(request.accel, image.kernel, request.places)
    return plan_sweep(replace(request, seed=planned.plan.seed), chosen.name)


def _preflight(request: SweepRequest, planned: Planned, path: Path) -> None:
    """`path`: the run's folder, which a new run has yet to make."""
    problems = host_problems(request.places, planned)
    if planned.plan.collect is Level.TRACE and not path.exists():
        besides = _disk_bytes(request.places, planned)
        there_too = on_one_disk(path, request.places.root)
        refused = refusal(_forecast(planned, path, besides if there_too else 0))
        problems += [refused] if refused else []
    preflight.check(problems)
    request.places.root.mkdir(parents=True, exist_ok=True)


def host_problems(places: StatePaths, planned: Planned) -> list[HostError]:
    """Return what would end the guests of a plan later on. Raises UsageError for a state folder
    that can't be one."""
    _check_socket_paths(places)
    return preflight.preflight(
        state_folder=places.root,
        disk_bytes=_disk_bytes(places, planned),
        memory_bytes=planned.plan.guest.memory_mib * MIB,
        vcpus=len(planned.pin_plan.vcpus),
        needs_root=why_root(planned),
        has_link=has_peers(planned.plan),
    )


def _disk_bytes(places: StatePaths, planned: Planned) -> int:
    image = find(planned.recipe, places)
    memory_bytes = planned.plan.guest.memory_mib * MIB
    return disk_bytes_needed(memory_bytes, image_is_built=image is not None)


def _forecast(planned: Planned, path: Path, besides_bytes: int = 0) -> Forecast:
    """Forecast the size of the traces that a run in the folder `path` has yet to make."""
    folder, plan = RunFolder(path), planned.plan
    done = _done(folder, plan)
    windows = [
        Window(
            side=planned.tunings[trial.cell["tuning"]].kind,
            seconds=plan.workloads[trial.cell["workload"]].duration_s,
        )
        for trial in plan.trials
        if trial.number not in done
    ]
    return forecast(path, windows, traced_bytes(folder), besides_bytes)


def _check_socket_paths(places: StatePaths) -> None:
    """unix(7): the path of a socket ends at 107 bytes; libvirt's own are the longest."""
    name = max(DOMAIN_NAMES, key=len)
    longest = f"{places.libvirt_root}/lib/qemu/domain-9999-{name}/monitor.sock"
    if len(longest.encode()) > _SOCKET_PATH_BYTES:
        raise UsageError(
            f"{places.root} is too long a path: sockets below it would pass "
            f"{_SOCKET_PATH_BYTES} bytes",
            hint="Name a shorter folder with --state-dir.",
        )


def _folder_path(request: SweepRequest, plan: Plan) -> Path:
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return request.results.resolve() / f"{moment}-{plan.study}"


def _new_folder(path: Path, planned: Planned) -> RunFolder:
    """Return the run's folder with its plan on disk: before the first trial, and before any
    change.
    """
    try:
        folder = RunFolder.create(path.parent, path.name)
    except OSError as error:
        raise HostError(
            f"cannot make the run's folder {path}: {error.strerror}",
            hint="Name a folder that can be written with --results.",
        ) from error
    folder.write_plan(planned.plan.to_json())
    if planned.own is not None:
        write_bytes(folder.path / XML, planned.own.domain.xml.encode(), below=folder.path)
    return folder


def _carry_out(
    request: SweepRequest,
    planned: Planned,
    folder: RunFolder,
    record: dict[str, Any],
    listener: Listener,
    why_end: WhyEnd,
) -> None:
    places, plan = request.places, planned.plan
    image = built_image(planned.recipe, places, listener)
    chosen = accelerator(request.accel, image.kernel, places)
    _check_same_accelerator(folder, record, chosen)
    listener(Note(text=chosen.reason))
    for warning in _warnings(planned, folder, Here(accelerator=chosen.name, tree=image.tree)):
        listener(Warned(text=warning))
    with ExitStack() as stack:
        lab = stack.enter_context(
            open_lab(
                places,
                planned,
                image=image,
                source=_source(planned, image),
                accelerator=chosen,
                connect=request.connect,
                listener=listener,
            )
        )
        facts = _facts_of_host(lab, chosen, planned.own)
        check_same_host(folder, record, facts)
        if planned.added is not None:
            folder.write_extension(planned.added.to_json())
        with_qemu_user(record, lab.qemu_user.to_json() if lab.qemu_user else None)
        record.update(facts)
        folder.write_run(record)
        baseline = planned.tunings[plan.roles.baseline]
        disks = lab.source.disks(lab, baseline)
        record["xml"] = _store_xml(lab, folder, disks)
        proof = Proof(lab, plan, record.get(HASHED))
        proof.check_tree()
        if HASHED not in record and (done := _done(folder, plan)):
            record.setdefault("warnings", []).append(of_older_trials(len(done)))
        record[HASHED] = proof.to_json()
        calibrations = Calibrations(lab, plan)
        calibrations.count_natively()
        post_boot = PostBootSetup(lab, plan, calibrations, proof)
        reached = _reached(plan, folder)
        fresh_boots = record.setdefault("fresh_boots", request.fresh_boots)
        boots = Boots(
            lab,
            disks,
            baseline,
            post_boot.set_up,
            boots_before=reached.last_boot,
            # Else one boot alone is saved, for what it tells of the guest.
            to_come=() if fresh_boots else reached.boots,
        )
        stack.callback(boots.drop)
        boots.saved(reached.boots[0])
        record.update(post_boot.facts(record["host"]))
        record[HASHED] = proof.to_json()
        record["calibration"] = calibrations.summary()
        record["restored_state"] = not fresh_boots
        _recall(places, plan, record)
        folder.write_run(record)
        engine = Engine(
            lab,
            folder,
            plan,
            boots,
            calibrations,
            proof,
            fresh_boots=fresh_boots,
            why_end=why_end,
            quiet=Quiet(plan.limits.other_cpu, request.wait_quiet_s, lab.listener),
        )
        began = time.monotonic()
        try:
            engine.run()
        finally:
            _say_who_took_it(engine.quiet, time.monotonic() - began, lab.listener, record)
            if engine.ended:
                record["stopped"] = asdict(engine.ended)
            record["trials"] = engine.counts()
            record[HASHED] = proof.to_json()
            seconds = {str(number): taken for number, taken in boots.seconds.items()}
            record["boot_seconds"] = record.get("boot_seconds", {}) | seconds


def _say_who_took_it(
    quiet: Quiet, run_s: float, listener: Listener, record: dict[str, Any]
) -> None:
    """Say what others cost the run, and put it into its record."""
    if text := quiet.summary(run_s):
        listener(Note(text=text))
        record["waited_for_quiet_s"] = record.get("waited_for_quiet_s", 0.0) + quiet.waited_s


def _check_same_accelerator(folder: RunFolder, record: dict[str, Any], chosen: Accelerator) -> None:
    """A run's guests run under what its first ones did; raises UsageError."""
    if record.setdefault("accelerator", chosen.name) != chosen.name:
        raise UsageError(
            f"run '{folder.name}' was begun under {record['accelerator']}, and guests run under "
            f"{chosen.name} now",
            hint=f"Resume it with '--accel {record['accelerator']}', or start a new run.",
        )


def _warnings(planned: Planned, folder: RunFolder, at: Here) -> Iterator[str]:
    """Yield what the run can't have here, and goes on without."""
    yield from planned.warnings
    yield from lacking(planned.plan.collect, at)
    yield from without_clocks(planned.plan.conditions, planned.tunings.values())
    if planned.plan.collect is Level.TRACE:
        little = little_room(_forecast(planned, folder.path))
        if little:
            yield little


def _recall(places: StatePaths, plan: Plan, record: dict[str, Any]) -> None:
    """Put what runs before have shown of this host into the run's record. Now and here: a report
    of this run must not hang on what others show later."""
    fresh = record["fresh_boots"]
    known = [] if fresh else shown(places.restore_checks, record, plan.to_json())
    record.setdefault("restores_shown", known)
    costs = collecting_costs.known(places.collecting_costs, record, str(plan.collect))
    record.setdefault("collecting_costs", [asdict(cost) for cost in costs])
    record.setdefault("exit_prices", known_prices(places.exit_prices, record["host"]))


@dataclass(frozen=True, slots=True)
class _Reached:
    """Say how far a run is. `boots`: the plan's boots that have a trial yet to be done, in order;
    `last_boot`: the number of the last boot that was made, 0 for a new run."""

    boots: tuple[int, ...]
    last_boot: int

    @property
    def is_over(self) -> bool:
        return not self.boots


def _reached(plan: Plan, folder: RunFolder) -> _Reached:
    records = _records(folder, plan)
    done = _done(folder, plan)
    # Which other spares run is only known when the planned blocks are over.
    unused = set(plan.spare_blocks) - {record.block for record in records}
    left = [t.boot for t in plan.in_order if t.number not in done and t.block not in unused]
    last = max((record.boot for record in records), default=0)
    return _Reached(tuple(dict.fromkeys(left)), last)


def _done(folder: RunFolder, plan: Plan) -> set[int]:
    return {r.number for r in _records(folder, plan) if r.status is TrialStatus.DONE}


def _records(folder: RunFolder, plan: Plan) -> list[TrialRecord]:
    return folder.records(plan.to_json())[0]


def _facts_of_host(lab: Lab, chosen: Accelerator, own: OwnGuest | None) -> dict[str, Any]:
    facts = host_facts(lab.places)
    facts["libvirt_session"] = lab.session.versions()
    return {
        "accelerator_reason": chosen.reason,
        "connection": lab.session.uri,
        "host": facts,
        "image": {"name": lab.image.name, "digest": lab.image.digest},
        "domain": own and own.to_json(),
    }


def _source(planned: Planned, image: Image) -> GuestSource:
    if planned.own is None:
        return ImageSource(image)
    programs = (workload(declared.program) for declared in planned.plan.workloads.values())
    return OwnVm(
        own=planned.own,
        baseline=planned.tunings[planned.plan.roles.baseline],
        paths=tuple(sorted({path for program in programs for path in program.binaries})),
    )


def _store_xml(lab: Lab, folder: RunFolder, disks: Disks) -> dict[str, str]:
    """Return every guest tuning's domain XML as this run asks for it, for the report's
    differences.
    """
    named = {name: replace(disk, path=lab.work / name) for name, disk in disks.items()}
    stored = {}
    for name, tuning in lab.tunings.items():
        if tuning.kind is Kind.GUEST:
            path = f"xml/{name}.xml"
            text = guest_xml(lab, tuning, named).encode()
            write_bytes(folder.path / path, text, below=folder.path)
            stored[name] = path
    return stored
