"""timerlat: how late the kernel's timer interrupt comes, and how late the thread that it wakes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from labctl.base.command import Command
from labctl.base.errors import BrokenError
from labctl.base.units import Better, Unit
from labctl.store.samples import Reading, Sample
from labctl.store.trial import TrialFolder
from labctl.workloads import rtla
from labctl.workloads.histogram import latency_readings
from labctl.workloads.model import IntegerParameter, Setting, WorkloadBase


@dataclass(frozen=True, slots=True, kw_only=True)
class Timerlat(WorkloadBase):
    def command(self, setting: Setting) -> Command:
        self.check_duration(setting.duration_s)
        return _command(setting, int(setting.duration_s))

    def warmup_command(self, setting: Setting, window_s: float, rate: float | None) -> Command:
        # Of a fixed pace, so there is no rate to compare; a second is the least that rtla takes.
        return _command(setting, 1)

    def window_rates(self, stdout: str, files: Mapping[str, bytes]) -> list[float]:
        return []

    def parse(self, raw: TrialFolder) -> Iterator[Reading]:
        where = str(raw.path / rtla.STDOUT)
        report = rtla.read(raw.read_text(rtla.STDOUT), self.name, where)
        for kind, labels in (("Thr-", {}), ("IRQ-", {"part": "irq"})):
            columns = [column for column in report.columns if column.name.startswith(kind)]
            latencies = rtla.together(columns, rtla.STDOUT, labels)
            if not latencies.count:
                raise BrokenError(f"{where}: expected columns '{kind}' with wake-ups, found none")
            if not labels:
                yield Sample(
                    metric="wakeups",
                    value=latencies.count,
                    unit=Unit.COUNT,
                    better=Better.NEITHER,
                    source=rtla.STDOUT,
                )
            maximum_us = max(column.maximum_us for column in columns)
            yield from latency_readings(latencies, maximum_us * rtla.MICROSECOND_S)


def _command(setting: Setting, seconds: int) -> Command:
    parameters = setting.parameters
    return Command(
        argv=(
            rtla.BINARY,
            "timerlat",
            "hist",
            # All CPUs of the machine otherwise: natively those are more than the guest has.
            f"--cpus={setting.cpu_list}",
            f"--period={parameters['interval_us']}",
            f"--duration={seconds}",
            f"--entries={parameters['histogram_us']}",
        )
    )


TIMERLAT = Timerlat(
    name="timerlat",
    description="rtla timerlat: latency of a timer's interrupt and of its thread, in the kernel",
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
    primary="latency_p95",
)
