"""Measure with oslat how long a loop that only reads the clock is kept from running."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from labctl.base.command import Command
from labctl.store.samples import Reading
from labctl.store.trial import TrialFolder
from labctl.workloads.readers import oslat as reader
from labctl.workloads.workload import IntegerParameter, Setting, Watcher, integer

BINARY = "/usr/bin/oslat"
OUTPUT = "oslat.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Oslat(Watcher):
    def watching(self, setting: Setting, seconds: int) -> Command:
        # Before it counts it warms up by itself, for a second.
        priority = integer(setting.parameters, "priority")
        cpus = setting.cpu_list
        return Command(
            argv=(
                BINARY,
                # It takes all CPUs of the machine otherwise, whatever its affinity says.
                f"--cpu-list={cpus}",
                # Where the thread sleeps that waits for the others: CPU 0 may not be one of these.
                f"--cpu-main-thread={cpus.partition('-')[0].partition(',')[0]}",
                f"--duration={seconds}",
                f"--bucket-size={reader.BUCKETS}",
                *((f"--rtprio={priority}",) if priority else ()),
                "--quiet",
                "--zero-omit",
                f"--json={OUTPUT}",
            ),
            files=(OUTPUT,),
        )

    def parse(self, raw: TrialFolder) -> Iterator[Reading]:
        source = f"files/{OUTPUT}"
        return reader.readings(raw.read_text(source), str(raw.path / source), source)


OSLAT = Oslat(
    name="oslat",
    operation="none: a busy loop per vCPU",
    parameters=(
        # A loop that never sleeps, above everything else of its CPU, is for CPUs that nobody else
        # needs: elsewhere real-time throttling stops it for 50 ms in each second.
        IntegerParameter(
            name="priority",
            default=0,
            minimum=0,
            maximum=98,
            description="SCHED_FIFO priority of the loops, 0 for the policy that they are given",
        ),
    ),
    binaries=(BINARY,),
    primary="noise",
    # It is told a CPU for its main thread (--cpu-main-thread).
    places_itself=True,
)
