"""Metrics that are made of two others of the same trial."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from labctl.base.units import Better, Unit
from labctl.store.samples import Reading, Sample, Unavailable

GUEST_ROLES = ("vcpu", "emulator", "iothread", "vhost")
"""Whose CPU time a guest costs the host (METHOD rule 2)."""


def per_operation_readings(
    readings: Iterable[Reading], *, rate_metric: str | None, kind: str
) -> Iterator[Reading]:
    """ops_per_cpu_s and exits_per_op from a trial's readings.

    `rate_metric` holds operations per second; None: the workload has no rate to divide by.
    """
    found = list(readings)
    samples = {r.key: r for r in found if isinstance(r, Sample)}
    missing = {r.metric: r.reason for r in found if isinstance(r, Unavailable)}
    rate = samples.get(rate_metric) if rate_metric is not None else None
    if rate is None or rate.value <= 0:
        reason = "the workload has no rate of operations: it runs at a fixed pace."
        if rate_metric is not None:
            reason = missing.get(rate_metric, f"{rate_metric} is not above 0.")
        yield Unavailable(metric="ops_per_cpu_s", reason=reason)
        yield Unavailable(metric="exits_per_op", reason=reason)
        return
    yield _per_cpu_second(rate, samples, missing, kind)
    yield _exits(rate, samples, missing)


def _per_cpu_second(
    rate: Sample, samples: Mapping[str, Sample], missing: Mapping[str, str], kind: str
) -> Reading:
    """Operations per CPU second that the host spent on them: on all of a guest's threads
    together, natively on the workload."""
    roles: Sequence[str] = GUEST_ROLES if kind == "guest" else ("workload",)
    keys = [f"host_cpu{{thread={role}}}" for role in roles]
    for key in keys:
        if key in missing:
            return Unavailable(metric="ops_per_cpu_s", reason=missing[key])
    # A guest need not have iothreads or vhost workers, but what runs it is always there.
    if keys[0] not in samples:
        return Unavailable(metric="ops_per_cpu_s", reason=f"there is no {keys[0]}.")
    used = sum(samples[key].value for key in keys if key in samples)
    if used <= 0:
        return Unavailable(metric="ops_per_cpu_s", reason="no CPU time was used.")
    return Sample(
        metric="ops_per_cpu_s",
        value=rate.value / used,
        unit=Unit.OPERATIONS_PER_CPU_SECOND,
        better=Better.HIGHER,
        source=samples[keys[0]].source,
    )


def _exits(rate: Sample, samples: Mapping[str, Sample], missing: Mapping[str, str]) -> Reading:
    if "exits" not in samples:
        reason = missing.get("exits", "VM exits were not counted.")
        return Unavailable(metric="exits_per_op", reason=reason)
    return Sample(
        metric="exits_per_op",
        value=samples["exits"].value / rate.value,
        unit=Unit.PER_OPERATION,
        better=Better.LOWER,
        source=samples["exits"].source,
    )
