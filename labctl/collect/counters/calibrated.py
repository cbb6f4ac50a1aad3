"""Compute IPC without a PMU: instructions per operation, counted once with callgrind, times
operations, over reference cycles (METHOD rule 13).

It is the throughput per busy CPU second in another unit, and not independent evidence. The same
binary on the same input executes the same instructions, whichever tool counts them. Each side has
its own count, because a libc may choose other routines by CPUID.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from labctl.base.command import Command
from labctl.base.errors import BrokenError
from labctl.base.tuning import Level
from labctl.collect.collector import Collector, RawTrial, Target, why_no_image
from labctl.collect.known import Known, MissingReadingError
from labctl.store.samples import Reading, Unavailable, sample
from labctl.store.trial import TrialFolder

RAW = "calibration.json"
METRIC = "ipc{source=calibrated}"

COUNTED_OPERATIONS = (50, 150)
"""Two runs, so that starting up cancels out. Under TCG they take about 10 and 14 s."""

_COLLECTED = re.compile(r"^==\d+== Collected : (\d{1,30})\s*$", re.M)
_LACKEY_COUNTED = re.compile(r"^==\d+==\s+guest instrs:\s+(\d[\d,]{0,40})\s*$", re.M)
_BOGOMIPS = re.compile(r"^bogomips\s*:\s*(\d+\.\d+)\s*$", re.M)


def callgrind_command(command: Command) -> Command:
    """Return the same command under callgrind, which prints its count to standard error."""
    return _under(command, "--tool=callgrind", "--callgrind-out-file=/dev/null")


def lackey_command(command: Command) -> Command:
    """Return the same command under lackey, which prints its count to standard error. It shares
    valgrind's translator with callgrind, but counts with code of its own."""
    return _under(command, "--tool=lackey", "--basic-counts=yes")


def _under(command: Command, *options: str) -> Command:
    return Command(
        argv=("/usr/bin/valgrind", *options, *command.argv), env=command.env, files=command.files
    )


def collected_instructions(stderr: str) -> int:
    """Return the user instructions that callgrind counted; raises BrokenError if its output has
    none."""
    return _one(_COLLECTED, stderr, "'Collected : N' from callgrind")


def lackey_instructions(stderr: str) -> int:
    """Return the user instructions that lackey counted; raises BrokenError if its output has
    none."""
    return _one(_LACKEY_COUNTED, stderr, "'guest instrs: N' from lackey")


def _one(pattern: re.Pattern[str], stderr: str, what: str) -> int:
    found = pattern.findall(stderr)
    if len(found) != 1:
        said = stderr.strip().splitlines()[-1:] or ["nothing"]
        raise BrokenError(
            f"expected one line {what}, found {len(found)}; its last words: {said[0]}"
        )
    return int(found[0].replace(",", ""))


def instructions_per_operation(counts: Sequence[tuple[int, int]]) -> float:
    """Return the slope between two (operations, instructions); raises BrokenError if there is
    none."""
    if len(counts) != 2 or counts[0][0] >= counts[1][0] or counts[0][1] >= counts[1][1]:
        raise BrokenError(f"callgrind's counts don't grow with the operations: {list(counts)}")
    (few, instructions_few), (many, instructions_many) = counts
    return (instructions_many - instructions_few) / (many - few)


def error_bound(count: float, *others: float) -> float:
    """Return the largest share by which another count of the same instructions differs from this
    one.
    """
    return max(abs(other / count - 1) for other in others)


def tsc_hz(cpuinfo: str, tsc_freq_khz: str | None = None) -> float | None:
    """Return the rate of the host's time-stamp counter in Hz, None if it is unknown (not x86).

    `tsc_freq_khz`: the text of /sys/devices/system/cpu/cpu0/tsc_freq_khz, if the kernel has it.
    Otherwise the rate is from /proc/cpuinfo: the kernel sets loops_per_jiffy from the TSC (lpj_fine
    in arch/x86/kernel/tsc.c), and bogomips is loops_per_jiffy * HZ / 500000, so two per TSC MHz.
    """
    if tsc_freq_khz is not None and tsc_freq_khz.strip().isdecimal():
        return int(tsc_freq_khz) * 1000.0
    found = _BOGOMIPS.search(cpuinfo)
    if found is None or "constant_tsc" not in cpuinfo:
        return None
    rate = float(found[1]) * 1e6 / 2
    return rate if rate > 0 else None


def parse(trial: RawTrial) -> Iterator[Reading]:
    """Return ipc{source=calibrated}: user instructions per reference cycle of busy CPU time.

    It takes `operations` and the CPU time of the vCPU threads (natively of the workload) from the
    trial's other readings. Raises BrokenError when calibration.json isn't whole.
    """
    if not trial.calibratable or trial.rate_metric is None:
        yield _unavailable(
            "this workload waits or does I/O: its instructions per operation are not constant."
        )
        return
    if not trial.folder.has(RAW):
        yield _unavailable("its instructions per operation were not counted on this side.")
        return
    per_operation, reference_hz = _calibration(trial.folder)
    if reference_hz is None:
        yield _unavailable("the rate of the host's time-stamp counter is unknown.")
        return
    known = Known(trial.readings)
    try:
        instructions = per_operation * known.value("operations")
        cycles = reference_hz * known.workload_cpu_s(trial.kind)
    except MissingReadingError as error:
        yield _unavailable(str(error))
        return
    yield sample("ipc", instructions / cycles, source=RAW, labels={"source": "calibrated"})


def _calibration(raw: TrialFolder) -> tuple[float, float | None]:
    """(instructions per operation, TSC rate in Hz)."""
    data = raw.read_json(RAW)
    try:
        per_operation = float(data["instructions_per_operation"])
        reference_hz = None if data["tsc_hz"] is None else float(data["tsc_hz"])
    except (KeyError, TypeError, ValueError) as error:
        raise BrokenError(
            f"{raw.path / RAW}: expected instructions_per_operation and tsc_hz, found something "
            f"else ({error!r})"
        ) from error
    for value in (per_operation, reference_hz):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise BrokenError(f"{raw.path / RAW}: expected numbers above 0, found {value}")
    return per_operation, reference_hz


def _unavailable(reason: str) -> Unavailable:
    return Unavailable(metric=METRIC, reason=reason)


@contextmanager
def _attached(target: Target) -> Iterator[None]:
    """Store this side's count beside the trial's raw files."""
    yield
    if (count := target.calibration()) is not None:
        target.folder.write_raw_json(RAW, count)


CALIBRATED = Collector(
    name="calibrated",
    order=140,
    level=Level.COUNTERS,
    gives="IPC without a PMU",
    why_unavailable=why_no_image,
    attached=_attached,
    raw=(RAW,),
    parse=parse,
)
"""Counted once per image (`run/collectors/calibrate.py`), and stored with each trial."""
