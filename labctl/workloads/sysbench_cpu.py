"""sysbench cpu: every vCPU looks for primes, nothing but arithmetic."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from labctl.base.command import Command
from labctl.base.errors import BrokenError
from labctl.base.units import Better, Unit
from labctl.store.samples import Reading, Sample
from labctl.store.trial import TrialFolder
from labctl.workloads.histogram import Bin, histogram, latency_readings
from labctl.workloads.model import (
    IntegerParameter,
    Parameter,
    Parameters,
    Peer,
    Setting,
    check_parameters,
    check_whole_seconds,
    integer,
)

BINARY = "/usr/bin/sysbench"
STDOUT = "stdout.txt"

# sysbench 1.0 sorts latencies into 1024 bins from 1 us to 100 s of equal logarithmic width and
# prints their middles (src/sb_timer.c, src/sb_histogram.c), rounded to 1 us.
BIN_LOG_WIDTH = math.log(100_000 / 0.001) / 1023
PRINTED_STEP_S = 1e-6

# Events of the first warm-up window, before the machine's rate is known: what an emulated guest
# does per second and thread. A faster machine only gets a shorter first window.
SLOW_RATE = 600
SLOW_RATE_MAX_PRIME = 2000

_RATE = re.compile(r"^\s*events per second:\s+([\d.]+)\s*$", re.M)
_EVENTS = re.compile(r"^\s*total number of events:\s+(\d+)\s*$", re.M)
_MAXIMUM_MS = re.compile(r"^Latency \(ms\):\n(?:.*\n)*?\s*max:\s+([\d.]+)\s*$", re.M)
_BIN = re.compile(r"^\s*([\d.]+) \|\**\s+(\d+)\s*$", re.M)


@dataclass(frozen=True, slots=True)
class SysbenchCpu:
    name: str = "sysbench-cpu"
    description: str = "sysbench cpu on all vCPUs: arithmetic, no memory, no I/O"
    parameters: tuple[Parameter, ...] = (
        # At 2000 an event takes 0.16 ms on a 2.5 GHz Xeon and 10 to 15 times that under TCG, so
        # that a p95 (400 events at least) is there after 2 s even with half of the CPU taken.
        IntegerParameter(
            name="max_prime",
            default=2000,
            minimum=10,
            maximum=1_000_000,
            description="up to where one event looks for primes",
        ),
    )
    binaries: tuple[str, ...] = (BINARY,)
    primary: str = "events_per_s"
    rate_metric: str | None = "events_per_s"
    calibratable: bool = True
    uses_data_disk: bool = False

    def check_parameters(self, given: Mapping[str, object]) -> Parameters:
        return check_parameters(self.name, self.parameters, given)

    def check_duration(self, duration_s: float) -> None:
        check_whole_seconds(self.name, duration_s)

    def writes_data_disk(self, parameters: Parameters) -> bool:
        return False

    def peer(self, parameters: Parameters) -> Peer | None:
        return None

    def command(self, setting: Setting) -> Command:
        self.check_duration(setting.duration_s)
        return _command(setting, setting.vcpus, time_s=int(setting.duration_s), events=0)

    def warmup_command(self, setting: Setting, window_s: float, rate: float | None) -> Command:
        if rate is None:
            # The cost of an event grows with max_prime to the power of 1.5: trial division up to
            # the square root for each number.
            relative = integer(setting.parameters, "max_prime") / SLOW_RATE_MAX_PRIME
            rate = SLOW_RATE * setting.vcpus / relative**1.5
        events = max(setting.vcpus, round(rate * window_s))
        return _command(setting, setting.vcpus, time_s=0, events=events)

    def exact_command(self, setting: Setting, operations: int) -> Command | None:
        return _command(setting, 1, time_s=0, events=operations)

    def window_rates(self, stdout: str, files: Mapping[str, bytes]) -> list[float]:
        return [_number(_RATE, stdout, STDOUT, "a line 'events per second:'")]

    def parse(self, raw: TrialFolder) -> Iterator[Reading]:
        text = raw.read_text(STDOUT)
        where = str(raw.path / STDOUT)
        events = int(_number(_EVENTS, text, where, "a line 'total number of events:'"))
        yield Sample(
            metric="events_per_s",
            value=_number(_RATE, text, where, "a line 'events per second:'"),
            unit=Unit.PER_SECOND,
            better=Better.HIGHER,
            source=STDOUT,
        )
        yield Sample(
            metric="operations",
            value=events,
            unit=Unit.COUNT,
            better=Better.NEITHER,
            source=STDOUT,
        )
        latencies = histogram((_bin(m) for m in _BIN.finditer(text)), source=STDOUT)
        if latencies.count != events:
            raise BrokenError(
                f"{where}: sysbench counted {events} events and its histogram holds "
                f"{latencies.count}; expected the whole output of a run with --histogram=on"
            )
        maximum_ms = _number(_MAXIMUM_MS, text, where, "a line 'max:' under 'Latency (ms):'")
        yield from latency_readings(latencies, maximum_ms / 1000)


def _command(setting: Setting, threads: int, *, time_s: int, events: int) -> Command:
    return Command(
        argv=(
            BINARY,
            "cpu",
            f"--threads={threads}",
            f"--cpu-max-prime={integer(setting.parameters, 'max_prime')}",
            # sysbench 1.0 takes whole seconds only; a limit of 0 leaves it to the other one.
            f"--time={time_s}",
            f"--events={events}",
            "--histogram=on",
            "run",
        )
    )


def _bin(match: re.Match[str]) -> Bin:
    middle_s = float(match[1]) / 1000
    width_s = 2 * math.sinh(BIN_LOG_WIDTH / 2) * middle_s
    # A value printed as 0.000 lies below half a microsecond.
    return Bin(max(middle_s, PRINTED_STEP_S / 2), max(width_s, PRINTED_STEP_S), int(match[2]))


def _number(pattern: re.Pattern[str], text: str, where: str, expected: str) -> float:
    match = pattern.search(text)
    try:
        if match is not None:
            return float(match[1])
    except ValueError:
        pass
    raise BrokenError(f"{where}: expected {expected} from sysbench, found none")


SYSBENCH_CPU = SysbenchCpu()
