"""Measure with osnoise what keeps a kernel thread that only reads the clock from running."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from labctl.base.command import Command
from labctl.store.samples import Reading
from labctl.store.trial import TrialFolder
from labctl.workloads import rtla
from labctl.workloads.readers import rtla as reader
from labctl.workloads.workload import Setting, Watcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Osnoise(Watcher):
    def watching(self, setting: Setting, seconds: int) -> Command:
        return rtla.command(self.name, setting, seconds, f"--threshold={reader.THRESHOLD_US}")

    def parse(self, raw: TrialFolder) -> Iterator[Reading]:
        where = str(raw.path / rtla.STDOUT)
        return reader.osnoise(raw.read_text(rtla.STDOUT), where, rtla.STDOUT)


OSNOISE = Osnoise(
    name="osnoise",
    operation="none: a busy loop per vCPU, in the kernel",
    parameters=(rtla.HISTOGRAM_US,),
    binaries=(rtla.BINARY,),
    places_itself=rtla.PLACES_ITSELF,
    primary="noise",
    tracers=("osnoise",),
)
