"""Compute costs per operation: metrics derived from others of the same trial.

They divide totals of the whole trial. A program also starts and ends between the snapshots, and
that counts against it. Rates would lose this difference, as each has a window of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from labctl.collect import snapshots
from labctl.collect.collector import RawTrial, Source
from labctl.collect.counters import perf_stat
from labctl.collect.known import Known, MissingReadingError
from labctl.store.samples import Reading, Sample, Unavailable, sample, sample_key
from labctl.trace.files import RUNNER, stored

_MISSES = tuple(f"{what}_misses" for what in perf_stat.MISSES)

_PER_OPERATION = {
    "exits": "exits_per_op",
    "exit_time": "exit_time_per_op",
    "userspace_exits": "userspace_exits_per_op",
}
"""Metrics that are counted in `exits_window`. `exits` are KVM's own, of the snapshots' window, only
if the reasons are unknown."""


def per_operation_readings(trial: RawTrial) -> Iterator[Reading]:
    """Return ops_per_cpu_s, exits_per_op, cycles_per_op and misses per operation from a trial's
    other readings, and exits by reason per operation where they are known."""
    known = Known(trial.readings)

    def operations() -> float:
        if trial.rate_metric is None:
            raise MissingReadingError("the workload runs at a fixed pace.")
        return known.positive("operations")

    def per_operation(count: float) -> Callable[[], float]:
        return lambda: count / operations()

    yield _reading(
        "ops_per_cpu_s",
        lambda: operations() / known.all_cpu_s(trial.kind),
        stored(trial.folder, RUNNER) if trial.kind == "native" else snapshots.RAW,
    )
    # Sources of one trial all have the same window.
    sources = (
        one.source for one in trial.readings if isinstance(one, Sample) and one.metric == "exits"
    )
    exits_from = next(sources, snapshots.RAW)
    window = "host_window" if exits_from == snapshots.RAW else "exits_window"
    yield _reading(
        "exits_per_op",
        lambda: known.value("exits") * known.value(window) / operations(),
        exits_from,
    )
    yield from _breakdown(trial.readings, known, window, operations)
    # Shown beside IPC, which spinning raises (METHOD rule 12).
    yield _reading(
        "cycles_per_op",
        lambda: known.value("user_cycles") / operations(),
        perf_stat.RAW,
    )
    for missed in trial.readings:
        if isinstance(missed, Sample) and missed.metric in _MISSES:
            yield _reading(
                f"{missed.metric}_per_op",
                per_operation(missed.value),
                perf_stat.RAW,
                missed.labels,
            )


def net_readings(trial: RawTrial) -> Iterator[Reading]:
    """Return vcpu_cpu_net: CPU time of the vCPU threads without KVM's halt polling (METHOD rule
    14)."""
    if trial.kind != "guest":
        return
    known = Known(trial.readings)
    yield _reading(
        "vcpu_cpu_net",
        lambda: (
            known.value("host_cpu{thread=vcpu}")
            - known.value("halt_poll_time{result=success}")
            - known.value("halt_poll_time{result=fail}")
        ),
        snapshots.RAW,
    )


def _breakdown(
    readings: Iterable[Reading], known: Known, window: str, operations: Callable[[], float]
) -> Iterator[Reading]:
    """Return exits by vCPU and reason, their time and returns to QEMU, per operation; missing
    readings are left out. `window`: that of the exits."""
    for one in readings:
        if not isinstance(one, Sample) or one.metric not in _PER_OPERATION:
            continue
        if one.metric == "exits" and not one.labels:
            continue  # exits_per_op itself
        metric = _PER_OPERATION[one.metric]
        counted_in = window if one.metric == "exits" else "exits_window"
        try:
            value = one.value * known.value(counted_in) / operations()
        except MissingReadingError:
            continue  # exits_per_op has the reason
        yield sample(metric, value, source=one.source, labels=one.labels)


def _reading(
    metric: str,
    compute: Callable[[], float],
    source: str,
    labels: Mapping[str, str] | None = None,
) -> Reading:
    labels = labels or {}
    try:
        return sample(metric, compute(), source=source, labels=labels)
    except MissingReadingError as error:
        return Unavailable(metric=sample_key(metric, labels), reason=str(error))


NET = Source(order=110, parse=net_readings)
PER_OPERATION = Source(order=150, parse=per_operation_readings)
"""Last: it divides the others' results."""
