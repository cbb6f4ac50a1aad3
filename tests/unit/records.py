"""Records made of JSON, for tests that say what a file holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from labctl.store.jsonfile import write_json
from labctl.store.records.plan_record import ExtensionRecord, PlanRecord
from labctl.store.records.run_record import RunRecord
from labctl.store.records.tolerant import as_far_as_whole
from labctl.store.run_folder import RunFolder
from labctl.study.plan import Plan


def plan_of(data: Mapping[str, Any]) -> PlanRecord:
    """The plan that a plan.json of this content is read as."""
    return as_far_as_whole(PlanRecord, dict(data))[0] or PlanRecord()


def plan_from_file(data: Mapping[str, Any]) -> Plan:
    """The plan that a run with a plan.json of this content goes on with."""
    with TemporaryDirectory() as path:
        folder = RunFolder(Path(path))
        write_plan(folder, data)
        return Plan.of(folder.read_plan())


def extensions_from_files(*data: Mapping[str, Any]) -> list[ExtensionRecord]:
    """The extensions of a run with files of this content, in order."""
    with TemporaryDirectory() as path:
        folder = RunFolder(Path(path))
        for one in data:
            folder.write_extension(one)
        return folder.read_extensions()


def write_plan(folder: RunFolder, data: Mapping[str, Any]) -> None:
    """Write plan.json as it is given, whether a plan can be so or not."""
    write_json(folder.path / "plan.json", data)


def run_of(data: Mapping[str, Any]) -> RunRecord:
    """The record that a run.json of this content is read as."""
    return as_far_as_whole(RunRecord, dict(data))[0] or RunRecord()


def write_run_json(folder: RunFolder, data: Mapping[str, Any]) -> None:
    """Write run.json as it is given, whether a run can be so or not."""
    write_json(folder.path / "run.json", {"schema": 1, **data})
