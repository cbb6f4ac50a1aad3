"""Measure with fio small writes, each with a flush after it, as a database commits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from labctl.base.command import Command
from labctl.store.samples import Reading
from labctl.store.trial import TrialFolder
from labctl.workloads import fio
from labctl.workloads.readers import fio as reader
from labctl.workloads.workload import (
    ChoiceParameter,
    IntegerParameter,
    Parameters,
    Setting,
    WorkloadBase,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FioFsync(WorkloadBase):
    def check_duration(self, duration_s: float) -> None:
        fio.check_duration(self.name, duration_s)

    def writes_data_disk(self, parameters: Parameters) -> bool:
        return True

    def command(self, setting: Setting) -> Command:
        return fio.command(setting, self.name, _job(setting.parameters))

    def warmup_command(self, setting: Setting, window_s: float, rate: float | None) -> Command:
        return fio.warmup_command(setting, self.name, window_s, _job(setting.parameters))

    def window_rates(self, stdout: str, files: Mapping[str, bytes]) -> list[float]:
        return fio.window_rates(files)

    def parse(self, raw: TrialFolder) -> Iterator[Reading]:
        return reader.flushes(fio.report_of(raw))


def _job(parameters: Parameters) -> tuple[str, ...]:
    return (
        # One after the other, as a log is written: what differs is the flush.
        "--rw=write",
        f"--bs={parameters['size_kib']}k",
        "--ioengine=psync",
        f"--{parameters['call']}=1",
    )


FIO_FSYNC = FioFsync(
    name="fio-fsync",
    durations=fio.DURATIONS,
    operation="one write and the flush after it",
    parameters=(
        # Natively an fsync also commits the file's time stamps to the file system's journal, which
        # a block device in a guest has not.
        ChoiceParameter(
            name="call",
            default="fdatasync",
            choices=("fdatasync", "fsync"),
            description="the flush",
        ),
        IntegerParameter(
            name="size_kib",
            default=4,
            minimum=4,
            maximum=1024,
            description="size of a write in KiB",
        ),
    ),
    binaries=(fio.BINARY,),
    primary="latency_p95",
    rate_metric="iops",
    uses_data_disk=True,
)
