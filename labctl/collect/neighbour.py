"""Run the neighbour: stress-ng hogs that compete with a trial for the CPU, and their throughput."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from labctl.base.command import Command
from labctl.base.errors import BrokenError
from labctl.base.yamltext import parse_yaml
from labctl.collect.collector import Source
from labctl.store.samples import Reading, Sample, Unavailable, sample
from labctl.store.trial import TrialFolder

BINARY = "/usr/bin/stress-ng"
OUTPUT = "hog.yaml"
WORKER = "stress-ng-cpu"
"""The name that stress-ng gives the process that does the work."""
RAW = "neighbour.json"

# stress-ng 0.15 ends within milliseconds of SIGTERM, SIGINT or SIGHUP, sent to it or to its
# whole group, and then writes its metrics; SIGALRM, SIGUSR1 and SIGUSR2 don't end it.
STOP_SIGNAL = signal.SIGTERM

# Should nobody be left to stop it.
LIMIT_S = 7200


def hog_command() -> Command:
    """Return one hog: a process that keeps one CPU busy until STOP_SIGNAL."""
    return Command(
        argv=(
            BINARY,
            "--cpu",
            "1",
            # One method: the default takes turns among some eighty whose operations differ in
            # length, so that the count would depend on when the hog was stopped.
            "--cpu-method",
            "int64",
            "--metrics-brief",
            "--yaml",
            OUTPUT,
            "--timeout",
            str(LIMIT_S),
        ),
        files=(OUTPUT,),
    )


def neighbour_readings(raw: TrialFolder, host: Iterable[Reading]) -> Iterator[Reading]:
    """Yield the neighbour's share and throughput in the measured window; nothing without a
    neighbour.

    `host`: the readings of the host's threads, of which `host_cpu{thread=neighbour}` is used.
    neighbour_cpu: CPU seconds per second of all hogs together, in the measured window.
    neighbour_ops_per_s: that times (operations / CPU seconds) over the hogs' whole lives. A hog
    can't be asked for its count at the window's edges, but what it does per CPU second of its own
    barely changes (it neither sleeps nor shares anything but the core and its caches).
    Raises BrokenError when a hog's report can't be read.
    """
    if not raw.has(RAW):
        return
    where = str(raw.path / RAW)
    data = raw.read_json(RAW)
    hogs = data.get("hogs") if isinstance(data, dict) else None
    if not isinstance(hogs, list) or not hogs:
        raise BrokenError(f"{where}: expected a list of 'hogs', found none")
    work = [_work(hog, where) for hog in hogs]
    cpu = next((r for r in host if isinstance(r, Sample) and r.key == _KEY), None)
    if cpu is None:
        reason = "the CPU time of the neighbour's threads is not known."
        yield Unavailable(metric="neighbour_cpu", reason=reason)
        yield Unavailable(metric="neighbour_ops_per_s", reason=reason)
        return
    operations = sum(count for count, _ in work)
    cpu_s = sum(seconds for _, seconds in work)
    if cpu_s <= 0:
        raise BrokenError(f"{where}: the hogs used no CPU time")
    yield sample("neighbour_cpu", cpu.value, source=cpu.source)
    yield sample("neighbour_ops_per_s", operations / cpu_s * cpu.value, source=RAW)


_KEY = "host_cpu{thread=neighbour}"


def _work(hog: Any, where: str) -> tuple[float, float]:
    """(operations, CPU seconds) of one hog's life."""
    try:
        report = parse_yaml(hog[OUTPUT])
        (metrics,) = report["metrics"]
        return _finite(metrics, "bogo-ops"), (
            _finite(metrics, "user-time") + _finite(metrics, "system-time")
        )
    except (KeyError, TypeError, ValueError) as error:
        said = hog.get("stderr.txt", "") if isinstance(hog, dict) else ""
        raise BrokenError(
            f"{where}: expected stress-ng's YAML with one stressor's metrics as '{OUTPUT}' of each "
            f"hog, found something else; stress-ng said: {str(said).strip()[-200:] or 'nothing'}"
        ) from error


def _finite(metrics: Mapping[str, Any], key: str) -> float:
    value = metrics[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        raise ValueError(f"{key} is {value!r}")
    return float(value)


NEIGHBOUR = Source(order=120, parse=lambda trial: neighbour_readings(trial.folder, trial.readings))
