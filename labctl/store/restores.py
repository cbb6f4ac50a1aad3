"""Keep which restores behaved like boots, by class of host: for runs that do not check it, from
runs that did (METHOD 8)."""

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
"""Host facts that a check depends on, beside labctl's version, the accelerator, the image and the
guest's size."""


class _Kept(Record):
    key: Text
    margin: Number
    run: Text


class Checked(NamedTuple):
    """Record a check of a run. `passed`: as in RunCheck, None if it is unknown."""

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
    """Return those of the plan's restored tunings that were shown to behave like booted ones on a
    host of this class: `tuning`, `workload`, `condition`, and the `run` that showed it.

    A check also applies to margins larger than its own.
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
    """Return a digest of everything that a check depends on."""
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
    """Return the stored entries; none if the file is missing or invalid."""
    try:
        content = read_json(file)
        found = as_far_as_whole(list[_Kept], content["checks"])[0]
        return found or [] if content["schema"] == 1 else []
    except (BrokenError, KeyError, TypeError, AttributeError):
        return []
