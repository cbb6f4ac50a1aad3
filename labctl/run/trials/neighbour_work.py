"""Read what neighbours did in their lives from what they left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labctl.base.errors import BrokenError, LabctlError
from labctl.collect.collector import NeighbourWork
from labctl.collect.neighbour import RAW
from labctl.store.trial import TrialFolder, TrialRecord
from labctl.workloads.beside import Beside


def work_of_neighbours(folder: TrialFolder, record: TrialRecord) -> list[NeighbourWork]:
    """Return what each neighbour of a trial did; [] without any, and for files of a labctl that
    knew but one kind. Raises BrokenError for a file that isn't whole."""
    if not folder.has(RAW):
        return []
    data = folder.read_json(RAW)
    if isinstance(data, dict) and "hogs" in data:
        return []
    try:
        declared = record.parsed_with["neighbours"]
        return [_work(declared[row["kind"]], row) for row in data["neighbours"]]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise BrokenError(
            f"{folder.path / RAW}: expected what neighbours did, found something else ({error!r})"
        ) from error


def _work(declared: Mapping[str, Any], row: Mapping[str, Any]) -> NeighbourWork:
    cpu_s, seconds = float(row["cpu_s"]), float(row["seconds"])
    if not (0 <= cpu_s < float("inf") and 0 <= seconds < float("inf")):
        raise ValueError("a time is no time")
    name = str(declared["program"])
    operations, problem = None, ""
    if row["was_killed"]:
        problem = f"'{name}' had to be killed in the midst of a run, whose output isn't whole."
    else:
        try:
            beside = Beside.of(
                name, declared["definition"], declared["parameters"], declared["run_s"]
            )
            files = {key: text.encode() for key, text in row["files"].items()}
            operations = beside.operations(row["stdout"], row["stderr"], files, seconds)
        except LabctlError as error:
            problem = f"what '{name}' did as a neighbour can't be read: {error.message}"
    return NeighbourWork(workload=name, cpu_s=cpu_s, operations=operations, problem=problem)
