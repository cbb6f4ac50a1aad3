"""Measure with fio random 4 KiB reads or writes of the data disk, bypassing the page cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from labctl.base.command import Command
from labctl.base.errors import UsageError
from labctl.store.samples import Reading
from labctl.store.trial import TrialFolder
from labctl.workloads import fio
from labctl.workloads.readers import fio as reader
from labctl.workloads.workload import (
    ChoiceParameter,
    IntegerParameter,
    Parameter,
    Parameters,
    Setting,
    WorkloadBase,
    check_parameters,
    integer,
)

DIRECTIONS = {"randread": ("read",), "randwrite": ("write",), "randrw": ("read", "write")}


@dataclass(frozen=True, slots=True, kw_only=True)
class FioRandom(WorkloadBase):
    name: str = "fio-random"
    durations: str = fio.DURATIONS
    operation: str = "one 4 KiB request"
    parameters: tuple[Parameter, ...] = (
        ChoiceParameter(
            name="mode", default="randread", choices=tuple(DIRECTIONS), description="direction"
        ),
        # libaio: there on every kernel that matters; io_uring may be switched off on one side
        # (kernel.io_uring_disabled, seccomp), and psync can't keep more than one in flight.
        ChoiceParameter(
            name="engine",
            default="libaio",
            choices=("libaio", "io_uring", "psync"),
            description="how requests are submitted; 'psync' has one at a time",
        ),
        IntegerParameter(
            name="iodepth",
            default=1,
            minimum=1,
            maximum=1024,
            description="requests in flight; at 1 latency holds no waiting behind one's own "
            "requests",
        ),
        IntegerParameter(
            name="fsync",
            default=0,
            minimum=0,
            maximum=1_000_000,
            description="fsync after every so many writes, 0 for never",
        ),
        IntegerParameter(
            name="read_percent",
            default=50,
            minimum=1,
            maximum=99,
            description="share of reads under mode 'randrw'",
        ),
        IntegerParameter(
            name="seed",
            default=1,
            minimum=1,
            maximum=2**31 - 2,
            description="of the offsets: every trial asks for the same ones, a warm-up for others",
        ),
    )
    binaries: tuple[str, ...] = (fio.BINARY,)
    primary: str = "iops"
    rate_metric: str | None = "iops"
    uses_data_disk: bool = True

    def check_parameters(self, given: Mapping[str, object]) -> Parameters:
        checked = check_parameters(self.name, self.parameters, given)
        if checked["engine"] == "psync" and checked["iodepth"] != 1:
            raise UsageError(
                f"workload '{self.name}': 'iodepth' is {checked['iodepth']} and engine 'psync' "
                "keeps one request in flight",
                hint="Choose engine libaio or io_uring, or an 'iodepth' of 1.",
            )
        if checked["fsync"] and checked["mode"] == "randread":
            raise UsageError(
                f"workload '{self.name}': 'fsync' is {checked['fsync']} and mode 'randread' "
                "writes nothing",
                hint="Choose mode randwrite or randrw, or leave 'fsync' out.",
            )
        return checked

    def check_duration(self, duration_s: float) -> None:
        fio.check_duration(self.name, duration_s)

    def writes_data_disk(self, parameters: Parameters) -> bool:
        return "write" in DIRECTIONS[str(parameters["mode"])]

    def command(self, setting: Setting) -> Command:
        job = _job(setting.parameters, integer(setting.parameters, "seed"))
        return fio.command(setting, self.name, job)

    def warmup_command(self, setting: Setting, window_s: float, rate: float | None) -> Command:
        # Other offsets than the trial's: under a cached mode a warm-up with the trial's own ones
        # would have the host's page cache answer the trial.
        job = _job(setting.parameters, integer(setting.parameters, "seed") + 1)
        return fio.warmup_command(setting, self.name, window_s, job)

    def window_rates(self, stdout: str, files: Mapping[str, bytes]) -> list[float]:
        return fio.window_rates(files)

    def parse(self, raw: TrialFolder) -> Iterator[Reading]:
        return reader.random(fio.report_of(raw))


def _job(parameters: Parameters, seed: int) -> tuple[str, ...]:
    words = [
        f"--rw={parameters['mode']}",
        "--bs=4k",
        f"--ioengine={parameters['engine']}",
        f"--iodepth={parameters['iodepth']}",
        f"--randseed={seed}",
    ]
    if parameters["mode"] == "randrw":
        words.append(f"--rwmixread={parameters['read_percent']}")
    if parameters["fsync"]:
        words.append(f"--fsync={parameters['fsync']}")
    return tuple(words)


FIO_RANDOM = FioRandom()
