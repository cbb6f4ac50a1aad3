"""fio: random 4 KiB reads or writes of the data disk, past the machine's own page cache."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from labctl.base.command import Command
from labctl.base.errors import BrokenError, UsageError
from labctl.base.units import Better, Unit
from labctl.store.samples import Reading, Sample
from labctl.store.trial import TrialFolder
from labctl.workloads.histogram import Bin, histogram, latency_readings
from labctl.workloads.model import (
    ChoiceParameter,
    IntegerParameter,
    Parameter,
    Parameters,
    Peer,
    Setting,
    check_parameters,
    integer,
)

BINARY = "/usr/bin/fio"
OUTPUT = "fio.json"
DIRECTIONS = {"randread": ("read",), "randwrite": ("write",), "randrw": ("read", "write")}
SHORTEST_S = 0.1
WARMUP_WINDOWS = 3
WARMUP_LOG = "warmup"
LOG = f"{WARMUP_LOG}_iops.log"
_SAME_WINDOW_MS = 20

# fio's latency bins: 64 per power of two from 128 ns on, 1 ns below; JSON+ names a bin by its
# middle (FIO_IO_U_PLAT_BITS in stat.h, plat_idx_to_val in stat.c).
PLAT_BITS = 6


@dataclass(frozen=True, slots=True)
class FioRandom:
    name: str = "fio-random"
    description: str = "fio, random 4 KiB reads or writes with O_DIRECT on the data disk"
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
            description="how requests are submitted",
        ),
        IntegerParameter(
            name="iodepth", default=1, minimum=1, maximum=1024, description="requests in flight"
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
            description="of the offsets: the same ones under every tuning",
        ),
    )
    binaries: tuple[str, ...] = (BINARY,)
    primary: str = "iops"
    rate_metric: str | None = "iops"
    calibratable: bool = False
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
        if duration_s < SHORTEST_S:
            raise UsageError(
                f"workload '{self.name}' cannot run for {duration_s:g} s",
                hint=f"Give a 'duration_s' of {SHORTEST_S:g} or more.",
            )

    def writes_data_disk(self, parameters: Parameters) -> bool:
        return "write" in DIRECTIONS[str(parameters["mode"])]

    def peer(self, parameters: Parameters) -> Peer | None:
        return None

    def command(self, setting: Setting) -> Command:
        return _command(setting, setting.duration_s, integer(setting.parameters, "seed"))

    def warmup_command(self, setting: Setting, window_s: float, rate: float | None) -> Command:
        # Other offsets than the trial's: under a cached mode a warm-up with the trial's own ones
        # would have the host's page cache answer the trial.
        seed = integer(setting.parameters, "seed") + 1
        # Several windows in one process, told apart by fio's own log: under TCG fio takes longer
        # to start than a window lasts.
        window_s = max(window_s, SHORTEST_S)
        # fio logs a window when the next one has begun.
        command = _command(setting, (WARMUP_WINDOWS + 0.5) * window_s, seed)
        return Command(
            argv=(
                *command.argv,
                f"--write_iops_log={WARMUP_LOG}",
                f"--log_avg_msec={round(window_s * 1000)}",
                "--per_job_logs=0",
            ),
            files=(LOG, OUTPUT),
        )

    def exact_command(self, setting: Setting, operations: int) -> Command | None:
        return None

    def window_rates(self, stdout: str, files: Mapping[str, bytes]) -> list[float]:
        """fio(1), "LOG FILE FORMATS": time (ms), value, direction, …, a line for each direction
        and window."""
        rates: dict[int, float] = {}
        for line in files.get(LOG, b"").decode(errors="replace").splitlines():
            fields = [field.strip() for field in line.split(",")]
            if len(fields) < 3 or not all(field.isdecimal() for field in fields[:3]):
                raise BrokenError(
                    f"{LOG}: expected 'time, value, direction' of fio, found {line!r}"
                )
            time_ms, rate = int(fields[0]), float(fields[1])
            # The directions of one window end within a millisecond or two of each other.
            window = next((t for t in rates if abs(t - time_ms) < _SAME_WINDOW_MS), time_ms)
            rates[window] = rates.get(window, 0.0) + rate
        return list(rates.values()) or [_whole_rate(files)]

    def parse(self, raw: TrialFolder) -> Iterator[Reading]:
        source = f"files/{OUTPUT}"
        where = str(raw.path / source)
        job = _job(raw.read_text(source), where)
        done = {d: _number(job, where, d, "total_ios") for d in ("read", "write")}
        directions = [direction for direction, count in done.items() if count > 0]
        if not directions:
            raise BrokenError(f"{where}: fio did no I/O at all")
        yield Sample(
            metric="operations",
            value=sum(done.values()),
            unit=Unit.COUNT,
            better=Better.NEITHER,
            source=source,
        )
        for name, unit, key in (
            ("iops", Unit.PER_SECOND, "iops"),
            ("bandwidth", Unit.BYTES_PER_SECOND, "bw_bytes"),
        ):
            values = {d: _number(job, where, d, key) for d in directions}
            yield _higher(name, sum(values.values()), unit, source, {})
            if len(directions) > 1:
                for direction, value in values.items():
                    yield _higher(name, value, unit, source, {"op": direction})
        for direction in directions:
            labels = {"op": direction} if len(directions) > 1 else {}
            yield from _latency(job, where, direction, "clat_ns", labels, source)
        if _number(job, where, "sync", "total_ios") > 0:
            yield from _latency(job, where, "sync", "lat_ns", {"op": "fsync"}, source)


def _command(setting: Setting, runtime_s: float, seed: int) -> Command:
    parameters = setting.parameters
    if setting.data_path is None:
        raise UsageError("workload 'fio-random' needs a data disk and was given none")
    path = setting.data_path.replace(":", r"\:")  # a colon would part two file names
    argv = [
        BINARY,
        "--name=labctl",
        f"--filename={path}",
        f"--rw={parameters['mode']}",
        "--bs=4k",
        "--direct=1",
        f"--ioengine={parameters['engine']}",
        f"--iodepth={parameters['iodepth']}",
        "--time_based=1",
        f"--runtime={round(runtime_s * 1000)}ms",
        "--size=100%",
        f"--randseed={seed}",
        # A map of blocks done would cost memory and time that differ with the disk's size.
        "--norandommap=1",
        # A wrong path must fail, not become a new file; a disk in use must stay whole.
        "--allow_file_create=0",
        "--allow_mounted_write=0",
        "--eta=never",
        "--output-format=json+",
        f"--output={OUTPUT}",
    ]
    if parameters["mode"] == "randrw":
        argv.append(f"--rwmixread={parameters['read_percent']}")
    if parameters["fsync"]:
        argv.append(f"--fsync={parameters['fsync']}")
    return Command(argv=tuple(argv), files=(OUTPUT,))


def _whole_rate(files: Mapping[str, bytes]) -> float:
    """The rate of all windows as one: a guest that the host let run for less than a window at a
    time logs none of them."""
    if OUTPUT not in files:
        raise BrokenError(f"fio wrote neither {LOG} nor {OUTPUT}")
    job = _job(files[OUTPUT].decode(errors="replace"), OUTPUT)
    rate = sum(_number(job, OUTPUT, direction, "iops") for direction in ("read", "write"))
    if rate <= 0:
        raise BrokenError(f"{OUTPUT}: fio did no I/O at all")
    return rate


def _job(text: str, where: str) -> Mapping[str, Any]:
    # fio puts its notes and warnings into the same file, in front of the JSON.
    start = max(0, text.find("{"))
    try:
        report = json.loads(text[start:])
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


def _number(job: Mapping[str, Any], where: str, *keys: str) -> float:
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


def _latency(
    job: Mapping[str, Any],
    where: str,
    section: str,
    kind: str,
    labels: Mapping[str, str],
    source: str,
) -> Iterator[Reading]:
    bins = _node(job, where, section, kind, "bins")
    try:
        found = [_bin(int(middle), int(count)) for middle, count in bins.items()]
    except (AttributeError, TypeError, ValueError) as error:
        raise BrokenError(f"{where}: expected latency bins at '{section}.{kind}.bins'") from error
    latencies = histogram(found, source=source, labels=labels)
    total = int(_number(job, where, section, kind, "N"))
    if latencies.count != total:
        raise BrokenError(
            f"{where}: '{section}.{kind}' counts {total} samples and its bins hold "
            f"{latencies.count}"
        )
    maximum_s = _number(job, where, section, kind, "max") / 1e9
    yield from latency_readings(latencies, maximum_s)


def _bin(middle_ns: int, count: int) -> Bin:
    exact_below = 1 << (PLAT_BITS + 1)
    width_ns = 1 if middle_ns < exact_below else 1 << (middle_ns.bit_length() - PLAT_BITS - 1)
    return Bin(max(middle_ns, 0.5) / 1e9, width_ns / 1e9, count)


def _higher(
    metric: str, value: float, unit: Unit, source: str, labels: Mapping[str, str]
) -> Sample:
    return Sample(
        metric=metric, value=value, unit=unit, better=Better.HIGHER, labels=labels, source=source
    )


FIO_RANDOM = FioRandom()
