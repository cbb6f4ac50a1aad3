"""VM exits and halt polling: KVM's own counters, through QEMU's query-stats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from labctl.base.errors import BrokenError
from labctl.base.units import Better, Unit
from labctl.collect.snapshots import RAW, Snapshots, read_snapshots
from labctl.store.samples import Reading, Sample, Unavailable
from labctl.store.trial import TrialFolder

KEY = "query_stats"
METRICS = ("exits", "halt_poll", "halt_poll_time")

# KVM counts polls that were attempted and those that succeeded (virt/kvm/kvm_main.c,
# kvm_vcpu_halt); the rest failed.
_POLLS, _SUCCESSES = "halt_attempted_poll", "halt_successful_poll"
_POLL_NS = {"success": "halt_poll_success_ns", "fail": "halt_poll_fail_ns"}

Stats = Mapping[str, Mapping[str, int]]
"""vCPU (its QOM path) to its cumulative counters."""


def parse(raw: TrialFolder, *, accelerator: str) -> Iterator[Reading]:
    """exits, halt_poll{result=...} and halt_poll_time{result=...}, over all vCPUs of the VM.

    `accelerator`: "kvm" or "tcg". Raises BrokenError when host.json isn't whole.
    """
    snapshots = read_snapshots(raw)
    if snapshots.is_native:
        # No guest, no exits: the one metric that is 0 by definition.
        yield _per_second("exits", 0, snapshots, {})
        return
    if accelerator == "tcg":
        yield from _unavailable("emulated: no VM exits.")
        return
    if KEY not in snapshots.before or KEY not in snapshots.after:
        yield from _unavailable("QEMU was not asked for KVM's statistics.")
        return
    before, after = (
        _vcpu_stats(taken[KEY], snapshots.where) for taken in (snapshots.before, snapshots.after)
    )
    if not before or before.keys() != after.keys():
        yield from _unavailable(
            "KVM of this host tells QEMU no statistics (Linux before 5.14), or its vCPUs changed."
        )
        return
    changes: dict[str, int] = {}
    for name in ("exits", _POLLS, _SUCCESSES, *_POLL_NS.values()):
        if all(name in stats for stats in (*before.values(), *after.values())):
            by_vcpu = [stats[name] - before[vcpu][name] for vcpu, stats in after.items()]
            if min(by_vcpu) < 0:
                reason = "KVM's counters went backwards: the guest was started anew."
                yield from _unavailable(reason)
                return
            changes[name] = sum(by_vcpu)
    yield from _readings(changes, snapshots)


def _readings(changes: Mapping[str, int], snapshots: Snapshots) -> Iterator[Reading]:
    if "exits" in changes:
        yield _per_second("exits", changes["exits"], snapshots, {})
    else:
        yield Unavailable(metric="exits", reason="KVM of this host doesn't count 'exits'.")
    if _POLLS in changes and _SUCCESSES in changes:
        succeeded = changes[_SUCCESSES]
        for result, count in (("success", succeeded), ("fail", changes[_POLLS] - succeeded)):
            yield _per_second("halt_poll", count, snapshots, {"result": result})
    else:
        yield Unavailable(metric="halt_poll", reason="KVM of this host doesn't count halt polls.")
    for result, name in _POLL_NS.items():
        if name in changes:
            yield Sample(
                metric="halt_poll_time",
                value=changes[name] / 1e9 / snapshots.seconds,
                unit=Unit.CPUS,
                better=Better.NEITHER,
                labels={"result": result},
                source=RAW,
            )
        else:
            reason = f"KVM of this host doesn't count '{name}'."
            yield Unavailable(metric=f"halt_poll_time{{result={result}}}", reason=reason)


def _vcpu_stats(answers: Any, where: str) -> Stats:
    """Counters by vCPU from the answers to query-stats for target "vcpu" and target "vm".

    QEMU's schema: a list of {provider, qom-path (for vCPUs), stats: [{name, value}]}; a value
    is a number, a truth value, or a list (a histogram).
    """
    found: dict[str, dict[str, int]] = {}
    try:
        entries = [entry for answer in answers for entry in answer]
        for entry in entries:
            if "qom-path" not in entry or entry["provider"] != "kvm":
                continue
            found[entry["qom-path"]] = {
                stat["name"]: stat["value"] for stat in entry["stats"] if type(stat["value"]) is int
            }
    except (KeyError, TypeError) as error:
        raise BrokenError(
            f"{where}: expected QEMU's answers to query-stats in '{KEY}', found something else "
            f"({error!r})"
        ) from error
    return found


def _unavailable(reason: str) -> Iterator[Reading]:
    for metric in METRICS:
        yield Unavailable(metric=metric, reason=reason)


def _per_second(metric: str, count: int, snapshots: Snapshots, labels: Mapping[str, str]) -> Sample:
    return Sample(
        metric=metric,
        value=count / snapshots.seconds,
        unit=Unit.PER_SECOND,
        better=Better.LOWER if metric == "exits" else Better.NEITHER,
        labels=labels,
        source=RAW,
    )
