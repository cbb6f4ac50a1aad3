"""Take a sweep from its request to its run folder: plan, check, measure, keep the record."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import labctl
from labctl.base.errors import HostError, LabctlError
from labctl.base.events import Event, Listener, Note, Progress, RunBegun, Warned
from labctl.base.paths import DATA_DISK_BYTES, host_lock, lab, shipped_data
from labctl.base.process import cleaning_up, ending_signals_interrupt
from labctl.base.stopping import Looks, Stopping, UntilWidth
from labctl.base.tuning import Strategy
from labctl.collect.collector import Here
from labctl.domain.pinning.pin_picture import layout_json, picture
from labctl.host.lock import host_locked
from labctl.run.commands.host_checks import check_connection, check_host, shortcomings
from labctl.run.commands.host_record import (
    check_same_accelerator,
    check_same_host,
    facts_of_host,
    put_copy,
    put_narrow_link,
    put_qemu_user,
    store_xml,
)
from labctl.run.guests.base_guest import guest_base
from labctl.run.guests.lab_opening import open_lab
from labctl.run.guests.leftovers import clean_up
from labctl.run.planning.own_domain import XML
from labctl.run.planning.plan import Begun, on_its_connection, planned_for, reached, with_image
from labctl.run.planning.planned import Planned, SweepRequest
from labctl.run.trials.engine import WhyEnd, carry_out, never
from labctl.store.archive import PROGRESS, folder_digest
from labctl.store.jsonfile import folder_begun, put, write_bytes, write_json
from labctl.store.records.run_record import (
    Extended,
    KernelUsed,
    LookTaken,
    PinData,
    PinGroup,
    RecordedPins,
    RecordedTuning,
    RunRecord,
)
from labctl.store.run_folder import RunFolder, RunLog
from labctl.store.run_places import all_runs, find_run_to_change
from labctl.study.load_study import ONE_PROGRAM_FILE
from labctl.study.plan import Plan
from labctl.study.tunings import tuning_json

# Choose a run's folder: an existing one, or a new one with all that is known so far.


def earlier_folder(request: SweepRequest) -> RunFolder | None:
    """Return the folder of the run that is resumed or extended; None for a new run."""
    if not request.earlier:
        return None
    return find_run_to_change(request.results, request.earlier, "resumed or extended")


def last_begun(results: Path) -> RunFolder | None:
    """Return the last run of a folder, by name, that has an attempt of a trial."""
    begun = [folder for folder in all_runs(results) if any(folder.trial_folders())]
    return begun[-1] if begun else None


def folder_path(request: SweepRequest, plan: Plan) -> Path:
    """Return the folder for a new run of the plan."""
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return request.results.resolve() / f"{moment}-{plan.study}"


def new_folder(path: Path, request: SweepRequest, planned: Planned) -> RunFolder:
    """Return the run's folder with its plan and its record on disk: before the first trial, and
    before any change. A labctl that is killed before leaves no run that cannot be resumed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with folder_begun(path.parent, "sweep") as made:
            folder = RunFolder.create(made, path.name)
            folder.write_plan(planned.plan.record())
            if planned.own is not None:
                write_bytes(folder.path / XML, planned.own.domain.xml.encode(), below=folder.path)
            if (program := request.overrides.program) is not None:
                for name, data in program.as_files(ONE_PROGRAM_FILE).items():
                    write_bytes(folder.path / name, data, below=folder.path)
            folder.write_run(_first_record(request, planned).but(status="running"))
            put(folder.path, path)
    except OSError as error:
        raise HostError(
            f"cannot make the run's folder {path}: {error.strerror}",
            hint="Name a writable folder with --results.",
        ) from error
    return RunFolder(path)


# Open a lab for a plan, record its host, and run the trials there.


