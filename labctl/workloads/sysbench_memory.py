"""Measure with sysbench memory how fast every vCPU reads or writes random words of a block beyond
the TLB.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from labctl.base.command import Command
from labctl.store.samples import Reading
from labctl.store.trial import TrialFolder
from labctl.workloads.readers import sysbench as reader
from labctl.workloads.sysbench import BINARY, EACH_WINDOW, STDOUT
from labctl.workloads.workload import (
    ChoiceParameter,
    IntegerParameter,
    Parameter,
    Setting,
    WorkloadBase,
    integer,
)

# Blocks of 16 MiB per second and thread before the machine's rate is known: what an emulated guest
# does. A faster machine only gets a shorter first window.
SLOW_RATE = 1
SLOW_RATE_BLOCK_MIB = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SysbenchMemory(WorkloadBase):
    name: str = "sysbench-memory"
    operation: str = "one pass of random accesses over a block"
    parameters: tuple[Parameter, ...] = (
        # 4,096 pages of 4 KiB: more than a second-level TLB holds (1,024 to 3,072 on x86-64 since
        # 2013), and 8 of 2 MiB, which even the first level holds. What is more makes an event,
        # which is a pass over the block, longer.
        IntegerParameter(
            name="block_mib",
            default=16,
            minimum=1,
            maximum=4096,
            description="size of each thread's own block in MiB; one event accesses as many words "
            "as it has",
        ),
        ChoiceParameter(
            name="operation",
            default="read",
            choices=("read", "write"),
            description="what is done with a word",
        ),
    )
    binaries: tuple[str, ...] = (BINARY,)
    primary: str = "events_per_s"
    rate_metric: str | None = "events_per_s"
    # An event is millions of instructions: counting them would take hours under callgrind.
    calibratable: bool = False

    def command(self, setting: Setting) -> Command:
        self.check_duration(setting.duration_s)
        return _command(setting, time_s=int(setting.duration_s), total="1024T")

    def warmup_command(self, setting: Setting, window_s: float, rate: float | None) -> Command:
        if rate is None:
            relative = integer(setting.parameters, "block_mib") / SLOW_RATE_BLOCK_MIB
            rate = SLOW_RATE * setting.vcpus / relative
        # sysbench's memory test knows no number of events, but one of bytes, the same for each
        # thread.
        events = setting.vcpus * max(1, round(rate * window_s / setting.vcpus))
        block_mib = integer(setting.parameters, "block_mib")
        return _command(setting, time_s=0, total=f"{events * block_mib}M")

    def window_rates(self, stdout: str, files: Mapping[str, bytes]) -> list[float]:
        return [reader.event_rate(stdout, STDOUT)]

    def parse(self, raw: TrialFolder) -> Iterator[Reading]:
        text, where = raw.read_text(STDOUT), str(raw.path / STDOUT)
        return reader.readings(text, where, STDOUT, reader.event_rate(text, where))


def _command(setting: Setting, *, time_s: int, total: str) -> Command:
    """Return the command. `total`: bytes after which it ends; 1024T is as good as none."""
    return Command(
        argv=(
            BINARY,
            "memory",
            f"--threads={setting.vcpus}",
            f"--memory-block-size={integer(setting.parameters, 'block_mib')}M",
            # A block for each thread: one that all share would measure cache lines going round.
            "--memory-scope=local",
            f"--memory-oper={setting.parameters['operation']}",
            "--memory-access-mode=rnd",
            # The default prefers 1 % of the block, which TLBs do cover.
            "--rand-type=uniform",
            # The same offsets each time.
            "--rand-seed=1",
            f"--memory-total-size={total}",
            # sysbench 1.0 takes whole seconds only; a limit of 0 leaves it to the other one.
            f"--time={time_s}",
            "--events=0",
            *((EACH_WINDOW,) if time_s else ()),
            "--histogram=on",
            "run",
        )
    )


SYSBENCH_MEMORY = SysbenchMemory()
