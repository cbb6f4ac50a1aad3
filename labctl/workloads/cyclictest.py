"""Measure with cyclictest how late a real-time thread wakes up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from labctl.base.command import Command
from labctl.base.latencies import OPEN_MEAN
from labctl.store.samples import Reading
from labctl.store.trial import TrialFolder
from labctl.workloads.open_loop import MICROSECOND_S
from labctl.workloads.readers import cyclictest as reader
from labctl.workloads.workload import (
    IntegerParameter,
    Parameter,
    Parameters,
    Setting,
    WorkloadBase,
    integer,
)

BINARY = "/usr/bin/cyclictest"
OUTPUT = "cyclictest.json"
WARMUP_HISTOGRAM_US = 1000
"""Nobody reads what a warm-up measures, and each line of it costs time: with the 60,000 of a study
a window of 0.3 s took twice as long in an emulated guest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cyclictest(WorkloadBase):
    name: str = "cyclictest"
    operation: str = "one wake-up, at a fixed pace"
    parameters: tuple[Parameter, ...] = (
        IntegerParameter(
            name="interval_us",
            default=1000,
            minimum=100,
            maximum=1_000_000,
            description="time between two wake-ups of a thread",
        ),
        IntegerParameter(
            name="priority",
            default=80,
            minimum=1,
            maximum=98,
            description="SCHED_FIFO priority of the threads",
        ),
        # Every microsecond of it is a line that cyclictest formats at its end (in vain: it goes
        # to /dev/null), inside the measured window: 0.8 s for 100,000 of them under TCG.
        IntegerParameter(
            name="histogram_us",
            default=100_000,
            minimum=1_000,
            maximum=1_000_000,
            description="the longest latency with a bucket of its own",
        ),
    )
    binaries: tuple[str, ...] = (BINARY,)
    primary: str = OPEN_MEAN

    def command(self, setting: Setting) -> Command:
        self.check_duration(setting.duration_s)
        histogram_us = integer(setting.parameters, "histogram_us")
        return _command(setting, f"--duration={int(setting.duration_s)}", histogram_us)

    def warmup_command(self, setting: Setting, window_s: float, rate: float | None) -> Command:
        # Of a fixed pace, so there is no rate to compare. One window warms up what there is: a
        # second one takes the CPU time of a seventh (docs/decisions/warm-up.md).
        loops = round(window_s / MICROSECOND_S / integer(setting.parameters, "interval_us"))
        return _command(setting, f"--loops={max(1, loops)}", WARMUP_HISTOGRAM_US)

    def window_rates(self, stdout: str, files: Mapping[str, bytes]) -> list[float]:
        return []

    def parse(self, raw: TrialFolder) -> Iterator[Reading]:
        source = f"files/{OUTPUT}"
        return reader.readings(raw.read_text(source), str(raw.path / source), source)

    def periods(self, raw: TrialFolder, parameters: Parameters) -> Iterator[Reading]:
        source = f"files/{OUTPUT}"
        return reader.periods(raw.read_text(source), str(raw.path / source), source)


def _command(setting: Setting, length: str, histogram_us: int) -> Command:
    parameters = setting.parameters
    return Command(
        argv=(
            BINARY,
            # It would else hold /dev/cpu_dma_latency at 0: natively that keeps the host's CPUs out
            # of idle states, in a guest it doesn't reach them.
            "--default-system",
            "--mlockall",
            f"--priority={parameters['priority']}",
            f"--interval={parameters['interval_us']}",
            # No --affinity: where threads run is what a tuning and its native twin decide.
            f"--threads={setting.vcpus}",
            length,
            f"--histogram={histogram_us}",
            "--histfile=/dev/null",
            f"--json={OUTPUT}",
            "--quiet",
        ),
        files=(OUTPUT,),
    )


CYCLICTEST = Cyclictest()
