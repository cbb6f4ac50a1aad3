"""Measure with timerlat how late the kernel's timer interrupt and the thread that it wakes come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from labctl.base.command import Command
from labctl.base.latencies import OPEN_MEAN
from labctl.store.samples import Reading
from labctl.store.trial import TrialFolder
from labctl.workloads import rtla
from labctl.workloads.readers import rtla as reader
from labctl.workloads.workload import IntegerParameter, Parameters, Setting, Watcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Timerlat(Watcher):
    def watching(self, setting: Setting, seconds: int) -> Command:
        period = f"--period={setting.parameters['interval_us']}"
        return rtla.command(self.name, setting, seconds, period)

    def parse(self, raw: TrialFolder) -> Iterator[Reading]:
        where = str(raw.path / rtla.STDOUT)
        return reader.timerlat(raw.read_text(rtla.STDOUT), where, rtla.STDOUT)

    def periods(self, raw: TrialFolder, parameters: Parameters) -> Iterator[Reading]:
        """Return the periods of the threads: a thread that is late keeps its timer from being set
        again."""
        text, where = raw.read_text(rtla.STDOUT), str(raw.path / rtla.STDOUT)
        return reader.periods(text, where, rtla.STDOUT, parameters.get("interval_us"))


TIMERLAT = Timerlat(
    name="timerlat",
    operation="one wake-up in the kernel, at a fixed pace",
    parameters=(
        IntegerParameter(
            name="interval_us",
            default=1000,
            minimum=100,
            maximum=1_000_000,
            description="time between two wake-ups of a CPU's thread",
        ),
        rtla.HISTOGRAM_US,
    ),
    binaries=(rtla.BINARY,),
    places_itself=rtla.PLACES_ITSELF,
    primary=OPEN_MEAN,
    tracers=("timerlat",),
)
