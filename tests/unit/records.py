"""Records made of JSON, for tests that say what a file holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labctl.store.jsonfile import write_json
from labctl.store.records.plan_record import PlanRecord
from labctl.store.records.run_record import RunRecord
from labctl.store.records.tolerant import as_far_as_whole
from labctl.store.run_folder import RunFolder


def plan_of(data: Mapping[str, Any]) -> PlanRecord:
    """The plan that a plan.json of this content is read as."""
    return as_far_as_whole(PlanRecord, dict(data))[0] or PlanRecord()


def write_plan(folder: RunFolder, data: Mapping[str, Any]) -> None:
    """Write plan.json as it is given, whether a plan can be so or not."""
    write_json(folder.path / "plan.json", data)


def run_of(data: Mapping[str, Any]) -> RunRecord:
    """The record that a run.json of this content is read as."""
    return as_far_as_whole(RunRecord, dict(data))[0] or RunRecord()


def write_run_json(folder: RunFolder, data: Mapping[str, Any]) -> None:
    """Write run.json as it is given, whether a run can be so or not."""
    write_json(folder.path / "run.json", {"schema": 1, **data})
