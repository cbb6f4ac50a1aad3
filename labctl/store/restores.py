"""Remember which restores were shown to do what boots do, on hosts of which class: remembered from
the runs that tried it for those that don't (METHOD 8)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from labctl.base.errors import BrokenError
from labctl.store.jsonfile import canonical, read_json, write_json
from labctl.store.records.plan_record import PlanRecord
from labctl.store.records.run_record import RunRecord
from labctl.store.records.tolerant import Number, Record, Text, as_far_as_whole

HOST_CLASS = ("kernel_release", "qemu", "libvirt", "cpu_model", "cpu_flags", "microcode")
"""Host facts that a check holds for, beside labctl's version, the accelerator, the image and the
guest's size."""


class _Kept(Record):
    key: Text
    margin: Number
    run: Text


class Checked(NamedTuple):
    """Record a check of a run. `passed`: as RunCheck has it, None where it is unknown."""

    tuning: str
    workload: str
    condition: str
    passed: bool | None


def remember(
    file: Path,
    name: str,
    run: RunRecord,
    plan: PlanRecord,
    checks: Iterable[Checked],
) -> None:
    """Keep what passed in the run of that name, and forget what failed in it: booting wins."""
    told = {_key(run, plan, check): check for check in checks if check.passed is not None}
    kept = [entry.to_json() for entry in _entries(file) if entry.key not in told]
    for key, check in told.items():
        if check.passed:
            margin = plan.workloads[check.workload].margin
            kept.append({"key": key, "margin": margin, "run": name, **check._asdict()})
    if told:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"schema": 1, "checks": kept})


def shown(file: Path, run: RunRecord, plan: PlanRecord) -> list[dict[str, str]]:
    """Return those of the plan's restored tunings that were shown on a host of this class to do
    what they do booted: `tuning`, `workload`, `condition`, and the `run` that showed it.

    A check counts for margins that are no smaller than its own.
    """
    known = {entry.key: entry for entry in _entries(file)}
    found = []
    for tuning, arm in plan.tunings.items():
        if arm.kind != "guest" or not arm.restore:
            continue
        for workload, declared in plan.workloads.items():
            for condition in plan.conditions:
                place = Checked(tuning, workload, condition, True)
                entry = known.get(_key(run, plan, place))
                if entry is not None and entry.margin <= (declared.margin or 0):
                    words = place._asdict() | {"run": entry.run}
                    del words["passed"]
                    found.append(words)
    return found


def _key(run: RunRecord, plan: PlanRecord, check: Checked) -> str:
    """Return a digest of everything that a check holds for."""
    host, workload = run.host, plan.workloads[check.workload]
    baseline = plan.tunings[plan.baseline or ""]
    content = {
        "host": {fact: host.get(fact) for fact in HOST_CLASS},
        "labctl": run.labctl,
        "accelerator": run.accelerator,
        "image": run.image and run.image.to_json(),
        "domain": run.domain and run.domain.to_json(),
        "guest": [run.vcpus, run.memory_mib],
        "tunings": [arm.digest for arm in (baseline, plan.tunings[check.tuning])],
        "workload": [workload.program, workload.parameters, workload.primary],
        "condition": check.condition,
    }
    return hashlib.sha256(canonical(content).encode()).hexdigest()


def _entries(file: Path) -> list[_Kept]:
    """Return what is remembered; nothing where the file is gone or none of ours: it says less
    then."""
    try:
        content = read_json(file)
        found = as_far_as_whole(list[_Kept], content["checks"])[0]
        return found or [] if content["schema"] == 1 else []
    except (BrokenError, KeyError, TypeError, AttributeError):
        return []
