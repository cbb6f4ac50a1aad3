"""Check run.json, plan.json and its extensions against the form that labctl writes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from labctl.base.errors import FileError
from labctl.store.jsonfile import canonical, newer
from labctl.store.records.tolerant import Record, as_far_as_whole

SCHEMA = 1
"""Version of the run folder. A reader refuses a newer one."""
PLAN_SCHEMA = 1
"""Version of plan.json, which `labctl.study.plan` writes."""

R = TypeVar("R", bound=Record)


def run_data(data: Any, path: Path) -> dict[str, Any]:
    """Return the content of run.json; raises BrokenError if it is not a run's, UsageError if a
    newer labctl wrote it."""
    if not isinstance(data, dict) or not isinstance(data.get("schema"), int):
        raise FileError(f"{path} is not a run record")
    if data["schema"] > SCHEMA:
        raise newer(path, data["schema"], SCHEMA)
    return data


def plan_data(data: Any, path: Path, what: str) -> dict[str, Any]:
    """Return the content of plan.json or an extension (`what` it should be); raises as
    `run_data`."""
    if not isinstance(data, dict) or not isinstance(data.get("trials"), list):
        raise FileError(f"{path} is {what}")
    if isinstance(data.get("schema"), int) and data["schema"] > PLAN_SCHEMA:
        raise newer(path, data["schema"], PLAN_SCHEMA)
    return data


def whole(kind: type[R], data: Mapping[str, Any], path: Path, hint: str) -> R:
    """Return a file's record; raises BrokenError naming the first invalid place."""
    record, unfit = as_far_as_whole(kind, data)
    if unfit or record is None:
        raise FileError(f"{path} is incomplete: {unfit[0]}", hint=hint)
    return record


def as_written(kind: type[R], data: Mapping[str, Any], path: Path) -> R:
    """Return the record of a plan or an extension with all that its file contains; raises
    BrokenError if a part would be ignored."""
    hint = "A plan can't be edited. Start a new run."
    record = whole(kind, data, path, hint)
    if record.to_json() != data:
        raise FileError(f"{path} was changed after labctl wrote it", hint=hint)
    return record


def is_as_made(plan: Mapping[str, Any]) -> bool:
    """Return whether a plan's digest matches the rest of it; an old plan may have none."""
    content = {key: value for key, value in plan.items() if key not in ("schema", "digest")}
    digest = plan.get("digest")
    return digest is None or digest == hashlib.sha256(canonical(content).encode()).hexdigest()
