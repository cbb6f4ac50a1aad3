"""Report the CPU time that neighbours got in a measured window, and their work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from labctl.base.errors import BrokenError
from labctl.base.yamltext import parse_yaml
from labctl.collect.collector import NeighbourWork, Source
from labctl.collect.snapshots import read_snapshots
from labctl.store.samples import Reading, Sample, Unavailable, sample, sample_key
from labctl.store.trial import TrialFolder

RAW = "neighbour.json"
OUTPUT = "hog.yaml"
"""Report of each hog, in files of a labctl whose only neighbours were hogs."""

CPU, OPERATIONS = "neighbour_cpu", "neighbour_ops_per_s"


def neighbour_readings(
    raw: TrialFolder, host: Iterable[Reading], work: Sequence[NeighbourWork] = ()
) -> Iterator[Reading]:
    """Yield the neighbours' share and throughput in the measured window; nothing without a
    neighbour.

    `host`: the readings of the host's threads, of which `host_cpu{thread=neighbour}` is used.
    `work`: the work of each neighbour in its whole life. neighbour_cpu: CPU seconds per second of
    all neighbours of one workload together, in the measured window. neighbour_ops_per_s: that times
    (operations / CPU seconds) over their whole lives. A neighbour's count cannot be read at the
    window's edges, but its operations per CPU second barely change. If neighbours run several
    workloads, each has a label of its own. Raises BrokenError for a file that cannot be read.
    """
    if not raw.has(RAW):
        return
    data = raw.read_json(RAW)
    if isinstance(data, dict) and "hogs" in data:
        work = _hogs(data["hogs"], str(raw.path / RAW))
    kinds = dict.fromkeys(one.workload for one in work)
    if not kinds:
        raise BrokenError(f"{raw.path / RAW}: expected the neighbours' results, found none")
    shares = _shares(raw, host, kinds)
    for name in kinds:
        labels = {"workload": name} if len(kinds) > 1 else {}
        yield from _readings(shares.get(name), [w for w in work if w.workload == name], labels)


_KEY = "host_cpu{thread=neighbour}"


def _shares(
    raw: TrialFolder, host: Iterable[Reading], kinds: Iterable[str]
) -> dict[str, tuple[float, str]]:
    """Return by workload the CPU seconds per second in the window, and the file with them."""
    names = list(kinds)
    if len(names) == 1:
        cpu = next((r for r in host if isinstance(r, Sample) and r.key == _KEY), None)
        return {} if cpu is None else {names[0]: (cpu.value, cpu.source)}
    snapshots = read_snapshots(raw)
    found: dict[str, tuple[float, str]] = {}
    for used in snapshots.beside or ():
        so_far, _ = found.get(used.workload, (0.0, ""))
        found[used.workload] = (so_far + used.cpu_s / snapshots.seconds, "host.json")
    return found


def _readings(
    share: tuple[float, str] | None, work: Sequence[NeighbourWork], labels: Mapping[str, str]
) -> Iterator[Reading]:
    done = sample_key(OPERATIONS, labels)
    if share is None:
        reason = "the CPU time of the neighbour's threads is unknown."
        yield Unavailable(metric=sample_key(CPU, labels), reason=reason)
        yield Unavailable(metric=done, reason=reason)
        return
    yield sample(CPU, share[0], source=share[1], labels=labels)
    if problem := next((one.problem for one in work if one.operations is None), None):
        yield Unavailable(metric=done, reason=problem)
        return
    operations = sum(one.operations or 0.0 for one in work)
    cpu_s = sum(one.cpu_s for one in work)
    if cpu_s <= 0:
        raise BrokenError(f"{RAW}: the neighbours used no CPU time")
    yield sample(OPERATIONS, operations / cpu_s * share[0], source=RAW, labels=labels)


def _hogs(hogs: Any, where: str) -> list[NeighbourWork]:
    """Return the work of the hogs in an older labctl's trial, by stress-ng's own reports."""
    if not isinstance(hogs, list) or not hogs:
        raise BrokenError(f"{where}: expected a list of 'hogs', found none")
    return [_hog(hog, where) for hog in hogs]


def _hog(hog: Any, where: str) -> NeighbourWork:
    try:
        report = parse_yaml(hog[OUTPUT])
        (metrics,) = report["metrics"]
        operations = _finite(metrics, "bogo-ops")
        cpu_s = _finite(metrics, "user-time") + _finite(metrics, "system-time")
    except (KeyError, TypeError, ValueError) as error:
        said = hog.get("stderr.txt", "") if isinstance(hog, dict) else ""
        raise BrokenError(
            f"{where}: expected stress-ng's YAML with one stressor's metrics as '{OUTPUT}' of each "
            f"hog, found something else; stress-ng said: {str(said).strip()[-200:] or 'nothing'}"
        ) from error
    return NeighbourWork(workload="cpu-hog", cpu_s=cpu_s, operations=operations)


def _finite(metrics: Mapping[str, object], key: str) -> float:
    value = metrics[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        raise ValueError(f"{key} is {value!r}")
    return float(value)


NEIGHBOUR = Source(
    order=120,
    parse=lambda trial: neighbour_readings(trial.folder, trial.readings, trial.neighbours),
)
