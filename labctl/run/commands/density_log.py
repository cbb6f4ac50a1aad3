"""Keep the record of a density run true while it goes on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import labctl
from labctl.base.errors import HostError
from labctl.base.signals import cleaning_up
from labctl.run.planning.density_plan import DensityPlan
from labctl.store.density_record import DensityFolder, DensityLog, DensityRecord, LimitRecord


def folder_path(results: Path, workload: str) -> Path:
    """Return where a new density run is kept."""
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return results.resolve() / f"{moment}-density-{workload}"


@contextmanager
def recorded(path: Path, plan: DensityPlan, words: tuple[str, ...]) -> Iterator[DensityLog]:
    """Make the folder and keep its record true until the run ends. `words`: the command."""
    try:
        folder = DensityFolder.create(path)
    except OSError as error:
        raise HostError(
            f"cannot make the run's folder {path}: {error.strerror}",
            hint="Name a folder that can be written with --results.",
        ) from error
    log = DensityLog(folder, first_record(plan, words))
    log.put(status="running")
    try:
        yield log
        log.record = log.record.model_copy(update={"status": "done"})
    except KeyboardInterrupt as stopped:
        log.record = log.record.model_copy(update={"status": "interrupted"})
        if log.record.counts:
            shown = shlex.quote(str(folder.path))
            stopped.add_note(f"What was counted: labctl density --show {shown}")
        raise
    except BaseException as error:
        log.record = log.record.model_copy(update={"status": "failed", "failure": str(error)})
        raise
    finally:
        with cleaning_up():
            log.put(ended_at=_now())


def first_record(plan: DensityPlan, words: tuple[str, ...]) -> DensityRecord:
    """Return what is known before anything is started."""
    request, limit = plan.request, plan.request.limit
    declared = request.workload.workload
    return DensityRecord.made(
        {
            "labctl": labctl.__version__,
            "command": shlex.join(words),
            "workload": request.workload.name,
            "parameters": dict(declared.parameters),
            "definition": dict(declared.definition or {}),
            "duration_s": declared.duration_s,
            "limit": LimitRecord(
                metric=limit.metric, bound=limit.bound, value=limit.value, unit=limit.unit
            ),
            "tunings": tuple(request.tunings),
            "blocks": request.blocks,
            "search": str(request.search),
            "most": plan.most,
            "most_by": plan.most_by,
            "seed": plan.planned.plan.seed,
            "vcpus": len(plan.planned.pin_plan.vcpus),
            "memory_mib": plan.memory_mib,
            "started_at": _now(),
        }
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
