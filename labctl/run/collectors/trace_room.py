"""Check the room for traces on the run's disk: before a run, a block and a trial.

The size of a trial's trace depends on the host's load, so perf gets a limit: the space available. A
block is traced if there is room for all of it, judged by the trials so far. Its arms are compared,
so either all of them are traced or none. Some space is always left for the rest of the run.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from labctl.base.errors import HostError
from labctl.base.events import Listener, Warned
from labctl.base.tuning import Kind, Level
from labctl.base.wording import counted
from labctl.collect.traces.guest_recorder import LIMIT_MIB as GUEST_MIB
from labctl.collect.traces.perf_record import LIMIT_MIB as HOST_MIB
from labctl.collect.traces.perf_record import NO_ROOM
from labctl.host.doctor.check import MIB, size
from labctl.store.records.plan_record import PlannedTrial
from labctl.store.run_folder import RunFolder
from labctl.study.plan import Plan
from labctl.trace import files

KEPT_MIB = 1024
"""Space left free for everything else that a run writes."""
_LEAST_MIB = 256
"""Minimum space for starting a trace."""

_MIB_PER_CPU_S = 64
"""Rate of a CPU that does nothing but switch: `perf bench sched pipe` on each of two made 59.
Ordinary workloads make a tenth of that, or less."""
_AROUND_S = 2.0
"""Time recorded beside the window: the snapshots around it, and the command's start."""

MORE_ROOM = (
    "Free some space there, and the next block is traced again. You can remove traces of "
    "finished trials ('rm -r RUN/trials/*/trace'), which also removes their time lines."
)

_TRACES = (files.HOST, files.GUEST)


def limit_mib(folder: Path) -> int:
    """Return the limit on the size of a trial's host trace there; 0: there is no room for one."""
    room = _room_mib(folder) - GUEST_MIB
    return min(HOST_MIB, room) if room >= _LEAST_MIB else 0


def traced_bytes(folder: RunFolder) -> list[int]:
    """Return the size of each traced trial of a run."""
    sizes = (
        sum((trial.path / name).stat().st_size for name in _TRACES if trial.has(name))
        for trial in folder.trial_folders()
    )
    return [taken for taken in sizes if taken]


class BlockRoom:
    """Decide block by block whether a run has room to trace: `is_enough`."""

    def __init__(self, folder: RunFolder, plan: Plan, listener: Listener) -> None:
        self._folder = folder
        self._plan = plan
        self._listener = listener
        self.is_enough = True

    def look(self, block: int, todo: Sequence[PlannedTrial]) -> None:
        """Check the room for a block's trials. Trace all of them or none, because its arms are
        compared."""
        if self._plan.collect is not Level.TRACE or not todo:
            return
        windows_s = [self._plan.workloads[trial.cell["workload"]].duration_s for trial in todo]
        had_room, self.is_enough = self.is_enough, holds_block(self._folder, windows_s)
        if had_room and not self.is_enough:
            text = f"No traces from block {block} on: {NO_ROOM} {MORE_ROOM}"
            self._listener(Warned(text=text))


def holds_block(folder: RunFolder, windows_s: Sequence[float]) -> bool:
    """Return whether there is room for the traces of a block whose trials measure so long, by the
    largest trace so far or, without one, by the maximum size."""
    largest = max(traced_bytes(folder), default=0)
    expected = len(windows_s) * largest / MIB if largest else most_mib(max(windows_s))
    return _room_mib(folder.path) >= max(expected, _LEAST_MIB + GUEST_MIB)


def most_mib(window_s: float) -> int:
    """Return the maximum size of both traces of a trial that measures so long: all of this host's
    CPUs do nothing but switch."""
    return _most_on_host_mib(window_s) + GUEST_MIB