def measure(
    request: SweepRequest,
    planned: Planned,
    log: RunLog,
    listener: Listener,
    why_end: WhyEnd,
) -> None:
    """Run what is left of a plan. `log`: of run.json, checked against this host if the run was
    started before. Raises UsageError if the host or the guests' accelerator is another."""
    places, began = request.places, time.monotonic()
    base = guest_base(planned, places, request.accel, listener)
    chosen = base.accelerator
    check_same_accelerator(log, chosen)
    listener(Note(text=chosen.reason))
    for warning in shortcomings(
        planned, log.folder, Here(accelerator=chosen.name, tree=base.image.tree)
    ):
        listener(Warned(text=warning))
    with open_lab(
        places,
        planned,
        base,
        connect=request.connect,
        listener=listener,
    ) as lab:
        facts = facts_of_host(lab, chosen, planned.own)
        check_same_host(log.folder.name, log.record, facts)
        if planned.added is not None:
            log.folder.write_extension(planned.added.to_json())
        put_qemu_user(log, lab.qemu_user.to_json() if lab.qemu_user else None)
        log.put(**facts.to_json())
        put_narrow_link(log, lab.link.narrow if lab.link else None)
        put_copy(log, planned.own)
        log.write()
        disks = lab.source.disks(lab, planned.tunings[planned.plan.roles.baseline])
        log.put(xml=store_xml(lab, log.folder, disks))
        carry_out(
            lab,
            log,
            planned.plan,
            disks,
            fresh_boots=request.fresh_boots,
            wait_quiet_s=request.wait_quiet_s,
            why_end=why_end,
            began=began,
        )


# Write a run's progress into its folder for other programs: progress.json.
#
# It is written when the engine reports progress, which is never while a trial is being measured,
# and at the run's end.


SCHEMA: Final = 1
"""Version of the format: raised when a key is removed or changes its meaning; not for new keys."""


class Telling:
    """Keep progress.json up to date with the events of a run, and pass them on."""

    def __init__(self, folder: RunFolder, listener: Listener) -> None:
        self._folder = folder
        self._listener = listener
        self._counts: dict[str, int] = {}
        self._doing = "starting"

    def begin(self) -> None:
        """Write the file for the first time, and report its path to the listener."""
        self._write("running", doing=self._doing)
        progress = self._folder.path / PROGRESS
        self._listener(RunBegun(folder=self._folder.path, progress=progress))

    def listen(self, event: Event) -> None:
        """Record an event of the engine."""
        if isinstance(event, Progress):
            self._counts = {
                "done": event.done,
                "planned": event.planned,
                "invalid": event.invalid,
            }
            self._write("running", doing=event.doing, left_s=event.left_s)
        self._listener(event)

    def end(self, failure: BaseException | None) -> None:
        """Write how the run ended: its status and, if it is done, the digest of its files."""
        with suppress(LabctlError):  # the result is reported all the same
            if counts := self._folder.read_run().trials:
                self._counts |= counts.to_json()
        match failure:
            case None:
                self._write("done", digest=folder_digest(self._folder.path))
            case KeyboardInterrupt():
                self._write("interrupted")
            case _:
                self._write("failed", failure=str(failure))

    def _write(self, status: str, **more: Any) -> None:
        path = self._folder.path
        content = {
            "schema": SCHEMA,
            "run": self._folder.name,
            "status": status,
            "pid": os.getpid(),
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            **self._counts,
            **more,
        }
        write_json(path / PROGRESS, content, below=path)


@contextmanager
def told(folder: RunFolder, listener: Listener) -> Iterator[Telling]:
    """Yield the writer of the run's progress.json; it records how the block ended."""
    telling = Telling(folder, listener)
    try:
        yield telling
        telling.end(None)
    except BaseException as error:
        with cleaning_up(), suppress(LabctlError):
            telling.end(error)
        raise


# Keep a run's run.json up to date.


