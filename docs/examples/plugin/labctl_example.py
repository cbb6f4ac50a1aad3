"""Add a row to each of labctl's tables; pyproject.toml names them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from labctl.analysis.judge import judge
from labctl.base.errors import BrokenError
from labctl.base.metrics.row import Metric
from labctl.base.tuning import Level, number
from labctl.base.units import Better, Unit
from labctl.collect.collector import Collector, Here, RawTrial, Target, reads
from labctl.collect.snapshots import RAW, read_snapshots
from labctl.host.doctor.check import Check, Result, Scope, fine, warn
from labctl.host.doctor.reader import Reader
from labctl.host.settings.knob import Knob, file_change
from labctl.report.export.formats import Format
from labctl.store.run_folder import LoadedRun
from labctl.store.samples import Reading, Unavailable, sample
from labctl.workloads.readers.named import Arguments, Named, Text

# A collector: the host's CPU pressure during the measured window, with its metric.

_PRESSURE = "proc/pressure/cpu"
_STALLED = re.compile(r"^some .*total=(\d+)$", re.MULTILINE)

CPU_PRESSURE = Metric(
    "cpu_pressure",
    Unit.FRACTION,
    Better.LOWER,
    "`/proc/pressure/cpu`: growth of `some total` ÷ length of the window",
    title="CPU pressure",
)


def _why_no_pressure(_: Here) -> str | None:
    return None if Path("/", _PRESSURE).exists() else f"this kernel has no /{_PRESSURE}."


def _snapshot(_: Target) -> Mapping[str, object]:
    path = Path("/", _PRESSURE)
    return {"cpu_pressure": path.read_text() if path.exists() else ""}


def _pressure(trial: RawTrial) -> Iterator[Reading]:
    snapshots = read_snapshots(trial.folder)
    found = [
        _STALLED.search(str(taken.get("cpu_pressure")))
        for taken in (snapshots.before, snapshots.after)
    ]
    if found[0] is None or found[1] is None:
        yield Unavailable(metric="cpu_pressure", reason=f"no /{_PRESSURE} was recorded.")
        return
    stalled_s = (int(found[1][1]) - int(found[0][1])) / 1e6
    yield sample("cpu_pressure", stalled_s / snapshots.seconds, source=RAW)


COLLECTOR = Collector(
    name="cpu-pressure",
    level=Level.COUNTERS,
    gives="`cpu_pressure`: the share of time in which a task waited for a CPU",
    order=1000,  # after labctl's own
    why_unavailable=_why_no_pressure,
    attached=reads(_snapshot),
    parse=_pressure,
)

# A reader of a workload's report: `metrics: {report: {reader: dd, from: stderr}}`.

_COPIED = re.compile(r"^(\d+) bytes.* copied, ([\d.e-]+) s,", re.MULTILINE)

COPY_BANDWIDTH = Metric(
    "copy_bandwidth", Unit.BYTES_PER_SECOND, Better.HIGHER, "dd: bytes ÷ seconds", felt=True
)


def _dd(report: Text, _: Text | None, __: Arguments) -> Iterator[Reading]:
    found = _COPIED.search(report.text)
    if found is None or float(found[2]) <= 0:
        raise BrokenError(f"{report.where}: expected dd's line 'N bytes copied, N s', found none")
    yield sample("copy_bandwidth", int(found[1]) / float(found[2]), source=report.source)


READER = Named(read=_dd, metrics=("copy_bandwidth",))

# A check of `labctl doctor`.


def _pressure_check(reader: Reader, _: Scope) -> Result:
    if reader.text(f"/{_PRESSURE}") is None:
        return warn("the kernel does not count it", "boot the host with 'psi=1'", False)
    return fine("the kernel counts it", True)


CHECK = Check("pressure-stall", "tracing", "`cpu_pressure` needs it.", _pressure_check)

# An export: `labctl report RUN --format markdown`.


def _markdown(run: LoadedRun, fresh: Sequence[LoadedRun]) -> Iterable[bytes]:
    yield b"| tuning | against | workload | metric | verdict |\n|---|---|---|---|---|\n"
    for one in judge(run, fresh).comparisons:
        if one.verdict is not None:
            cells = (one.tuning, one.against, one.workload, one.metric, one.verdict.shown)
            yield f"| {' | '.join(cells)} |\n".encode()


EXPORT = Format("markdown", "Print verdicts as a table.", "the verdicts, in Markdown", _markdown)

# A setting of the host, for `host:` in a tuning and for `labctl host status`.

_INTERVAL = "proc/sys/vm/stat_interval"

SETTING = Knob(
    name="stat-interval",
    what="how often the kernel updates its memory counters, in seconds",
    changes=lambda value, place: [file_change(place.root / _INTERVAL, value)],
    now=lambda place: place.value(_INTERVAL),
    takes=number(1, 3600),
)
