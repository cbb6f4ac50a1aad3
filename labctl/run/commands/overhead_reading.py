"""Read what a window of a measurement of overhead has shown."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from labctl.base.errors import BrokenError
from labctl.collect.threads import host_threads
from labctl.store.samples import Reading, Sample
from labctl.store.trial import TrialFolder
from labctl.trace import files
from labctl.workloads.workload import Workload

_LABCTL_CPU = "host_cpu{thread=labctl}"


class OverheadWindow(NamedTuple):
    """Hold operations per second, labctl's CPU seconds per second, and why collectors failed."""

    rate: float
    labctl_cpu: float | None
    problems: Collection[str]


def read_window(folder: TrialFolder, program: Workload, *, is_bare: bool) -> OverheadWindow:
    """Return what the window in `folder` shows. `is_bare`: whether nothing was collected around it.
    Raises BrokenError where the program told no rate."""
    noted = folder.read_json(files.PROBLEMS) if folder.has(files.PROBLEMS) else {}
    labctl_cpu = None if is_bare else _value(host_threads.parse(folder), _LABCTL_CPU)
    wanted = program.rate_metric
    rate = _value(program.parse(folder), wanted)
    if rate is None or rate <= 0:
        raise BrokenError(f"{program.name} reported no {wanted} above 0")
    return OverheadWindow(rate, labctl_cpu, list(noted.values()))


def _value(readings: Iterable[Reading], key: str | None) -> float | None:
    """Return the value of the sample of that key; None where there is none."""
    for found in readings:
        if isinstance(found, Sample) and found.key == key:
            return found.value
    return None
