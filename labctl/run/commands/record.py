"""Keep a run's run.json true while it goes on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import labctl
from labctl.base.paths import lab, shipped_data
from labctl.base.places_inside import DATA_DISK_BYTES
from labctl.base.signals import cleaning_up
from labctl.base.stopping import Looks, Stopping, UntilWidth
from labctl.base.tuning import Strategy
from labctl.domain.pinning.pin_picture import layout_json, picture
from labctl.run.planning.planned import Planned, SweepRequest
from labctl.store.records.run_record import (
    Extended,
    KernelUsed,
    PinData,
    PinGroup,
    RecordedPins,
    RecordedTuning,
    RunRecord,
)
from labctl.store.run_folder import RunFolder, RunLog
from labctl.study.plan import Plan
from labctl.study.tuning_digest import tuning_json


@contextmanager
def recorded(folder: RunFolder, request: SweepRequest, planned: Planned) -> Iterator[RunLog]:
    """Keep run.json true: write the record now and when the run ends.

    A finished run that could not be extended is what it was before."""
    before = folder.read_run() if request.earlier else None
    log = RunLog(folder, before.without("failure") if before else _first_record(request, planned))
    if request.extend:
        said = Extended(at=_now(), command=shlex.join(command(request, planned.plan)))
        log.put(extended=[*log.record.extended, said])
    log.put(status="running", ended_at=None)
    log.write()
    try:
        yield log
        log.put(status="done")
    except KeyboardInterrupt as stopped:
        log.put(status="interrupted")
        if _has_begun(folder, planned):
            stopped.add_note(f"Go on with: labctl sweep --resume {shlex.quote(str(folder.path))}")
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
    """Say of a run that has all its trials that it is done: it may have been killed before."""
    record = folder.read_run()
    if record.status != "done":
        folder.write_run(record.but(status="done"))


def _first_record(request: SweepRequest, planned: Planned) -> RunRecord:
    plan, kernel = planned.plan, planned.recipe.kernel
    first = RunRecord(
        labctl=labctl.__version__,
        started_at=_now(),
        command=shlex.join(command(request, plan)),
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
        # Here, and not when it is over: it must be known of an interrupted run as well.
        verifies=request.verifies,
        domain=planned.own and planned.own.record,
        kernel=kernel and KernelUsed.made(kernel.to_json()),
        tunings={
            # What it asks of libvirt's XML stands in keys that are no fields.
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
    # Now, for a run that is interrupted before libvirt is opened.
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
    """Return the command as it was given; for a new run with the seed, so that it repeats the
    plan.
    """
    if request.resume:
        return ["labctl", "sweep", "--resume", request.resume]
    if request.extend:
        more = str(request.overrides.blocks)
        return ["labctl", "sweep", "--extend", request.extend, "--blocks", more]
    words = ["labctl", *_lab_words(), "sweep", request.study, "--seed", str(plan.seed)]
    if plan.quick:
        words.append("--quick")
    options = {
        "--blocks": request.overrides.blocks,
        **_rule(request.overrides.stopping),
        "--blocks-per-boot": request.overrides.blocks_per_boot,
        "--spare-blocks": request.overrides.spare_blocks,
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


def _lab_words() -> list[str]:
    """Return the lab folder, which the study and its tunings may come from: none where it is that
    of labctl's own code, which every labctl has."""
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
