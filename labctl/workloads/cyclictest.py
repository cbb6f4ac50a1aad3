"""Measure with cyclictest how late a real-time thread wakes up."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from labctl.base.command import Command
from labctl.base.errors import BrokenError
from labctl.base.jsontext import parse_json
from labctl.base.latencies import OPEN_MEAN
from labctl.store.samples import Reading, Unavailable, sample
from labctl.store.trial import TrialFolder
from labctl.workloads import open_loop
from labctl.workloads.histogram import Bin, histogram, latency_readings
from labctl.workloads.open_loop import MICROSECOND_S, MeasuredThread
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

_INTERVAL = re.compile(r"(?: --interval[ =]| -i ?)(\d{1,9})(?: |$)")
_NO_INTERVAL = "cyclictest's command line names no interval."


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
        threads, interval_us = read(raw.read_text(source), str(raw.path / source))
        latencies = histogram(
            (
                # cyclictest cuts to whole microseconds: a latency of 7 is 7 to 8.
                Bin((latency_us + 0.5) * MICROSECOND_S, MICROSECOND_S, count)
                for thread in threads
                for latency_us, count in thread.by_latency_us.items()
            ),
            source=source,
            beyond=sum(thread.beyond for thread in threads),
        )
        yield sample("wakeups", latencies.count, source=source)
        maximum_us = max(thread.max_us for thread in threads)
        yield from latency_readings(latencies, maximum_us * MICROSECOND_S)
        yield _stall_time(threads, interval_us, source)

    def periods(self, raw: TrialFolder, parameters: Parameters) -> Iterator[Reading]:
        source = f"files/{OUTPUT}"
        threads, interval_us = read(raw.read_text(source), str(raw.path / source))
        if interval_us is None:
            return open_loop.unavailable(_NO_INTERVAL)
        return open_loop.readings(threads, interval_us, source)


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


def read(text: str, where: str) -> tuple[list[MeasuredThread], int | None]:
    """Return the threads of a report, and the interval that its command line names."""
    try:
        report = parse_json(text)
        if report["return_code"] != 0:
            raise BrokenError(f"{where}: cyclictest ended with status {report['return_code']}")
        if report["resolution_in_ns"] != 0:
            raise BrokenError(f"{where}: expected microseconds, found nanoseconds")
        threads = [_thread(entry) for entry in report["thread"].values()]
        interval_us = _interval_us(str(report["cmdline:"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BrokenError(
            f"{where}: expected cyclictest's JSON (file_version 1) with a histogram per thread, "
            f"found something else ({error!r})"
        ) from error
    if not threads or any(sum(t.by_latency_us.values()) + t.beyond == 0 for t in threads):
        raise BrokenError(f"{where}: a thread of cyclictest never woke up")
    return threads, interval_us


def _thread(entry: Mapping[str, Any]) -> MeasuredThread:
    by_latency = {int(latency): int(count) for latency, count in entry["histogram"].items()}
    beyond = int(entry["cycles"]) - sum(by_latency.values())
    if beyond < 0 or min(by_latency.values(), default=1) < 1 or min(by_latency, default=0) < 0:
        raise ValueError(f"{entry['cycles']} cycles, but {sum(by_latency.values())} in its bins")
    max_us = int(entry["max"])
    if max_us < max(by_latency, default=0):
        raise ValueError(f"a maximum of {max_us} us, but a bin of {max(by_latency)} us")
    return MeasuredThread(by_latency, beyond, max_us)


def _interval_us(command_line: str) -> int | None:
    found = _INTERVAL.search(command_line)
    return (int(found[1]) or None) if found else None


def _stall_time(threads: list[MeasuredThread], interval_us: int | None, source: str) -> Reading:
    """Sum over all wake-ups of max(0, latency - interval), all threads together (METHOD rule 9):
    cyclictest skips the periods that it missed, so a stall of 50 ms is one wake-up to it."""
    if interval_us is None:
        return Unavailable(metric="stall_time", reason=_NO_INTERVAL)
    total_us = 0
    for thread in threads:
        lengths_us = thread.lengths_us
        if lengths_us is None:
            return Unavailable(metric="stall_time", reason=open_loop.OVERFLOW)
        total_us += sum(max(0, us - interval_us) * count for us, count in lengths_us.items())
    return sample("stall_time", total_us * MICROSECOND_S, source=source)


CYCLICTEST = Cyclictest()