def _most_on_host_mib(window_s: float) -> int:
    grows_by = (os.cpu_count() or 1) * _MIB_PER_CPU_S
    return max(_LEAST_MIB, min(HOST_MIB, math.ceil((window_s + _AROUND_S) * grows_by)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedWindow:
    """Describe the window of a trial that is to be traced."""

    side: Kind
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Hold the maximum size of the traces of `trials` at `folder`, and the likely size: None while
    the run has recorded none. `longest_s`: the longest window. `kept_mib`: free space for
    everything else that the run writes."""

    folder: Path
    trials: int
    longest_s: float
    free_mib: int
    kept_mib: int
    most_mib: int
    likely_mib: int | None

    @property
    def room_mib(self) -> int:
        """Return the space available to traces."""
        return max(0, self.free_mib - self.kept_mib)

    @property
    def trial_mib(self) -> int:
        """Return the maximum size of one trial's traces."""
        return most_mib(self.longest_s)

    @property
    def is_refused(self) -> bool:
        return self.room_mib < self.trial_mib

    @property
    def fitting_s(self) -> int:
        """Return the whole seconds that a trial may measure here; 0: not even one."""
        grows_by = (os.cpu_count() or 1) * _MIB_PER_CPU_S
        return max(0, math.floor((self.room_mib - GUEST_MIB) / grows_by - _AROUND_S))

    @property
    def is_enough(self) -> bool:
        return self.room_mib >= (self.most_mib if self.likely_mib is None else self.likely_mib)

    def words(self) -> str:
        likely = "" if self.likely_mib is None else f", likely {size(self.likely_mib * MIB)}"
        return (
            f"traces of {counted(self.trials, 'trial')} may take up to "
            f"{size(self.most_mib * MIB)}{likely} ({size(self.trial_mib * MIB)} for one of "
            f"{self.longest_s:g} s), but {self.folder} has room for "
            f"{size(self.room_mib * MIB)} (of {size(self.free_mib * MIB)}; "
            f"{size(self.kept_mib * MIB)} are reserved)"
        )


def forecast(
    folder: Path,
    windows: Sequence[TracedWindow],
    recorded: Collection[int] = (),
    besides_bytes: int = 0,
) -> Forecast:
    """Forecast the size of the traces. `recorded`: bytes of trials that were traced already.
    `besides_bytes`: what the run will still write to the same disk."""
    mean = sum(recorded) / len(recorded) if recorded else None
    return Forecast(
        folder=folder,
        trials=len(windows),
        longest_s=max((window.seconds for window in windows), default=0.0),
        free_mib=_free_mib(folder),
        kept_mib=KEPT_MIB + besides_bytes // MIB,
        most_mib=sum(
            _most_on_host_mib(window.seconds) + (GUEST_MIB if window.side is Kind.GUEST else 0)
            for window in windows
        ),
        likely_mib=None if mean is None else round(len(windows) * mean / MIB),
    )


def refusal(found: Forecast) -> HostError | None:
    """Return why a run must not start to trace there; None if it may."""
    if not found.is_refused:
        return None
    lacking_mib = found.trial_mib + found.kept_mib - found.free_mib
    shorter = f"measure at most {found.fitting_s} s (--duration), " if found.fitting_s else ""
    return HostError(
        f"{found.words()}: too little for one trial",
        hint=f"Free {size(lacking_mib * MIB)} there, name a folder on a larger disk with "
        f"--results, {shorter}or collect less (--collect counters).",
    )


def warning(found: Forecast) -> str | None:
    """Warn that traces may need more room than there is; None if they cannot."""
    if found.is_enough:
        return None
    return (
        f"{found.words()}: a block without enough space is not traced. Use fewer trials "
        "(--blocks, --tuning, --workload), or another folder (--results)."
    )


def on_one_disk(one: Path, other: Path) -> bool:
    return _nearest(one).stat().st_dev == _nearest(other).stat().st_dev


def _room_mib(folder: Path) -> int:
    return max(0, _free_mib(folder) - KEPT_MIB)


def _free_mib(folder: Path) -> int:
    return shutil.disk_usage(_nearest(folder)).free // MIB


def _nearest(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder
