"""Provide what workloads made of fio have in common: its command line and its warm-up."""

from __future__ import annotations

from collections.abc import Mapping

from labctl.base.command import Command
from labctl.base.errors import BrokenError, UsageError
from labctl.store.trial import TrialFolder
from labctl.workloads.readers import fio as reader
from labctl.workloads.windows import WANTED
from labctl.workloads.workload import Setting

BINARY = "/usr/bin/fio"
OUTPUT = "fio.json"
SHORTEST_S = 0.1
DURATIONS = f"{SHORTEST_S:g} s or more"
_LOG_NAME = "windows"
LOG = f"{_LOG_NAME}_iops.log"
_WARMUP_WINDOWS = 3
_REST = 0.5
"""Rest of a window: fio logs one when the next has begun."""
_SHORTEST_WINDOW_S = 0.05


def check_duration(program: str, duration_s: float) -> None:
    """Raise UsageError for less than fio can run."""
    if duration_s < SHORTEST_S:
        raise UsageError(
            f"workload '{program}' cannot run for {duration_s:g} s",
            hint=f"Give a 'duration_s' of {SHORTEST_S:g} or more.",
        )


def command(setting: Setting, program: str, job: tuple[str, ...]) -> Command:
    """Return the command of fio on all data disks, bypassing the page cache; `job`: its options
    there. Raises UsageError without a data disk."""
    window_s = max(_SHORTEST_WINDOW_S, setting.duration_s / (WANTED + _REST))
    return _command(setting, program, setting.duration_s, window_s, job)


def _command(
    setting: Setting, program: str, runtime_s: float, window_s: float, job: tuple[str, ...]
) -> Command:
    if not setting.data_paths:
        raise UsageError(f"workload '{program}' needs a data disk and was given none")
    # One job on all disks, a request on each in turn; a colon in a name would part two.
    paths = ":".join(path.replace(":", r"\:") for path in setting.data_paths)
    return Command(
        argv=(
            BINARY,
            "--name=labctl",
            f"--filename={paths}",
            "--direct=1",
            "--time_based=1",
            f"--runtime={round(runtime_s * 1000)}ms",
            "--size=100%",
            # A map of blocks done would cost memory and time that differ with the disk's size.
            "--norandommap=1",
            # A wrong path must fail, not become a new file; a disk in use must stay whole.
            "--allow_file_create=0",
            "--allow_mounted_write=0",
            "--eta=never",
            "--output-format=json+",
            f"--output={OUTPUT}",
            f"--write_iops_log={_LOG_NAME}",
            f"--log_avg_msec={round(window_s * 1000)}",
            "--per_job_logs=0",
            *job,
        ),
        files=(LOG, OUTPUT),
    )


def warmup_command(
    setting: Setting, program: str, window_s: float, job: tuple[str, ...]
) -> Command:
    """Return several windows in one process, told apart by fio's own log: under TCG fio takes
    longer to start than a window lasts."""
    window_s = max(window_s, SHORTEST_S)
    return _command(setting, program, (_WARMUP_WINDOWS + _REST) * window_s, window_s, job)


def window_rates(files: Mapping[str, bytes]) -> list[float]:
    """Return requests per second of each window of a warm-up."""
    logged = reader.logged(files.get(LOG, b"").decode(errors="replace"), LOG)
    return list(logged.values()) or [_whole_rate(files)]


def _whole_rate(files: Mapping[str, bytes]) -> float:
    """Return the rate of all windows together: a guest that the host let run for less than a window
    at a time logs none of them."""
    if OUTPUT not in files:
        raise BrokenError(f"fio wrote neither {LOG} nor {OUTPUT}")
    job = reader.read_job(files[OUTPUT].decode(errors="replace"), OUTPUT)
    rate = sum(reader.number(job, OUTPUT, direction, "iops") for direction in ("read", "write"))
    if rate <= 0:
        raise BrokenError(f"{OUTPUT}: fio did no I/O at all")
    return rate


def report_of(raw: TrialFolder) -> reader.Report:
    """Return what fio left in a trial."""
    source, log = f"files/{OUTPUT}", f"files/{LOG}"
    logged = raw.read_text(log) if raw.has(log) else None
    return reader.Report(raw.read_text(source), str(raw.path / source), source, logged, log)