@contextmanager
def recorded(folder: RunFolder, request: SweepRequest, planned: Planned) -> Iterator[RunLog]:
    """Keep run.json up to date: write the record now and when the run ends.

    A finished run that could not be extended keeps its earlier status."""
    before = folder.read_run() if request.earlier else None
    log = RunLog(folder, before.without("failure") if before else _first_record(request, planned))
    if request.extend:
        said = Extended(at=_now(), command=line_of(command(request, planned.plan)))
        log.put(extended=[*log.record.extended, said])
    log.put(status="running", ended_at=None)
    log.write()
    try:
        yield log
        log.put(status="done")
    except KeyboardInterrupt as stopped:
        log.put(status="interrupted")
        if _has_begun(folder, planned):
            stopped.add_note(
                f"Continue with: labctl sweep --resume {shlex.quote(str(folder.path))}"
            )
        raise
    except BaseException as error:
        log.put(status="failed", failure=str(error))
        raise
    finally:
        log.put(ended_at=_now())
        with cleaning_up():
            if before is None or _has_begun(folder, planned):
                log.write()
            else:
                folder.write_run(before)


def _has_begun(folder: RunFolder, planned: Planned) -> bool:
    """Return whether there is anything new to record."""
    return planned.added is None or any(
        made.digest == planned.added.digest for made in folder.read_extensions()
    )


def finished(folder: RunFolder) -> None:
    """Mark a run with all its trials as done: it may have been killed before that."""
    record = folder.read_run()
    if record.status != "done":
        folder.write_run(record.but(status="done"))


def _first_record(request: SweepRequest, planned: Planned) -> RunRecord:
    plan, kernel = planned.plan, planned.recipe.kernel
    first = RunRecord(
        labctl=labctl.__version__,
        started_at=_now(),
        command=line_of(command(request, plan)),
        study=plan.study,
        title=plan.title,
        seed=plan.seed,
        quick=plan.quick,
        collect=str(plan.collect),
        vcpus=plan.guest.vcpus,
        memory_mib=plan.guest.memory_mib,
        data_disk_bytes=plan.guest.data_disks * DATA_DISK_BYTES,
        skipped=dict(plan.skipped),
        warnings=planned.warnings,
        notes=(),
        # Written here, not at the end, so that an interrupted run has it as well.
        verifies=request.verifies,
        domain=planned.own and planned.own.record,
        kernel=kernel and KernelUsed.made(kernel.to_json()),
        builds=dict(plan.builds),
        tunings={
            # Its requests to libvirt's XML are in keys that are not fields.
            name: RecordedTuning.model_validate(tuning_json(tuning))
            for name, tuning in planned.tunings.items()
        },
        pin_plan=_pin_plan(planned, Strategy.COMPACT),
        pin_plans={
            str(strategy): _pin_plan(planned, strategy)
            for strategy in planned.pin_plans
            if strategy is not Strategy.COMPACT
        },
    )
    # Written now, for a run that is interrupted before libvirt is opened.
    return first.but(connection=request.connect) if request.connect else first


def _pin_plan(planned: Planned, strategy: Strategy) -> RecordedPins:
    pins = planned.pin_plans[strategy]
    return RecordedPins(
        picture=picture([pins], planned.topology),
        reasons=(*pins.reasons, *pins.shares),
        data=PinData.model_validate(pins.to_json()),
        layout=tuple(map(PinGroup.made, layout_json(pins, planned.topology))),
    )


