"""Measure with sysbench cpu how fast every vCPU finds primes: nothing but arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from labctl.base.command import Command
from labctl.store.samples import Reading
from labctl.store.trial import TrialFolder
from labctl.workloads.readers import sysbench as reader
from labctl.workloads.sysbench import BINARY, EACH_WINDOW, STDOUT
from labctl.workloads.workload import (
    IntegerParameter,
    Parameter,
    Setting,
    WorkloadBase,
    integer,
)

# Events of the first warm-up window, before the machine's rate is known: what an emulated guest
# does per second and thread. A faster machine only gets a shorter first window.
SLOW_RATE = 600
SLOW_RATE_MAX_PRIME = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class SysbenchCpu(WorkloadBase):
    name: str = "sysbench-cpu"
    operation: str = "one event: primes up to `max_prime`"
    parameters: tuple[Parameter, ...] = (
        # At 2000 an event takes 0.16 ms on a 2.5 GHz Xeon and 10 to 15 times that under TCG, so
        # that a p95 (400 events at least) is there after 2 s even with half of the CPU taken.
        IntegerParameter(
            name="max_prime",
            default=2000,
            minimum=10,
            maximum=1_000_000,
            description="up to where one event looks for primes; the cost grows with its power of "
            "1.5",
        ),
    )
    binaries: tuple[str, ...] = (BINARY,)
    primary: str = "events_per_s"
    rate_metric: str | None = "events_per_s"
    calibratable: bool = True

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
        return [reader.printed_rate(stdout, STDOUT)]

    def parse(self, raw: TrialFolder) -> Iterator[Reading]:
        where = str(raw.path / STDOUT)
        text = raw.read_text(STDOUT)
        return reader.readings(text, where, STDOUT, reader.printed_rate(text, where))


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
            *((EACH_WINDOW,) if time_s else ()),
            "--histogram=on",
            "run",
        )
    )


SYSBENCH_CPU = SysbenchCpu()
