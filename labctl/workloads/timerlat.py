"""Measure with timerlat how late the kernel's timer interrupt and the thread that it wakes come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from labctl.base.command import Command
from labctl.base.errors import BrokenError
from labctl.base.latencies import OPEN_MEAN
from labctl.store.samples import Reading, sample
from labctl.store.trial import TrialFolder
from labctl.workloads import open_loop, rtla
from labctl.workloads.histogram import latency_readings
from labctl.workloads.workload import IntegerParameter, Parameters, Setting, Watcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Timerlat(Watcher):
    def watching(self, setting: Setting, seconds: int) -> Command:
        period = f"--period={setting.parameters['interval_us']}"
        return rtla.command(self.name, setting, seconds, period)

    def parse(self, raw: TrialFolder) -> Iterator[Reading]:
        where = str(raw.path / rtla.STDOUT)
        report = rtla.read(raw.read_text(rtla.STDOUT), self.name, where)
        for kind, labels in (("Thr-", {}), ("IRQ-", {"part": "irq"})):
            columns = [column for column in report.columns if column.name.startswith(kind)]
            latencies = rtla.together(columns, rtla.STDOUT, labels)
            if not latencies.count:
                raise BrokenError(f"{where}: expected columns '{kind}' with wake-ups, found none")
            if not labels:
                yield sample("wakeups", latencies.count, source=rtla.STDOUT)
            maximum_us = max(column.maximum_us for column in columns)
            yield from latency_readings(latencies, maximum_us * rtla.MICROSECOND_S)

    def periods(self, raw: TrialFolder, parameters: Parameters) -> Iterator[Reading]:
        """Return the periods of the threads: a thread that is late keeps its timer from being set
        again."""
        interval_us = parameters.get("interval_us")
        if not isinstance(interval_us, int) or interval_us < 1:
            return open_loop.unavailable("the record of the trial names no interval.")
        report = rtla.read(raw.read_text(rtla.STDOUT), self.name, str(raw.path / rtla.STDOUT))
        threads = [
            open_loop.MeasuredThread(column.by_length_us, column.beyond, column.maximum_us)
            for column in report.columns
            if column.name.startswith("Thr-")
        ]
        return open_loop.readings(threads, interval_us, rtla.STDOUT)


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
