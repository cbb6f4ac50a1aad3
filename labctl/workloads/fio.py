"""Provide what workloads made of fio have in common: its command line, its warm-up and its JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from labctl.base.command import Command
from labctl.base.errors import BrokenError, UsageError
from labctl.base.jsontext import parse_json
from labctl.store.samples import Reading
from labctl.store.trial import TrialFolder
from labctl.workloads.histogram import Bin, histogram, latency_readings
from labctl.workloads.windows import WANTED, RateWindow, batch_errors
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
_SAME_WINDOW_MS = 20
_SHORTEST_WINDOW_S = 0.05

# fio's latency bins: 64 per power of two from 128 ns on, 1 ns below; JSON+ names a bin by its
# middle (FIO_IO_U_PLAT_BITS in stat.h, plat_idx_to_val in stat.c).
PLAT_BITS = 6


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
    logged = _logged(files.get(LOG, b"").decode(errors="replace"))
    return list(logged.values()) or [_whole_rate(files)]


def errors(raw: TrialFolder) -> Iterator[Reading]:
    """Yield how sure a trial is of its `iops`, where fio logged windows enough."""
    source = f"files/{LOG}"
    if not raw.has(source):
        return
    windows, begun_ms = [], 0
    for end_ms, rate in _logged(raw.read_text(source)).items():
        seconds = (end_ms - begun_ms) / 1000
        windows.append(RateWindow(seconds, rate * seconds))
        begun_ms = end_ms
    yield from batch_errors(windows, "iops", source)


def _logged(text: str) -> dict[int, float]:
    """Requests per second of each window by its end in ms. fio(1), "LOG FILE FORMATS": time (ms),
    value, direction, …, a line for each direction and window."""
    rates: dict[int, float] = {}
    ends: dict[int, int] = {}  # of windows, by twenties of ms: a guest may have written of millions
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) < 3 or not all(f.isdecimal() and len(f) < 16 for f in fields[:3]):
            raise BrokenError(f"{LOG}: expected 'time, value, direction' of fio, found {line!r}")
        time_ms, rate = int(fields[0]), float(fields[1])
        # The directions of one window end within a millisecond or two of each other.
        place = time_ms // _SAME_WINDOW_MS
        near = (ends.get(place + step, time_ms + _SAME_WINDOW_MS) for step in (-1, 0, 1))
        window = next((t for t in near if abs(t - time_ms) < _SAME_WINDOW_MS), time_ms)
        ends[window // _SAME_WINDOW_MS] = window
        rates[window] = rates.get(window, 0.0) + rate
    return rates


def _whole_rate(files: Mapping[str, bytes]) -> float:
    """Return the rate of all windows together: a guest that the host let run for less than a window
    at a time logs none of them."""
    if OUTPUT not in files:
        raise BrokenError(f"fio wrote neither {LOG} nor {OUTPUT}")
    job = read_job(files[OUTPUT].decode(errors="replace"), OUTPUT)
    rate = sum(number(job, OUTPUT, direction, "iops") for direction in ("read", "write"))
    if rate <= 0:
        raise BrokenError(f"{OUTPUT}: fio did no I/O at all")
    return rate


def read_job(text: str, where: str) -> Mapping[str, Any]:
    """Return the only job of a report; raises BrokenError when it failed, or when there is
    another.
    """
    # fio puts its notes and warnings into the same file, in front of the JSON.
    start = max(0, text.find("{"))
    try:
        report = parse_json(text[start:])
        (job,) = report["jobs"]
        error = job["error"]
    except (ValueError, KeyError, TypeError) as problem:
        raise BrokenError(
            f"{where}: expected the JSON of one fio job, found something else ({problem})"
        ) from problem
    if error != 0:
        said = text[:start].strip() or "no message"
        raise BrokenError(f"{where}: fio's job ended with error {error} ({said})")
    if not isinstance(job, dict):
        raise BrokenError(f"{where}: expected a fio job, found {job!r}")
    return job


def number(job: Mapping[str, Any], where: str, *keys: str) -> float:
    value = _node(job, where, *keys)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BrokenError(f"{where}: expected a number at '{'.'.join(keys)}', found {value!r}")
    return float(value)


def _node(job: Mapping[str, Any], where: str, *keys: str) -> Any:
    node: Any = job
    for key in keys:
        if not isinstance(node, dict) or key not in node:
            raise BrokenError(f"{where}: expected '{'.'.join(keys)}' in fio's job, found none")
        node = node[key]
    return node


def latency(
    job: Mapping[str, Any],
    where: str,
    section: str,
    kind: str,
    labels: Mapping[str, str],
    source: str,
) -> Iterator[Reading]:
    bins = _node(job, where, section, kind, "bins")
    try:
        found = [latency_bin(int(middle), int(count)) for middle, count in bins.items()]
    except (AttributeError, TypeError, ValueError) as error:
        raise BrokenError(f"{where}: expected latency bins at '{section}.{kind}.bins'") from error
    latencies = histogram(found, source=source, labels=labels)
    total = int(number(job, where, section, kind, "N"))
    if latencies.count != total:
        raise BrokenError(
            f"{where}: '{section}.{kind}' counts {total} samples and its bins hold "
            f"{latencies.count}"
        )
    maximum_s = number(job, where, section, kind, "max") / 1e9
    yield from latency_readings(latencies, maximum_s)


def latency_bin(middle_ns: int, count: int) -> Bin:
    exact_below = 1 << (PLAT_BITS + 1)
    width_ns = 1 if middle_ns < exact_below else 1 << (middle_ns.bit_length() - PLAT_BITS - 1)
    return Bin(max(middle_ns, 0.5) / 1e9, width_ns / 1e9, count)