def command(request: SweepRequest, plan: Plan) -> list[str]:
    """Return the command as given; for a new run with the seed, so that it repeats the plan."""
    if request.resume:
        return ["labctl", "sweep", "--resume", request.resume]
    if request.extend:
        more = str(request.overrides.blocks)
        return ["labctl", "sweep", "--extend", request.extend, "--blocks", more]
    asked = ["sweep", request.study] if request.question is None else request.question.words
    words = ["labctl", *_lab_words(), *asked, "--seed", str(plan.seed)]
    if plan.quick:
        words.append("--quick")
    options = {
        "--blocks": request.overrides.blocks,
        **_rule(request.overrides.stopping),
        "--blocks-per-boot": request.overrides.blocks_per_boot,
        "--spare-blocks": request.overrides.spare_blocks,
        "--other-cpu": request.overrides.other_cpu,
        "--vcpus": request.overrides.vcpus,
        "--memory": request.overrides.memory_mib,
        "--duration": request.overrides.duration_s,
        "--collect": request.overrides.collect,
        "--kernel": request.kernel,
        "--initrd": request.initrd,
    }
    for option, value in options.items():
        if value is not None:
            words += [option, str(value)]
    for option, names in (
        ("--tuning", request.overrides.tunings),
        ("--workload", request.overrides.workloads),
        ("--condition", request.overrides.conditions),
    ):
        for name in names or ():
            words += [option, name]
    for name, levels in (request.overrides.factors or {}).items():
        words += ["--factor", f"{name}={','.join(levels)}"]
    if request.overrides.program is not None:
        words += request.overrides.program.words
    if request.accel != "auto":
        words += ["--accel", request.accel]
    if request.connect:
        words += ["--connect", request.connect]
    if request.domain:
        words += ["--domain", request.domain]
    if request.keep_network:
        words.append("--keep-network")
    if request.fresh_boots:
        words.append("--fresh-boots")
    return words


def line_of(words: Sequence[str]) -> str:
    """Return a command as a shell takes it. Bytes that are not UTF-8 are escaped, because no file
    of labctl's can have them."""
    return shlex.join(words).encode("utf-8", "backslashreplace").decode()


def _lab_words() -> list[str]:
    """Return the lab folder, where the study and its tunings may come from: empty if it is that of
    labctl's own code, which every labctl has."""
    folder = lab().folder
    return [] if folder in (None, shipped_data()) else ["--lab", str(folder)]


def _rule(stopping: Stopping | None) -> dict[str, str]:
    match stopping:
        case UntilWidth(width=width, most_blocks=most):
            return {"--until-width": f"{100 * width:g}%", "--max-blocks": str(most)}
        case Looks(at=at):
            return {"--looks": ",".join(map(str, at))}
        case _:
            return {}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# Take a sweep from its request to its run folder: plan, check, make the folder, measure.


Judging = Callable[[RunFolder, int], str | LookTaken | None]
"""Function from a run and its number of complete blocks to the reason why its plan's rule ends it
there, or to the cells that it continues without; None: it continues."""


def sweep(request: SweepRequest, listener: Listener, judging: Judging | None = None) -> RunFolder:
    """Run a study, or resume or extend a run; return its folder.

    Measuring code does not judge: the caller provides `judging`. Without it a run goes to the last
    block of its plan, which every rule allows.

    Everything that it starts or changes is ended and restored, however it ends. Raises LabctlError;
    KeyboardInterrupt for Ctrl-C, SIGTERM and SIGHUP. The run stays resumable.
    """
    with ExitStack() as stack:
        stack.enter_context(ending_signals_interrupt())
        folder = earlier_folder(request)
        begun = Begun.read(folder) if folder else None
        request = on_its_connection(request, begun)
        planned = planned_for(request, begun)
        what = line_of(command(request, planned.plan))
        path = folder.path if folder else folder_path(request, planned.plan)
        stack.enter_context(host_locked(host_lock(), what=what, run_folder=path))
        clean_up(request.places, listener)
        check_connection(request.connect)
        check_host(request, planned, path)
        if folder is None:
            planned = with_image(request, planned, listener)
            folder = new_folder(path, request, planned)
        elif planned.added is None and reached(planned.plan, folder).is_over:
            listener(Note(text=f"Run '{folder.name}' has all its trials; nothing to do."))
            with told(folder, listener):
                finished(folder)
            return folder
        why_end = partial(judging, folder) if judging else never
        with (
            told(folder, listener) as telling,
            recorded(folder, request, planned) as log,
        ):
            telling.begin()
            measure(request, planned, log, telling.listen, why_end)
        return folder
