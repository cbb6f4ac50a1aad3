"""Measure with osnoise what keeps a kernel thread that only reads the clock from running."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from labctl.base.command import Command
from labctl.base.errors import BrokenError
from labctl.store.samples import Reading, Unavailable, sample
from labctl.store.trial import TrialFolder
from labctl.workloads import rtla
from labctl.workloads.workload import Setting, Watcher

THRESHOLD_US = 5
"""Shortest interruption that counts as noise: the tracer's own default, set explicitly to be the
same everywhere.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Osnoise(Watcher):
    def watching(self, setting: Setting, seconds: int) -> Command:
        return rtla.command(self.name, setting, seconds, f"--threshold={THRESHOLD_US}")

    def parse(self, raw: TrialFolder) -> Iterator[Reading]:
        where = str(raw.path / rtla.STDOUT)
        report = rtla.read(raw.read_text(rtla.STDOUT), self.name, where)
        if report.seconds < 1:
            raise BrokenError(f"{where}: expected a second or more of osnoise, found less")
        yield _noise(report)
        yield sample("stalls", sum(column.count for column in report.columns), source=rtla.STDOUT)
        if not report.columns:
            reason = f"nothing kept a CPU's thread from running for {THRESHOLD_US} us."
            yield Unavailable(metric="latency_max", reason=reason)
            return
        yield sample(
            "latency_max",
            max(column.maximum_us for column in report.columns) * rtla.MICROSECOND_S,
            source=rtla.STDOUT,
        )


def _noise(report: rtla.Report) -> Reading:
    """Return the CPU seconds per second, all CPUs together."""
    total_us = 0.0
    for column in report.columns:
        if column.beyond > 1:
            reason = (
                f"more than one stall of {column.name} was too long for rtla's histogram, so their "
                "lengths are not known: raise 'histogram_us'."
            )
            return Unavailable(metric="noise", reason=reason)
        total_us += sum((length + 0.5) * count for length, count in column.by_length_us.items())
        # The only one beyond the histogram is the longest of all.
        total_us += column.maximum_us * column.beyond
    return sample("noise", total_us * rtla.MICROSECOND_S / report.seconds, source=rtla.STDOUT)


OSNOISE = Osnoise(
    name="osnoise",
    operation="none: a busy loop per vCPU, in the kernel",
    parameters=(rtla.HISTOGRAM_US,),
    binaries=(rtla.BINARY,),
    places_itself=rtla.PLACES_ITSELF,
    primary="noise",
    tracers=("osnoise",),
)
